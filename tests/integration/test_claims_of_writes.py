"""What is in the log however it was written, and what is in no log: claims of docs/guarantees.md about sources."""

import contextlib
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devtools.servers import start_server
from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database, FindServer, fresh_database
from tidemark.state.errors import SourceNotUsableError

pytestmark = pytest.mark.integration


class Mirrored:
    """A job that mirrors all tables of a database into another one of the same server."""

    def __init__(
        self, source: Database, target: Database, folder: Path, *, mode: str = "full+incremental", **settings: Any
    ) -> None:
        self.source, self.target, self.folder = source, target, folder
        self.schema = "public" if source.kind == "postgres" else source.name
        sink = {"type": "mirror", "url": target.url, "table": "{table}"}
        found = source_of(source, tables=[f"{self.schema}.*"], **settings)
        self.path = write_job(folder, source=found, sink=sink, mode=mode)

    def run(self) -> None:
        run_epochs(self.path)

    def rows(self, database: Database, table: str) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, database.query(f"SELECT * FROM {table}")), key=repr)

    def assert_equal(self, *tables: str) -> None:
        for table in tables:
            assert self.rows(self.target, table) == self.rows(self.source, table), table


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Iterator[Database]:
    (name,) = [name for name in request.fixturenames if name.endswith("_database")]
    with fresh_database(request.getfixturevalue(name).server) as database:
        yield database


@contextlib.contextmanager
def session(database: Database) -> Iterator[Any]:
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        yield cursor


def test_whatever_writes_rows_in_mysql_is_followed(source_database: Database, target: Database, tmp_path: Path) -> None:
    """Without checks of foreign keys, by triggers, procedures and events."""
    source = source_database
    source.execute(
        "CREATE TABLE parents (id INT PRIMARY KEY)",
        "CREATE TABLE children (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES parents (id))",
        "CREATE TABLE audit (id INT AUTO_INCREMENT PRIMARY KEY, what VARCHAR(20))",
        "CREATE TRIGGER note AFTER INSERT ON children FOR EACH ROW INSERT INTO audit (what) VALUES ('trigger')",
        "CREATE PROCEDURE fill() BEGIN INSERT INTO audit (what) VALUES ('procedure'); UPDATE children SET parent = 2; END",
        "INSERT INTO parents VALUES (1), (2)",
        "INSERT INTO children VALUES (1, 1)",
    )
    job = Mirrored(source, target, tmp_path)
    job.run()
    with session(source) as cursor:
        cursor.execute("SET foreign_key_checks = 0")
        cursor.execute("INSERT INTO children VALUES (2, 77)")
        cursor.execute("DELETE FROM parents WHERE id = 1")
        cursor.execute("CALL fill()")
    ((runs_events,),) = source.query("SELECT @@event_scheduler")
    assert runs_events == "ON" or source.kind == "mariadb"
    if runs_events == "ON":
        source.execute("CREATE EVENT now ON SCHEDULE AT CURRENT_TIMESTAMP DO INSERT INTO audit (what) VALUES ('event')")
        until(source, "SELECT 1 FROM audit WHERE what = 'event'")
    job.run()
    job.assert_equal("parents", "children", "audit")
    found = {what for _, what in job.rows(target, "audit")}
    assert found == {"trigger", "procedure", *(["event"] if runs_events == "ON" else [])}
    assert job.rows(target, "children") == [(1, 2), (2, 2)]


def until(database: Database, query: str) -> None:
    deadline = time.monotonic() + 60
    while not database.query(query):
        assert time.monotonic() < deadline, query
        time.sleep(0.05)


@pytest.fixture
def prepares_database(find_server: FindServer) -> Iterator[Database]:
    with fresh_database(
        find_server("postgres", "18", max_prepared_transactions=2, idle_replication_slot_timeout="60")
    ) as database:
        yield database


