"""Writes that are in the log however they were made, and writes that are in none: claims of docs/guarantees.md."""

import contextlib
import io
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devtools.servers import start_server
from tests.support.epochs import Notes, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database, FindServer, fresh_database, require_logged_generated_columns
from tidemark.readers.mysql.snapshot import split_reader
from tidemark.readers.mysql.snapshot.split_reader import ReadHooks
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError, UnknownLogEventError

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
    """Also one that is filled and truncated by the transaction that creates it, or that truncates the whole table before."""
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
    with session(source) as cursor:
        cursor.execute("BEGIN")
        cursor.execute("TRUNCATE days")
        cursor.execute("INSERT INTO days VALUES (1, 2), (3, 4)")
        cursor.execute("TRUNCATE day_3")
        cursor.execute("COMMIT")
    job.run()
    assert job.rows(source, "days") == [(1, 2)]
    assert job.rows(target, "days") == [(1, 2), (3, 4)]


def test_a_table_that_was_a_partition_between_two_looks(
    postgres_database: Database, target: Database, tmp_path: Path
) -> None:
    source = postgres_database
    source.execute(
        "CREATE TABLE days (day int, v int, PRIMARY KEY (day, v)) PARTITION BY LIST (day)",
        "CREATE TABLE day_1 (day int, v int, PRIMARY KEY (day, v))",
        "INSERT INTO day_1 VALUES (1, 1)",
    )
    job = Mirrored(source, target, tmp_path)
    job.run()
    source.execute(
        "ALTER TABLE days ATTACH PARTITION day_1 FOR VALUES IN (1)",
        "INSERT INTO day_1 VALUES (1, 2)",
        "ALTER TABLE days DETACH PARTITION day_1",
    )
    job.run()
    assert [job.rows(source, table) for table in ("days", "day_1")] == [[], [(1, 1), (1, 2)]]
    assert [job.rows(target, table) for table in ("days", "day_1")] == [[(1, 2)], [(1, 1)]]


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


def test_values_of_an_enum_that_have_one_text(mysql_database: Database, target: Database, tmp_path: Path) -> None:
    """Values travel as texts: a key that is none of its labels is an empty text, and a copy takes the first of equal labels."""
    lenient = "SET sql_mode = ''"
    labels = "(id INT PRIMARY KEY, e ENUM('a', 'á') COLLATE utf8mb4_general_ci)"
    mysql_database.execute(
        lenient,
        "CREATE TABLE keyed (e ENUM('', 'a') PRIMARY KEY, v INT)",
        "INSERT INTO keyed VALUES ('', 1), ('a', 2)",
        f"CREATE TABLE labels {labels}",
        "INSERT INTO labels VALUES (1, 2)",
    )
    target.execute(lenient, f"CREATE TABLE labels {labels}")
    job = Mirrored(mysql_database, target, tmp_path)
    job.run()
    mysql_database.execute(lenient, "INSERT INTO keyed VALUES ('none of them', 3)")
    job.run()
    assert job.rows(mysql_database, "keyed") == [("", 1), ("", 3), ("a", 2)]
    assert job.rows(target, "keyed") == [("", 3), ("a", 2)]
    assert job.rows(mysql_database, "labels") == [(1, "á")]
    assert job.rows(target, "labels") == [(1, "a")]


@pytest.fixture(params=["mysql", "mariadb"])
def unshared_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database on a server whose log no other test reads: a statement in it would end their jobs."""
    with start_server(request.param) as server, fresh_database(server) as database:
        yield database


@pytest.mark.pitfall(34)
def test_a_heartbeat_in_statement_format_is_ignored(
    unshared_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a split is read, which MySQL then replays, and while the log is followed. Its trigger could write any table."""
    source = unshared_database
    source.execute(
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "CREATE TABLE beats (id INT PRIMARY KEY, ts BIGINT)",
        "CREATE TRIGGER doubled BEFORE INSERT ON beats FOR EACH ROW SET NEW.ts = 2 * NEW.ts",
        "INSERT INTO t VALUES (1)",
    )

    def beat() -> None:
        source.execute("SET SESSION binlog_format = STATEMENT", "REPLACE INTO beats VALUES (1, 1)")

    monkeypatch.setattr(split_reader, "ReadHooks", lambda: ReadHooks(after_select=beat))
    name = f"{source.schema}.beats"
    path = write_job(
        tmp_path,
        source=source_of(source, exclude_tables=[name]),
        sink={"type": "files", "path": str(tmp_path / "out")},
        log={"ignore_statements_on": [name]},
    )
    run_epochs(path)
    source.execute("INSERT INTO t VALUES (2)")
    beat()
    run_epochs(path)
    assert [row["id"] for row in read_history(tmp_path / "out", source.schema, "t").to_pylist()] == [1, 2]
    beat()
    with pytest.raises(UnknownLogEventError, match="as a statement"):
        run_epochs(path, "log.ignore_statements_on=[]")


