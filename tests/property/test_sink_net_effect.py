"""The net effect of changes against applying them one by one."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.mirror.net_effect import net_effect
from state.change_batch import ChangeType
from state.errors import SinkError
from state.table import TableId, TableSchema
from tests.support.change_parts import DELETE, INSERT, UPDATE, column, rows

KINDS = st.sampled_from([INSERT, UPDATE, DELETE, ChangeType.UPDATE_PREIMAGE])
WIDE = TableSchema(
    TableId("shop", "wide"),
    1,
    (
        column("text", "varchar(9)", "string", key=True),
        column("number", "bigint", "int64", key=True),
        column("value", "int", "int32"),
        column("bytes", "varbinary(9)", "binary", key=True),
    ),
    ("number", "bytes", "text"),
)
ROWS = st.tuples(
    st.sampled_from(["", "a", "A", "a ", "é"]),
    st.sampled_from([-(2**63), 0, 1, 2**63 - 1]),
    st.none() | st.integers(0, 9),
    st.sampled_from([b"", b"\0", b"\0\0"]),
)


@pytest.mark.pitfall(78)
@given(st.lists(st.tuples(KINDS, ROWS), max_size=60))
def test_deleting_the_touched_and_inserting_the_rest_is_the_same(
    changes: list[tuple[ChangeType, tuple[object, ...]]],
) -> None:
    expected: dict[tuple[object, ...], tuple[object, ...]] = {}
    touched = set()
    for kind, row in changes:
        key = (row[1], row[3], row[0])
        if kind is ChangeType.UPDATE_PREIMAGE:
            continue
        touched.add(key)
        if kind is DELETE:
            expected.pop(key, None)
        else:
            expected[key] = row
    effect = net_effect(WIDE, rows(WIDE, changes))
    keys = [tuple(row.values()) for row in effect.touched.to_pylist()]
    assert sorted(keys) == sorted(touched) == keys
    kept = [tuple(row.values()) for row in effect.rows.to_pylist()]
    assert sorted(kept, key=repr) == sorted(expected.values(), key=repr)


def test_many_key_columns_do_not_overflow() -> None:
    names = [f"k{i}" for i in range(12)]
    schema = TableSchema(
        TableId("shop", "keys"), 1, tuple(column(name, "bigint", "int64", key=True) for name in names), tuple(names)
    )
    listed = [(INSERT, [(n * 7919 + i) % 1009 for i in range(12)]) for n in range(5000)]
    expected = {tuple(values) for _, values in listed}
    effect = net_effect(schema, rows(schema, listed))
    assert {tuple(row.values()) for row in effect.rows.to_pylist()} == expected
    assert effect.rows.num_rows == len(expected)


@pytest.mark.pitfall(19)
def test_null_in_a_key_is_refused() -> None:
    with pytest.raises(SinkError, match="key column number is null"):
        net_effect(WIDE, rows(WIDE, [(INSERT, ("a", None, 1, b""))]))


def test_rows_keep_their_types() -> None:
    effect = net_effect(WIDE, rows(WIDE, [(INSERT, ("a", 1, None, b""))]))
    assert effect.rows.schema == WIDE.arrow_schema()
    assert effect.touched.schema.names == ["number", "bytes", "text"]
    assert effect.touched.schema.field("number").type == pa.int64()
