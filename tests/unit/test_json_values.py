"""Values of JSON Lines are found as the sink has written them, and lines in other forms are brought into its form."""

import io
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.sinks.files import json_values
from tidemark.sinks.files.json_values import LineValues, NotALineError, values_in, values_of
from tidemark.sinks.rows.json_lines import json_rows
from tidemark.state.table import Column, TableId, TableSchema

SCHEMA = TableSchema(
    TableId("shop", "notes"),
    1,
    (
        Column("id", "bigint", "int64", nullable=False),
        Column("big", "bigint unsigned", "decimal(20,0)", nullable=False),
        Column('a "né"', "text", "string", nullable=True),
        Column("weight", "double", "float64", nullable=True),
        Column("raw", "varbinary(9)", "binary", nullable=False),
        Column("many", "text[]", "list<string>", nullable=True),
    ),
    ("id", "big", "raw"),
)
NAMES = [column.name for column in SCHEMA.captured]
texts = st.text(max_size=12) | st.text('\0\n"\\/ué,]}{: \x1f\x7f', max_size=9)
ROWS = st.lists(
    st.tuples(
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2**64 - 1).map(Decimal),
        st.none() | texts,
        st.none() | st.floats(),
        st.binary(max_size=5),
        st.none() | st.lists(st.none() | texts, max_size=3),
    ),
    min_size=1,
    max_size=8,
)


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    schema = SCHEMA.arrow_schema()
    columns = [pa.array(list(values), kind) for values, kind in zip(zip(*rows, strict=True), schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def read(lines: bytes) -> list[tuple[bytes, ...]]:
    return [row for values in values_of(lines, SCHEMA) for row in zip(*(values.texts(n) for n in NAMES), strict=True)]


def in_other_forms(line: str, form: int) -> str:
    row = json.loads(line)
    if form == 1:
        return json.dumps(row)
    if form == 2:
        return json.dumps(dict(reversed(row.items())), ensure_ascii=False, separators=(" ,\t", " : ")) + " "
    return line


@given(ROWS, st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_values_are_the_same_in_each_form_of_a_line(rows: list[tuple[Any, ...]], forms: list[int]) -> None:
    written = bytes(json_rows(batch_of(rows)).data)
    values = list(values_of(written, SCHEMA))
    assert [len(each) for each in values] == [len(rows)], "the sink's own lines are read at once"
    found = read(written)
    assert [json.loads(b"[" + b",".join(row) + b"]") for row in found] == [
        list(json.loads(line).values()) for line in written.decode().split("\n")[:-1]
    ]
    changed = [in_other_forms(line, form) for line, form in zip(written.decode().split("\n")[:-1], forms, strict=False)]
    assert read("".join(f"{line}\n" for line in changed).encode()) == found
    keys = [values[0].keys(SCHEMA, name).to_pylist() for name in SCHEMA.key]
    assert keys == [[r[0] for r in rows], [r[1] for r in rows], ["0x" + r[4].hex() for r in rows]]


def lines_of(count: int) -> bytes:
    return b"".join(b'{"id":%d,"big":"1","_change_type":"delete","_seq":%d}\n' % (i - 5, i) for i in range(count))


def test_files_are_read_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "BLOCK_BYTES", 100)
    data = lines_of(50) + b"\n" + lines_of(3).removesuffix(b"\n")
    values = list(values_in(io.BytesIO(data), SCHEMA))
    assert len(values) > 10
    numbers = [number for each in values for number in each.integers("id").to_pylist()]
    assert numbers == [*range(-5, 45), -5, -4, -3]
    assert {kind for each in values for kind in each.kinds().to_pylist()} == {3}
    monkeypatch.setattr(json_values, "MAX_LINE_BYTES", 40)
    with pytest.raises(NotALineError, match="more than"):
        list(values_in(io.BytesIO(data), SCHEMA))


def test_lines_with_other_columns_are_read_at_once_too() -> None:
    data = lines_of(9) + b'{"id":1,"raw":"AA==","more":7}\n' * 9 + lines_of(9)
    values = list(values_of(data, SCHEMA))
    assert [len(each) for each in values] == [9, 9, 9]
    assert values[1].column("big") is None
    assert values[1].keys(SCHEMA, "raw").to_pylist() == ["0x00"] * 9


def test_many_lines_in_another_form_are_rewritten_together() -> None:
    values: list[LineValues] = list(values_of(lines_of(100).replace(b":", b": "), SCHEMA))
    assert sum(map(len, values)) == 100
    assert len(values) < 9


def test_an_object_is_no_text() -> None:
    column = NAMES[2]
    one, other = ({"id": 1, column: value} for value in ({"a": 1}, '{"a": 1}'))
    found = [next(iter(values_of(json.dumps(row).encode() + b"\n", SCHEMA))).texts(column) for row in (one, other)]
    assert found[0] != found[1]


@pytest.mark.parametrize("line", [b"[1]", b'{"id":1', b'{"id":1}}', b"nothing", b'{"id":1,}'])
def test_what_is_no_object_is_refused(line: bytes) -> None:
    with pytest.raises(NotALineError):
        list(values_of(line + b"\n", SCHEMA))
