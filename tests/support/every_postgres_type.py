"""A table with every canonical type of a PostgreSQL source, and edge values of each that every target holds."""

from decimal import Decimal
from typing import Any

from tests.support.every_type import _day, _moment
from tidemark.state.table import Column, TableId, TableSchema

EVERYWHERE: dict[str, tuple[str, str, list[Any]]] = {
    "truth": ("boolean", "bool", [True, False]),
    "small": ("smallint", "int16", [-32768, 32767]),
    "whole": ("integer", "int32", [-2147483648, 2147483647]),
    "big": ("bigint", "int64", [-9223372036854775808, 9223372036854775807]),
    "object": ("oid", "int64", [0, 4294967295]),
    "amount": ("numeric(12,2)", "decimal(12,2)", [Decimal("-9999999999.99"), Decimal("0.01")]),
    "bare": ("numeric", "string", ["NaN", "-Infinity", f"0.{1:01000}", "12.300"]),
    "single": ("real", "float32", [0.5, -0.25, 1.5e10]),
    "double": ("double precision", "float64", [1.7976931348623157e308, 5e-324, 0.1, 1 / 3]),
    "fixed": ("character(5)", "string", ["a    ", "     "]),
    "name": ("character varying(40)", "string", ["", "it's", "\\", "a ", "😀é漢", "NULL", "{}"]),
    "document": ("jsonb", "string", ['{"a": [1, 2.5, null]}', "null"]),
    "labels": ("text[]", "string", ['{a,NULL,"b,c"}', "{}", "[0:1]={x,y}"]),
    "blob": ("bytea", "binary", [b"", bytes(range(256)), b"'\\\0"]),
    "day": ("date", "date32", [_day("0001-01-01"), _day("9999-12-31"), _day("2024-02-29")]),
    "moment": ("timestamp without time zone", "timestamp", [_moment("0001-01-01T00:00:00.000001"), -1]),
    "instant": ("timestamp with time zone", "timestamptz", [1_000_000, _moment("2038-01-19T03:14:07.999999")]),
    "span": ("interval", "string", ["1 mon 2 days 03:04:05.6", "-00:00:01"]),
}
"""By column name: the source's type, the canonical type, values."""

EVERY_POSTGRES_TYPE = TableSchema(
    TableId("shop", "every type"),
    1,
    (
        Column("flag", "boolean", "bool", nullable=False),
        Column("id", "bigint", "int64", nullable=False),
        Column("code", "character varying(20)", "string", nullable=False),
        Column("uid", "uuid", "string", nullable=False),
        *(Column(name, source, arrow, nullable=True) for name, (source, arrow, _) in EVERYWHERE.items()),
    ),
    ("flag", "id", "code", "uid"),
)


def every_postgres_value() -> list[tuple[Any, ...]]:
    """Rows that hold every value at least once; the first row is all null."""
    uid = "{:08x}-0000-4000-8000-000000000000"
    longest = max(len(values) for _, _, values in EVERYWHERE.values())
    listed = [
        (
            i % 2 == 0,
            i,
            f"Ä{i} ",
            uid.format(i),
            *[values[i] if i < len(values) else None for _, _, values in EVERYWHERE.values()],
        )
        for i in range(longest)
    ]
    return [(True, -1, "", uid.format(99), *[None] * len(EVERYWHERE)), *listed]
