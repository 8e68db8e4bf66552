"""A table with every column type of a MySQL source, and edge values of each, in canonical form."""

import struct
from decimal import Decimal
from typing import Any

from tests.support.change_parts import column
from tidemark.state.table import Column, TableId, TableSchema

FLOAT_MAX = 3.4028234663852886e38
FLOAT_LEAST = 1.401298464324817e-45


def _shape(kind: int, *coordinates: float, srid: int = 0) -> bytes:
    """The server's internal form: SRID, then WKB, of a point or a line."""
    count = b"" if kind == 1 else struct.pack("<I", len(coordinates) // 2)
    return struct.pack("<IBI", srid, 1, kind) + count + struct.pack(f"<{len(coordinates)}d", *coordinates)


def _day(text: str) -> int:
    import numpy as np

    return int(np.datetime64(text, "D").astype(np.int64))


def _moment(text: str) -> int:
    import numpy as np

    return int(np.datetime64(text, "us").astype(np.int64))


EVERYWHERE: dict[str, tuple[str, str, list[Any]]] = {
    "tiny": ("tinyint", "int8", [-128, 127, 0]),
    "boolean": ("tinyint(1)", "int8", [0, 1, 2]),
    "tiny_unsigned": ("tinyint unsigned", "int16", [0, 255]),
    "small": ("smallint", "int16", [-32768, 32767]),
    "small_unsigned": ("smallint unsigned", "int32", [0, 65535]),
    "medium": ("mediumint", "int32", [-8388608, 8388607]),
    "medium_unsigned": ("mediumint unsigned", "int32", [16777215]),
    "whole": ("int", "int32", [-2147483648, 2147483647]),
    "whole_wide": ("int(10) unsigned zerofill", "int64", [0, 4294967295]),
    "big": ("bigint", "int64", [-9223372036854775808, 9223372036854775807]),
    "big_unsigned": ("bigint unsigned", "decimal(20,0)", [Decimal(0), Decimal(18446744073709551615)]),
    "amount": ("decimal(12,2)", "decimal(12,2)", [Decimal("-9999999999.99"), Decimal("0.01"), Decimal("-0.10")]),
    "fraction": ("decimal(10,10)", "decimal(10,10)", [Decimal("-0.0000000001"), Decimal("0.9999999999")]),
    "wide": (
        "decimal(38,10)",
        "decimal(38,10)",
        [Decimal("-" + "9" * 28 + "." + "9" * 10), Decimal("0E-10"), Decimal(2**64)],
    ),
    "widest": ("decimal(65,30)", "string", ["-" + "9" * 35 + "." + "9" * 30, "0." + "0" * 29 + "1", "0." + "0" * 30]),
    "single": ("float", "float32", [FLOAT_MAX, -FLOAT_MAX, FLOAT_LEAST, 0.1, -0.0, 16777217.0]),
    "double": ("double", "float64", [1.7976931348623157e308, 5e-324, 0.1, -0.0, 1e22, 123456789012345680.0, 1 / 3]),
    "bit_one": ("bit(1)", "int64", [0, 1]),
    "bit_many": ("bit(63)", "int64", [0, 2**63 - 1]),
    "bit_all": ("bit(64)", "decimal(20,0)", [Decimal(0), Decimal(2**64 - 1)]),
    "day": (
        "date",
        "date32",
        [_day("0000-03-01"), _day("0001-01-01"), _day("9999-12-31"), _day("1969-12-31"), _day("2024-02-29")],
    ),
    "moment": (
        "datetime(6)",
        "timestamp",
        [_moment("0001-01-01T00:00:00.000001"), _moment("9999-12-31T23:59:59.999999"), -1],
    ),
    "moment_short": ("datetime", "timestamp", [_moment("1000-01-01T00:00:00"), _moment("2024-02-29T23:59:59")]),
    "instant": (
        "timestamp(6)",
        "timestamptz",
        [1_000_000, _moment("2038-01-19T03:14:07.999999"), 1_700_000_000_123_456],
    ),
    "instant_short": ("timestamp", "timestamptz", [1_000_000, _moment("2024-03-31T01:30:00")]),
    "span": ("time(6)", "string", ["-838:59:59.000000", "838:59:59.000000", "-00:00:00.000001", "00:00:00.120000"]),
    "span_short": ("time", "string", ["-01:00:00", "00:00:00", "100:59:59"]),
    "year": ("year", "int16", [0, 1901, 2155]),
    "fixed": ("char(10)", "string", ["", "a", " a", "ÄÖÜ漢字😀😀😀😀😀"]),
    "name": (
        "varchar(100)",
        "string",
        ["", "it's", "\\", "\\'", "line\nbreak\r\t\x1a", '"quoted"', "a ", "😀é漢", "%s %d", "NULL"],
    ),
    "latin": ("varchar(20)", "string", ["é", "ÿ", "€"]),
    "tiny_text": ("tinytext", "string", ["", "é" * 127]),
    "text": ("text", "string", ["x" * 65535, ""]),
    "long_text": ("longtext", "string", ["y" * 70000, "😀" * 5]),
    "bytes_fixed": ("binary(4)", "binary", [b"\0\0\0\0", b"a\0\0\0", b"\xff\xfe'\\"]),
    "bytes": ("varbinary(300)", "binary", [b"", bytes(range(256)), b"'\\\0"]),
    "blob": ("longblob", "binary", [b"", b"\0" * 70000]),
    "choice": ("enum('small','it''s','ü')", "string", ["small", "it's", "ü"]),
    "choices": ("set('x','y','z')", "string", ["", "x", "x,z", "x,y,z"]),
    "document": (
        "json",
        "string",
        ['{"a": [1, 2.5, null, true], "é": "\\"x\\""}', "null", '"\\u0000"', "18446744073709551615"],
    ),
    "shape": (
        "geometry",
        "binary",
        [_shape(1, 1.5, -2.25), _shape(2, 0.0, 0.0, 1.0, 1.0), _shape(1, 2.0, 3.0, srid=4326)],
    ),
    "point": ("point", "binary", [_shape(1, 1e300, -0.0)]),
    "embedding": ("vector(3)", "list<float32>", [[0.1, -0.0, FLOAT_MAX], [1.0, 2.0, 3.0]]),
}
"""By column name: the source's type, the canonical type, values that every target holds."""

NOT_IN_POSTGRES: dict[str, list[Any]] = {"name": ["a\0b"], "text": ["\0"]}
"""Values that PostgreSQL has no place for."""


def _column(name: str, source_type: str, arrow_type: str) -> Column:
    return column(name, source_type, arrow_type, collation="latin1_swedish_ci" if name == "latin" else None)


EVERY_TYPE = TableSchema(
    TableId("shop", "every type"),
    1,
    (
        column("id", "int", "int32", key=True),
        *(_column(name, source_type, arrow_type) for name, (source_type, arrow_type, _) in EVERYWHERE.items()),
    ),
    ("id",),
)


def every_value(more: dict[str, list[Any]] | None = None) -> list[tuple[Any, ...]]:
    """Rows that hold every value at least once; the first row is all null."""
    lists = [values + (more or {}).get(name, []) for name, (_, _, values) in EVERYWHERE.items()]
    longest = max(map(len, lists))
    listed = [(0, *[None] * len(lists))]
    for i in range(longest):
        listed.append((i + 1, *[values[i] if i < len(values) else None for values in lists]))
    listed.append((longest + 1, *[values[0] for values in lists]))
    return listed
