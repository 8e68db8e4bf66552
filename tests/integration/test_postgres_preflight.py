"""Preflight of PostgreSQL, with roles that have the documented rights and no others."""

import contextlib
from dataclasses import replace

import pytest

from devtools.servers import start_server
from tests.support.certificates import write_postgres_file
from tests.support.postgres_roles import role, superuser
from tests.support.servers import Database, FindServer, fresh_database
from tidemark.conf.endpoint import Endpoint
from tidemark.conf.tables import parse_table_glob
from tidemark.readers.findings import Finding
from tidemark.readers.postgres.connect import connect
from tidemark.readers.postgres.schema import server_checks
from tidemark.readers.postgres.schema.catalog import find_tables
from tidemark.readers.postgres.schema.preflight import Demands, preflight
from tidemark.readers.postgres.schema.table_facts import read_tables
from tidemark.readers.postgres.server import read_server
from tidemark.readers.schema_checks import Preflight, TableSettings
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration
RUNS_ON_POSTGRES_14 = True

MIRROR = Demands(needs_key=True, slot="tidemark_shop", publication="tidemark_shop")
FILES = Demands(needs_key=False, slot="tidemark_shop", publication="tidemark_shop")
READER = "LOGIN REPLICATION"
DOCUMENTED = ("USAGE ON SCHEMA public", "SELECT ON ALL TABLES IN SCHEMA public")


def look(endpoint: Endpoint, demands: Demands = MIRROR, glob: str = "public.*") -> Preflight:
    with contextlib.closing(connect(endpoint, None)) as connection:
        server = read_server(connection)
        tables = find_tables(connection, [parse_table_glob(glob)])
        return preflight(connection, server, read_tables(connection, tables), demands)


def refusals(found: Preflight) -> list[Finding]:
    return [finding for finding in found.findings if finding.severity == "refuse"]


def warnings(found: Preflight) -> list[str]:
    return [finding.message for finding in found.findings if finding.severity == "warn"]


def refused(database: Database, *statements: str, demands: Demands = MIRROR, glob: str = "public.*") -> Finding:
    """The first refusal that a superuser gets after the statements."""
    database.execute(*statements)
    return refusals(look(superuser(database), demands, glob))[0]


def shop(database: Database) -> None:
    database.execute(
        "CREATE TABLE public.orders (id int PRIMARY KEY, note text, secret text)",
        "CREATE TABLE public.lines (order_id int REFERENCES public.orders ON DELETE CASCADE, line int, "
        "PRIMARY KEY (order_id, line))",
        "CREATE TABLE public.events (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE public.events_low PARTITION OF public.events DEFAULT",
    )


def published(database: Database, tables: str = "public.orders, public.lines, public.events", more: str = "") -> None:
    database.execute(
        f"CREATE PUBLICATION tidemark_shop FOR TABLE {tables} WITH (publish_via_partition_root = true{more})"
    )


def test_the_documented_rights_suffice(postgres_source_database: Database) -> None:
    shop(postgres_source_database)
    published(postgres_source_database)
    with role(postgres_source_database, *DOCUMENTED, attributes=READER) as endpoint:
        found = look(endpoint)
    assert refusals(found) == []
    assert {str(table): schema.key for table, schema in found.schemas.items()} == {
        "public.events": ("id",),
        "public.lines": ("order_id", "line"),
        "public.orders": ("id",),
    }


def test_an_owner_who_may_create_in_the_database_needs_no_publication(postgres_source_database: Database) -> None:
    shop(postgres_source_database)
    name = postgres_source_database.name
    with role(postgres_source_database, f"CREATE ON DATABASE {name}", attributes=READER) as endpoint:
        for table in ("orders", "lines", "events"):
            postgres_source_database.execute(f"ALTER TABLE public.{table} OWNER TO {endpoint.user}")
        assert refusals(look(endpoint)) == []
        for table in ("orders", "lines", "events"):
            postgres_source_database.execute(f"ALTER TABLE public.{table} OWNER TO postgres")


