"""The type codes of results and TABLE_MAP events, and the metadata that goes with them."""

from collections.abc import Sequence
from enum import IntEnum

from tidemark.readers.mysql.decoding.column_codes import ColumnCode


class FieldType(IntEnum):
    """https://dev.mysql.com/doc/dev/mysql-server/latest/field__types_8h.html; those of MariaDB from its field.h"""

    DECIMAL = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    TYPED_ARRAY = 20
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    VECTOR = 242
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


_TWO_BYTES = frozenset(
    {
        FieldType.VARCHAR,
        FieldType.BIT,
        FieldType.VARCHAR_COMPRESSED,
        FieldType.NEWDECIMAL,
        FieldType.ENUM,
        FieldType.SET,
        FieldType.VAR_STRING,
        FieldType.STRING,
    }
)
_ONE_BYTE = frozenset(
    {
        FieldType.FLOAT,
        FieldType.DOUBLE,
        FieldType.TIMESTAMP2,
        FieldType.DATETIME2,
        FieldType.TIME2,
        FieldType.BLOB_COMPRESSED,
        FieldType.VECTOR,
        FieldType.JSON,
        FieldType.TINY_BLOB,
        FieldType.MEDIUM_BLOB,
        FieldType.LONG_BLOB,
        FieldType.BLOB,
        FieldType.GEOMETRY,
    }
)
_NO_BYTES = frozenset(FieldType) - _ONE_BYTE - _TWO_BYTES - {FieldType.TYPED_ARRAY}


def split_metadata(type_codes: bytes, block: bytes) -> list[int]:
    """Splits a TABLE_MAP's metadata block into one number per column: first byte | second byte << 8, 0 if it has none.

    Raises ValueError if a type is unknown or the block does not have the length that the types need.
    """
    numbers = []
    at = 0
    for code in type_codes:
        if code in _TWO_BYTES:
            size = 2
        elif code in _ONE_BYTE:
            size = 1
        elif code in _NO_BYTES:
            size = 0
        else:
            raise ValueError(f"unknown column type {code}")
        numbers.append(int.from_bytes(block[at : at + size], "little"))
        at += size
    if at != len(block):
        raise ValueError(f"{len(block)} bytes of metadata, {at} expected")
    return numbers


def image_type(code: int, number: int) -> tuple[FieldType, int]:
    """The real type of a TABLE_MAP's column and its number: maximum bytes (strings, ENUM, SET), bytes of the length (BLOB),
    bits (BIT), precision << 8 | scale (DECIMAL), or fractional digits.

    ENUM, SET and CHAR all come as STRING. Two bits of a CHAR's length above 255 are in the type's byte, inverted. Raises
    ValueError for an unknown type.
    """
    kind = FieldType(code)
    first, second = number & 255, number >> 8
    match kind:
        case FieldType.STRING:
            if first & 0x30 != 0x30:
                return FieldType(first | 0x30), second | ((first & 0x30) ^ 0x30) << 4
            return FieldType(first), second
        case FieldType.NEWDECIMAL:
            return kind, first << 8 | second
        case FieldType.BIT:
            return kind, first + 8 * second
        case _:
            return kind, number


_FIXED = {
    FieldType.TINY: ColumnCode.INT8,
    FieldType.SHORT: ColumnCode.INT16,
    FieldType.INT24: ColumnCode.INT24,
    FieldType.LONG: ColumnCode.INT32,
    FieldType.LONGLONG: ColumnCode.INT64,
    FieldType.FLOAT: ColumnCode.FLOAT,
    FieldType.DOUBLE: ColumnCode.DOUBLE,
    FieldType.DATE: ColumnCode.DATE,
    FieldType.YEAR: ColumnCode.YEAR,
}
_FRACTIONAL = {
    FieldType.DATETIME2: ColumnCode.DATETIME2,
    FieldType.TIMESTAMP2: ColumnCode.TIMESTAMP2,
    FieldType.TIME2: ColumnCode.TIME2,
}
_PREFIXED = {1: ColumnCode.BYTES1, 2: ColumnCode.BYTES2, 3: ColumnCode.BYTES3, 4: ColumnCode.BYTES4}
_BLOBS = frozenset({FieldType.BLOB, FieldType.JSON, FieldType.GEOMETRY, FieldType.VECTOR})
_ORDINAL_BYTES: dict[FieldType, Sequence[int]] = {FieldType.ENUM: (1, 2), FieldType.SET: (1, 2, 3, 4, 8)}
_MAX_PRECISION = 65
_NARROW_PRECISION = 38


def image_code(kind: FieldType, number: int) -> tuple[ColumnCode, int] | None:
    """The code and meta for (kind, number) of `image_type`, with signed integers. None if it is not supported."""
    if kind in _FIXED:
        return _FIXED[kind], 0
    if kind in _FRACTIONAL and number <= 6:
        return _FRACTIONAL[kind], number
    if kind in {FieldType.VARCHAR, FieldType.STRING}:
        return (ColumnCode.BYTES1 if number < 256 else ColumnCode.BYTES2), number
    if kind in _BLOBS and number in _PREFIXED:
        return _PREFIXED[number], -1
    if kind in _ORDINAL_BYTES and number in _ORDINAL_BYTES[kind]:
        return ColumnCode.ORDINAL, number
    if kind is FieldType.BIT and 1 <= number <= 64:
        return ColumnCode.BIT, number
    if kind is FieldType.NEWDECIMAL:
        precision, scale = number >> 8, number & 255
        if 1 <= precision <= _MAX_PRECISION and scale <= precision:
            return (ColumnCode.DECIMAL if precision <= _NARROW_PRECISION else ColumnCode.DECIMAL_WIDE), number
    return None
