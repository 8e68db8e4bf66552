"""Split keys on real servers: boundaries tile a table by its index, and owners agree with the ranges' SELECT."""

import contextlib
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg2.extras import execute_values

from tests.support.postgres_keys import KeyedTable, keyed_table
from tests.support.servers import Database, FindServer, fresh_database
from tidemark.readers.postgres.keys.key_columns import TableKey
from tidemark.readers.postgres.keys.split_keys import next_bound_query
from tidemark.state import marks
from tidemark.state.errors import SchemaChangedError
from tidemark.state.key_encoding import encode_integer
from tidemark.state.split import Bound, KeyRange
from tidemark.state.table import Column, TableId, TableSchema

pytestmark = pytest.mark.integration

COLLATIONS = {
    "ignore_case": "provider = icu, locale = 'und-u-ks-level2', deterministic = false",
    "ignore_accents": "provider = icu, locale = 'und-u-ks-level1', deterministic = false",
    "swedish": "provider = icu, locale = 'sv-SE-x-icu'",
    "numbers": "provider = icu, locale = 'en-u-kn-true'",
    "shifted": "provider = icu, locale = 'und-u-ka-shifted-ks-level2', deterministic = false",
}
SCHEMA = [
    *(f'CREATE COLLATION public."{name}" ({options})' for name, options in COLLATIONS.items()),
    "CREATE TYPE public.\"Mood\" AS ENUM ('sad', 'ok', 'a, \"b\"', '{}', 'happy')",
    "CREATE TYPE public.pair AS (a int, b text)",
    "CREATE DOMAIN public.email AS text CHECK (value <> 'never')",
    "CREATE DOMAIN public.id AS bigint",
]
LETTERS = (
    "aAbBcCzZáàâäÄßñœæÆıİiIçéÉöÖüŰ -'\"\\{},_~0129\x01\t\n\u0301\u0308\u200b\u00ad\u0e40\u0e01あアー漢亜\uac00😀𝒜ﬁ½€$%"
)
TEXTS = ("", "NULL", "null", "'", '"', "\\", "\\\\", "{}", ",", "%s", "E'\\n'", "a\nb", "é", "e\u0301")
KEYS: dict[str, tuple[str, str, list[str]]] = {
    "smallint": ("smallint", "int16", ["-32768", "-1", "0", "1", "32767"]),
    "int": ("int", "int32", ["-2147483648", "-1", "0", "1", "2147483647"]),
    "bigint": ("bigint", "int64", ["'-9223372036854775808'", "-1", "0", "1", "9223372036854775807"]),
    "oid": ("oid", "int64", ["0", "1", "2147483648", "4294967295"]),
    "domain of bigint": ("public.id", "int64", ["-5", "0", "7", "8"]),
    "bool": ("bool", "bool", ["false", "true"]),
    "float8": ("float8", "float64", ["'-inf'", "-1e300", "0.1", "0.1::float8 + 0.2", "1e-320", "'inf'", "'nan'"]),
    "float4": ("float4", "float32", ["0.1", "1e20", "16777217", "'-0'", "'nan'"]),
    "numeric": ("numeric", "string", ["'NaN'", "'Infinity'", "'-Infinity'", "1.10", "1.2", "-1e-30", "1e100", "0.00"]),
    "decimal": ("numeric(20,4)", "decimal(20,4)", ["-9999999999999999.9999", "-0.0001", "0", "1.1", "1.2"]),
    "uuid": ("uuid", "string", ["gen_random_uuid()"] * 9),
    "date": (
        "date",
        "date32",
        [f"'{d}'" for d in ("4713-01-01 BC", "0001-12-31 BC", "1969-12-31", "9999-12-31", "5874897-12-31")],
    ),
    "timestamp": (
        "timestamp",
        "timestamp",
        [
            f"'{d}'"
            for d in ("4714-11-24 00:00 BC", "1969-12-31 23:59:59.999999", "1970-01-01", "294246-12-31 23:59:59.999999")
        ],
    ),
    "timestamptz(3)": (
        "timestamptz(3)",
        "timestamptz",
        [
            f"'{d}'"
            for d in (
                "4713-01-01 00:00:00.001+00 BC",
                "2024-03-31 01:30+01",
                "2024-03-31 01:30:00.001+00",
                "99999-01-01 00:00+00",
            )
        ],
    ),
    "time": ("time", "string", ["'00:00'", "'00:00:00.000001'", "'24:00'"]),
    "timetz": ("timetz", "string", ["'00:00+02'", "'00:00-02'", "'01:00+00'"]),
    "interval": ("interval", "string", ["'1 mon'", "'31 days'", "'-1 year 3 days 04:05:06.789'", "'0'"]),
    "bytea": (
        "bytea",
        "binary",
        ["''", "'\\x00'", "'\\x0000'", "'\\x5c5c27'", "'\\xff'", "'\\x61'", "'\\x5c783632'", "'\\x62'"],
    ),
    "inet": ("inet", "string", ["'10.0.0.1'", "'9.0.0.0/8'", "'::1'", "'10.0.0.1/8'"]),
    "enum": ('public."Mood"', "string", ["'sad'", "'ok'", "'a, \"b\"'", "'{}'", "'happy'"]),
    "domain": ("public.email", "string", ["''", "'b'", "'a'", "'B'"]),
    "array": ("int[]", "string", ["'{}'", "'{1,2}'", "'{1,10}'", "'{NULL}'"]),
    "text[]": ("text[]", "string", ["'{}'", r"""'{"a b","\\\\",NULL}'""", "'{a}'"]),
    "composite type": ("public.pair", "string", ["'(1,a)'", '\'(1,"b ""c")\'', "'(,)'", "'(10,)'"]),
    "range": ("int4range", "string", ["'[1,5)'", "'empty'", "'[1,)'", "'(,3)'"]),
    "jsonb": ("jsonb", "string", ["'{\"a\": 1}'", "'[]'", "'null'", "'\"x\"'", "'1.10'"]),
    "bit": ("bit(4)", "string", ["B'0000'", "B'1010'", "B'1111'"]),
    "varbit": ("varbit", "string", ["B''", "B'0'", "B'00'", "B'1'"]),
    "name": ("name", "string", ["'a'", "'B'", "''"]),
    "macaddr": ("macaddr", "string", ["'08:00:2b:01:02:03'", "'00:00:00:00:00:00'"]),
    "money": ("money", "string", ["-1234.5", "0", "1234567.89"]),
    "pg_lsn": ("pg_lsn", "string", ["'0/0'", "'16/B374D848'"]),
}


