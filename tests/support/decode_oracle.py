"""Row images, written and read in plain Python: slow, obvious, and independent of the compiled loops.

Everything is driven by the schema's `source_type`. Values are canonical Python values, as `pa.Array.to_pylist` gives them.
Readers raise RefusedError. Result rows: result_oracle.py.
"""

import ipaddress
import struct
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

from tests.support.oracle_values import (
    CODECS,
    Reader,
    RefusedError,
    bits_of,
    date_of,
    datetime_of,
    digits,
    float_of,
    text_of,
    time_of,
    time_parts,
    vector_of,
)
from tidemark.readers.mysql.schema.types import SourceType, parse_source_type
from tidemark.state.table import Column, TableSchema

EPOCH = datetime(1970, 1, 1)
CHARACTER_BYTES = {"utf8mb4": 4, "utf8mb3": 3, "gbk": 2}
INTEGER_BYTES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
BLOB_PREFIX = {"tiny": 1, "": 2, "medium": 3, "long": 4}
FOUR_BYTE_PREFIX = frozenset({"json", "geometry", "vector"})


def table_map(schema: TableSchema) -> tuple[bytes, bytes, dict[int, list[bytes]]]:
    """The type bytes, the metadata block and the labels that a TABLE_MAP event of this table has."""
    kinds, metadata, labels = [], b"", {}
    for i, column in enumerate(schema.columns):
        source = parse_source_type(column.source_type)
        kind, meta = _table_map_entry(source, column)
        kinds.append(kind)
        metadata += meta
        if source.labels:
            labels[i] = [label.encode(CODECS[str(column.charset)]) for label in source.labels]
    return bytes(kinds), metadata, labels


