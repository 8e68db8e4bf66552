"""Every type by the log: values are the server's own, whatever the session that wrote them had set."""

import contextlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.postgres_log import LoggedDatabase, logged_postgres
from tidemark.state.change_batch import batch_schema
from tidemark.state.log_range import LogRange

__all__ = ["logged_postgres"]


@dataclass(frozen=True)
class Case:
    """A type, its canonical one, and values as SQL literals."""

    type: str
    canonical: str
    values: tuple[str, ...]


TYPES = (
    "CREATE TYPE mood AS ENUM ('good', 'it''s \"bad\", é')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE DOMAIN cents AS numeric(10,2) CHECK (VALUE > -1000)",
    "CREATE DOMAIN words AS text[]",
    'CREATE TYPE "Odd Type" AS RANGE (subtype = int8)',
)
CASES = (
    Case("boolean", "bool", ("true", "false")),
    Case("smallint", "int16", ("-32768", "32767", "0")),
    Case("integer", "int32", ("-2147483648", "2147483647")),
    Case("bigint", "int64", ("-9223372036854775808", "9223372036854775807")),
    Case("oid", "int64", ("0", "4294967295")),
    Case("real", "float32", ("'NaN'", "'-Infinity'", "1.17549435e-38", "0.1", "'-0'", "3.4028235e38", "1e-45")),
    Case("double precision", "float64", ("'NaN'", "'Infinity'", "5e-324", "0.1", "'-0'", "1.7976931348623157e308")),
    Case("numeric(38,10)", "decimal(38,10)", ("'-9999999999999999999999999999.9999999999'", "0.0000000001", "0")),
    Case("numeric(5,0)", "decimal(5,0)", ("-99999", "0", "1")),
    Case("numeric", "string", ("'NaN'", "'Infinity'", "12.300", "1e-1000", "1e1000")),
    Case("numeric(39,1)", "string", ("'NaN'", "99999999999999999999999999999999999999.9")),
    Case("cents", "decimal(10,2)", ("1.5", "-999.99")),
    Case("text", "string", ("''", "'é😀漢'", "E'a\\tb\\n\\\\'", "'NULL'")),
    Case("character varying(10)", "string", ("' a '", "'é'")),
    Case("character(5)", "string", ("'a'", "''")),
    Case("name", "string", ("'a'",)),
    Case('"char"', "string", ("'a'", "''")),
    Case("bytea", "binary", ("''", "'\\x00ff5c'", "'\\x5c78'")),
    Case(
        "date",
        "date32",
        ("'1970-01-01'", "'0001-01-01'", "'9999-12-31'", "'0001-12-31 BC'", "'4713-01-01 BC'", "'5874897-12-31'"),
    ),
    Case(
        "timestamp",
        "timestamp",
        (
            "'2024-02-29 23:59:59.999999'",
            "'0044-03-15 00:00:00.1 BC'",
            "'294246-12-31 23:59:59.5'",
            "'1969-12-31 23:59'",
        ),
    ),
    Case(
        "timestamp with time zone",
        "timestamptz",
        ("'2024-02-29 23:59:59.12+05:30'", "'0044-03-15 BC'", "'10000-01-01 00:00+00'", "'4714-11-24 00:00+00 BC'"),
    ),
    Case("time", "string", ("'24:00:00'", "'01:02:03.4'")),
    Case("time with time zone", "string", ("'01:02:03.4-15:59'",)),
    Case("interval", "string", ("'1 mon -2 days 03:04:05.6'", "'-00:00:01'", "'178000000 years'")),
    Case("uuid", "string", ("'A0EEBC99-9c0b-4ef8-bb6d-6bb9bd380a11'",)),
    Case("json", "string", ('\'{"b":1,  "a": [null]}\'',)),
    Case("jsonb", "string", ('\'{"b":1,  "a": [1.50, null]}\'',)),
    Case("mood", "string", ("'good'", "'it''s \"bad\", é'")),
    Case("pair", "string", ("ROW(1, 'x, \"y\"')", "ROW(NULL, NULL)")),
    Case("words", "string", ("'{a,NULL,\"b,c\"}'",)),
    Case("integer[]", "string", ("'[0:1]={1,NULL}'", "'{{1,2},{3,4}}'", "'{}'")),
    Case("timestamp with time zone[]", "string", ("'{2024-01-01 00:00+00}'",)),
    Case("bytea[]", "string", ("ARRAY['\\x00'::bytea]",)),
    Case("double precision[]", "string", ("'{0.1,NaN}'",)),
    Case("real[]", "string", ("'{0.1,NaN,-0}'", "'[0:1]={1,NULL}'")),
    Case("int4range", "string", ("'[1,5)'", "'empty'", "'(,)'")),
    Case("tstzrange", "string", ("'[2024-01-01 00:00+00,infinity)'",)),
    Case("int4multirange", "string", ("'{[1,2),[5,6)}'",)),
    Case('"Odd Type"', "string", ("'[1,5)'",)),
    Case("inet", "string", ("'10.0.0.1'", "'10.0.0.0/8'", "'::1'")),
    Case("cidr", "string", ("'10.0.0.0/8'",)),
    Case("macaddr", "string", ("'08:00:2b:01:02:03'",)),
    Case("bit(3)", "string", ("B'101'",)),
    Case("bit varying", "string", ("B''", "B'1'")),
    Case("money", "string", ("'-1234.5'",)),
    Case("point", "string", ("'(0.1,-2)'",)),
    Case("tsvector", "string", ("'a:1 b:2A'",)),
    Case("pg_lsn", "string", ("'16/B374D848'",)),
)