@pytest.fixture(scope="module", params=["15", "18"])
def database(request: pytest.FixtureRequest, find_server: FindServer) -> Iterator[Database]:
    with fresh_database(find_server("postgres", None if request.param == "15" else request.param)) as made:
        made.execute(*SCHEMA)
        yield made


def insert(database: Database, rows: list[tuple[Any, ...]]) -> None:
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        execute_values(cursor, "INSERT INTO public.t VALUES %s ON CONFLICT DO NOTHING", rows)


@pytest.mark.pitfall(22)
@pytest.mark.parametrize("key", KEYS)
def test_bounds_of_every_type_tile_the_table_and_owners_agree(database: Database, key: str) -> None:
    sql_type, arrow_type, values = KEYS[key]
    with keyed_table(database, [(sql_type, arrow_type)]) as table:
        database.execute(*(f"INSERT INTO public.t SELECT ({value})::{sql_type}" for value in values))
        assert table.check(table.bounds(1)) == [1] * len(values)
        counts = table.check(table.bounds(2))
        assert counts[:-1] == [2] * (len(counts) - 1)


@pytest.mark.parametrize("key", KEYS)
def test_bounds_are_found_for_keys_of_every_type(database: Database, key: str) -> None:
    sql_type, arrow_type, values = KEYS[key]
    with keyed_table(database, [(sql_type, arrow_type)]) as table:
        database.execute(*(f"INSERT INTO public.t SELECT ({value})::{sql_type}" for value in values))
        rows, keys = table.all_rows()
        bounds = table.keys.bounds_of(table.schema.table, table.schema.key, keys)
        assert bounds is not None
        assert [table.first_after(bound) for bound in bounds] == rows