@pytest.mark.parametrize("left_out", ["REPLICATION", *DOCUMENTED, "publication"])
def test_every_documented_right_is_needed(postgres_source_database: Database, left_out: str) -> None:
    shop(postgres_source_database)
    postgres_source_database.execute("REVOKE ALL ON SCHEMA public FROM public")
    if left_out != "publication":
        published(postgres_source_database)
    grants = [grant for grant in DOCUMENTED if grant != left_out]
    attributes = READER.replace(left_out, "").strip()
    with role(postgres_source_database, *grants, attributes=attributes) as endpoint:
        found = refusals(look(endpoint))
    wanted = {
        "REPLICATION": "may not use replication slots",
        DOCUMENTED[0]: "may not use schema public",
        DOCUMENTED[1]: "may not read id, note, secret of public.orders",
        "publication": "There is no publication tidemark_shop",
    }[left_out]
    assert any(wanted in finding.message for finding in found)
    assert len(found) == (3 if left_out in DOCUMENTED else 1)


@pytest.mark.pitfall(115)
def test_select_on_the_captured_columns_is_enough(postgres_source_database: Database) -> None:
    shop(postgres_source_database)
    published(postgres_source_database)
    columns_only = ("USAGE ON SCHEMA public", "SELECT (id, note) ON public.orders")
    demands = Demands(
        needs_key=True,
        slot="s",
        publication="tidemark_shop",
        tables=TableSettings(exclude_columns={TableId("public", "orders"): frozenset({"secret"})}),
    )
    with role(postgres_source_database, *columns_only, attributes=READER) as endpoint:
        assert refusals(look(endpoint, demands, "public.orders")) == []
        (finding,) = refusals(look(endpoint, MIRROR, "public.orders"))
    assert finding.message == "The role may not read secret of public.orders."
    assert finding.remedy.endswith("or leave them out: source.columns: {public.orders: {exclude: [secret]}}.")


@pytest.mark.pitfall(115)
@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("(id int PRIMARY KEY, secret int) PARTITION BY HASH (id)", "tableoid, xmin, cmin"),
        ("(id int, secret int)", "ctid"),
    ],
)
def test_system_columns_must_be_readable_too_where_they_are_read(
    postgres_source_database: Database, table: str, columns: str
) -> None:
    source, name = postgres_source_database, TableId("public", "t")
    source.execute(
        f"CREATE TABLE public.t {table}",
        "CREATE PUBLICATION tidemark_t FOR TABLE public.t WITH (publish_via_partition_root = true)",
        "ALTER TABLE public.t REPLICA IDENTITY " + ("DEFAULT" if "PARTITION" in table else "FULL"),
    )
    tables = TableSettings(exclude_columns={name: frozenset({"secret"})})
    demands = Demands(needs_key=False, slot="s", publication="tidemark_t", tables=tables)
    with role(source, "USAGE ON SCHEMA public", "SELECT (id) ON public.t", attributes=READER) as endpoint:
        (finding,) = refusals(look(endpoint, demands, "public.t"))
        assert f"may SELECT columns of public.t only, and not {columns}" in finding.message
        source.execute(finding.remedy.rstrip(".").replace("the role of source.url", endpoint.user))
        assert refusals(look(endpoint, demands, "public.t")) == []


def test_a_hypertable_is_refused(postgres_source_database: Database) -> None:
    """Its catalog, as TimescaleDB makes it: the rows are in tables that inherit from it."""
    finding = refused(
        postgres_source_database,
        "CREATE TABLE public.metrics (at timestamptz, id int, PRIMARY KEY (at, id))",
        "CREATE SCHEMA _timescaledb_internal",
        "CREATE TABLE _timescaledb_internal._hyper_1_1_chunk () INHERITS (public.metrics)",
        "CREATE SCHEMA _timescaledb_catalog",
        "CREATE TABLE _timescaledb_catalog.hypertable (id int, schema_name name, table_name name)",
        "INSERT INTO _timescaledb_catalog.hypertable VALUES (1, 'public', 'metrics')",
    )
    assert "public.metrics is a hypertable" in finding.message