WAITING = (
    "SELECT 1 FROM pg_stat_activity WHERE query = %s AND datname = current_database() AND wait_event_type = 'Lock'"
)


def test_another_text_of_stored_values_is_in_no_log(
    postgres_database: Database, target: Database, tmp_path: Path
) -> None:
    """An update of an extension replaces its functions, as here."""
    source = postgres_database
    output = "FUNCTION shown(kilo) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS '{}'"
    source.execute(
        "CREATE TYPE kilo",
        "CREATE FUNCTION taken(cstring) RETURNS kilo LANGUAGE internal IMMUTABLE STRICT AS 'int4in'",
        f"CREATE {output.format('int4out')}",
        "CREATE TYPE kilo (INPUT = taken, OUTPUT = shown, INTERNALLENGTH = 4, PASSEDBYVALUE, ALIGNMENT = int4)",
        "CREATE TABLE t (id int PRIMARY KEY, v kilo)",
        "INSERT INTO t VALUES (1, '-1')",
    )
    job = Mirrored(source, target, tmp_path)
    job.run()
    source.execute(f"CREATE OR REPLACE {output.format('oidout')}", "INSERT INTO t VALUES (2, '-2')")
    job.run()
    assert source.query("SELECT id, concat(v) FROM t") == [(1, "4294967295"), (2, "4294967294")]
    assert job.rows(target, "t") == [(1, "-1"), (2, "4294967294")]


def test_a_key_that_was_not_unique_between_two_looks(
    postgres_database: Database, target: Database, tmp_path: Path
) -> None:
    """The catalog has the same key again, and the log does not say that it was gone."""
    source = postgres_database
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 'a')",
    )
    job = Mirrored(source, target, tmp_path)
    job.run()
    source.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "INSERT INTO t VALUES (1, 'twin')",
        "DELETE FROM t WHERE a = 'twin'",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
    )
    job.run()
    assert (job.rows(source, "t"), job.rows(target, "t")) == ([(1, "a")], [])


def test_a_new_label_that_is_renamed_between_two_looks(
    postgres_database: Database, target: Database, tmp_path: Path
) -> None:
    """The log has the label as it was when the row was written. The catalog does not say that it had another name."""
    source = postgres_database
    source.execute("CREATE TYPE mood AS ENUM ('ok')", "CREATE TABLE t (id int PRIMARY KEY, m mood)")
    job = Mirrored(source, target, tmp_path)
    job.run()
    source.execute(
        "ALTER TYPE mood ADD VALUE 'hapy'",
        "INSERT INTO t VALUES (1, 'hapy')",
        "ALTER TYPE mood RENAME VALUE 'hapy' TO 'happy'",
    )
    job.run()
    assert (job.rows(source, "t"), job.rows(target, "t")) == ([(1, "happy")], [(1, "hapy")])


def test_rows_that_are_removed_below_the_server_stay(
    postgres_database: Database, target: Database, tmp_path: Path
) -> None:
    source = postgres_database
    if not source.query("SELECT FROM pg_available_extensions WHERE name = 'pg_surgery'"):
        pytest.skip("this server has no pg_surgery")
    source.execute(
        "CREATE EXTENSION pg_surgery", "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)"
    )
    job = Mirrored(source, target, tmp_path)
    job.run()
    source.execute("SELECT heap_force_kill('t', ARRAY['(0,1)']::tid[])", "INSERT INTO t VALUES (3)")
    job.run()
    assert job.rows(source, "t") == [(2,), (3,)]
    assert job.rows(target, "t") == [(1,), (2,), (3,)]