MARKED = [
    ("date", "date32", pa.array([marks.MINUS_INFINITE_DATE, 0, marks.INFINITE_DATE], pa.int32()).cast(pa.date32())),
    (
        "timestamp",
        "timestamp",
        pa.array([marks.MINUS_INFINITE_TIME, 0, marks.INFINITE_TIME], pa.int64()).cast(pa.timestamp("us")),
    ),
    (
        "numeric(9,1)",
        "decimal(9,1)",
        marks.with_nan_marks(
            pa.array([Decimal(-3), Decimal(0), None], pa.decimal128(9, 1)), np.array([False, False, True])
        ),
    ),
]
"""The array's values are in the order of the server."""


@pytest.mark.parametrize(("sql_type", "arrow_type", "values"), MARKED, ids=[sql_type for sql_type, *_ in MARKED])
def test_bounds_are_found_for_values_that_arrow_has_no_place_for(
    database: Database, sql_type: str, arrow_type: str, values: pa.Array
) -> None:
    texts = ["-3", "0", "NaN"] if sql_type.startswith("numeric") else ["-infinity", "1970-01-01", "infinity"]
    with keyed_table(database, [(sql_type, arrow_type)]) as table:
        database.execute(*(f"INSERT INTO public.t VALUES ('{text}')" for text in texts))
        bounds = table.keys.bounds_of(table.schema.table, table.schema.key, pa.record_batch({"c0": values}))
        assert bounds is not None
        rows = [row for (row,) in database.query("SELECT t::text FROM public.t ORDER BY c0")]
        assert [table.first_after(bound) for bound in bounds] == rows


def test_a_time_that_is_too_late_for_64_bits_has_no_bound(database: Database) -> None:
    with keyed_table(database, [("timestamp", "timestamp")]) as table:
        keys = pa.record_batch({"c0": pa.array([marks.TOO_LATE], pa.int64()).cast(pa.timestamp("us"))})
        assert table.keys.bounds_of(table.schema.table, table.schema.key, keys) is None


@pytest.mark.pitfall(14)
@pytest.mark.parametrize("collation", ['"C"', '"C.utf8"', '"en-x-icu"', *(f'public."{name}"' for name in COLLATIONS)])
@pytest.mark.parametrize("sql_type", ["text", "varchar(60)", "char(60)"])
def test_bounds_of_every_collation_tile_the_table_and_owners_agree(
    database: Database, sql_type: str, collation: str
) -> None:
    chance = random.Random(7)
    texts = ["".join(chance.choices(LETTERS, k=chance.choice([1, 1, 2, 2, 3, 5]))) for _ in range(400)]
    with keyed_table(database, [(f"{sql_type} COLLATE {collation}", "string")]) as table:
        insert(database, [(text,) for text in [*TEXTS, *texts[:200]]])
        bounds = table.bounds(9)
        assert set(table.check(bounds)[:-1]) == {9}
        insert(database, [(text,) for text in texts[200:]])  # they lie between the bounds
        table.check(bounds)


CHARACTERS = st.sampled_from(LETTERS) | st.characters(exclude_characters="\0", exclude_categories=("Cs",))