@pytest.mark.pitfall(62)
@pytest.mark.parametrize(
    ("identity", "message", "remedy"),
    [
        ("NOTHING", "is NOTHING", "REPLICA IDENTITY DEFAULT"),
        ("USING INDEX by_code", "lacks id", "REPLICA IDENTITY DEFAULT"),
    ],
)
def test_the_log_must_say_which_row_was_changed(
    postgres_source_database: Database, identity: str, message: str, remedy: str
) -> None:
    finding = refused(
        postgres_source_database,
        "CREATE TABLE public.t (id int PRIMARY KEY, code int NOT NULL)",
        "CREATE UNIQUE INDEX by_code ON public.t (code)",
        f"ALTER TABLE public.t REPLICA IDENTITY {identity}",
    )
    assert message in finding.message
    assert remedy in finding.remedy


@pytest.mark.pitfall(62)
def test_a_table_without_a_primary_key_needs_an_identity_for_every_sink(postgres_source_database: Database) -> None:
    create = "CREATE TABLE public.t (code int NOT NULL UNIQUE, a int)"
    finding = refused(postgres_source_database, create, demands=FILES)
    assert "the server refuses every UPDATE and DELETE" in finding.message
    assert 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL.' in finding.remedy
    postgres_source_database.execute("ALTER TABLE public.t REPLICA IDENTITY FULL")
    assert refusals(look(superuser(postgres_source_database), FILES)) == []
    (finding,) = refusals(look(superuser(postgres_source_database), MIRROR))
    assert "source.keys: {public.t: [code]}" in finding.remedy
    named = Demands(True, slot="s", publication="p", tables=TableSettings(keys={TableId("public", "t"): ("code",)}))
    assert refusals(look(superuser(postgres_source_database), named)) == []
    postgres_source_database.execute("ALTER TABLE public.t REPLICA IDENTITY DEFAULT")
    (finding,) = refusals(look(superuser(postgres_source_database), named))
    assert 'REPLICA IDENTITY USING INDEX "t_code_key"' in finding.remedy


@pytest.mark.pitfall(62)
@pytest.mark.parametrize("demands", [FILES, MIRROR])
def test_the_index_of_the_identity_is_the_key(postgres_source_database: Database, demands: Demands) -> None:
    postgres_source_database.execute(
        "CREATE TABLE public.t (b int NOT NULL UNIQUE, a int NOT NULL, c int, UNIQUE (a, b))",
        "ALTER TABLE public.t REPLICA IDENTITY USING INDEX t_a_b_key",
    )
    found = look(superuser(postgres_source_database), demands)
    assert refusals(found) == []
    assert [schema.key for schema in found.schemas.values()] == [("a", "b")]
    settings = TableSettings(keys={TableId("public", "t"): ("b",)})
    named = look(superuser(postgres_source_database), replace(demands, tables=settings))
    assert [schema.key for schema in named.schemas.values()] == [("b",)]
    used = replace(demands, tables=TableSettings(used_keys={TableId("public", "t"): ("b",)}))
    for identity, key in (("USING INDEX t_a_b_key", ("a", "b")), ("FULL", ("b",)), ("NOTHING", ())):
        postgres_source_database.execute(f"ALTER TABLE public.t REPLICA IDENTITY {identity}")
        found = look(superuser(postgres_source_database), used)
        assert [schema.key for schema in found.schemas.values()] == [key]