def test_rows_written_while_attach_waits_are_taken_for_rows_of_the_root(
    postgres_database: Database, target: Database, tmp_path: Path
) -> None:
    source = postgres_database
    source.execute(
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p0 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "INSERT INTO r VALUES (1)",
        "CREATE TABLE p10 (LIKE r INCLUDING ALL)",
    )
    job = Mirrored(source, target, tmp_path, exclude_tables=["public.p10"])
    job.run()
    attach = "ALTER TABLE r ATTACH PARTITION p10 FOR VALUES FROM (10) TO (20)"
    with session(source) as cursor, ThreadPoolExecutor() as pool:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO p10 SELECT 1 WHERE false")  # takes its lock, and no transaction id
        attached = pool.submit(source.execute, attach)
        while not attached.done() and not source.query(WAITING, (attach,)):
            time.sleep(0.05)
        cursor.execute("INSERT INTO p10 VALUES (11)")
        cursor.execute("COMMIT")
        attached.result()
    source.execute("INSERT INTO r VALUES (12)")
    job.run()
    assert job.rows(source, "r") == [(1,), (11,), (12,)]
    assert job.rows(target, "r") == [(1,), (12,)]


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_log_that_begins_anew_in_the_same_second_is_taken_for_the_old_one(kind: str, tmp_path: Path) -> None:
    """The transactions of the new log have the sizes of the old ones, so the job's position is between two of them."""
    begin = "RESET MASTER" if kind == "mariadb" else "RESET BINARY LOGS AND GTIDS"
    options = {} if kind == "mariadb" else {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
    with start_server(kind, options) as server, fresh_database(server) as source:
        source.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        log_begins = (f"SET timestamp = {int(time.time())}", begin)
        source.execute(*log_begins)
        path = write_job(tmp_path, source=source_of(source), sink={"type": "files", "path": str(tmp_path / "out")})
        source.execute("INSERT INTO t VALUES (1)")
        run_epochs(path)
        source.execute("INSERT INTO t VALUES (2)")
        run_epochs(path)
        source.execute(*log_begins)
        source.execute("INSERT INTO t VALUES (3)", "INSERT INTO t VALUES (4)", "INSERT INTO t VALUES (5)")
        run_epochs(path)
        assert source.query("SELECT id FROM t") == [(1,), (2,), (3,), (4,), (5,)]
        assert [row["id"] for row in read_history(tmp_path / "out", source.name, "t").to_pylist()] == [1, 2, 5]


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_changes_at_the_end_of_a_log_that_a_crash_lost_are_never_seen(kind: str, tmp_path: Path) -> None:
    """The end is cut off while the server is stopped."""
    options = {} if kind == "mariadb" else {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
    with start_server(kind, options) as server, fresh_database(server) as source:
        if server.data_folder is None:
            pytest.skip("the server's files are not on this machine")

        def lose(statement: str, *, is_read: bool) -> None:
            file, pos = source.query("SHOW MASTER STATUS" if kind == "mariadb" else "SHOW BINARY LOG STATUS")[0][:2]
            ((_, base),) = source.query("SHOW VARIABLES LIKE 'log_bin_basename'")
            source.execute(statement)
            if is_read:
                run_epochs(path)
            server.stop()
            os.truncate(Path(server.data_folder or "", base).with_name(file), pos)
            server.start()

        source.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        path = write_job(tmp_path, source=source_of(source), sink={"type": "files", "path": str(tmp_path / "out")})
        run_epochs(path)
        lose("INSERT INTO t VALUES (2)", is_read=False)
        source.execute("INSERT INTO t VALUES (3)")
        run_epochs(path)
        assert source.query("SELECT id FROM t") == [(1,), (2,), (3,)]
        assert [row["id"] for row in read_history(tmp_path / "out", source.name, "t").to_pylist()] == [1, 3]
        lose("INSERT INTO t VALUES (4)", is_read=True)
        with pytest.raises(LogPositionLostError):
            run_epochs(path)


def test_rows_that_a_crash_lost_and_the_log_has_stay_in_the_copy(tmp_path: Path) -> None:
    with start_server("mariadb", {"innodb_flush_log_at_timeout": 60}) as server, fresh_database(server) as source:
        source.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        path = write_job(tmp_path, source=source_of(source), sink={"type": "files", "path": str(tmp_path / "out")})
        run_epochs(path)
        source.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 0", "INSERT INTO t VALUES (2)")
        run_epochs(path)
        server.kill()
        server.start()
        run_epochs(path)
        assert source.query("SELECT id FROM t") == [(1,)]
        assert [row["id"] for row in read_history(tmp_path / "out", source.name, "t").to_pylist()] == [1, 2]


def test_a_table_that_is_published_by_name_is_followed_after_pg_repack(tmp_path: Path) -> None:
    """pg_repack writes a new table and swaps the files of the two, which the test does as pg_repack does: in pg_class."""
    swap = "UPDATE pg_class AS c SET relfilenode = o.relfilenode FROM pg_class AS o WHERE {} AND {}"
    pairs = [("t", "t_new"), ("t_pkey", "t_new_pkey")]
    this = " OR ".join(
        f"(c.relname = '{a}' AND o.relname = '{b}') OR (c.relname = '{b}' AND o.relname = '{a}')" for a, b in pairs
    )
    in_public = "c.relnamespace = 'public'::regnamespace AND o.relnamespace = c.relnamespace"
    with start_server("postgres") as server, fresh_database(server) as source, fresh_database(server) as target:
        source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
        job = Mirrored(source, target, tmp_path, exclude_tables=["public.t_new"])
        job.run()
        source.execute("DELETE FROM t WHERE id = 2", "CREATE TABLE t_new (LIKE t INCLUDING ALL)")
        with session(source) as cursor:
            cursor.execute("BEGIN")
            cursor.execute("LOCK t")
            cursor.execute("INSERT INTO t_new SELECT * FROM t")
            cursor.execute(swap.format(f"({this})", in_public))
            assert cursor.rowcount == 4
            cursor.execute("COMMIT")
        source.execute("DROP TABLE t_new", "UPDATE t SET v = 7 WHERE id = 1", "INSERT INTO t VALUES (4, 4)")
        job.run()
        assert job.rows(source, "t") == [(1, 7), (3, 3), (4, 4)]
        job.assert_equal("t")


def test_virtual_columns_that_depend_on_a_session(source_database: Database, target: Database, tmp_path: Path) -> None:
    """The log has what the writer's session saw. Those that depend on no session, and stored ones, are the source's."""
    source = source_database
    require_logged_generated_columns(source.server)
    insert = "INSERT INTO visits (id, at, seconds) VALUES ({}, '2024-01-01 20:00:00', 1700000000)"
    source.execute(
        "SET time_zone = '-08:00'",
        "CREATE TABLE visits (id INT PRIMARY KEY, at TIMESTAMP NULL, seconds INT, day DATE AS (DATE(at)) VIRTUAL, "
        "month INT AS (MONTH(day)) VIRTUAL, moment DATETIME AS (FROM_UNIXTIME(seconds)) VIRTUAL, "
        "twice INT AS (seconds / 2) VIRTUAL, kept DATE AS (DATE(at)) STORED)",
        insert.format(1),
    )
    job = Mirrored(source, target, tmp_path)
    run_epochs(job.path, notes=(notes := Notes()))
    source.execute("SET time_zone = '-08:00'", insert.format(2))
    job.run()
    (text,) = [facts["text"] for event, facts in notes.found if event == "warning"]
    assert f"Virtual columns of {source.name}.visits (day, month, moment): their values depend on the time zone" in text
    utc = "SET time_zone = '+00:00'"
    rows = []
    for database in (source, target):
        with session(database) as cursor:
            cursor.execute(utc)
            cursor.execute(
                "SELECT CAST(day AS CHAR), CAST(moment AS CHAR), twice, CAST(kept AS CHAR) FROM visits ORDER BY id"
            )
            rows.append(list(cursor.fetchall()))
    same = (850000000, "2024-01-01")
    read, logged = ("2024-01-02", "2023-11-14 22:13:20", *same), ("2024-01-01", "2023-11-14 14:13:20", *same)
    assert rows == [[read, read], [read, logged]]
    source.execute("SET time_zone = '+00:00'", "ALTER TABLE visits PARTITION BY HASH (id) PARTITIONS 2")
    job.run()
    kept = "SELECT CAST(kept AS CHAR) FROM visits"
    assert [set(database.query(kept)) for database in (source, target)] == [{("2024-01-02",)}, {("2024-01-01",)}]


def test_virtual_columns_that_mariadb_logs_as_they_were_before_a_trigger(
    mariadb_database: Database, target: Database, tmp_path: Path
) -> None:
    """In an UPDATE of several tables. A stored column has the same value in the source."""
    source = mariadb_database
    require_logged_generated_columns(source.server)
    source.execute(
        "CREATE TABLE others (id INT PRIMARY KEY, n INT)",
        "CREATE TABLE goods (id INT PRIMARY KEY, n INT, twice INT AS (n * 2) VIRTUAL, kept INT AS (n * 2) STORED)",
        "CREATE TRIGGER adds BEFORE UPDATE ON goods FOR EACH ROW SET NEW.n = NEW.n + 100",
        "INSERT INTO others VALUES (1, 1)",
        "INSERT INTO goods (id, n) VALUES (1, 1), (2, 1)",
    )
    job = Mirrored(source, target, tmp_path)
    run_epochs(job.path, notes=(notes := Notes()))
    source.execute(
        "UPDATE others JOIN goods ON goods.id = others.id SET goods.n = 5, others.n = 2",
        "UPDATE goods SET n = 5 WHERE id = 2",
    )
    job.run()
    (text,) = [facts["text"] for event, facts in notes.found if event == "warning"]
    assert f"Virtual columns of {source.name}.goods (twice): the table has a trigger BEFORE UPDATE" in text
    assert job.rows(source, "goods") == [(1, 105, 210, 10), (2, 105, 210, 210)]
    assert job.rows(target, "goods") == [(1, 105, 10, 10), (2, 105, 210, 210)]