def test_whatever_writes_rows_in_postgres_is_followed(
    prepares_database: Database, target: Database, tmp_path: Path
) -> None:
    """By COPY, also with FREEZE, by CASCADE and triggers, as a replica, and in prepared transactions."""
    source = prepares_database
    source.execute(
        "CREATE TABLE parents (id int PRIMARY KEY)",
        "CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES parents ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE audit (id serial PRIMARY KEY, what text)",
        "CREATE TABLE loaded (id int PRIMARY KEY, v text)",
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO audit (what) VALUES (TG_OP); "
        "RETURN NULL; END $$",
        "CREATE TRIGGER note AFTER INSERT ON children FOR EACH ROW EXECUTE FUNCTION note()",
        "INSERT INTO parents VALUES (1), (2), (3)",
        "INSERT INTO children VALUES (1, 1), (2, 2)",
        "INSERT INTO loaded VALUES (1, 'before')",
    )
    job = Mirrored(source, target, tmp_path)
    job.run()
    with session(source) as cursor:
        cursor.execute("DELETE FROM parents WHERE id = 1")
        cursor.execute("UPDATE parents SET id = 22 WHERE id = 2")
        cursor.copy_expert("COPY children FROM STDIN", io.StringIO("3\t3\n"))
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("INSERT INTO children VALUES (4, 99)")
        cursor.execute("SET session_replication_role = origin")
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO parents VALUES (7)")
        cursor.execute("PREPARE TRANSACTION 'waits'")
    job.run()
    assert (7,) not in job.rows(target, "parents")
    job.assert_equal("parents", "children", "audit", "loaded")
    assert job.rows(target, "children") == [(2, 22), (3, 3), (4, 99)]
    assert [what for _, what in job.rows(target, "audit")] == ["INSERT"] * 3  # none by the replica
    with session(source) as cursor:
        cursor.execute("COMMIT PREPARED 'waits'")
        cursor.execute("BEGIN")
        cursor.execute("TRUNCATE loaded")
        cursor.copy_expert("COPY loaded FROM STDIN (FREEZE)", io.StringIO("2\tfrozen\n3\tfrozen\n"))
        cursor.execute("COMMIT")
    job.run()
    job.assert_equal("parents", "children", "audit", "loaded")
    assert (7,) in job.rows(target, "parents")
    assert job.rows(target, "loaded") == [(2, "frozen"), (3, "frozen")]


def test_only_tables_are_copied(postgres_database: Database, target: Database, tmp_path: Path) -> None:
    source = postgres_database
    source.execute(
        "CREATE TABLE parents (id serial PRIMARY KEY)",
        "CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES parents)",
        "CREATE INDEX ON children (parent)",
        "CREATE VIEW orphans AS SELECT * FROM children WHERE parent IS NULL",
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER note AFTER INSERT ON children FOR EACH ROW EXECUTE FUNCTION note()",
        "GRANT SELECT ON children TO PUBLIC",
        "INSERT INTO parents VALUES (1)",
        "INSERT INTO children VALUES (1, 1)",
    )
    job = Mirrored(source, target, tmp_path)
    job.run()
    job.assert_equal("parents", "children")
    ours = "IN ('parents', 'children', 'orphans', 'parents_id_seq', 'note')"
    found = target.query(f"SELECT relname, relkind FROM pg_class WHERE relname {ours} ORDER BY 1")
    assert found == [("children", "r"), ("parents", "r")]
    assert target.query(f"SELECT count(*) FROM pg_indexes WHERE tablename {ours}") == [(2,)]
    tables = "conrelid IN ('parents'::regclass, 'children'::regclass)"
    assert target.query(f"SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND {tables}") == [(0,)]
    assert target.query(f"SELECT count(*) FROM pg_trigger WHERE tg{tables.removeprefix('con')}") == [(0,)]
    assert target.query("SELECT relacl FROM pg_class WHERE relname = 'children'") == [(None,)]


def test_large_objects_are_numbers(postgres_database: Database, target: Database, tmp_path: Path) -> None:
    source = postgres_database
    source.execute("CREATE TABLE papers (id int PRIMARY KEY, scan oid)")
    source.execute("INSERT INTO papers VALUES (1, lo_from_bytea(0, 'text'))")
    job = Mirrored(source, target, tmp_path)
    job.run()
    source.execute("SELECT lo_put(scan, 0, 'more') FROM papers")
    job.run()
    job.assert_equal("papers")
    assert target.query("SELECT count(*) FROM pg_largeobject_metadata") == [(0,)]


