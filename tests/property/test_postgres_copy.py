"""COPY's binary form: rows written in pieces of any size are read back; damaged bytes are refused or read, never
more."""

import contextlib
import struct
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.readers.postgres.snapshot.copy_rows import CopiedRows
from tidemark.state.errors import DamagedLogError, SourceNotUsableError
from tidemark.state.table import Column, TableId, TableSchema

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
DAY_ONE = date(2000, 1, 1)
KINDS = {
    "id": "int64",
    "small": "int16",
    "whole": "int32",
    "flag": "bool",
    "double": "float64",
    "note": "string",
    "blob": "binary",
    "amount": "decimal(38,7)",
    "day": "date32",
    "moment": "timestamp",
}
SCHEMA = TableSchema(
    TableId("public", "t"), 1, tuple(Column(name, "", kind, nullable=True) for name, kind in KINDS.items()), ("id",)
)


def numeric(value: Decimal) -> bytes:
    """A numeric as the server's numeric_send writes it."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    whole, fraction = (text[:exponent], text[exponent:]) if exponent < 0 else (text + "0" * exponent, "")
    fraction = "0" * (-exponent - len(text)) + fraction if exponent < 0 else fraction
    whole, padded = whole.zfill(-(-len(whole) // 4) * 4), fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int((whole + padded)[i : i + 4]) for i in range(0, len(whole + padded), 4)]
    collation_key = len(whole) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        collation_key -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    if not groups:
        collation_key, sign = 0, 0
    return struct.pack(f">hhHH{len(groups)}h", len(groups), collation_key, 0x4000 * sign, max(0, -exponent), *groups)


def encoded(kind: str, value: Any) -> bytes:
    match kind:
        case "int64":
            return struct.pack(">q", value)
        case "int32":
            return struct.pack(">i", value)
        case "int16":
            return struct.pack(">h", value)
        case "bool":
            return bytes([value])
        case "float64":
            return struct.pack(">d", value)
        case "string":
            return str(value).encode()
        case "binary":
            return bytes(value)
        case "date32":
            return struct.pack(">i", (value - DAY_ONE).days)
        case "timestamp":
            return struct.pack(">q", (value - datetime(2000, 1, 1)) // timedelta(microseconds=1))
        case _:
            return numeric(value)


def stream(rows: list[tuple[Any, ...]]) -> bytes:
    out = [SIGNATURE]
    for row in rows:
        out.append(struct.pack(">h", len(row)))
        for kind, value in zip(KINDS.values(), row, strict=True):
            data = None if value is None else encoded(kind, value)
            out += [struct.pack(">i", -1)] if data is None else [struct.pack(">i", len(data)), data]
    return b"".join([*out, TRAILER])


def read(pieces: list[bytes], buffer_bytes: int = 64) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    rows = CopiedRows(SCHEMA, buffer_bytes, batches.append)
    for piece in pieces:
        rows.write(memoryview(piece))
    rows.finish()
    return pa.Table.from_batches(batches, SCHEMA.arrow_schema())


def exact(unscaled: int, scale: int) -> Decimal:
    return Decimal(f"{unscaled}e-{scale}")  # arithmetic would round to the context's 28 digits


DECIMALS = st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: exact(n, 7))
SPARSE = st.tuples(st.sampled_from([1, -1, 99, 10**4, -(10**8)]), st.integers(0, 29)).map(
    lambda p: exact(p[0] * 10 ** p[1], 7)
)
VALUES = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "string": st.text(st.characters(exclude_categories=("Cs",)), max_size=30),
    "binary": st.binary(max_size=30),
    "decimal(38,7)": DECIMALS | SPARSE,
    "date32": st.dates(),
    "timestamp": st.datetimes(),
}
ROWS = st.lists(st.tuples(*(st.none() | VALUES[kind] for kind in KINDS.values())), max_size=20)


@st.composite
def in_pieces(draw: st.DrawFn) -> tuple[list[tuple[Any, ...]], list[bytes]]:
    rows = draw(ROWS)
    whole = stream(rows)
    boundaries = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    return rows, [whole[a:b] for a, b in zip([0, *boundaries], [*boundaries, len(whole)], strict=True)]


@given(in_pieces(), st.sampled_from([1, 64, 300, 1 << 20]))
def test_rows_in_any_pieces_are_read_back(
    given_rows: tuple[list[tuple[Any, ...]], list[bytes]], buffer_bytes: int
) -> None:
    rows, pieces = given_rows
    found = read(pieces, buffer_bytes)
    found.validate(full=True)
    assert found.equals(
        pa.Table.from_arrays(
            [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(SCHEMA.arrow_schema())],
            schema=SCHEMA.arrow_schema(),
        )
    )


@given(st.data(), st.integers(1, 38))
def test_numerics_of_every_precision_and_scale(data: st.DataObject, precision: int) -> None:
    scale = data.draw(st.integers(0, precision))
    unscaled = data.draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    value = exact(unscaled, scale)
    schema = TableSchema(SCHEMA.table, 1, (Column("n", "", f"decimal({precision},{scale})", nullable=True),), ())
    batches: list[pa.RecordBatch] = []
    rows = CopiedRows(schema, 1, batches.append)
    data_bytes = numeric(value)
    rows.write(SIGNATURE + struct.pack(">hi", 1, len(data_bytes)) + data_bytes + TRAILER)
    rows.finish()
    assert [batch["n"].to_pylist() for batch in batches] == [[value]]


SAMPLE = stream(
    [
        (1, 2, 3, True, 0.5, "ä", b"\0", Decimal("-12345.6789012"), date(2024, 2, 29), datetime(1969, 12, 31)),
        (None,) * 10,
    ]
)


@pytest.mark.pitfall(88)
@example(len(SIGNATURE), 0x7F, len(SAMPLE))
@example(0, 0, len(SIGNATURE) - 1)
@given(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255), st.integers(0, len(SAMPLE)))
def test_damaged_bytes_are_refused_or_read(place: int, byte: int, length: int) -> None:
    damaged = bytearray(SAMPLE)
    damaged[place] = byte
    with contextlib.suppress(DamagedLogError, SourceNotUsableError):
        read([bytes(damaged)]).validate(full=True)
    if length < len(SAMPLE):
        with pytest.raises(DamagedLogError):
            read([SAMPLE[:length]])
    with pytest.raises(DamagedLogError):
        read([SAMPLE, b"\0"])
