"""Rows of binary results, written and read in plain Python, beside decode_oracle.py."""

import struct
from collections.abc import Sequence
from datetime import timezone
from decimal import Decimal
from typing import Any

from tests.support.decode_oracle import INTEGER_BYTES, read_image_value, write_image_value
from tests.support.oracle_values import (
    CODECS,
    Reader,
    RefusedError,
    bits_of,
    date_of,
    datetime_of,
    fitting,
    float_of,
    text_of,
    time_of,
    time_parts,
    vector_of,
)
from tidemark.readers.mysql.schema.types import SourceType, parse_source_type
from tidemark.state.table import Column, TableSchema


def write_result_row(schema: TableSchema, row: Sequence[Any]) -> bytes:
    nulls = sum(4 << i for i, value in enumerate(row) if value is None)
    payload = b"\0" + nulls.to_bytes((len(row) + 9) // 8, "little")
    for column, value in zip(schema.columns, row, strict=True):
        if value is not None:
            payload += _write_result_value(parse_source_type(column.source_type), column, value)
    return payload


def read_result_row(schema: TableSchema, payload: bytes) -> list[Any]:
    reader = Reader(payload)
    if reader.take(1) != b"\0":
        raise RefusedError
    nulls = reader.little((len(schema.columns) + 9) // 8) >> 2
    row = []
    for i, column in enumerate(schema.columns):
        null = nulls >> i & 1
        row.append(None if null else _read_result_value(parse_source_type(column.source_type), column, reader))
    if reader.at != len(payload):
        raise RefusedError
    return row


def _write_result_value(source: SourceType, column: Column, value: Any) -> bytes:
    match source.base:
        case "mediumint":
            return int(value).to_bytes(4, "little", signed=True)
        case base if base in INTEGER_BYTES or base in {"float", "double"}:
            return write_image_value(source, column, value)
        case "year":
            return int(value).to_bytes(2, "little")
        case "decimal":
            text = value if isinstance(value, str) else f"{value:f}"
            return _length_encoded(text.encode())
        case "bit":
            return _length_encoded(write_image_value(source, column, value))
        case "date":
            return struct.pack("<BHBB", 4, value.year, value.month, value.day)
        case "datetime" | "timestamp":
            fields = struct.pack("<HBBBBB", *value.timetuple()[:6])
            if value.microsecond:
                fields += struct.pack("<I", value.microsecond)
            elif fields[4:] == b"\0\0\0":
                fields = fields[:4]
            return bytes((len(fields),)) + fields
        case "time":
            sign, clock, micros = time_parts(value)
            hours = clock >> 12
            if not clock and not micros:
                return b"\0"
            fields = struct.pack("<BIBBB", sign < 0, hours // 24, hours % 24, clock >> 6 & 63, clock & 63)
            if micros:
                fields += struct.pack("<I", micros)
            return bytes((len(fields),)) + fields
        case "binary" | "uuid" | "inet4":
            return _length_encoded(value if isinstance(value, bytes) else value.encode())
        case "vector":
            return _length_encoded(struct.pack(f"<{len(value)}f", *value))
        case _:
            content = value if isinstance(value, bytes) else value.encode(CODECS[str(column.charset or "utf8mb4")])
            return _length_encoded(content)


def _read_result_value(source: SourceType, column: Column, reader: Reader) -> Any:
    match source.base:
        case "mediumint":
            return fitting(int.from_bytes(reader.take(4), "little", signed=not source.unsigned), 32)
        case base if base in INTEGER_BYTES:
            return read_image_value(source, column, reader)
        case "year":
            return fitting(reader.little(2), 16)
        case "float" | "double":
            return float_of(source, reader)
        case "decimal":
            return _decimal_of_text(_take_length_encoded(reader), source)
        case "bit":
            content = _take_length_encoded(reader)
            if len(content) != (source.numbers[0] + 7) // 8:
                raise RefusedError
            return bits_of(int.from_bytes(content, "big"), source.numbers[0])
        case "date":
            fields = _fields(reader, (0, 4))
            return date_of(*struct.unpack("<HBB", fields)) if fields else None
        case "datetime" | "timestamp":
            fields = _fields(reader, (0, 4, 7, 11))
            if not fields:
                return None
            year, month, day, hour, minute, second, micros = struct.unpack("<HBBBBBI", fields.ljust(11, b"\0"))
            moment = datetime_of(date_of(year, month, day), hour, minute, second, micros)
            return moment and moment.replace(tzinfo=timezone.utc if source.base == "timestamp" else None)
        case "time":
            fields = _fields(reader, (0, 8, 12))
            sign, days, hour, minute, second, micros = struct.unpack("<BIBBBI", fields.ljust(12, b"\0"))
            if sign > 1 or hour > 23:
                raise RefusedError
            return time_of(bool(sign), days * 24 + hour, minute, second, micros, source)
        case "vector":
            return vector_of(_take_length_encoded(reader))
        case "uuid" | "inet4":
            return text_of(_take_length_encoded(reader), column, charset="ascii")
        case "json":
            return text_of(_take_length_encoded(reader), column, charset="utf8mb4")
        case _:
            return text_of(_take_length_encoded(reader), column)


def _length_encoded(content: bytes) -> bytes:
    size = len(content)
    if size < 251:
        return bytes((size,)) + content
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little") + content
    return b"\xfd" + size.to_bytes(3, "little") + content


def _take_length_encoded(reader: Reader) -> bytes:
    first = reader.little(1)
    if first < 251:
        return reader.take(first)
    if first in {251, 255}:
        raise RefusedError
    return reader.take(reader.little({252: 2, 253: 3, 254: 8}[first]))


def _fields(reader: Reader, sizes: tuple[int, ...]) -> bytes:
    size = reader.little(1)
    if size not in sizes:
        raise RefusedError
    return reader.take(size)


def _decimal_of_text(content: bytes, source: SourceType) -> Decimal | str:
    precision, scale = source.numbers
    if precision > 38:  # the server's text as it is
        return text_of(content, Column("", "", "", nullable=True), charset="ascii")
    if not content.isascii():
        raise RefusedError
    text = content.decode()
    whole, point, fraction = text.removeprefix("-").partition(".")
    shaped = len(fraction) == scale and bool(point) == (scale > 0) and whole != ""
    digits = whole + fraction
    if not shaped or not digits.isdecimal() or len(digits.lstrip("0")) > precision or len(text.removeprefix("-")) > 66:
        raise RefusedError
    return Decimal(text)
