"""Tables of PostgreSQL: which are found, their columns and keys, and the server's identity."""

import contextlib
import dataclasses
from collections.abc import Iterator

import pytest

from tests.support.postgres_roles import superuser
from tests.support.servers import Database
from tidemark.conf.tables import parse_table_glob
from tidemark.readers.postgres.connect import Connection, connect
from tidemark.readers.postgres.schema.catalog import find_tables, schema_of
from tidemark.readers.postgres.schema.table_facts import TableFacts, read_tables
from tidemark.readers.postgres.server import ServerIdentity, read_identity, read_server, require_identity
from tidemark.state.errors import JobFileError, LogPositionLostError, SourceNotUsableError, UnsupportedTypeError
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration


@pytest.fixture
def connection(postgres_source_database: Database) -> Iterator[Connection]:
    with contextlib.closing(connect(superuser(postgres_source_database), None)) as opened:
        yield opened


def facts_of(connection: Connection, name: str) -> TableFacts:
    table = TableId("public", name)
    return read_tables(connection, [table])[table]


def found(connection: Connection, *include: str, exclude: tuple[str, ...] = ()) -> list[str]:
    globs = ([parse_table_glob(text) for text in texts] for texts in (include, exclude))
    return [str(table) for table in find_tables(connection, *globs)]


@pytest.mark.pitfall(66)
def test_tables_are_found_by_schema_and_name(postgres_source_database: Database, connection: Connection) -> None:
    postgres_source_database.execute(
        "CREATE SCHEMA shop",
        'CREATE SCHEMA "Odd.Schema"',
        "CREATE TABLE shop.orders (id int PRIMARY KEY)",
        'CREATE TABLE "Odd.Schema"."It""s a table" (id int PRIMARY KEY)',
        "CREATE TABLE shop.events (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE shop.events_2024 PARTITION OF shop.events DEFAULT PARTITION BY RANGE (id)",
        "CREATE TABLE shop.events_2024_low PARTITION OF shop.events_2024 DEFAULT",
        "CREATE VIEW shop.all_orders AS SELECT * FROM shop.orders",
        "CREATE MATERIALIZED VIEW shop.old_orders AS SELECT * FROM shop.orders",
    )
    assert found(connection, "shop.*") == ["shop.events", "shop.orders"]
    assert found(connection, "*.*", exclude=("shop.e*",)) == ['Odd.Schema.It"s a table', "shop.orders"]
    assert found(connection, '`Odd.Schema`.`It"s a table`') == ['Odd.Schema.It"s a table']
    assert found(connection, "shop.events_2024_low") == ["shop.events_2024_low"]
    assert found(connection, "shop.events_2024_low", "shop.events_2024") == ["shop.events_2024"]
    assert found(connection, "shop.events_2024_low", "shop.events") == ["shop.events"]
    for name in ("shop.all_orders", "shop.old_orders"):
        with pytest.raises(SourceNotUsableError, match="is no table but a"):
            found(connection, name)
    with pytest.raises(SourceNotUsableError, match=r"spells it shop\.orders"):
        found(connection, "shop.Orders")
    with pytest.raises(SourceNotUsableError, match="matches no table"):
        found(connection, "pg_catalog.*")
    with pytest.raises(SourceNotUsableError, match="excludes every table"):
        found(connection, "shop.orders", exclude=("shop.*",))


