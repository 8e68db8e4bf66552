"""Remedies for what a PostgreSQL source is refused or warned for, done as they are printed: the job goes on, and its copies are
those of the source."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.extras
import pytest

from devtools.server import Server
from devtools.servers import start_server
from tests.support.cli import CommandLine
from tests.support.leases import wait_until
from tests.support.postgres_roles import role
from tests.support.remedy_ways import (
    Trouble,
    by_hand,
    get_over,
    left_out,
    mirror_job,
    require_copies,
    setting,
    start_over,
    statements,
    told_by,
    undone,
    written,
)
from tests.support.servers import Database, fresh_database, restart_with
from tidemark.conf import reconnect
from tidemark.readers.postgres.pgoutput import reading
from tidemark.readers.postgres.pgoutput.messages import read_relation
from tidemark.readers.postgres.slot import slot

pytestmark = pytest.mark.integration


def a_job(folder: Path, source: Database, target: Database, **settings: Any) -> Path:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a')")
    return mirror_job(folder, source, target, **settings)


FOREIGN = (
    "CREATE TABLE bad (id int NOT NULL) PARTITION BY RANGE (id)",
    "CREATE TABLE near PARTITION OF bad FOR VALUES FROM (0) TO (100)",
    "CREATE FOREIGN DATA WRAPPER away",
    "CREATE SERVER away FOREIGN DATA WRAPPER away",
)
WITHOUT_KEY = ("CREATE TABLE bad (id int NOT NULL) PARTITION BY RANGE (id)", "CREATE TABLE p PARTITION OF bad DEFAULT")
TEXTS = ("CREATE TABLE bad (id int PRIMARY KEY, t text)", "INSERT INTO bad VALUES (1, 'a')")
UPPER = "transforms={public.bad: 'SELECT id, upper(t) AS t FROM input'}"
ALTER = r"ALTER TABLE \S+ REPLICA IDENTITY \w+"

OF_TABLES = {
    "tables that inherit": Trouble(
        (
            "CREATE TABLE bad (id int PRIMARY KEY)",
            "CREATE TABLE kid (PRIMARY KEY (id)) INHERITS (bad)",
        ),
        "Name those tables in source.tables too.",
        by_hand(settings=("source.tables=[public.orders, public.bad, public.kid]",)),
        wrong=("source.tables=[public.orders, public.bad]",),
        compared="id",
    ),
    "a generated column": Trouble(
        ("CREATE TABLE bad (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)",),
        "To silence the warning, exclude them in source.columns.",
        by_hand(settings=("source.columns={public.bad: {exclude: [twice]}}",)),
        later=("INSERT INTO bad VALUES (7)",),
        compared="id",
    ),
    "a list that is none": Trouble(
        ("CREATE TABLE bad (id int PRIMARY KEY, tags int[])",),
        "Correct as_text.",
        written("source.columns={public.bad: {as_text: [FOUND]}}", r"Columns with lists are (\w+)\."),
        wrong=("source.columns={public.bad: {as_text: [id]}}",),
        later=("INSERT INTO bad VALUES (7, NULL)",),
    ),
    "a foreign partition": Trouble(
        (*FOREIGN, "CREATE FOREIGN TABLE far PARTITION OF bad FOR VALUES FROM (100) TO (200) SERVER away"),
        "Detach them, or leave the table out",
        by_hand(
            "ALTER TABLE bad DETACH PARTITION far", "DROP FOREIGN TABLE far", "ALTER TABLE bad ADD PRIMARY KEY (id)"
        ),
        later=("INSERT INTO bad VALUES (7)",),
    ),
    "a foreign partition, left out": Trouble(
        (*FOREIGN, "CREATE FOREIGN TABLE far PARTITION OF bad FOR VALUES FROM (100) TO (200) SERVER away"),
        "Detach them, or leave the table out",
        by_hand(settings=("source.exclude_tables=[public.bad, public.far]",)),
    ),
    "partitions without a key": Trouble(
        WITHOUT_KEY,
        "Give it a primary key, or leave it out.",
        by_hand("ALTER TABLE bad ADD PRIMARY KEY (id)"),
        later=("INSERT INTO bad VALUES (7)",),
    ),
    "an identity of nothing": Trouble(
        ("CREATE TABLE bad (id int PRIMARY KEY)", "ALTER TABLE bad REPLICA IDENTITY NOTHING"),
        'ALTER TABLE "public"."bad" REPLICA IDENTITY DEFAULT.',
        statements(ALTER),
        later=("INSERT INTO bad VALUES (7)", "UPDATE bad SET id = 8", "DELETE FROM bad"),
    ),
    "a transform of long values": Trouble(
        TEXTS,
        'ALTER TABLE "public"."bad" REPLICA IDENTITY FULL; or only pass the column on',
        statements(ALTER),
        kept=(UPPER,),
        later=("UPDATE bad SET t = 'B'",),
    ),
    "a transform of long values, passed on": Trouble(
        TEXTS,
        "or only pass the column on, as it is.",
        by_hand(settings=("transforms={public.bad: 'SELECT id, t FROM input'}",)),
        wrong=(UPPER,),
        later=("UPDATE bad SET t = 'B'",),
    ),
    "a key of floats": Trouble(
        ("CREATE TABLE bad (id float8 PRIMARY KEY, code int NOT NULL UNIQUE)",),
        "Name another unique key (source.keys; not for a table with a primary key), or leave the table out",
        left_out,
    ),
    "a key of floats, another key": Trouble(
        ("CREATE TABLE bad (id float8 NOT NULL UNIQUE, code int NOT NULL UNIQUE)",),
        "Name another unique key (source.keys; not for a table with a primary key), or leave the table out",
        by_hand(
            "ALTER TABLE bad REPLICA IDENTITY USING INDEX bad_code_key",
            settings=("source.keys={public.bad: [code]}",),
        ),
        wrong=("source.keys={public.bad: [id]}",),
        later=("INSERT INTO bad VALUES (7, 7)",),
    ),
    "a key without an index": Trouble(
        ("CREATE TABLE bad (id int, code int NOT NULL UNIQUE)",),
        "These would do: (code).",
        by_hand(
            "ALTER TABLE bad REPLICA IDENTITY USING INDEX bad_code_key",
            settings=("source.keys={public.bad: [code]}",),
        ),
        wrong=("source.keys={public.bad: [id]}",),
        later=("INSERT INTO bad VALUES (7, 7)",),
    ),
    "a key of a table without one": Trouble(
        ("CREATE TABLE bad (id int NOT NULL)",),
        "The table has no such index: create one, or leave the table out",
        by_hand(
            "CREATE UNIQUE INDEX by_id ON bad (id)",
            "ALTER TABLE bad REPLICA IDENTITY USING INDEX by_id",
            settings=("source.keys={public.bad: [id]}",),
        ),
        wrong=("source.keys={public.bad: [id]}",),
        later=("INSERT INTO bad VALUES (7)",),
    ),
    "a table without a key, with an identity": Trouble(
        ("CREATE TABLE bad (id int)",),
        'ALTER TABLE "public"."bad" REPLICA IDENTITY FULL. Or, if no application updates or deletes its rows: CREATE',
        statements(ALTER),
        kept=("sink.keyless=append",),
        later=("INSERT INTO bad VALUES (7)",),
        compared="id",
    ),
    "a view": Trouble(
        ("CREATE VIEW bad AS SELECT * FROM orders",),
        "Name the tables behind it. If that is not what you want, name it in source.exclude_tables.",
        by_hand(settings=("source.exclude_tables=[public.bad]",)),
        wrong=("source.tables=['public.*']",),
    ),
    "a misspelt table": Trouble(
        (),
        "Tables are named schema.table, names are case-sensitive",
        written("source.tables=[FOUND]", r"The server spells it (\S+): write it so"),
        wrong=("source.tables=[public.Orders]",),
    ),
    "a slot of another kind": Trouble(
        lambda source: source.query(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", (source.name,)
        ),
        "Name another slot in source.slot. Tidemark creates it.",
        lambda told, source: (f"source.slot={source.name}_other",),
    ),
}


@pytest.mark.parametrize("name", OF_TABLES)
def test_a_table_is_made_fit_or_left_out(
    postgres18_database: Database, mysql_database: Database, tidemark: CommandLine, tmp_path: Path, name: str
) -> None:
    source = postgres18_database
    job = a_job(tmp_path, source, mysql_database)
    get_over(job, source, mysql_database, OF_TABLES[name], tidemark)


def test_a_table_whose_rows_are_only_inserted(
    postgres18_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    """Its owner publishes it as it is printed. From then on the job warns, until it has an identity."""
    source = postgres18_database
    job = a_job(tmp_path, source, mysql_database)
    source.execute("CREATE TABLE bad (id int)", f'CREATE PUBLICATION "{source.name}" FOR TABLE orders')
    append = "sink.keyless=append"
    told = told_by(job, append)
    assert told is not None
    assert "Or, if no application updates or deletes its rows: ALTER PUBLICATION" in told
    statements(r"ALTER PUBLICATION \S+ ADD TABLE ONLY \S+\"")(told, source)
    for _ in range(2):
        told = told_by(job, append)
        assert told is not None
        assert "If its rows are only inserted, none is needed. Otherwise: Give it a primary key" in told
        source.execute("INSERT INTO bad VALUES (1)", "UPDATE orders SET note = 'z'")
    statements(ALTER)(told, source)
    assert told_by(job, append) is None
    assert mysql_database.query("SELECT id FROM copy_bad") == [(1,), (1,)]


def test_row_level_security_is_bypassed(
    postgres18_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    source = postgres18_database
    job = a_job(tmp_path, source, mysql_database)
    source.execute(
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY", f'CREATE PUBLICATION "{source.name}" FOR TABLE orders'
    )
    with role(source, "USAGE ON SCHEMA public", "SELECT ON orders", attributes="LOGIN REPLICATION") as user:
        url = f"source.url={user.url_with_password()}"
        told = told_by(job, url)
        assert told is not None
        statements(rf"ALTER ROLE {user.user} BYPASSRLS")(told.replace("<role>", user.user), source)
        for _ in range(2):
            assert told_by(job, url) is None
            require_copies(source, mysql_database)
            source.execute("UPDATE orders SET note = 'z'")


REFUSED_ROLES = {
    "no login": (
        "ALTER ROLE {role} NOLOGIN",
        "that the role may log in (LOGIN) and CONNECT",
        "ALTER ROLE {role} LOGIN",
    ),
    "no connection": (
        "ALTER ROLE {role} CONNECTION LIMIT 0",
        "the role's and the database's CONNECTION LIMIT",
        "ALTER ROLE {role} CONNECTION LIMIT -1",
    ),
    "no database": (
        "SELECT 1",
        "Correct the database in source.url: postgresql://user:password@host:5432/database.",
        "SELECT 1",
    ),
    "no column": (
        "REVOKE SELECT ON orders FROM {role}; GRANT SELECT (id, note) ON orders TO {role}",
        'GRANT SELECT (ctid) ON "public"."orders" TO the role of source.url.',
        'GRANT SELECT (ctid) ON "public"."orders" TO {role}',
    ),
}


@pytest.mark.parametrize("name", REFUSED_ROLES)
def test_a_role_that_is_refused(
    postgres18_database: Database,
    mysql_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
) -> None:
    monkeypatch.setattr(reconnect, "FIRST_DELAY_SECONDS", 0.01)
    source = postgres18_database
    made, says, done = REFUSED_ROLES[name]
    job = a_job(tmp_path, source, mysql_database)
    if name == "no column":  # only a table without a key is read by it
        source.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey", "ALTER TABLE orders REPLICA IDENTITY FULL")
    source.execute(f'CREATE PUBLICATION "{source.name}" FOR TABLE orders')
    with role(source, "USAGE ON SCHEMA public", "SELECT ON orders", attributes="LOGIN REPLICATION") as user:
        settings = [f"source.url={user.url_with_password()}", "sink.keyless=append"]
        wrong = [text.replace(f"/{source.name}", "/nowhere") if name == "no database" else text for text in settings]
        source.execute(made.format(role=user.user))
        told = told_by(job, *wrong)
        assert told is not None
        assert says in told
        source.execute(done.format(role=user.user))
        for number in range(2):
            assert told_by(job, *settings) is None
            require_copies(source, mysql_database, "id, note")
            source.execute(f"INSERT INTO orders VALUES (7{number}, 'z')")


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """Its settings are changed."""
    with start_server("postgres", {"max_prepared_transactions": 5}, "18") as server:
        yield server


@pytest.fixture
def own_database(own_server: Server) -> Iterator[Database]:
    with fresh_database(own_server) as database:
        yield database


def require_it_goes_on(job: Path, source: Database, target: Database) -> None:
    for _ in range(2):
        assert told_by(job) is None
        require_copies(source, target)
        source.execute("UPDATE orders SET note = 'z'")


SYSTEM = {
    "max_slot_wal_keep_size": ("1GB", "Set it to what the log grows by during the longest pause, or to -1.", "-1"),
    "idle_replication_slot_timeout": ("1h", "Set it to more than the longest pause of the job, or to 0.", "0"),
}


@pytest.mark.parametrize("name", SYSTEM)
def test_a_setting_that_invalidates_slots_is_changed(
    own_database: Database, mysql_database: Database, tmp_path: Path, name: str
) -> None:
    source = own_database
    value, says, right = SYSTEM[name]
    job = a_job(tmp_path, source, mysql_database)

    def set_to(text: str) -> None:
        source.execute(f"ALTER SYSTEM SET {name} = '{text}'", "SELECT pg_reload_conf()")
        wait_until(lambda: source.query(f"SELECT current_setting('{name}')") != former)
        former[:] = source.query(f"SELECT current_setting('{name}')")

    former = source.query(f"SELECT current_setting('{name}')")
    set_to(value)
    told = told_by(job)
    assert told is not None
    assert says in told
    set_to(right)
    require_it_goes_on(job, source, mysql_database)


def test_a_prepared_transaction_is_committed(own_database: Database, mysql_database: Database, tmp_path: Path) -> None:
    source = own_database
    job = a_job(tmp_path, source, mysql_database)
    require_it_goes_on(job, source, mysql_database)
    source.execute("BEGIN", "INSERT INTO orders VALUES (2, 'b')", f"PREPARE TRANSACTION '{source.name}'")
    told = told_by(job)
    assert told is not None
    assert "Commit or roll them back (SELECT * FROM pg_prepared_xacts)." in told
    for _, gid, *_ in source.query("SELECT * FROM pg_prepared_xacts"):
        source.execute(f"COMMIT PREPARED '{gid}'")
    require_it_goes_on(job, source, mysql_database)


def test_a_server_gets_a_log_of_rows_and_room_for_a_slot(
    own_server: Server, mysql_database: Database, tmp_path: Path
) -> None:
    restart_with(own_server, wal_level="replica", max_replication_slots="1")
    try:
        with fresh_database(own_server) as source:
            job = a_job(tmp_path, source, mysql_database)
            told = told_by(job)
            assert told is not None
            assert "ALTER SYSTEM SET wal_level = logical, and restart the server." in told
            restart_with(own_server, wal_level="logical")
            source.query("SELECT pg_create_physical_replication_slot('unused')")
            told = told_by(job)
            assert told is not None
            assert "Drop slots that nobody uses (SELECT * FROM pg_replication_slots)" in told
            for name, *_ in source.query("SELECT * FROM pg_replication_slots"):
                source.query("SELECT pg_drop_replication_slot(%s)", (name,))
            require_it_goes_on(job, source, mysql_database)
    finally:
        restart_with(own_server, max_replication_slots="20")


def test_a_database_without_an_encoding_is_left(own_server: Server, mysql_database: Database, tmp_path: Path) -> None:
    with fresh_database(own_server, "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0") as source:
        told = told_by(a_job(tmp_path, source, mysql_database))
        assert told is not None
        assert "Copy the data into a database with encoding UTF8." in told
        mysql_database.execute("DROP TABLE copy_orders", "DELETE FROM tidemark_tables")
        (tmp_path / "new").mkdir()
        with fresh_database(own_server) as better:
            job = a_job(tmp_path / "new", better, mysql_database)
            require_it_goes_on(job, better, mysql_database)


def test_a_slot_gets_failover(postgres18_database: Database, mysql_database: Database, tmp_path: Path) -> None:
    source = postgres18_database
    job = a_job(tmp_path, source, mysql_database)
    source.execute(f'CREATE PUBLICATION "{source.name}" FOR TABLE orders')
    source.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (source.name,))
    told = told_by(job)
    assert told is not None
    command = f'ALTER_REPLICATION_SLOT "{source.name}" (FAILOVER true)'
    assert f"over a connection with replication=database: {command}." in told
    connect = psycopg2.connect(source.url, connection_factory=psycopg2.extras.LogicalReplicationConnection)
    with contextlib.closing(connect) as connection, connection.cursor() as cursor:
        cursor.execute(command)
    require_it_goes_on(job, source, mysql_database)


def test_another_reader_of_the_slot_is_stopped(
    postgres18_database: Database, mysql_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(slot.require_slot.__kwdefaults__, "seconds", 0.2)
    source = postgres18_database
    job = a_job(tmp_path, source, mysql_database)
    require_it_goes_on(job, source, mysql_database)
    connect = psycopg2.connect(source.url, connection_factory=psycopg2.extras.LogicalReplicationConnection)
    with contextlib.closing(connect) as connection, connection.cursor() as cursor:
        options = {"proto_version": "1", "publication_names": source.name}
        cursor.start_replication(slot_name=source.name, options=options)
        told = told_by(job)
        assert told is not None
        assert "Stop whoever reads from it: a slot belongs to one job." in told
        for (process,) in source.query(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (source.name,)
        ):
            source.query("SELECT pg_terminate_backend(%s, 5000)", (process,))
    require_it_goes_on(job, source, mysql_database)


BOTH = "CREATE TABLE bad (id int PRIMARY KEY, code int NOT NULL, CONSTRAINT by_code UNIQUE (code))"
PARTS = (
    "CREATE TABLE bad (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF bad FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE rest PARTITION OF bad DEFAULT",
    "INSERT INTO bad VALUES (1), (200)",
)
ALTERED_TOO = ("ALTER TABLE bad DETACH PARTITION low", "ALTER TABLE bad DROP COLUMN v")
WIDER_PARTS = (*PARTS, "ALTER TABLE bad ADD COLUMN v int")
LATER = {
    "a column is renamed": Trouble(
        ("ALTER TABLE bad RENAME code TO other", "UPDATE bad SET other = 7"),
        "If columns were renamed, give them back their names and run the job again",
        by_hand("ALTER TABLE bad RENAME other TO code"),
        before=(BOTH, "INSERT INTO bad VALUES (1, 1)"),
    ),
    "the key is another one": Trouble(
        ("ALTER TABLE bad DROP CONSTRAINT bad_pkey, ADD PRIMARY KEY (code)",),
        "Undo the change and run the job again",
        by_hand("ALTER TABLE bad DROP CONSTRAINT bad_pkey, ADD PRIMARY KEY (id)"),
        before=(BOTH, "INSERT INTO bad VALUES (1, 1)"),
        later=("UPDATE bad SET code = 7",),
    ),
    "a column is added": Trouble(
        ("ALTER TABLE bad ADD extra int",),
        "If no row of the table was written since, drop the column and run the job again",
        by_hand("ALTER TABLE bad DROP extra"),
        before=(BOTH, "INSERT INTO bad VALUES (1, 1)"),
        later=("UPDATE bad SET code = 7",),
    ),
    "a type is renamed": Trouble(
        ("ALTER TYPE mood RENAME TO other", "UPDATE bad SET m = 'bad'"),
        "If the type was only renamed, give it back its name and run the job again",
        by_hand("ALTER TYPE other RENAME TO mood"),
        before=(
            "CREATE TYPE mood AS ENUM ('good', 'bad')",
            "CREATE TABLE bad (id int PRIMARY KEY, m mood)",
            "INSERT INTO bad VALUES (1, 'good')",
        ),
    ),
    "a table is renamed": Trouble(
        ("ALTER TABLE bad RENAME TO away", "UPDATE away SET code = 7"),
        "rename the table back",
        by_hand("ALTER TABLE away RENAME TO bad"),
        before=(BOTH, "INSERT INTO bad VALUES (1, 1)"),
    ),
    "a partition without a log": Trouble(
        ("CREATE UNLOGGED TABLE off PARTITION OF bad FOR VALUES FROM (5000) TO (6000)",),
        "ALTER TABLE",
        statements(r"ALTER TABLE \S+ SET LOGGED"),
        before=PARTS,
        later=("INSERT INTO bad VALUES (5001)",),
    ),
    "an identity lacks the key": Trouble(
        (
            "ALTER TABLE bad REPLICA IDENTITY USING INDEX by_code",
            "UPDATE bad SET code = 7",
            "ALTER TABLE bad REPLICA IDENTITY DEFAULT",
        ),
        "REPLICA IDENTITY DEFAULT",
        statements(ALTER),
        before=(BOTH, "INSERT INTO bad VALUES (1, 1)"),
        later=("UPDATE bad SET code = 8",),
    ),
    "a partition with rows is removed, kept": Trouble(
        ("ALTER TABLE bad DETACH PARTITION low",),
        "If the copy is to keep them, run with source.partitions_removed: keep.",
        setting,
        before=PARTS,
        compared="count(*) > 0",
    ),
    "a partition with rows is removed": Trouble(
        ("ALTER TABLE bad DETACH PARTITION low",), "If the copy is to keep them", undone, before=PARTS
    ),
    "a partition is removed, and the table altered": Trouble(
        ALTERED_TOO, "was detached or dropped, too", undone, before=WIDER_PARTS, compared="id"
    ),
    "a partition is removed, and the table altered, left out": Trouble(
        ALTERED_TOO,
        "To leave the copy as it is, name the table in source.exclude_tables.",
        left_out,
        before=WIDER_PARTS,
        compared="count(*) > 0",
    ),
    "a partition with rows is attached": Trouble(
        (
            "CREATE TABLE more (id int PRIMARY KEY)",
            "INSERT INTO more VALUES (5000)",
            "ALTER TABLE bad ATTACH PARTITION more FOR VALUES FROM (5000) TO (6000)",
        ),
        "create an empty one by CREATE TABLE … PARTITION OF, and run the job again; then INSERT the rows into",
        by_hand(
            "ALTER TABLE bad DETACH PARTITION more",
            "CREATE TABLE empty PARTITION OF bad FOR VALUES FROM (5000) TO (6000)",
        ),
        before=PARTS,
        later=("INSERT INTO bad SELECT * FROM more",),
    ),
}


@pytest.mark.parametrize("name", LATER)
def test_a_table_that_changes_later(
    postgres18_database: Database, mysql_database: Database, tidemark: CommandLine, tmp_path: Path, name: str
) -> None:
    source = postgres18_database
    job = a_job(tmp_path, source, mysql_database, tables=["public.*"])
    get_over(job, source, mysql_database, LATER[name], tidemark)


def test_a_wildcard_whose_tables_are_gone_is_taken_out(
    postgres18_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    source = postgres18_database
    job = a_job(tmp_path, source, mysql_database, tables=["public.orders"])
    assert told_by(job) is None
    told = told_by(job, "source.tables=[public.orders, public.ba*]")
    assert told is not None
    assert "If its tables were dropped, none is needed. Otherwise correct it, or GRANT the account its rights." in told
    require_it_goes_on(job, source, mysql_database)


def without_its_log(source: Database) -> None:
    """The server invalidates the slot at a checkpoint, because it keeps too much log."""
    source.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    for _ in range(4):
        source.execute("UPDATE orders SET note = 'b'", "SELECT pg_switch_wal()")
    wait_until(lambda: is_invalidated(source))
    source.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def is_invalidated(source: Database) -> bool:
    source.execute("CHECKPOINT")
    return source.query("SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", (source.name,)) == [
        ("lost",)
    ]


def test_a_slot_that_the_server_has_invalidated(
    own_database: Database, mysql_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    source = own_database
    job = a_job(tmp_path, source, mysql_database)
    says = "Drop it (tidemark drop JOB.yaml). Start over with an empty checkpoint and an empty target. Then let slots keep more"
    assert told_by(job) is None
    without_its_log(source)
    told = told_by(job)
    assert told is not None
    assert says in told
    start_over(job, source, mysql_database, tidemark)
    require_it_goes_on(job, source, mysql_database)


def test_messages_of_the_log_that_are_damaged_on_their_way(
    postgres_database: Database, mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = postgres_database
    job = a_job(tmp_path, source, mysql_database)
    assert told_by(job) is None
    source.execute("UPDATE orders SET note = 'b'")
    with monkeypatch.context() as patch:
        patch.setattr(reading, "read_relation", lambda message: read_relation(message[:-1]))
        assert "Run the job again. If it stops at the same position, check the source's disk" in (told_by(job) or "")
    require_it_goes_on(job, source, mysql_database)


@pytest.mark.parametrize("is_restored", [True, pytest.param(False, marks=pytest.mark.every_server)])
def test_a_table_whose_file_is_damaged_is_restored(mysql_database: Database, tmp_path: Path, is_restored: bool) -> None:
    """Or left out."""
    with start_server("postgres", version="18") as server, fresh_database(server) as source:
        if server.data_folder is None:
            pytest.skip("the server's files are not on this machine")
        job = a_job(tmp_path, source, mysql_database)
        source.execute(
            "CREATE TABLE bad (id int PRIMARY KEY, long text STORAGE EXTERNAL)",
            "INSERT INTO bad VALUES (1, repeat('x', 9000))",
            "CHECKPOINT",
        )
        path = "SELECT pg_relation_filepath(reltoastrelid) FROM pg_class WHERE relname = 'bad'"
        file = server.data_folder / str(source.query(path)[0][0])
        server.stop()
        saved = file.read_bytes()
        file.write_bytes(b"\xff" * len(saved))
        server.start()
        told = told_by(job)
        assert told is not None
        assert "The source can't read rows of public.bad: (XX001)" in told
        assert (
            "or restore it from a backup, and run the job again. Or leave the table out: source.exclude_tables." in told
        )
        settings = () if is_restored else left_out(told, source)
        if is_restored:
            server.stop()
            file.write_bytes(saved)
            server.start()
        for note in ("y", "z"):
            source.execute(f"UPDATE orders SET note = '{note}'")
            assert told_by(job, *settings) is None
            assert mysql_database.query("SELECT * FROM copy_orders") == [(1, note)]
        if is_restored:
            require_copies(source, mysql_database)