@pytest.mark.pitfall(62)
def test_an_identity_of_an_index_whose_older_rows_may_be_null_is_no_key(postgres18_database: Database) -> None:
    """The server deletes such rows, and the log lacks which ones."""
    finding = refused(
        postgres18_database,
        "CREATE TABLE public.t (code int UNIQUE, a int)",
        "INSERT INTO public.t VALUES (NULL, 1)",
        "ALTER TABLE public.t ADD CONSTRAINT there NOT NULL code NOT VALID",
        "ALTER TABLE public.t REPLICA IDENTITY USING INDEX t_code_key",
        "CREATE PUBLICATION p FOR TABLE public.t",
        demands=FILES,
    )
    assert "older rows may have NULL in code" in finding.message
    postgres18_database.execute("DELETE FROM public.t")


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["CREATE UNLOGGED TABLE public.t (id int PRIMARY KEY)"], "is unlogged"),
        (["CREATE TABLE public.t (id float8 PRIMARY KEY)"], "equal values need not be equal"),
        (["CREATE TABLE public.t (id int PRIMARY KEY, a regclass)"], "Column a of public.t has type regclass"),
        (
            ["CREATE TABLE public.t (id int) PARTITION BY RANGE (id)", "ALTER TABLE public.t REPLICA IDENTITY FULL"],
            "is partitioned and has no primary key",
        ),
        (
            [
                "CREATE TABLE public.t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
                "ALTER TABLE public.t REPLICA IDENTITY FULL",
            ],
            "which new partitions do not inherit",
        ),
        (
            [
                "CREATE TABLE public.t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
                "CREATE TABLE public.low PARTITION OF public.t DEFAULT",
                "ALTER TABLE public.low REPLICA IDENTITY NOTHING",
            ],
            "Partition public.low of public.t has replica identity NOTHING",
        ),
        (
            [
                "CREATE TABLE public.t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
                "CREATE UNLOGGED TABLE public.low PARTITION OF public.t DEFAULT",
            ],
            "Partitions of public.t are unlogged (public.low)",
        ),
    ],
)
@pytest.mark.pitfall(65)
def test_tables_that_can_not_be_followed_are_refused(
    postgres_database: Database, statements: list[str], message: str
) -> None:
    assert message in refused(postgres_database, *statements).message


@pytest.mark.pitfall(65)
def test_rows_that_row_security_hides_are_found(postgres_source_database: Database) -> None:
    shop(postgres_source_database)
    published(postgres_source_database)
    postgres_source_database.execute("ALTER TABLE public.orders ENABLE ROW LEVEL SECURITY")
    with role(postgres_source_database, *DOCUMENTED, attributes=READER) as endpoint:
        (finding,) = refusals(look(endpoint))
        assert "hides rows from the role" in finding.message
        postgres_source_database.execute(f"ALTER ROLE {endpoint.user} BYPASSRLS")
        assert refusals(look(endpoint)) == []


@pytest.mark.pitfall(65)
def test_a_publication_with_less_than_everything_is_refused(postgres_source_database: Database) -> None:
    shop(postgres_source_database)
    wrong: list[tuple[str, str, str]] = [
        ("public.orders, public.lines, public.events", ", publish = 'insert'", "does not publish all"),
    ]
    if not postgres_source_database.server.version.startswith("14"):
        rest = "public.lines, public.events"
        wrong.append((f"public.orders WHERE (id > 0), {rest}", "", "row filter"))
        wrong.append((f"public.orders (id, note), {rest}", "", "column list"))
    for tables, more, message in wrong:
        published(postgres_source_database, tables, more)
        (finding,) = refusals(look(superuser(postgres_source_database)))
        assert message in finding.message
        postgres_source_database.execute("DROP PUBLICATION tidemark_shop")
    published(postgres_source_database, "public.orders, public.events")
    found = look(superuser(postgres_source_database))
    assert not refusals(found)
    assert "does not have public.lines. The job's start adds it" in str(found.findings)
    with role(postgres_source_database, *DOCUMENTED, attributes=READER) as endpoint:
        (finding,) = refusals(look(endpoint))
        assert finding.remedy == 'ALTER PUBLICATION "tidemark_shop" ADD TABLE ONLY "public"."lines".'


def test_misspelt_names_are_found(postgres_database: Database) -> None:
    shop(postgres_database)
    misspelt = TableId("public", "Orders")
    demands = Demands(
        needs_key=True,
        slot="s",
        publication="p",
        tables=TableSettings(exclude_columns={misspelt: frozenset({"secret"})}, keys={misspelt: ("id",)}),
    )
    found = refusals(look(superuser(postgres_database), demands))
    assert [f.message for f in found] == [
        f"source.{section} names public.Orders, which source.tables does not select." for section in ("columns", "keys")
    ]


