"""`tidemark reconcile` of mirrors whose key is a text that they order in their own way: rows are found by hashes of keys."""

import contextlib
import json
import random
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.epochs import run_epochs
from tests.support.jobs import running
from tests.support.reconciling import PAIRS, Silent, assert_equal, compared, following, found_keys, job_of, on_pairs
from tests.support.room import files_of_at_most
from tests.support.servers import Database
from tidemark.conf.endpoint import parse_endpoint
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.reconcile import reconcile
from tidemark.jobs.reconcile import hashed_copy, table_comparison
from tidemark.jobs.reconcile.hashed_ranges import RangeHashes, RangeRows
from tidemark.jobs.reconcile.range_looks import TableLook
from tidemark.jobs.reconcile.ranges import Range
from tidemark.jobs.reconcile.reconcile import reconcile_tables
from tidemark.jobs.reconcile.table_comparison import EVERYWHERE, TableResult
from tidemark.jobs.sources import table_rows
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.readers.mysql.snapshot.table_rows import MySqlRows
from tidemark.readers.postgres.snapshot.table_rows import PostgresRows
from tidemark.sinks.folded import rows_by_key
from tidemark.sinks.mirror.comparing import MirrorComparison
from tidemark.sinks.mirror.postgres import session
from tidemark.state.errors import DifferencesError, SinkError, SourceUnavailableError
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration


def create_codes(source: Database, count: int) -> None:
    values = ", ".join(f"('key {i}', {i})" for i in range(count))
    source.execute("CREATE TABLE codes (code VARCHAR(40) PRIMARY KEY, n INT)", f"INSERT INTO codes VALUES {values}")