def test_a_partition_that_lives_between_two_looks_leaves_its_rows(
    postgres_database: Database, target: Database, tmp_path: Path
) -> None:
    """Also one that is filled and truncated by the transaction that creates it."""
    source = postgres_database
    source.execute(
        "CREATE TABLE days (day int, v int, PRIMARY KEY (day, v)) PARTITION BY LIST (day)",
        "CREATE TABLE day_1 PARTITION OF days FOR VALUES IN (1)",
        "INSERT INTO days VALUES (1, 1)",
    )
    job = Mirrored(source, target, tmp_path)
    job.run()
    source.execute(
        "CREATE TABLE day_2 PARTITION OF days FOR VALUES IN (2)", "INSERT INTO days VALUES (2, 2)", "DROP TABLE day_2"
    )
    with session(source) as cursor:
        cursor.execute("BEGIN")
        cursor.execute("CREATE TABLE day_3 PARTITION OF days FOR VALUES IN (3)")
        cursor.execute("INSERT INTO days VALUES (3, 3)")
        cursor.execute("TRUNCATE day_3")
        cursor.execute("COMMIT")
    job.run()
    assert job.rows(source, "days") == [(1, 1)]
    assert job.rows(target, "days") == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("kind", ["mysql_nogtid", "mariadb"])
def test_what_a_rollback_leaves_in_other_engines_is_followed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Also what a statement leaves that fails. The server logs it apart."""
    source: Database = request.getfixturevalue(f"{kind}_database")
    engines = {"kept": "MyISAM", "known": "MEMORY", "undone": "InnoDB"}
    for table, engine in engines.items():
        source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT) ENGINE={engine}")
    with fresh_database(source.server) as target:
        job = Mirrored(source, target, tmp_path, mode="incremental")
        job.run()
        with session(source) as cursor:
            for table in engines:
                cursor.execute(f"INSERT INTO {table} VALUES (1, 0)")
            cursor.execute("BEGIN")
            cursor.execute("UPDATE kept, known, undone SET kept.v = 1, known.v = 1, undone.v = 1")
            cursor.execute("INSERT INTO kept VALUES (2, 2)")
            cursor.execute("ROLLBACK")
            for table in engines:
                with pytest.raises(pymysql.err.IntegrityError):
                    cursor.execute(f"INSERT INTO {table} VALUES (3, 3), (1, 1)")
        job.run()
        assert job.rows(source, "kept") == [(1, 1), (2, 2), (3, 3)]
        assert job.rows(source, "known") == [(1, 1), (3, 3)]
        assert job.rows(source, "undone") == [(1, 0)]
        job.assert_equal(*engines)


def test_gtids_that_are_turned_on_during_the_snapshot_stop_the_job(tmp_path: Path) -> None:
    options = {"gtid_mode": "OFF", "enforce_gtid_consistency": "ON"}
    with start_server("mysql", options) as server, fresh_database(server) as source:
        source.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
        sink = {"type": "files", "path": str(tmp_path / "out")}
        snapshot = {"split_rows": 1, "parallelism": 1, "interleave": False}
        path = write_job(tmp_path, source=source_of(source), sink=sink, snapshot=snapshot)
        assert run_epochs(path, at_most=1) == ["snapshot"]
        for mode in ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"):
            source.execute(f"SET GLOBAL gtid_mode = {mode}")
        with pytest.raises(SourceNotUsableError, match="gtid_mode is now ON"):
            run_epochs(path)


def test_rows_that_are_copied_keep_the_first_policy_of_zero_dates(
    mysql_database: Database, target: Database, tmp_path: Path
) -> None:
    source = mysql_database
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, day DATE)")
    with session(source) as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute("INSERT INTO t VALUES (1, '0000-00-00')")
    job = Mirrored(source, target, tmp_path)
    job.run()
    Mirrored(source, target, tmp_path, zero_dates="error").run()
    assert job.rows(target, "t") == [(1, None)]