def test_columns_have_the_types_of_the_server(postgres_source_database: Database, connection: Connection) -> None:
    postgres_source_database.execute(
        "CREATE DOMAIN public.price AS numeric(10,2) CHECK (VALUE >= 0)",
        "CREATE DOMAIN public.low_price AS public.price",
        "CREATE TYPE public.mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE public.text AS (a int)",
        "CREATE COLLATION public.anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "CREATE TABLE public.t (id bigint PRIMARY KEY, gone int, flag boolean NOT NULL, price public.low_price, "
        "how public.mood, moods public.mood[], odd public.text, name varchar(20) COLLATE public.anycase, code char(3), "
        "bare numeric, at timestamp(3), zoned timestamptz, twice int GENERATED ALWAYS AS (id * 2) STORED, secret text)",
        "ALTER TABLE public.t DROP COLUMN gone",
    )
    schema = schema_of(facts_of(connection, "t"), exclude_columns={"secret"})
    assert schema.key == ("id",)
    assert [(c.name, c.source_type, c.arrow_type) for c in schema.columns] == [
        ("id", "bigint", "int64"),
        ("flag", "boolean", "bool"),
        ("price", "public.low_price", "decimal(10,2)"),
        ("how", "public.mood", "string"),
        ("moods", "public.mood[]", "string"),
        ("odd", "public.text", "string"),
        ("name", "character varying(20)", "string"),
        ("code", "character(3)", "string"),
        ("bare", "numeric", "string"),
        ("at", "timestamp(3) without time zone", "timestamp"),
        ("zoned", "timestamp with time zone", "timestamptz"),
        ("twice", "integer", ""),
        ("secret", "text", ""),
    ]
    assert [c.name for c in schema.columns if c.generated] == ["twice"]
    assert schema.column("name").collation == "public.anycase"
    assert not schema.column("flag").nullable
    assert schema.column("price").nullable


@pytest.mark.pitfall(67)
def test_virtual_columns_are_generated_too(postgres_source_database: Database, connection: Connection) -> None:
    if connection.server_version < 180000:
        pytest.skip("since PostgreSQL 18")
    postgres_source_database.execute(
        "CREATE TABLE public.t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2))"
    )
    assert [column.captured for column in schema_of(facts_of(connection, "t")).columns] == [True, False]


def test_types_that_can_not_be_carried_name_their_column(
    postgres_source_database: Database, connection: Connection
) -> None:
    postgres_source_database.execute("CREATE TABLE public.t (id int PRIMARY KEY, ref regclass)")
    with pytest.raises(UnsupportedTypeError, match=r"Column ref of public\.t has type regclass"):
        schema_of(facts_of(connection, "t"))
    assert schema_of(facts_of(connection, "t"), exclude_columns={"ref"}).key == ("id",)


def test_a_name_of_an_object_inside_of_another_type_is_found(
    postgres_source_database: Database, connection: Connection
) -> None:
    """`ALTER TABLE … RENAME` would change the text of all its rows, and the log would have none of them."""
    types = ("own[]", "named", "domained[]", "own_list", "t0", "regclass[]")
    postgres_source_database.execute(
        "CREATE TYPE own AS (i int, r regclass)",
        "CREATE DOMAIN named AS own",
        "CREATE DOMAIN domained AS regtype",
        "CREATE TYPE own_list AS (i int, o own[])",
        "CREATE TABLE t0 (d domained)",
        f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(f'c{n} {kind}' for n, kind in enumerate(types))}, p point, o oid)",
    )
    columns = {f"c{n}" for n in range(len(types))}
    facts = facts_of(connection, "t")
    for column in columns:
        with pytest.raises(UnsupportedTypeError, match=f"Column {column} of public.t has .*, whose text has the name"):
            schema_of(facts, exclude_columns=columns - {column})
    assert schema_of(facts, exclude_columns=columns).key == ("id",)


def test_a_key_is_primary_or_named(postgres_source_database: Database, connection: Connection) -> None:
    postgres_source_database.execute(
        "CREATE TABLE public.own (b int, a int, extra int, PRIMARY KEY (a, b) INCLUDE (extra))",
        "CREATE TABLE public.unique_only (a int NOT NULL, b int NOT NULL, c int UNIQUE, UNIQUE (b, a))",
        "CREATE UNIQUE INDEX some_rows ON public.unique_only (a) WHERE b > 0",
        "CREATE UNIQUE INDEX of_expression ON public.unique_only (a, (b + 1))",
        "CREATE TABLE public.late (a int PRIMARY KEY DEFERRABLE)",
    )
    assert schema_of(facts_of(connection, "own")).key == ("a", "b")
    with pytest.raises(JobFileError, match="has the primary key"):
        schema_of(facts_of(connection, "own"), key_override=["extra"])
    unique_only = facts_of(connection, "unique_only")
    assert schema_of(unique_only).key == ()
    assert schema_of(unique_only, key_override=["a", "b"]).key == ("b", "a")
    for wrong in (["a"], ["c"]):
        with pytest.raises(JobFileError, match="no unique index") as caught:
            schema_of(unique_only, key_override=wrong)
        assert caught.value.remedy == "These would do: (b, a)."
    with pytest.raises(JobFileError, match="no such column"):
        schema_of(unique_only, key_override=["z"])
    assert schema_of(facts_of(connection, "late")).key == ()