def write_image(schema: TableSchema, row: Sequence[Any]) -> bytes:
    nulls = sum(1 << i for i, value in enumerate(row) if value is None)
    image = nulls.to_bytes((len(row) + 7) // 8, "little")
    for column, value in zip(schema.columns, row, strict=True):
        if value is not None:
            image += write_image_value(parse_source_type(column.source_type), column, value)
    return image


def read_image(schema: TableSchema, data: bytes) -> tuple[list[Any], int]:
    """(values, bytes used)"""
    reader = Reader(data)
    nulls = reader.little((len(schema.columns) + 7) // 8)
    row = []
    for i, column in enumerate(schema.columns):
        null = nulls >> i & 1
        row.append(None if null else read_image_value(parse_source_type(column.source_type), column, reader))
    return row, reader.at


def _table_map_entry(source: SourceType, column: Column) -> tuple[int, bytes]:
    match source.base:
        case "tinyint" | "smallint" | "mediumint" | "int" | "bigint" | "year" | "date":
            codes = {"tinyint": 1, "smallint": 2, "mediumint": 9, "int": 3, "bigint": 8, "year": 13, "date": 10}
            return codes[source.base], b""
        case "float":
            return 4, b"\4"
        case "double":
            return 5, b"\x08"
        case "decimal":
            return 246, bytes(source.numbers)
        case "bit":
            return 16, bytes((source.numbers[0] % 8, source.numbers[0] // 8))
        case "datetime":
            return 18, bytes((digits(source),))
        case "timestamp":
            return 17, bytes((digits(source),))
        case "time":
            return 19, bytes((digits(source),))
        case "varchar" | "varbinary":
            return 15, _string_bytes(source, column).to_bytes(2, "little")
        case "char" | "binary":
            size = _string_bytes(source, column)
            return 254, bytes((254 ^ (size >> 8) << 4, size & 0xFF))
        case "uuid" | "inet6" | "inet4":
            return 254, bytes((254, 4 if source.base == "inet4" else 16))
        case "enum":
            return 254, bytes((247, _ordinal_bytes(source)))
        case "set":
            return 254, bytes((248, _ordinal_bytes(source)))
        case "json":
            return 245, b"\4"
        case "geometry":
            return 255, b"\4"
        case "vector":
            return 242, b"\4"
        case _:
            return 252, bytes((BLOB_PREFIX[source.base.removesuffix("blob").removesuffix("text")],))


def _string_bytes(source: SourceType, column: Column) -> int:
    return source.numbers[0] * CHARACTER_BYTES.get(column.charset or "", 1)


def _ordinal_bytes(source: SourceType) -> int:
    if source.base == "enum":
        return 1 if len(source.labels) < 256 else 2
    size = (len(source.labels) + 7) // 8
    return 8 if size > 4 else size


def write_image_value(source: SourceType, column: Column, value: Any) -> bytes:
    match source.base:
        case base if base in INTEGER_BYTES:
            return (int(value) % (1 << 8 * INTEGER_BYTES[base])).to_bytes(INTEGER_BYTES[base], "little")
        case "year":
            return bytes((value - 1900 if value else 0,))
        case "float" | "double":
            return struct.pack("<f" if source.base == "float" else "<d", value)
        case "decimal":
            return _pack_decimal(Decimal(value), *source.numbers)
        case "bit":
            return int(value).to_bytes((source.numbers[0] + 7) // 8, "big")
        case "date":
            return (value.year << 9 | value.month << 5 | value.day).to_bytes(3, "little")
        case "datetime":
            packed = (value.year * 13 + value.month) << 22 | value.day << 17
            packed |= value.hour << 12 | value.minute << 6 | value.second
            return (packed + (1 << 39)).to_bytes(5, "big") + _pack_fraction(value.microsecond, source)
        case "timestamp":
            seconds, micros = divmod(round((value.replace(tzinfo=None) - EPOCH) / timedelta(microseconds=1)), 10**6)
            return seconds.to_bytes(4, "big") + _pack_fraction(micros, source)
        case "time":
            sign, clock, micros = time_parts(value)
            size = (digits(source) + 1) // 2
            packed = clock << 8 * size | int.from_bytes(_pack_fraction(micros, source), "big")
            return (sign * packed + (0x800000 << 8 * size)).to_bytes(3 + size, "big")
        case "enum":
            return (source.labels.index(value) + 1 if value else 0).to_bytes(_ordinal_bytes(source), "little")
        case "set":
            chosen = value.split(",") if value else []
            return sum(1 << source.labels.index(label) for label in chosen).to_bytes(_ordinal_bytes(source), "little")
        case "binary":
            return _prefixed(value.rstrip(b"\0"), _string_bytes(source, column))
        case "uuid":
            return _prefixed(UUID(value).bytes.rstrip(b"\0"), 16)
        case "inet4":
            return _prefixed(ipaddress.IPv4Address(value).packed.rstrip(b"\0"), 4)
        case "varbinary":
            return _prefixed(value, _string_bytes(source, column))
        case "char" | "varchar":
            return _prefixed(value.encode(CODECS[str(column.charset)]), _string_bytes(source, column))
        case "vector":
            return struct.pack(f"<I{len(value)}f", 4 * len(value), *value)
        case base:
            content = value if isinstance(value, bytes) else value.encode(CODECS[str(column.charset)])
            return len(content).to_bytes(_blob_prefix(base), "little") + content


def read_image_value(source: SourceType, column: Column, reader: Reader) -> Any:
    match source.base:
        case base if base in INTEGER_BYTES:
            signed = not source.unsigned
            value = int.from_bytes(reader.take(INTEGER_BYTES[base]), "little", signed=signed)
            return Decimal(value) if base == "bigint" and not signed else value
        case "year":
            year = reader.little(1)
            return year + 1900 if year else 0
        case "float" | "double":
            return float_of(source, reader)
        case "decimal":
            return _decimal(_unpack_decimal(reader, *source.numbers), source)
        case "bit":
            return bits_of(reader.big((source.numbers[0] + 7) // 8), source.numbers[0])
        case "date":
            packed = reader.little(3)
            return date_of(packed >> 9, packed >> 5 & 15, packed & 31)
        case "datetime":
            packed = reader.big(5) - (1 << 39)
            if packed < 0:
                raise RefusedError
            months, day, clock = packed >> 22, packed >> 17 & 31, packed & 0x1FFFF
            micros = _unpack_fraction(reader, source)
            return datetime_of(
                date_of(months // 13, months % 13, day), clock >> 12, clock >> 6 & 63, clock & 63, micros
            )
        case "timestamp":
            seconds, micros = reader.big(4), _unpack_fraction(reader, source)
            if micros > 999_999:
                raise RefusedError
            if seconds == micros == 0:
                return None
            return (EPOCH + timedelta(seconds=seconds, microseconds=micros)).replace(tzinfo=timezone.utc)
        case "time":
            size = (digits(source) + 1) // 2
            packed = reader.big(3 + size) - (0x800000 << 8 * size)
            clock, part = abs(packed) >> 8 * size, abs(packed) & ((1 << 8 * size) - 1)
            return time_of(packed < 0, clock >> 12, clock >> 6 & 63, clock & 63, part * 10 ** (6 - 2 * size), source)
        case "enum":
            ordinal = reader.little(_ordinal_bytes(source))
            if ordinal > len(source.labels):
                raise RefusedError
            return source.labels[ordinal - 1] if ordinal else ""
        case "set":
            mask = reader.little(_ordinal_bytes(source))
            if mask >> len(source.labels):
                raise RefusedError
            return ",".join(label for i, label in enumerate(source.labels) if mask >> i & 1)
        case "char" | "varchar" | "binary" | "varbinary":
            greatest = _string_bytes(source, column)
            content = _take_prefixed(reader, greatest)
            return content.ljust(greatest, b"\0") if source.base == "binary" else text_of(content, column)
        case "uuid":
            return str(UUID(bytes=_take_prefixed(reader, 16).ljust(16, b"\0")))
        case "inet4":
            return str(ipaddress.IPv4Address(_take_prefixed(reader, 4).ljust(4, b"\0")))
        case base:
            content = reader.take(reader.little(_blob_prefix(base)))
            return vector_of(content) if base == "vector" else text_of(content, column)


def _blob_prefix(base: str) -> int:
    return 4 if base in FOUR_BYTE_PREFIX else BLOB_PREFIX[base.removesuffix("blob").removesuffix("text")]


def _prefixed(content: bytes, greatest: int) -> bytes:
    return len(content).to_bytes(1 if greatest < 256 else 2, "little") + content


def _take_prefixed(reader: Reader, greatest: int) -> bytes:
    size = reader.little(1 if greatest < 256 else 2)
    if size > greatest:
        raise RefusedError
    return reader.take(size)


def _digit_groups(precision: int, scale: int) -> list[int]:
    """Digits of each group of bytes, from the left."""
    whole = precision - scale
    return [d for d in (whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9) if d]


def _group_bytes(digits: int) -> int:
    return (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)[digits]


def _pack_decimal(value: Decimal, precision: int, scale: int) -> bytes:
    digits = f"{value.copy_abs():f}".replace(".", "").rjust(precision, "0")[-precision:]
    packed, at = b"", 0
    for size in _digit_groups(precision, scale):
        packed += int(digits[at : at + size]).to_bytes(_group_bytes(size), "big")
        at += size
    if value < 0:
        packed = bytes(byte ^ 0xFF for byte in packed)
    return bytes((packed[0] ^ 0x80,)) + packed[1:]


def _unpack_decimal(reader: Reader, precision: int, scale: int) -> tuple[bool, str]:
    """(negative, all digits)"""
    groups = _digit_groups(precision, scale)
    packed = reader.take(sum(map(_group_bytes, groups)))
    negative = not packed[0] & 0x80
    plain = bytes(byte ^ (0xFF if negative else 0) for byte in bytes((packed[0] ^ 0x80,)) + packed[1:])
    digits, at = "", 0
    for size in groups:
        number = int.from_bytes(plain[at : at + _group_bytes(size)], "big")
        if number >= 10**size:
            raise RefusedError
        digits += f"{number:0{size}d}"
        at += _group_bytes(size)
    return negative, digits


def _decimal(parsed: tuple[bool, str], source: SourceType) -> Decimal | str:
    negative, digits = parsed
    precision, scale = source.numbers
    whole, fraction = digits[: len(digits) - scale].lstrip("0") or "0", digits[len(digits) - scale :]
    minus = "-" if negative and int(digits) else ""
    text = f"{minus}{whole}.{fraction}" if scale else f"{minus}{whole}"
    return text if precision > 38 else Decimal(text)


def _pack_fraction(micros: int, source: SourceType) -> bytes:
    size = (digits(source) + 1) // 2
    return (micros // 10 ** (6 - 2 * size)).to_bytes(size, "big")


def _unpack_fraction(reader: Reader, source: SourceType) -> int:
    size = (digits(source) + 1) // 2
    return reader.big(size) * 10 ** (6 - 2 * size)
