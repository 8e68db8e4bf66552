"""Values of a PostgreSQL table's columns as arrays, by another way than Tidemark's: the server's text, and Python."""

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.state.table import Column, arrow_type_of, element_of, is_list

EDGE_VALUES: dict[str, list[str]] = {
    "bool": ["true", "false"],
    "smallint": ["-32768", "-1", "0", "32767"],
    "integer": ["-2147483648", "-1", "2147483647"],
    "bigint": ["'-9223372036854775808'", "-1", "9223372036854775807"],
    "oid": ["0", "2147483648", "4294967295"],
    "real": ["'-0'", "0.1", "1e-45", "3.4028235e38", "'nan'", "'inf'", "'-inf'", "16777217"],
    "double precision": [
        "'-0'",
        "0.1",
        "5e-324",
        "1.7976931348623157e308",
        "'nan'",
        "'inf'::float8 - 'inf'",
        "'-inf'",
        "1/3.0",
    ],
    "numeric(1)": ["-9", "0", "9"],
    "numeric(12,2)": ["-9999999999.99", "9999999999.99", "0", "0.01", "-0.01", "10000", "0.10", "100000000", "9999.99"],
    "numeric(18,18)": ["0.999999999999999999", "-0.000000000000000001", "0.0001"],
    "numeric(20,0)": ["18446744073709551616", "-18446744073709551615", "9223372036854775808"],
    "numeric(38,0)": ["9" * 38, "-" + "9" * 38, "1", "1" + "0" * 37],
    "numeric(38,38)": ["0." + "9" * 38, "-0." + "0" * 37 + "1", "0." + "0" * 37 + "1"],
    "numeric(38,19)": ["9" * 19 + "." + "9" * 19, "-0.5", "1" + "0" * 18],
    "numeric(37,5)": ["1" + "2" * 31 + ".00001", "-12345.67890", "0.1", "10000.00001"],
    "numeric": ["'NaN'", "'-Infinity'", "1e-100", "1e300", "12.300", "0.00"],
    "numeric(39,0)": ["9" * 39],
    "text": ["''", "'NULL'", "E'a\\nb\\t\\\\'", "'😀é漢'", "repeat('x', 300000)"],
    "varchar(5)": ["'a'", "'a    '"],
    "char(5)": ["'a'", "''", "'abcde'"],
    '"char"': ["'x'"],
    "name": ["'n'"],
    "bytea": ["''", "'\\x00ff5c27'", "decode(repeat('ab', 100000), 'hex')"],
    "uuid": ["'a1234567-89ab-cdef-0123-456789abcdef'"],
    "date": [f"'{d}'" for d in ("4714-11-24 BC", "0001-12-31 BC", "1970-01-01", "2000-02-29", "5874897-12-31")],
    "timestamp": [
        f"'{d}'"
        for d in (
            "4714-11-24 00:00:00 BC",
            "0001-12-31 23:59:59.999999 BC",
            "1969-12-31 23:59:59.999999",
            "10000-01-01",
            "294247-01-10 04:00:54.775805",
        )
    ],
    "timestamp(0)": ["'2024-02-29 12:34:56.7'"],
    "timestamptz": [
        "'4714-11-24 00:00:00+00 BC'",
        "'2024-03-31 01:30:00.123456+02'",
        "'294247-01-10 04:00:54.775805+00'",
    ],
    "time": ["'00:00'", "'24:00'", "'12:34:56.789012'"],
    "timetz": ["'12:34:56.7+05:30'"],
    "interval": ["'1 year 2 mons -3 days 04:05:06.789'", "'0'", "'-00:00:01'"],
    "json": ['\'{"a":  1,"a":2}\'', "'null'"],
    "jsonb": ['\'{"a":  [1, 2.50, null], "ü": "\\u00e9"}\''],
    "xml": ["'<a>ü</a>'", "'<?xml version=\"1.0\"?><a/>'"],
    "inet": ["'10.0.0.1'", "'10.0.0.0/8'", "'::1'"],
    "cidr": ["'10.0.0.0/8'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "macaddr8": ["'08:00:2b:01:02:03:04:05'"],
    "money": ["-1234567.89", "0.5"],
    "bit(3)": ["B'101'"],
    "varbit": ["B''", "B'0101'"],
    "int[]": ["'{}'", "'{1,NULL,3}'", "'{{1,2},{3,4}}'", "'[0:1]={5,6}'"],
    "text[]": ["ARRAY['a b', NULL, 'NULL', E'\\\\\"', '']"],
    "numeric(10,2)[]": ["'{1.5,NaN}'"],
    "int4range": ["'[1,5)'", "'empty'", "'(,3]'"],
    "tstzrange": ["'[2024-01-01 00:00+02,)'"],
    "point": ["'(1.1,-2)'"],
    "box": ["'(1,1),(0,0)'"],
    "tsvector": ["'a:1 b:2A'"],
    "pg_lsn": ["'16/B374D848'"],
    "xid8": ["'18446744073709551615'"],
    'public."Mood"': ["'sad'", "'a, \"b\"'"],
    "public.pair": ['\'(1,"b ""c")\'', "'(,)'"],
    "public.cents": ["5", "-9223372036854775807"],
    "public.price": ["1.50", "-99999999.99"],
    "public.email": ["'a@b'"],
}
"""SQL type → values as SQL. MAKE_TYPES makes those of schema public."""

MAKE_TYPES = [
    "CREATE TYPE public.\"Mood\" AS ENUM ('sad', 'ok', 'a, \"b\"', '{}', 'happy')",
    "CREATE TYPE public.pair AS (a int, b text)",
    "CREATE DOMAIN public.cents AS bigint",
    "CREATE DOMAIN public.price AS numeric(10,2)",
    "CREATE DOMAIN public.email AS varchar(60) CHECK (value <> 'never')",
]


def otherwise_selected(column: Column) -> str:
    """The texts that psycopg2 gives, for `array_of`."""
    name = '"{}"'.format(column.name.replace('"', '""'))
    if is_list(column.arrow_type):
        element = otherwise_selected(replace(column, name="element", arrow_type=element_of(column.arrow_type)))
        texts = f"SELECT json_agg({element} ORDER BY place) FROM unnest({name}) WITH ORDINALITY AS e (element, place)"
        return f"CASE WHEN {name} IS NOT NULL THEN coalesce(({texts}), '[]')::text END"
    if column.arrow_type == "date32":
        return f"({name} - date '1970-01-01')::text"
    if column.arrow_type.startswith("timestamp"):
        moment = f"({name} AT TIME ZONE 'UTC')" if column.arrow_type == "timestamptz" else name
        of_day = f"extract(epoch FROM {moment}::time) * 1000000"  # of the whole it is not exact in far years
        return f"(({moment}::date - date '1970-01-01')::numeric * 86400000000 + {of_day})::bigint::text"
    if column.arrow_type == "binary":
        return f"encode({name}, 'hex')"
    return f"CASE WHEN num_nulls({name}) = 0 THEN format('%s', {name}) END"  # by the type's output function


def array_of(column: Column, texts: Sequence[str | None]) -> pa.Array:
    arrow = arrow_type_of(column.arrow_type)
    if is_list(column.arrow_type):
        rows = [None if text is None else json.loads(text) for text in texts]
        element = replace(column, arrow_type=element_of(column.arrow_type))
        ends = np.cumsum([0, *(len(row or []) for row in rows)])
        offsets = pa.array([*ends[:-1], ends[-1]], pa.int32(), mask=np.array([*(row is None for row in rows), False]))
        return pa.ListArray.from_arrays(offsets, array_of(element, [text for row in rows for text in row or []]))
    if pa.types.is_temporal(arrow):
        whole = pa.int32() if pa.types.is_date32(arrow) else pa.int64()
        return pa.array([None if text is None else int(text) for text in texts], whole).cast(arrow)
    return pa.array([None if text is None else _value(arrow, text) for text in texts], arrow)


def _value(arrow: pa.DataType, text: str) -> Any:
    if pa.types.is_integer(arrow):
        return int(text)
    if pa.types.is_decimal(arrow):
        return Decimal(text)
    if pa.types.is_floating(arrow):
        return float(text)
    if pa.types.is_binary(arrow):
        return bytes.fromhex(text)
    if pa.types.is_boolean(arrow):
        return text in {"t", "true"}
    return text