def test_a_key_may_have_no_older_rows_with_null(postgres18_database: Database) -> None:
    """No split would have them."""
    postgres18_database.execute(
        "CREATE TABLE public.t (a int UNIQUE, b int)",
        "INSERT INTO public.t VALUES (NULL, 1)",
        "ALTER TABLE public.t ADD CONSTRAINT later NOT NULL a NOT VALID, ALTER b SET NOT NULL",
    )
    with contextlib.closing(connect(superuser(postgres18_database), None)) as connection:
        assert [column.nullable for column in facts_of(connection, "t").columns] == [True, False]
        with pytest.raises(JobFileError, match="no unique index"):
            schema_of(facts_of(connection, "t"), key_override=["a"])
        postgres18_database.execute("DELETE FROM public.t", "ALTER TABLE public.t VALIDATE CONSTRAINT later")
        assert schema_of(facts_of(connection, "t"), key_override=["a"]).key == ("a",)


def test_excluded_columns_must_be_there_and_not_in_the_key(
    postgres_source_database: Database, connection: Connection
) -> None:
    postgres_source_database.execute("CREATE TABLE public.t (id int PRIMARY KEY, a int)")
    facts = facts_of(connection, "t")
    for wrong, message in (({"z"}, "no such column"), ({"id"}, "its key needs")):
        with pytest.raises(JobFileError, match=message):
            schema_of(facts, exclude_columns=wrong)


def test_partitions_and_inheritance_are_told_apart(postgres_source_database: Database, connection: Connection) -> None:
    postgres_source_database.execute(
        "CREATE TABLE public.events (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE public.low PARTITION OF public.events FOR VALUES FROM (0) TO (10)",
        "CREATE UNLOGGED TABLE public.high PARTITION OF public.events FOR VALUES FROM (10) TO (20)",
        "CREATE TABLE public.parent (id int PRIMARY KEY)",
        "CREATE TABLE public.child () INHERITS (public.parent)",
    )
    events, parent, child = (facts_of(connection, name) for name in ("events", "parent", "child"))
    assert events.kind == "partitioned"
    assert [(str(p.table), p.unlogged) for p in events.partitions] == [("public.high", True), ("public.low", False)]
    assert (events.children, parent.children, child.children) == ((), (child.table,), ())


def test_a_table_that_is_gone_is_named(connection: Connection) -> None:
    with pytest.raises(SourceNotUsableError, match=r"public\.nothing no longer exists"):
        facts_of(connection, "nothing")


def test_the_server_is_known_again(postgres_source_database: Database, connection: Connection) -> None:
    server = read_server(connection)
    assert server.version_text.startswith(f"{server.version[0]}.")
    assert server.name == f"PostgreSQL {server.version[0]}.{server.version[1]}"
    assert (server.wal_level, server.in_recovery, server.encoding) == ("logical", False, "UTF8")
    assert server.database == postgres_source_database.name
    assert ServerIdentity.parse(str(server.identity)) == read_identity(connection)
    require_identity(connection, server.identity)
    with pytest.raises(LogPositionLostError, match="another server"):
        require_identity(connection, dataclasses.replace(server.identity, system="1"))
    with pytest.raises(LogPositionLostError, match="promoted"):
        require_identity(connection, dataclasses.replace(server.identity, timeline=7))