def test_what_is_worth_knowing(postgres_source_database: Database) -> None:
    postgres_source_database.execute(
        "CREATE TABLE public.parent (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "CREATE TABLE public.child (PRIMARY KEY (id)) INHERITS (public.parent)",
    )
    found = warnings(look(superuser(postgres_source_database), glob="public.parent"))
    assert [message for message in found if "inherit from public.parent (public.child)" in message]
    assert [message for message in found if "Generated columns of public.parent" in message]
    found = warnings(look(superuser(postgres_source_database)))  # the other table is copied, too
    assert not [message for message in found if "inherit from" in message]


def test_money_is_refused_where_it_has_no_cents(postgres_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    postgres_database.execute("CREATE TABLE public.t (id int PRIMARY KEY, price money)")
    assert refusals(look(superuser(postgres_database))) == []
    # What a server answers under ja_JP, which is not installed everywhere.
    monkeypatch.setattr(server_checks, "_ONE_IN_MONEY", "SELECT encode(cash_send('0.01'::money), 'hex')")
    (finding,) = refusals(look(superuser(postgres_database)))
    assert (finding.column, "does not have two decimals" in finding.message) == ("price", True)


def test_settings_that_forbid_a_slot(find_server: FindServer) -> None:
    server = find_server("postgres", wal_level="replica")
    with fresh_database(server) as database:
        assert "wal_level is replica" in refused(database, "CREATE TABLE public.t (id int PRIMARY KEY)").message


@pytest.mark.parametrize(
    ("version", "wal_level", "effective", "in_recovery", "may_start"),
    [
        (18, "replica", "replica", False, False),
        (18, "logical", "logical", False, True),
        (19, "replica", "replica", False, True),  # the job's slot turns logical decoding on
        (19, "minimal", "minimal", False, False),
        (19, "replica", "replica", True, False),  # the primary's slots decide
        (19, "replica", "logical", True, True),
    ],
)
def test_a_slot_needs_a_logical_log(
    postgres_database: Database, version: int, wal_level: str, effective: str, in_recovery: bool, may_start: bool
) -> None:
    """PostgreSQL 19 was tried by hand: tests have no package of it."""
    with contextlib.closing(connect(superuser(postgres_database), None)) as connection:
        server = replace(
            read_server(connection),
            version=(version, 0),
            wal_level=wal_level,
            effective_wal_level=effective,
            in_recovery=in_recovery,
        )
        texts = [finding.message for finding in server_checks.check_settings(connection, server, "slot", standby=True)]
    assert any(text.startswith("wal_level is") for text in texts) != may_start


def test_a_standby_is_refused() -> None:
    with start_server("postgres", version="18") as server, fresh_database(server) as database:
        database.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
        with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
            write_postgres_file(cursor, "standby.signal", "")
        server.restart()
        assert "The server is a standby (PostgreSQL 18" in refused(database).message
        with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_promote()")


def test_a_server_without_a_free_slot(find_server: FindServer) -> None:
    server = find_server("postgres", max_replication_slots=1, max_slot_wal_keep_size="64MB")
    with fresh_database(server) as database:
        database.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
        database.query("SELECT pg_create_logical_replication_slot('other', 'pgoutput')")
        found = look(superuser(database))
        assert ["replication slots of the server are taken" in f.message for f in refusals(found)] == [True]
        assert ["64 MB of log" in message for message in warnings(found)] == [True]
        assert refusals(look(superuser(database), Demands(needs_key=True, slot="other", publication="p"))) == []


def test_prepared_transactions_and_idle_slots(find_server: FindServer) -> None:
    server = find_server("postgres", "18", max_prepared_transactions=2, idle_replication_slot_timeout="60")
    with fresh_database(server) as database:
        database.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
        with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN; INSERT INTO public.t VALUES (1); PREPARE TRANSACTION 'open'")
            found = warnings(look(superuser(database)))
            cursor.execute("ROLLBACK PREPARED 'open'")
    assert ["prepared" in message for message in found] == [False, True]
    assert "idle_replication_slot_timeout" in found[0]
