"""The compiled decoders against the plain ones: every type, every null pattern, truncated and damaged bytes."""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import decode_oracle as oracle
from tests.support import result_oracle
from tests.support.oracle_values import RefusedError
from tidemark.readers.mysql.decoding.arrow import decode_error, to_arrow
from tidemark.readers.mysql.decoding.columns import ColumnPlan
from tidemark.readers.mysql.decoding.decode import ColumnBuffers, decode_image, decode_result_row, decode_results
from tidemark.readers.mysql.decoding.field_types import split_metadata
from tidemark.readers.mysql.schema.types import canonical_type
from tidemark.state.errors import DamagedLogError, SchemaChangedError, SourceNotUsableError
from tidemark.state.table import Column, TableId, TableSchema

TABLE = TableId("shop", "things")
BEFORE = 7  # bytes in front, so that offset 0 is never right by chance


def integers(bits: int, *, unsigned: bool) -> st.SearchStrategy[int]:
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return st.one_of(st.sampled_from((low, high, 0)), st.integers(low, high))


@st.composite
def integer_columns(draw: st.DrawFn) -> tuple[str, str | None, st.SearchStrategy[Any]]:
    base, bits = draw(
        st.sampled_from((("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64)))
    )
    unsigned = draw(st.booleans())
    values: st.SearchStrategy[Any] = integers(bits, unsigned=unsigned)
    if base == "bigint" and unsigned:
        values = values.map(Decimal)
    return f"{base} unsigned" if unsigned else base, None, values


@st.composite
def decimal_columns(draw: st.DrawFn) -> tuple[str, str | None, st.SearchStrategy[Any]]:
    precision = draw(st.integers(1, 65))
    scale = draw(st.integers(0, min(precision, 38)))
    greatest = 10**precision - 1
    unscaled = st.one_of(st.sampled_from((0, 1, -1, greatest, -greatest)), st.integers(-greatest, greatest))

    def value(number: int) -> Any:
        text = f"{abs(number):0{scale + 1}d}"
        text = f"{text[: len(text) - scale]}.{text[len(text) - scale :]}" if scale else text
        text = f"-{text}" if number < 0 else text
        return text if precision > 38 else Decimal(text)

    return f"decimal({precision},{scale})", None, unscaled.map(value)


@st.composite
def moment_columns(draw: st.DrawFn) -> tuple[str, str | None, st.SearchStrategy[Any]]:
    base, digits = draw(st.sampled_from(("datetime", "timestamp", "time"))), draw(st.integers(0, 6))
    unit = 10 ** (6 - digits)
    if base == "time":
        greatest = (838 * 3600 + 59 * 60 + 59) * 10**6
        values: st.SearchStrategy[Any] = st.integers(-greatest // unit, greatest // unit).map(
            lambda n: time_text(n * unit, digits)
        )
    elif base == "datetime":
        values = st.datetimes(datetime(1, 1, 1)).map(
            lambda t: t.replace(microsecond=t.microsecond // unit * unit, fold=0)
        )
    else:
        values = st.integers(10**6, (1 << 32) * 10**6 - 1).map(
            lambda n: datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=n // unit * unit)
        )
    return f"{base}({digits})" if digits else base, None, values


def time_text(micros: int, digits: int) -> str:
    seconds, part = divmod(abs(micros), 10**6)
    fraction = f".{part:06d}"[: digits + 1] if digits else ""
    sign = "-" if micros < 0 else ""
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"


@st.composite
def bit_columns(draw: st.DrawFn) -> tuple[str, str | None, st.SearchStrategy[Any]]:
    bits = draw(st.integers(1, 64))
    values: st.SearchStrategy[Any] = integers(bits, unsigned=True)
    return f"bit({bits})", None, values.map(Decimal) if bits == 64 else values


@st.composite
def text_columns(draw: st.DrawFn) -> tuple[str, str | None, st.SearchStrategy[Any]]:
    charset, alphabet = draw(
        st.sampled_from(
            (
                ("utf8mb4", "aé€😀\0 "),
                ("utf8mb3", "aé€"),
                ("ascii", "abc\x7f"),
                ("koi8r", "aфЯ█"),
                ("gbk", "a你好€"[:3]),
            )
        )
    )
    base, length = draw(
        st.sampled_from((("varchar", 20), ("varchar", 300), ("char", 9), ("tinytext", 0), ("text", 0), ("longtext", 0)))
    )
    values = st.text(alphabet, max_size=min(length or 60, 60))
    return f"{base}({length})" if length else base, charset, values.map(str.rstrip) if base == "char" else values


@st.composite
def byte_columns(draw: st.DrawFn) -> tuple[str, str | None, st.SearchStrategy[Any]]:
    base, length = draw(
        st.sampled_from(
            (("varbinary", 20), ("varbinary", 300), ("binary", 9), ("blob", 0), ("mediumblob", 0), ("geometry", 0))
        )
    )
    values = st.binary(max_size=length or 400)
    if base == "binary":
        values = values.map(lambda value: value.ljust(length, b"\0"))
    return f"{base}({length})" if length else base, None, values


@st.composite
def label_columns(draw: st.DrawFn) -> tuple[str, str | None, st.SearchStrategy[Any]]:
    count = draw(st.sampled_from((1, 2, 8, 9, 30, 64)))
    labels = tuple(f"é{i}" for i in range(count))
    listed = ",".join(f"'{label}'" for label in labels)
    if draw(st.booleans()):
        return f"enum({listed})", "utf8mb4", st.sampled_from(("", *labels))
    subsets = st.sets(st.integers(0, count - 1)).map(lambda chosen: ",".join(labels[i] for i in sorted(chosen)))
    return f"set({listed})", "utf8mb4", subsets


def other_columns() -> st.SearchStrategy[tuple[str, str | None, st.SearchStrategy[Any]]]:
    floats = st.floats(width=32, allow_nan=False)
    return st.sampled_from(
        (
            ("float", None, floats),
            ("double", None, st.floats(allow_nan=False)),
            ("year", None, st.sampled_from((0, 1901, 2000, 2155))),
            ("date", None, st.dates(date(1, 1, 1))),
            ("vector(9)", None, st.lists(floats, max_size=9)),
            ("uuid", None, st.uuids().map(str)),
            ("uuid", None, st.just(str(UUID(int=1 << 100)))),
            ("inet4", None, st.ip_addresses(v=4).map(str)),
        )
    )


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableSchema, list[Any]]:
    """A table and one row of it."""
    kinds = st.one_of(
        integer_columns(),
        decimal_columns(),
        moment_columns(),
        bit_columns(),
        text_columns(),
        byte_columns(),
        label_columns(),
        other_columns(),
    )
    columns, row = [], []
    for i, (source_type, charset, values) in enumerate(draw(st.lists(kinds, min_size=1, max_size=20))):
        name = f"c{i}"
        arrow_type = canonical_type(TABLE, name, source_type, charset)
        columns.append(Column(name, source_type, arrow_type, nullable=True, charset=charset))
        row.append(draw(st.one_of(st.none(), values, values, values)))
    return TableSchema(TABLE, 1, tuple(columns), ()), row


def log_plan(schema: TableSchema) -> ColumnPlan:
    kinds, metadata, labels = oracle.table_map(schema)
    return ColumnPlan.for_log(schema, kinds, split_metadata(kinds, metadata), labels=labels)


def decoded_image(schema: TableSchema, data: bytes) -> tuple[list[Any], int]:
    """The row by the compiled loop. Raises the error that the loop's code means."""
    plan = log_plan(schema)
    count = len(schema.columns)
    present = b"\xff" * ((count + 7) // 8)
    whole = bytes(BEFORE) + present + data
    buf = np.frombuffer(bytearray(whole), np.uint8)
    buffers = ColumnBuffers.empty(count, 3)
    start = BEFORE + len(present)
    after = decode_image(
        buf,
        start,
        len(whole),
        BEFORE,
        count,
        plan.code,
        plan.meta,
        plan.wanted,
        buffers.lo,
        buffers.hi,
        buffers.valid,
        2,
    )
    if after < 0:
        raise decode_error(plan, after, "test")
    arrays = to_arrow(plan, buf, buffers, np.array([2]), zero_dates_null=True)
    return only_row(arrays), after - start


def decoded_result_row(schema: TableSchema, payload: bytes) -> list[Any]:
    plan = ColumnPlan.for_result(schema)
    whole = bytes(BEFORE) + payload
    buf = np.frombuffer(bytearray(whole), np.uint8)
    buffers = ColumnBuffers.empty(len(schema.columns), 1)
    after = decode_result_row(buf, BEFORE, len(whole), plan.code, plan.meta, buffers.lo, buffers.hi, buffers.valid, 0)
    if after < 0:
        raise decode_error(plan, after, "test")
    arrays = to_arrow(plan, buf, buffers, 1, zero_dates_null=True)
    return only_row(arrays)


def only_row(arrays: list[pa.Array]) -> list[Any]:
    for array in arrays:
        array.validate(full=True)
    values = [array[0].as_py() for array in arrays]
    return [value.astimezone(timezone.utc) if getattr(value, "tzinfo", None) else value for value in values]


def outcome(read: Callable[[], Any]) -> str:
    """The values, with NaNs being equal, or `refused`."""
    try:
        return repr(read())
    except (DamagedLogError, SchemaChangedError, SourceNotUsableError, RefusedError):
        return "refused"


@given(tables())
def test_images_read_as_they_were_written(case: tuple[TableSchema, list[Any]]) -> None:
    schema, row = case
    data = oracle.write_image(schema, row)
    assert oracle.read_image(schema, data) == (row, len(data))
    values, used = decoded_image(schema, data)
    assert (repr(values), used) == (repr(row), len(data))


@given(tables())
def test_result_rows_read_as_they_were_written(case: tuple[TableSchema, list[Any]]) -> None:
    schema, row = case
    payload = result_oracle.write_result_row(schema, row)
    assert result_oracle.read_result_row(schema, payload) == row
    assert repr(decoded_result_row(schema, payload)) == repr(row)


@pytest.mark.pitfall(88)
@given(tables(), st.data())
def test_torn_images_are_refused(case: tuple[TableSchema, list[Any]], data: st.DataObject) -> None:
    schema, row = case
    image = oracle.write_image(schema, row)
    torn = image[: data.draw(st.integers(0, len(image) - 1))]
    with pytest.raises(DamagedLogError):
        decoded_image(schema, torn)
    with pytest.raises(RefusedError):
        oracle.read_image(schema, torn)


@pytest.mark.pitfall(88)
@given(tables(), st.data())
def test_torn_result_rows_are_refused(case: tuple[TableSchema, list[Any]], data: st.DataObject) -> None:
    schema, row = case
    payload = result_oracle.write_result_row(schema, row)
    with pytest.raises(DamagedLogError):
        decoded_result_row(schema, payload[: data.draw(st.integers(0, len(payload) - 1))])


def damage(data: st.DataObject, content: bytes) -> bytes:
    """The data with some bytes changed, cut out or put in."""
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(damaged) - 1, 0)))
        replacement = data.draw(st.one_of(st.binary(max_size=3), st.sampled_from((b"\xff", b"\0", b"\xfc", b"\xfe"))))
        damaged[at : at + data.draw(st.integers(0, 3))] = replacement
    return bytes(damaged)


@pytest.mark.pitfall(88)
@given(tables(), st.data())
def test_damaged_images_give_what_the_plain_reader_gives(
    case: tuple[TableSchema, list[Any]], data: st.DataObject
) -> None:
    schema, row = case
    damaged = damage(data, oracle.write_image(schema, row))
    assert outcome(lambda: decoded_image(schema, damaged)) == outcome(lambda: oracle.read_image(schema, damaged))


@pytest.mark.pitfall(88)
@given(tables(), st.data())
def test_damaged_result_rows_give_what_the_plain_reader_gives(
    case: tuple[TableSchema, list[Any]], data: st.DataObject
) -> None:
    schema, row = case
    damaged = damage(data, result_oracle.write_result_row(schema, row))
    compiled = outcome(lambda: decoded_result_row(schema, damaged))
    assert compiled == outcome(lambda: result_oracle.read_result_row(schema, damaged))


@given(tables(), st.integers(0, 255), st.integers(1, 4), st.data())
def test_results_stop_at_what_is_not_a_whole_row(
    case: tuple[TableSchema, list[Any]], sequence: int, capacity: int, data: st.DataObject
) -> None:
    """Three rows and an end packet, cut anywhere: the loop gives the rows that are whole and have room, then the reason
    to stop."""
    schema, row = case
    plan = ColumnPlan.for_result(schema)
    payload = result_oracle.write_result_row(schema, row)
    packets = [
        len(content).to_bytes(3, "little") + bytes(((sequence + i) & 255,)) + content
        for i, content in enumerate((payload, payload, payload, b"\xfe\0\0\2\0"))
    ]
    stream = b"".join(packets)
    size = data.draw(st.integers(0, len(stream)))
    buf = np.frombuffer(bytearray(stream), np.uint8)
    buffers = ColumnBuffers.empty(len(schema.columns), capacity)
    state = np.array([0, 0, 0, sequence])
    rows = decode_results(buf, 0, size, plan.code, plan.meta, buffers.lo, buffers.hi, buffers.valid, 0, state)
    whole = min(size // len(packets[0]), 3)
    assert rows == min(whole, capacity)
    stopped_by = -1 if size < len(packets[0]) * (rows + 1) else 0
    if rows == 3:
        stopped_by = 254 if size == len(stream) else -1
    assert state.tolist() == [rows * len(packets[0]), stopped_by, rows, (sequence + rows) & 255]


@pytest.mark.pitfall(88)
def test_nothing_is_read_out_of_bounds() -> None:
    """Runs the same tests with every array index checked, in machine code of its own, which is kept between runs."""
    cache = Path.home() / ".cache" / "tidemark" / "boundscheck"
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache)}
    chosen = [
        f"{__file__}::{test.__name__}"
        for test in (
            test_damaged_images_give_what_the_plain_reader_gives,
            test_damaged_result_rows_give_what_the_plain_reader_gives,
        )
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *chosen],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