@pytest.mark.pitfall(18)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([("a", 1), ("A", 1), ("a", 2)], [("á", 1), ("A", 0)])
@given(
    st.lists(st.tuples(st.text(CHARACTERS, max_size=6), st.integers(0, 3)), min_size=1, max_size=60),
    st.lists(st.tuples(st.text(CHARACTERS, max_size=6), st.integers(0, 3)), max_size=60),
)
def test_owners_of_random_composite_keys_agree(
    composite: KeyedTable, before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    composite.database.execute("TRUNCATE public.t")
    insert(composite.database, [(text, number, text) for text, number in before])
    bounds = composite.bounds(3)
    insert(composite.database, [(text, number, text) for text, number in after])
    composite.check(bounds)


@pytest.fixture
def composite(database: Database) -> Iterator[KeyedTable]:
    accents, case = 'text COLLATE public."ignore_accents"', 'text COLLATE public."ignore_case"'
    with keyed_table(database, [(accents, "string"), ("int", "int32"), (case, "string")]) as table:
        yield table


@pytest.mark.pitfall(15)
def test_keys_that_are_equal_but_written_otherwise_and_repeated_keys_have_one_owner(database: Database) -> None:
    with keyed_table(database, [('text COLLATE public."ignore_case"', "string")]) as table:
        insert(database, [("a",), ("B",), ("c",)])
        bounds = table.bounds(1)
        assert [bound.literals for bound in bounds] == [("B",), ("c",)]
        asked = ["b", "B", "A", "b", "C", "bb", "", "B"]
        batch = pa.RecordBatch.from_pydict({"c0": asked})
        assert table.owners(batch, bounds) == [1, 1, 0, 1, 2, 1, 0, 1]
        assert table.owners(batch.slice(2, 3), bounds) == [0, 1, 2]
        assert table.owners(batch.slice(0, 0), bounds) == []
    with keyed_table(database, [("numeric", "string")]) as table:
        insert(database, [("1",), ("2.0",), ("3",)])
        assert table.owners(pa.RecordBatch.from_pydict({"c0": ["2.000", "2", "1.99"]}), table.bounds(1)) == [1, 1, 0]


def test_a_key_column_of_an_extension_is_compared_by_the_extensions_own_operators(database: Database) -> None:
    available = database.query("SELECT 1 FROM pg_available_extensions WHERE name = 'citext'")
    assert available, "the server's package lacks citext"
    database.execute("CREATE SCHEMA IF NOT EXISTS ext", "CREATE EXTENSION IF NOT EXISTS citext SCHEMA ext")
    with keyed_table(database, [("ext.citext", "string")]) as table:
        insert(database, [(text,) for text in "bDaECf"])
        bounds = table.bounds(2)
        assert [bound.literals[0] for bound in bounds] == ["C", "E"]
        assert table.check(bounds) == [2, 2, 2]
        assert table.owners(pa.RecordBatch.from_pydict({"c0": ["c", "B", "e", "d"]}), bounds) == [1, 0, 2, 1]
    with keyed_table(database, [("int", "int32"), ("ext.citext", "string"), ("int", "int32")]) as table:
        insert(database, [(i % 3, "aBcD"[i % 4], i % 5) for i in range(60)])
        assert table.check(table.bounds(7)) == [7] * 8 + [4]


@pytest.mark.parametrize(
    "key",
    [
        [("text", "string"), ("int", "int32")],
        [("uuid", "string")],
        [("bigint", "int64")],
        [('text COLLATE public."ignore_case"', "string")],
        [("numeric(10,2)", "decimal(10,2)")],
        [("char(40)", "string")],
    ],
)
def test_the_walk_reads_the_keys_index_only(database: Database, key: list[tuple[str, str]]) -> None:
    with keyed_table(database, key) as table:
        values = {"uuid": "md5(i::text)::uuid", "bigint": "i", "int": "i", "numeric(10,2)": "i"}
        selected = ", ".join(values.get(sql_type, "md5(i::text)") for sql_type, _ in key)
        database.execute(f"INSERT INTO public.t SELECT {selected} FROM generate_series(1, 20000) i", "VACUUM ANALYZE t")
        low, high = table.bounds(8000)
        known: TableKey = table.keys.key(table.schema.table, table.schema.key)
        plan = table.session.query(f"EXPLAIN (FORMAT TEXT) {next_bound_query(known, KeyRange(low, high), 1000)}")
        lines = [line for (line,) in plan]
        assert sum("Index Only Scan using t_pkey" in line for line in lines) == 2, lines
        assert sum("Index Cond" in line for line in lines) == 2, lines
        assert not any("Sort" in line or "Filter" in line for line in lines), lines


def test_integer_bounds_have_the_ranks_that_arithmetic_gives(database: Database) -> None:
    with keyed_table(database, [("bigint", "int64")]) as table:
        insert(database, [(n,) for n in (-5, 3, 9)])
        statistics = table.keys.describe(table.schema.table, table.schema.key)
        assert statistics.integers is not None
        assert (statistics.integers.least, statistics.integers.greatest) == (-5, 9)
        assert statistics.greatest == Bound(("9",), encode_integer(9, unsigned=False).hex())
        cut = Bound(("-2",), encode_integer(-2, unsigned=False).hex())
        assert table.check([cut]) == [1, 2]


def test_ranks_rise_with_the_walk_and_end_with_the_greatest_key(database: Database) -> None:
    with keyed_table(database, [("text", "string")]) as table:
        insert(database, [(str(n),) for n in range(40)])
        name, columns = table.schema.table, table.schema.key
        statistics = table.keys.describe(name, columns)
        assert statistics.integers is None
        greatest = statistics.greatest
        assert greatest is not None
        first = table.keys.next_bounds(name, columns, after=None, until=greatest, rows=5, count=3)
        then = table.keys.next_bounds(name, columns, after=first[-1], until=greatest, rows=5, count=99)
        bounds = [*first, *then, greatest]
        encoded_keys = [bytes.fromhex(bound.encoded_key) for bound in bounds]
        assert (len(first), encoded_keys == sorted(set(encoded_keys))) == (3, True)
        assert table.check(bounds)[:-2] == [5] * (len(bounds) - 1)


def test_an_empty_table_has_no_ends(database: Database) -> None:
    with keyed_table(database, [("text", "string")]) as table:
        assert table.keys.describe(table.schema.table, table.schema.key).greatest is None
        assert table.bounds(1) == []
        assert table.owners(pa.RecordBatch.from_pydict({"c0": ["x", "y"]}), []) == [0, 0]


def test_a_partitioned_table_is_walked_as_one_and_a_parent_without_its_children(database: Database) -> None:
    with keyed_table(database, [("int", "int32"), ("text", "string")]) as table:
        database.execute(
            "DROP TABLE public.t",
            "CREATE TABLE public.t (c0 int, c1 text, PRIMARY KEY (c0, c1)) PARTITION BY HASH (c0)",
            *(
                f"CREATE TABLE public.t{i} PARTITION OF public.t FOR VALUES WITH (MODULUS 3, REMAINDER {i})"
                for i in range(3)
            ),
            "INSERT INTO public.t SELECT i, 'x' FROM generate_series(1, 30) i",
            "ANALYZE public.t",
        )
        assert table.check(table.bounds(10)) == [10, 10, 10]
        assert table.keys.describe(table.schema.table, table.schema.key).row_estimate == 30
    with keyed_table(database, [("int", "int32")]) as table:
        database.execute("CREATE TABLE public.child () INHERITS (public.t)", "INSERT INTO public.child VALUES (1), (2)")
        insert(database, [(5,), (6,)])
        assert [bound.literals for bound in table.bounds(1)] == [("6",)]
        database.execute("DROP TABLE public.child")


def test_a_lost_column_is_refused(database: Database) -> None:
    with keyed_table(database, [("date", "date32")]) as table:
        database.execute("ALTER TABLE public.t RENAME COLUMN c0 TO c1")
        with pytest.raises(SchemaChangedError, match=r"public\.t no longer exists, or no longer has the columns c0"):
            table.bounds(1)


def test_names_that_need_quoting(database: Database) -> None:
    name, column = 'T "x" %s', "K'ey"
    quoted = name.replace('"', '""')
    database.execute(f'CREATE TABLE public."{quoted}" ("{column}" text PRIMARY KEY)'.replace("%", "%"))
    with keyed_table(database, [("int", "int32")]) as table:
        schema = TableSchema(TableId("public", name), 1, (Column(column, "text", "string", nullable=False),), (column,))
        database.execute(f"INSERT INTO public.\"{quoted}\" VALUES ('a'), ('b')")
        bounds = table.keys.next_bounds(schema.table, schema.key, after=None, until=None, rows=1, count=9)
        assert [bound.literals for bound in bounds] == [("b",)]