EXACT: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "float32": ("float4send({})", lambda sent: struct.unpack(">f", sent)[0]),
    "float64": ("float8send({})", lambda sent: struct.unpack(">d", sent)[0]),
    "string": ("concat({})", str),
    "binary": ("encode({}, 'hex')", bytes.fromhex),
    "date32": ("{} - '1970-01-01'::date", int),
    "timestamp": ("(extract(epoch FROM {}) * 1000000)::numeric", int),
    "timestamptz": ("(extract(epoch FROM {}) * 1000000)::numeric", int),
    "bool": ("{}", bool),
}
"""By canonical type: SQL that tells the value without this project's parsers, and what to make of its answer."""


def exact(canonical: str) -> tuple[str, Callable[[Any], Any]]:
    return ("concat({})", Decimal) if canonical.startswith("decimal") else EXACT.get(canonical, ("{}", int))


def values_of(array: pa.Array) -> list[Any]:
    """Dates as days and timestamps as microseconds: Python has no year before 1 and after 9999."""
    if pa.types.is_date(array.type):
        array = array.cast(pa.int32())
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    return array.to_pylist()


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)  # tells NaN, -0 and scales


@pytest.mark.pitfall(37)
def test_every_type_is_what_the_server_has(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    log.execute(*TYPES)
    columns = ", ".join(f"c{i} {case.type}" for i, case in enumerate(CASES))
    log.execute(f"CREATE TABLE types (id int PRIMARY KEY, {columns})")
    log.publish("types")
    schema = log.schema("types")
    assert [column.arrow_type for column in schema.columns[1:]] == [case.canonical for case in CASES]
    longest = max(len(case.values) for case in CASES)
    with contextlib.closing(log.database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SET TimeZone = 'America/St_Johns'; SET DateStyle = 'SQL, DMY'; SET IntervalStyle = 'sql_standard';"
            "SET bytea_output = 'escape'; SET extra_float_digits = -15"
        )
        for i in range(longest):
            row = [case.values[i] if i < len(case.values) else "NULL" for case in CASES]
            cursor.execute(f"INSERT INTO types VALUES ({i}, {', '.join(row)})")
        cursor.execute(f"UPDATE types SET id = id + {longest}")
    found: dict[str, list[Any]] = {column.name: [] for column in schema.columns}
    reader = log.reader(schema)
    for batch in reader.read(LogRange(log.start, log.end())):
        assert batch.rows.schema == batch_schema(schema)
        chosen = batch.rows.filter(pc.equal(batch.rows["_change_type"], 0))
        for name, values in found.items():
            values += values_of(chosen[name])
    assert found["id"] == list(range(2 * longest))
    with log.connected() as connection, connection.cursor() as cursor:
        for i, case in enumerate(CASES):
            expression, read = exact(case.canonical)
            cursor.execute(f"SELECT {expression.format(f'c{i}')}, num_nulls(c{i}) = 1 FROM public.types ORDER BY id")
            expected = [None if null else read(value) for value, null in cursor.fetchall()]
            differing = [pair for pair in zip(found[f"c{i}"], 2 * expected, strict=True) if not same(*pair)]
            assert not differing, (case.type, differing)