def test_keys_that_the_copy_takes_as_equal_are_one_row(
    mysql_nogtid_database: Database, mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`KEY 7` is the row of `key 7` there, and no row that only the copy has. The order of a YEAR is not certain."""
    source, target = mysql_nogtid_database, mysql_database
    values = ", ".join(f"('key {i}', 2024, {i})" for i in range(200))
    source.execute(
        "CREATE TABLE codes (code VARCHAR(40) COLLATE utf8mb4_0900_ai_ci, y YEAR, n INT, PRIMARY KEY (code, y))",
        f"INSERT INTO codes VALUES {values}",
    )
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    asked = list[int]()
    surplus_among = MirrorComparison.surplus_among

    def counted(copy: MirrorComparison, keys: pa.RecordBatch, limit: int) -> Any:
        asked.append(keys.num_rows)
        return surplus_among(copy, keys, limit)

    monkeypatch.setattr(MirrorComparison, "surplus_among", counted)
    assert_equal(job, {"codes": 200})
    assert asked == []
    target.execute(
        "UPDATE copy_codes SET code = UPPER(code) WHERE n IN (7, 8)",
        "INSERT INTO copy_codes VALUES ('KEY 200', 2024, 200)",
        "DELETE FROM copy_codes WHERE n = 9",
    )
    assert found_keys(compared(job)["codes"]) == {
        "different": {("key 7", "2024"), ("key 8", "2024")},
        "missing": {("key 9", "2024")},
        "surplus": {("KEY 200", "2024")},
    }
    assert asked == [3, 3, 3, 3]


@pytest.mark.parametrize(("source", "target"), [PAIRS[0], PAIRS[2]], indirect=True)
def test_a_surplus_row_does_not_let_all_of_the_source_be_read_again(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look reads the rows around its key, if the source can be asked for it. A time may have lost digits in the copy."""
    create_codes(source, 200)
    source.execute(
        "CREATE TABLE times (code VARCHAR(40), at TIMESTAMP(6), PRIMARY KEY (code, at))",
        "INSERT INTO times SELECT code, '2024-02-03' FROM codes WHERE n < 100",
    )
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute(
        "INSERT INTO copy_codes VALUES ('key 77 and more', 1), ('zz', 1)",
        "INSERT INTO copy_times VALUES ('zz', '2024-02-03')",
    )
    expected, read = TableLook.expected, dict[str, list[int]]()

    def counted(look: TableLook, *arguments: Any) -> pa.Table:
        rows = expected(look, *arguments)
        read.setdefault(look.schema.table.name, []).append(rows.num_rows)
        return rows

    monkeypatch.setattr(TableLook, "expected", counted)
    results = compared(job)
    assert found_keys(results["codes"]) == {"surplus": {("key 77 and more",), ("zz",)}}
    assert [key[0] for key in found_keys(results["times"])["surplus"]] == ["zz"]
    looks = 3  # after the first one, of a log without changes
    assert sum(read["codes"]) <= 200 + 2 * 2 * looks
    assert sum(read["times"]) == 100 * (1 + looks)


@on_pairs(0, 2)
def test_rows_are_found_in_arrays_on_disk(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_codes(source, 200)
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    monkeypatch.setattr(rows_by_key, "MAX_ROWS", 50)
    monkeypatch.setattr(hashed_copy, "KEYS_AT_ONCE", 1)
    assert_equal(job, {"codes": 200})
    target.execute("UPDATE copy_codes SET code = 'key' WHERE n = 7", "INSERT INTO copy_codes VALUES ('none', 7)")
    assert found_keys(compared(job)["codes"]) == {"missing": {("key 7",)}, "surplus": {("key",), ("none",)}}


def test_a_full_disk_keeps_no_other_table_from_being_compared(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_codes(mysql_database, 200)
    mysql_database.execute("CREATE TABLE few (code VARCHAR(40) PRIMARY KEY)", "INSERT INTO few VALUES ('a'), ('b')")
    job = job_of(mysql_database, postgres_database, tmp_path)
    run_epochs(job)
    assert_equal(job, {"codes": 200, "few": 2})
    monkeypatch.setattr(rows_by_key, "MAX_ROWS", 50)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with files_of_at_most(1000):
        results = compared(job)
        assert (results["few"].rows, results["few"].skipped) == (2, None)
        error = results["codes"].error
        assert error is not None
        assert results["codes"].skipped == "Hashes of the table's keys can't be kept: File too large"
        assert error.remedy == f"Check that there is space in {folder} (TMPDIR)."
        with pytest.raises(SinkError, match="can't be kept"):
            reconcile(load_job_file(job), (), as_json=False, repair=False, patience_seconds=0)
    assert list(folder.iterdir()) == []
    assert_equal(job, {"codes": 200, "few": 2})


@on_pairs(0)
def test_the_server_compares_a_copy_if_the_session_that_reads_it_is_ended(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megabytes are still to be sent then."""
    create_codes(source, 100)
    source.execute("ALTER TABLE codes ADD note TEXT", "UPDATE codes SET note = repeat('x', 60000)")
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute("UPDATE copy_codes SET code = 'none' WHERE n = 7")
    reader: Any = PostgresRows if target.kind == "postgres" else MySqlRows
    pass_on, ended = reader.pass_on, list[int]()

    def ending(rows: Any, condition: str, names: Any, take: Any) -> None:
        def end(batch: pa.RecordBatch) -> None:
            if not ended and target.kind == "postgres":
                ended.append(rows.connection.get_backend_pid())
                target.execute(f"SELECT pg_terminate_backend({ended[0]})")
            elif not ended:
                ended.append(rows.connection.thread_id())
                target.execute(f"KILL {ended[0]}")
            take(batch)

        pass_on(rows, condition, names, end)

    monkeypatch.setattr(reader, "pass_on", ending)
    assert found_keys(compared(job)["codes"]) == {"missing": {("key 7",)}, "surplus": {("none",)}}
    assert len(ended) == 1


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_a_reading_that_is_given_up_leaves_no_query_behind(kind: str, request: pytest.FixtureRequest) -> None:
    """The server would wait, with an old snapshot, until the other rows are fetched."""
    database: Database = request.getfixturevalue(f"{kind}_database")
    database.execute(
        "CREATE TABLE codes (code VARCHAR(40), note TEXT)", "INSERT INTO codes VALUES ('', repeat('x', 60000))"
    )
    for _ in range(9):
        database.execute("INSERT INTO codes SELECT * FROM codes")
    table = TableId(database.schema, "codes")
    running = {
        "mysql": "SELECT count(*) FROM performance_schema.processlist WHERE info LIKE 'SELECT `code`%AS c WHERE%'",
        "postgres": "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'COPY%AS c WHERE%'",
    }[kind]

    def fail(_: pa.RecordBatch) -> None:
        raise SinkError("no space", "")

    with table_rows(parse_endpoint(database.url), None, table, ["code", "note"]) as rows:
        with pytest.raises(SinkError, match="no space"):
            rows.pass_on("TRUE", ["code", "note"], fail)
        deadline = time.monotonic() + 10
        while database.query(running) != [(0,)]:
            assert time.monotonic() < deadline
        with pytest.raises(SourceUnavailableError):
            rows.read("TRUE")


@pytest.mark.parametrize("broken", ["rows", "keys", "keys, once"])
def test_the_server_compares_a_copy_whose_reading_breaks(
    broken: str,
    mysql_database: Database,
    postgres_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = mysql_database, postgres_database
    create_codes(source, 200)
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute("UPDATE copy_codes SET code = 'none' WHERE n = 7")
    is_lost = broken == "keys, once"  # the connection was idle while the source was read: another one is taken
    pass_on, breaks, staged = PostgresRows.pass_on, list[int](), list[int]()

    def breaking(rows: PostgresRows, condition: str, names: Any, take: Any) -> None:
        if (broken != "rows") == (len(names) == 1) and not (is_lost and breaks):
            breaks.append(len(names))
            rows.connection.close()
        pass_on(rows, condition, names, take)

    stage = MirrorComparison.stage

    def counted(copy: MirrorComparison, batches: Iterable[pa.RecordBatch]) -> None:
        rows = list(batches)
        staged.append(sum(batch.num_rows for batch in rows))
        stage(copy, rows)

    monkeypatch.setattr(PostgresRows, "pass_on", breaking)
    monkeypatch.setattr(MirrorComparison, "stage", counted)
    result = compared(job)["codes"]
    assert found_keys(result) == {"missing": {("key 7",)}, "surplus": {("none",)}}
    assert (len(breaks), result.rows) == (2 if broken == "keys" else 1, 200)
    assert (sum(staged) < 20) == is_lost


def test_suspects_are_judged_now_and_then_also_if_the_server_compares_all_rows_after_all(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were judged before count once."""
    source, target = mysql_database, postgres_database
    create_codes(source, 200)
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute("DELETE FROM copy_codes WHERE n % 10 = 0", "INSERT INTO copy_codes VALUES ('none', 7)")
    pass_on = PostgresRows.pass_on

    def breaking(rows: PostgresRows, condition: str, names: Any, take: Any) -> None:
        if len(names) == 1:
            raise SourceUnavailableError("the connection broke", "")
        pass_on(rows, condition, names, take)

    seen = list[int]()

    class Watched(Silent):
        def looking(self, suspects: int, look: int) -> None:
            seen.append(suspects)

    monkeypatch.setattr(PostgresRows, "pass_on", breaking)
    monkeypatch.setattr(table_comparison, "MAX_SUSPECTS", 5)
    (result,) = reconcile_tables(load_job_file(job), watch=lambda _: Watched(), patience_seconds=0, examples=100)
    assert {kind: len(keys) for kind, keys in found_keys(result).items()} == {"missing": 20, "surplus": 1}
    assert (result.differences, result.rows) == (21, 200)
    assert max(seen) <= 5 + 10


@pytest.mark.parametrize(("source", "target"), [PAIRS[0], PAIRS[2]], indirect=True)
def test_a_target_that_refuses_temporary_tables_says_so_before_the_copy_is_read(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_codes(source, 100)
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}"}
    job = job_of(source, target, tmp_path, sink=sink)
    run_epochs(job)
    target.execute("DELETE FROM copy_codes WHERE n = 7")
    is_postgres, name = target.kind == "postgres", f"few_{target.name}"
    reader: Any = PostgresRows if is_postgres else MySqlRows
    pass_on, read = reader.pass_on, list[str]()

    def counted(rows: Any, condition: str, *arguments: Any) -> None:
        read.append(condition)
        pass_on(rows, condition, *arguments)

    monkeypatch.setattr(reader, "pass_on", counted)
    grants = ["GRANT ALL ON ALL TABLES IN SCHEMA public TO", "GRANT ALL ON SCHEMA public TO"]
    if not is_postgres:
        grants = [f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP ON {target.name}.* TO"]
    target.execute(f"CREATE {'ROLE' if is_postgres else 'USER'} {name}{' LOGIN' if is_postgres else ''}")
    try:
        target.execute(*(f"{grant} {name}" for grant in grants))
        if is_postgres:
            target.execute(f"REVOKE TEMPORARY ON DATABASE {target.name} FROM PUBLIC")
        endpoint = parse_endpoint(target.url)
        url = target.url.replace(f"//{endpoint.user}@", f"//{name}@").replace(f"//{endpoint.user}:@", f"//{name}@")
        assert name in url
        limited = job_of(source, target, tmp_path, sink=sink | {"url": url})
        error = compared(limited)["codes"].error
        assert error is not None
        assert error.remedy.endswith(" or TEMPORARY (PostgreSQL) on the target database. Then compare again.")
        assert read == []
        right = "TEMPORARY ON DATABASE" if is_postgres else "CREATE TEMPORARY TABLES ON"
        target.execute(f"GRANT {right} {target.name}{'' if is_postgres else '.*'} TO {name}")
        assert found_keys(compared(limited)["codes"]) == {"missing": {("key 7",)}}
        assert read
    finally:
        target.execute(*([f"DROP OWNED BY {name}", f"DROP ROLE {name}"] if is_postgres else [f"DROP USER {name}"]))


@pytest.mark.parametrize("setting", ["idle_in_transaction_session_timeout", "idle_session_timeout"])
def test_a_copy_that_is_read_for_longer_than_sessions_may_be_idle(
    setting: str,
    mysql_database: Database,
    postgres_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether a session may be idle in a transaction is told by the mirror, else by the server, the database, or the role."""
    source, target = mysql_database, postgres_database
    create_codes(source, 50)
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute("INSERT INTO copy_codes VALUES ('none', 7)")
    if setting == "idle_session_timeout":
        target.execute(f"ALTER DATABASE {target.name} SET idle_session_timeout = '1s'")
    else:
        monkeypatch.setattr(session, "_SESSION", session._SESSION.replace(f"'{session.IDLE_SECONDS}s'", "'1s'"))
    pass_on = PostgresRows.pass_on

    def slow(rows: PostgresRows, condition: str, names: Any, take: Any) -> None:
        pass_on(rows, condition, names, take)
        time.sleep(1.3)

    monkeypatch.setattr(PostgresRows, "pass_on", slow)
    result = compared(job)["codes"]
    assert (found_keys(result), result.skipped) == ({"surplus": {("none",)}}, None)


def test_surplus_rows_that_could_not_all_be_listed_are_judged(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is asked for more keys at once than it may list. What it lists first the second time is not what it listed
    first the first time."""
    source, target = mysql_database, postgres_database
    create_codes(source, 100)
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}", "on_schema_change": {"truncate": "ignore"}}
    job = job_of(source, target, tmp_path, sink=sink)
    run_epochs(job)
    target.execute("INSERT INTO copy_codes SELECT 'none ' || code, n FROM copy_codes WHERE n < 30")
    monkeypatch.setattr(table_comparison, "MAX_SURPLUS", 20)
    asked, looks = MirrorComparison.surplus_among, list[int]()

    def turned(copy: MirrorComparison, keys: pa.RecordBatch, limit: int) -> Any:
        looks.append(limit)
        assert len(looks) < 50, "it does not end"
        pairs = asked(copy, keys, keys.num_rows)
        assert pairs is not None
        return sorted(pairs, key=lambda pair: pair.key, reverse=len(looks) > 1)[:limit]

    monkeypatch.setattr(MirrorComparison, "surplus_among", turned)
    result = compared(job)["codes"]
    assert (result.differences, result.behind, result.skipped) == (0, 0, None)
    assert result.kept >= 20


def test_a_truth_that_the_copy_has_as_another_number_is_a_surplus_row(
    postgres_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    source, target = postgres_database, mysql_database
    source.execute(
        "CREATE TABLE flags (code varchar(20), flag boolean, n int, PRIMARY KEY (code, flag))",
        "INSERT INTO flags SELECT 'key ' || i, i % 2 = 0, i FROM generate_series(1, 100) i",
    )
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    assert_equal(job, {"flags": 100})
    target.execute("INSERT INTO copy_flags SELECT code, 5, n FROM copy_flags WHERE n = 8")
    assert found_keys(compared(job)["flags"]) == {"surplus": {("key 8", "5")}}


def test_keys_of_which_a_cast_gives_another_text_are_asked_for(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cast of an `inet` adds its netmask. Such a copy was compared by its server."""
    source, target = postgres18_database, postgres_database
    source.execute(
        "CREATE TABLE hosts (host inet, kind varchar(9), n int, PRIMARY KEY (host, kind))",
        "INSERT INTO hosts SELECT '10.0.0.0'::inet + i, 'x', i FROM generate_series(1, 100) i",
    )
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute("INSERT INTO copy_hosts VALUES ('10.0.0.7/24', 'x', 7), ('10.0.0.8', 'y', 8)")
    stage, staged = MirrorComparison.stage, list[int]()

    def counted(copy: MirrorComparison, batches: Iterable[pa.RecordBatch]) -> None:
        rows = list(batches)
        staged.append(sum(batch.num_rows for batch in rows))
        stage(copy, rows)

    monkeypatch.setattr(MirrorComparison, "stage", counted)
    monkeypatch.setattr(table_comparison, "LEAST_HASHED_ROWS", 1)
    assert found_keys(compared(job)["hosts"]) == {"surplus": {("10.0.0.7/24", "x"), ("10.0.0.8/32", "y")}}
    assert sum(staged) == 0


@pytest.mark.parametrize("trouble", ["the copy is dropped", "its session is ended"])
@on_pairs(0, 2)
def test_trouble_with_one_copy_keeps_no_other_from_being_compared(
    source: Database, target: Database, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_codes(source, 50)
    source.execute("CREATE TABLE few (code VARCHAR(40) PRIMARY KEY)", "INSERT INTO few VALUES ('a'), ('b')")
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute("DELETE FROM copy_codes WHERE n = 7", "DELETE FROM copy_few WHERE code = 'b'")
    stage = MirrorComparison.stage

    def troubled(copy: MirrorComparison, batches: Iterable[pa.RecordBatch]) -> None:
        if copy.schema.table.name == "codes" and trouble == "the copy is dropped":
            target.execute("DROP TABLE copy_codes")
        elif copy.schema.table.name == "codes":
            is_postgres = target.kind == "postgres"
            ((number,),) = copy.session.query(f"SELECT {'pg_backend_pid' if is_postgres else 'connection_id'}()")
            target.execute(f"SELECT pg_terminate_backend({number})" if is_postgres else f"KILL {number}")
        stage(copy, batches)

    monkeypatch.setattr(MirrorComparison, "stage", troubled)
    results = compared(job)
    assert found_keys(results["few"]) == {"missing": {("b",)}}
    error = results["codes"].error
    assert error is not None
    assert error.exit_code == (5 if trouble == "the copy is dropped" else 7)


@on_pairs(0, 2)
def test_a_copy_that_does_not_fit_keeps_no_other_from_being_compared(
    source: Database, target: Database, tmp_path: Path
) -> None:
    for name in ("codes", "gone", "few"):
        source.execute(
            f"CREATE TABLE {name} (code VARCHAR(40) PRIMARY KEY, n INT)", f"INSERT INTO {name} VALUES ('a', 1)"
        )
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute("ALTER TABLE copy_codes DROP COLUMN n", "DROP TABLE copy_gone", "UPDATE copy_few SET n = 2")
    results = compared(job)
    assert found_keys(results["few"]) == {"different": {("a",)}}
    assert str(results["codes"].skipped).endswith("copy_codes: column n is missing")
    assert str(results["gone"].skipped).endswith("copy_gone, which this job wrote, is gone")
    with pytest.raises(SinkError, match="copy_gone, which this job wrote, is gone"):
        compared(job, TableName(source.schema, "gone"))
    target.execute("UPDATE copy_few SET n = 1")
    with pytest.raises(SinkError, match="column n is missing"):
        reconcile(load_job_file(job), (), as_json=False, repair=False, patience_seconds=0)


class Toggler:
    """Changes many rows a second: flags go back and forth, a counter counts, rows come and go under the same keys, and others
    get new keys. `flags`: how many of the 800 rows have one that changes."""

    def __init__(self, source: Database, flags: int = 400) -> None:
        self.changes = 0
        self._flags = flags
        self._source, self._stop = source, threading.Event()
        self._thread = threading.Thread(target=self._run)
        source.execute("CREATE TABLE flags (id VARCHAR(20) PRIMARY KEY, n INT NOT NULL, flag SMALLINT NOT NULL)")
        self._insert(range(800))

    def _insert(self, numbers: Iterable[int]) -> None:
        self._source.execute(f"INSERT INTO flags VALUES {', '.join(self._row(n) for n in numbers)}")

    def _row(self, n: int) -> str:
        return f"('key {n}', {n}, 0)"

    def _run(self) -> None:
        with contextlib.closing(self._source.connect()) as connection, connection.cursor() as cursor:
            for count in range(1 << 30):
                if self._stop.wait(0.05):
                    return
                cursor.execute(f"UPDATE flags SET flag = 1 - flag WHERE n < {self._flags}")
                self.changes += cursor.rowcount
                cursor.execute(f"UPDATE flags SET id = concat('moved {count} of ', n) WHERE n BETWEEN 500 AND 520")
                cursor.execute("DELETE FROM flags WHERE n BETWEEN 600 AND 620")
                time.sleep(0.01)
                cursor.execute(f"INSERT INTO flags VALUES {', '.join(self._row(n) for n in range(600, 621))}")

    def __enter__(self) -> "Toggler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@on_pairs(0)
def test_wrong_rows_are_found_and_no_other_under_thousands_of_changes(
    source: Database, target: Database, tmp_path: Path
) -> None:
    """Each of five kinds of faults, in random rows: some of a table that changes. The running job mends them."""
    each, rows, draw = 100, 3000, random.Random(4)
    source.execute("CREATE TABLE parts (id VARCHAR(20) PRIMARY KEY, name VARCHAR(40), version INT NOT NULL)")
    values = ", ".join(f"('{n}', 'part {n % 97}', 1)" for n in range(rows))
    source.execute(f"INSERT INTO parts VALUES {values}")
    toggler = Toggler(source)
    job = job_of(source, target, tmp_path, snapshot={"split_rows": 300, "parallelism": 16}, trigger="100ms")
    keys = draw.sample(range(rows), 5 * each)
    cell, missing, surplus, stale, duplicate = (keys[n * each : (n + 1) * each] for n in range(5))
    lists = [", ".join(f"'{key}'" for key in part) for part in (cell, missing, surplus, stale, duplicate)]
    with running(job) as process, toggler:

        def results() -> dict[str, TableResult]:
            assert process.popen.poll() is None, process.error_text()
            return compared(job, patience_seconds=None, examples=10 * each)

        process.wait_until(lambda: any(event["event"] == "epoch" for event in process.events()))
        process.wait_until(lambda: all(result.skipped is None for result in compared(job).values()))
        source.execute(f"UPDATE parts SET version = 2, name = concat(name, '!') WHERE id IN ({lists[3]})")
        assert {name: result.differences for name, result in results().items()} == {"parts": 0, "flags": 0}
        began, before = time.monotonic(), toggler.changes
        target.execute(
            f"UPDATE copy_parts SET name = concat(name, ' ') WHERE id IN ({lists[0]})",
            f"DELETE FROM copy_parts WHERE id IN ({lists[1]})",
            f"INSERT INTO copy_parts SELECT concat('nobody ', id), name, 3 FROM copy_parts WHERE id IN ({lists[2]})",
            f"UPDATE copy_parts SET version = 1, name = replace(name, '!', '') WHERE id IN ({lists[3]})",
            f"INSERT INTO copy_parts SELECT concat(id, ' again'), name, version FROM copy_parts WHERE id IN ({lists[4]})",
            "UPDATE copy_flags SET flag = 7 WHERE n = 799",
            "DELETE FROM copy_flags WHERE n = 450",
            "INSERT INTO copy_flags VALUES ('nobody', 500, 0)",
        )
        found = results()
        assert {name: result.skipped for name, result in found.items()} == {"parts": None, "flags": None}
        assert found_keys(found["flags"]) == {
            "different": {("key 799",)},
            "missing": {("key 450",)},
            "surplus": {("nobody",)},
        }
        assert found_keys(found["parts"]) == {
            "different": {(str(key),) for key in cell + stale},
            "missing": {(str(key),) for key in missing},
            "surplus": {(f"nobody {key}",) for key in surplus} | {(f"{key} again",) for key in duplicate},
        }
        with pytest.raises(DifferencesError, match="differs from the source in 2 tables"):
            reconcile(load_job_file(job), (), as_json=False, repair=True, patience_seconds=None)
        while any(result.differences or result.skipped is not None for result in results().values()):
            pass  # the signal is not followed yet, or the table is being read again
        rate = (toggler.changes - before) / (time.monotonic() - began)
    assert rate > 1000


def test_tasks_hash_the_rows_of_a_large_table(
    mysql_database: Database,
    postgres_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Under thousands of changes: wrong rows are found and no other, and this process reads only the first ranges."""
    source, target = mysql_database, postgres_database
    create_codes(source, 800)
    toggler = Toggler(source, flags=100)
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute(
        "UPDATE copy_codes SET n = -1 WHERE n IN (150, 790)",
        "UPDATE copy_codes SET code = 'KEY 300' WHERE n = 300",
        "DELETE FROM copy_codes WHERE n IN (400, 401)",
        "INSERT INTO copy_codes VALUES ('nobody', 1), ('zz', 1)",
        "UPDATE copy_flags SET flag = 7 WHERE n = 799",
        "DELETE FROM copy_flags WHERE n = 450",
        "INSERT INTO copy_flags VALUES ('nobody', 500, 0)",
    )
    results = dict[tuple[str, type], set[int]]()
    run = SparkSessions.run

    def counted(sessions: SparkSessions, tasks: Any, function: Any, *names: str) -> Any:
        found = run(sessions, tasks, function, *names)
        for result in found:
            results.setdefault((function.look.schema.table.name, type(result)), set()).add(result.number)
        return found

    expected, read = TableLook.expected, set[int]()

    def expected_here(look: TableLook, each: Range, *arguments: Any) -> pa.Table:
        if look.schema.table.name == "codes":
            read.add(each.number)
        return expected(look, each, *arguments)

    monkeypatch.setattr(table_comparison, "RANGES_WITHOUT_SPARK", 2)
    monkeypatch.setattr(SparkSessions, "run", counted)
    monkeypatch.setattr(TableLook, "expected", expected_here)
    with following(job), toggler, pytest.raises(DifferencesError):
        reconcile(load_job_file(job), (), as_json=True, repair=False, examples=100, patience_seconds=30)
    facts = {table["table"].split(".")[1]: table for table in json.loads(capsys.readouterr().out)["tables"]}
    assert {name: (each["skipped"], each["behind"]) for name, each in facts.items()} == dict.fromkeys(facts, (None, 0))
    assert facts["codes"]["rows"] == 800
    assert keys_of(facts["codes"]) == {
        "different": {"key 150", "key 790"},
        "missing": {"key 300", "key 400", "key 401"},
        "surplus": {"KEY 300", "nobody", "zz"},
    }
    assert keys_of(facts["flags"]) == {"different": {"key 799"}, "missing": {"key 450"}, "surplus": {"nobody"}}
    last = max(results["codes", RangeHashes])
    assert results["codes", RangeHashes] == set(range(2, last + 1))
    assert results["codes", RangeRows]
    assert results["flags", RangeHashes]
    assert last > 10
    assert EVERYWHERE in read
    assert read & set(range(2, last + 1)) <= results["codes", RangeRows]


def keys_of(facts: Any) -> dict[str, set[str]]:
    found = dict[str, set[str]]()
    for example in facts["examples"]:
        found.setdefault(example["kind"], set()).update(example["key"].values())
    return found
