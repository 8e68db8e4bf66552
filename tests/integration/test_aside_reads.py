"""A large table without a key that can't be cut is read beside the epochs: the log is followed, and its own changes wait."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from tests.support.epochs import LocalEngine, run_epochs
from tests.support.failover import await_replica, on, promote, replicated
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database, fresh_database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.enumerator.pages import MAX_FAILED_ATTEMPTS
from tidemark.jobs.commands.signal import resnapshot, resume, stop_snapshot
from tidemark.jobs.epoch import aside_reads
from tidemark.jobs.epoch.aside_reads import AsideReads, read_aside
from tidemark.jobs.epoch.read_parts import PartTask
from tidemark.jobs.monitoring.events import Notes
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.readers.mysql.snapshot import split_reader
from tidemark.readers.postgres.keys import split_keys
from tidemark.state import failpoints
from tidemark.state.errors import PausedError, SourceNotUsableError
from tidemark.state.failpoints import FailpointError
from tidemark.state.phase import Phase
from tidemark.state.plan import LogWork, PlanRecord, SnapshotWork
from tidemark.state.split import AsideRead, ReleaseChunk

pytestmark = pytest.mark.integration

ROWS = 6000
VALUES = ", ".join(f"({i % 4000}, 1, '{'x' * (i % 90)}')" for i in range(ROWS))


@pytest.fixture
def source(any_source_database: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    """Table `t` without a key, and `k`, with one. On PostgreSQL, `t` has no pages, as on a standby."""
    database = any_source_database
    database.execute("CREATE TABLE t (uid bigint, version int, note text)")
    if database.kind == "postgres":
        database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
        monkeypatch.setattr(split_keys, "page_statistics", lambda *_: None)
    database.execute(
        f"INSERT INTO t VALUES {VALUES}",
        "ANALYZE t" if database.kind == "postgres" else "ANALYZE TABLE t",
        "CREATE TABLE k (id int PRIMARY KEY, version int)",
        "INSERT INTO k VALUES (1, 0)",
    )
    return database


class LoadedError(Exception):
    """The first load is complete."""


class Run:
    """Runs a job on and on until its first load is complete. Changes both tables before each epoch of it. The read beside the
    epochs begins after `waits` epochs, and ends after as many more."""

    def __init__(self, source: Database, monkeypatch: pytest.MonkeyPatch, *, waits: int = 3) -> None:
        self._source, self._waits = source, waits
        self.number = 0
        self.is_over = False
        self.stages: list[str] = []
        self.before: Callable[[PlanRecord], None] = lambda _: None
        self.reads = 0
        is_small = LocalEngine.is_small

        def acting(engine: LocalEngine, record: PlanRecord) -> bool:
            self._act(record)
            return is_small(engine, record)

        monkeypatch.setattr(LocalEngine, "is_small", acting)
        self._epoch = threading.Condition()
        publish = aside_reads.publish

        def publishing(*args: Any) -> object:
            self._wait()
            self._waits = 0
            return publish(*args)

        monkeypatch.setattr(aside_reads, "publish", publishing)

    def __call__(self, job: Path, *overrides: str) -> None:
        with pytest.raises(LoadedError):
            self.once(job, *overrides)
        self.is_over = True
        for version in (-1, -2):  # files that are not needed go with the next plan
            self._source.execute(f"UPDATE k SET version = {version}")
            run_epochs(job, *overrides)

    def once(self, job: Path, *overrides: str) -> None:
        self.is_over = False
        run_epochs(job, *overrides, interval_seconds=0.01, aside=AsideReads(lambda task: self._read(task)))

    def _read(self, task: PartTask) -> AsideRead:
        self.reads += 1
        self._wait()
        return next(read_aside([task]))

    def _wait(self) -> None:
        with self._epoch:
            until = self.number + self._waits
            self._epoch.wait_for(lambda: self.number >= until, timeout=30)

    def _act(self, record: PlanRecord) -> None:
        if self.is_over:
            return
        self.stages.append(stage_of(record))
        self.before(record)
        if record.plan.phase is Phase.STREAM and not self.stages[-1].endswith("without"):
            raise LoadedError
        with self._epoch:
            self.number += 1
            self._epoch.notify_all()
        number = self.number
        self._source.execute(
            "UPDATE k SET version = version + 1",
            f"INSERT INTO t (uid, version, note) VALUES ({number}, 1, 'new'), (-1, 1, 'new')",
            f"UPDATE t SET version = version + 1 WHERE uid IN ({number * 37 % 4000}, -1)",
            f"DELETE FROM t WHERE uid = {number * 11 % 4000}",
        )


def stage_of(record: PlanRecord) -> str:
    """Returns `log` or `splits` and where the table without a key is."""
    work = record.plan.work
    if isinstance(work, LogWork) and work.backfills:
        return "backfill"
    kind = "splits" if isinstance(work, SnapshotWork) else "log"
    (cursor,) = [table.cursor for table in record.state.tables if table.table.name == "t"] or [None]
    return f"{kind} {'without' if cursor is None else cursor.kind}"


def job_of(source: Database, folder: Path, *, format_: str = "jsonl", **of_source: object) -> Path:
    sink = {"type": "files", "path": str(folder / "out"), "format": format_, "on_schema_change": "evolve"}
    snapshot = {"split_rows": 1500, "parallelism": 2}
    return write_job(folder, source=source_of(source, **of_source), sink=sink, snapshot=snapshot)


def assert_copied(folder: Path, source: Database, columns: tuple[str, ...] = ("uid", "version", "note")) -> None:
    """Equal rows are told apart only by their number. What a table had before it was emptied does not count."""
    copy = Counter[tuple[object, ...]]()
    changes = changes_of(folder / "out" / f"{source.schema}.t")
    emptied = max((place(change) for change in changes if change["_change_type"] == "truncate"), default=(-1, -1))
    for change in (change for change in changes if place(change) > emptied):
        row = tuple(change.get(column) for column in columns)
        copy[row] += {"insert": 1, "delete": -1}[change["_change_type"]]
    rows = source.query(f"SELECT {', '.join(columns)} FROM t")
    assert {row: count for row, count in copy.items() if count} == Counter(rows)


def changes_of(folder: Path) -> list[dict[str, Any]]:
    if list(folder.rglob("*.parquet")):
        found: list[dict[str, Any]] = (
            ds.dataset(folder, format="parquet", exclude_invalid_files=False).to_table().to_pylist()
        )
        return found
    return [json.loads(line) for path in folder.rglob("*.jsonl") for line in path.read_text().splitlines()]


def place(change: dict[str, Any]) -> tuple[int, int]:
    return change["_commit_version"], change["_seq"]


def left_files(folder: Path) -> list[str]:
    return [path.name for kind in ("withheld", "staged") for path in (folder / "checkpoint").glob(f"{kind}/*")]


def test_other_tables_are_followed_meanwhile(source: Database, tmp_path: Path, monkeypatch) -> None:
    job, run = job_of(source, tmp_path), Run(source, monkeypatch)
    seen: list[int] = []

    def before(record: PlanRecord) -> None:
        if is_released(record) and not seen:
            assert not list((tmp_path / "out").rglob(f"{source.schema}.t/**/*.jsonl"))
            seen.append(sum(path.read_text().count("version") for path in (tmp_path / "out").rglob("*.jsonl")))

    run.before = before
    run(job)
    assert run.stages.count("log aside") >= 5
    assert run.stages.count("backfill") == 1
    assert seen[0] > 3, "changes of k are visible before the first row of t"
    assert run.reads == 1
    assert_copied(tmp_path, source)
    assert not left_files(tmp_path)


@pytest.mark.parametrize(
    ("stage", "point"),
    [
        ("log aside", "aside.read"),
        ("log aside", "aside.staged"),
        ("log aside", "withheld.before"),
        pytest.param("log aside", "withheld.after", marks=pytest.mark.every_server),
        pytest.param("log aside", "sink.after_commit", marks=pytest.mark.every_server),
        ("log aside", "planner.after_plan"),
        ("release", "planner.after_plan"),
        pytest.param("release", "sink.before_commit", marks=pytest.mark.every_server),
        ("release", "sink.after_commit"),
        ("backfill", "sink.after_commit"),
        pytest.param("backfill", "log.before_report", marks=pytest.mark.every_server),
        pytest.param("backfill", "planner.after_plan", marks=pytest.mark.every_server),
    ],
)
def test_deaths(source: Database, tmp_path: Path, monkeypatch, stage: str, point: str) -> None:
    job, run, armed = job_of(source, tmp_path), Run(source, monkeypatch), tmp_path / "armed"
    armed.mkdir()
    monkeypatch.setattr(failpoints, "_FOLDER", str(armed))

    def before(record: PlanRecord) -> None:
        is_release = is_released(record)
        if stage == ("release" if is_release else run.stages[-1]):
            (armed / point).write_text("raise")
            run.before = lambda _: None

    run.before = before
    with pytest.raises(FailpointError):
        run.once(job)
    run(job)
    assert_copied(tmp_path, source)
    assert not left_files(tmp_path)


def test_a_table_that_no_run_reads_to_its_end_is_one_split(source: Database, tmp_path: Path, monkeypatch) -> None:
    """Its rows are durable once they are read, but a read beside the epochs ends with its run."""
    job, run, armed = job_of(source, tmp_path), Run(source, monkeypatch, waits=0), tmp_path / "armed"
    armed.mkdir()
    monkeypatch.setattr(failpoints, "_FOLDER", str(armed))
    for _ in range(MAX_FAILED_ATTEMPTS):
        (armed / "aside.read").write_text("raise")
        with pytest.raises(FailpointError):
            run.once(job)
    assert run.reads == MAX_FAILED_ATTEMPTS
    run(job)
    assert run.reads == MAX_FAILED_ATTEMPTS
    assert_copied(tmp_path, source)


def test_a_small_table_is_one_split(source: Database, tmp_path: Path, monkeypatch) -> None:
    job, run = job_of(source, tmp_path), Run(source, monkeypatch)
    run(job, "snapshot.split_rows=100000")
    assert not run.reads
    assert_copied(tmp_path, source)


@pytest.mark.parametrize("epoch", [2, 5], ids=["before it is read", "once it is read"])
@pytest.mark.parametrize("is_altered", [True, False], ids=["ALTER TABLE", "TRUNCATE"])
def test_ddl_meanwhile(source: Database, tmp_path: Path, monkeypatch, epoch: int, is_altered: bool) -> None:
    """While its rows are read it waits for them, as for any SELECT."""
    job, run = job_of(source, tmp_path), Run(source, monkeypatch)
    ddl = "ALTER TABLE t ADD COLUMN extra int DEFAULT 5" if is_altered else "TRUNCATE TABLE t"
    done: list[str] = []

    def before(record: PlanRecord) -> None:
        if run.stages.count("log aside") == epoch and not done:
            done.append(ddl)
            source.execute(ddl)

    run.before = before
    run(job)
    assert done
    columns = ("uid", "version", "note", "extra") if is_altered else ("uid", "version", "note")
    assert_copied(tmp_path, source, columns)
    assert not left_files(tmp_path)


def test_what_becomes_of_another_table_does_not_end_the_read(source: Database, tmp_path: Path, monkeypatch) -> None:
    """The job is opened again, because `k` has one column more."""
    job, run = job_of(source, tmp_path), Run(source, monkeypatch)

    def before(record: PlanRecord) -> None:
        if run.stages.count("log aside") == 2:
            run.before = lambda _: None
            source.execute("ALTER TABLE k ADD COLUMN extra int DEFAULT 5")

    run.before = before
    run(job)
    assert run.reads == 1
    assert_copied(tmp_path, source)
    assert not left_files(tmp_path)


def test_a_read_that_fails_parks_its_table_only(source: Database, tmp_path: Path, monkeypatch) -> None:
    job, run = job_of(source, tmp_path, on_table_error="park"), Run(source, monkeypatch)
    read_splits = run._read

    def failing(task: PartTask) -> AsideRead:
        read_splits(task)
        raise SourceNotUsableError("The source refuses to read it.", "Let it be read.", task.schemas[0].table)

    def before(record: PlanRecord) -> None:
        if run.stages.count("log without") == 3:
            run.before = lambda _: None
            raise StoppedError

    run.before = before
    monkeypatch.setattr(run, "_read", failing)
    with pytest.raises(StoppedError):
        run.once(job)
    assert not list((tmp_path / "out").rglob(f"{source.schema}.t/**/*.jsonl"))
    monkeypatch.setattr(run, "_read", read_splits)
    resnapshot(load_job_file(job), [TableName(source.schema, "t")])
    run(job)
    assert_copied(tmp_path, source)
    assert not left_files(tmp_path)


def test_no_more_splits_but_it_is_read_to_its_end(source: Database, tmp_path: Path, monkeypatch) -> None:
    job, run = job_of(source, tmp_path), Run(source, monkeypatch)

    def before(record: PlanRecord) -> None:
        if run.stages.count("log aside") == 2:
            run.before = lambda _: None
            stop_snapshot(load_job_file(job))
            raise StoppedError

    run.before = before
    with pytest.raises(StoppedError):
        run.once(job)
    with pytest.raises(PausedError, match="stopped the reading of rows"):  # the read has ended with its run
        run_epochs(job)
    resume(load_job_file(job), [])
    run(job)
    assert_copied(tmp_path, source)


def test_the_log_of_before_the_read_may_go_meanwhile(source: Database, tmp_path: Path, monkeypatch) -> None:
    """It is in the checkpoint by then. A read may take longer than the source keeps its log."""
    if source.kind == "postgres":
        pytest.skip("its slot keeps the log that the job needs")
    job, run = job_of(source, tmp_path), Run(source, monkeypatch)
    purged: list[str] = []

    def purging(name: str) -> None:
        if name == "snapshot.after_select" and threading.current_thread().name.startswith("tidemark: rows"):
            source.execute("FLUSH BINARY LOGS")
            run._wait()  # the job goes on in the new file
            purged.append(source.query("SHOW BINARY LOGS")[-1][0])
            source.execute(f"PURGE BINARY LOGS TO '{purged[-1]}'")

    monkeypatch.setattr(split_reader, "failpoint", purging)
    run(job)
    assert len(purged) == run.reads == 1
    assert_copied(tmp_path, source)


@pytest.mark.parametrize("format_", ["parquet", "jsonl"])
def test_one_run_from_start_to_end(source: Database, tmp_path: Path, format_: str) -> None:
    """As Airflow starts it, with the process's own reads."""
    job = job_of(source, tmp_path, format_=format_)
    reads: list[PartTask] = []
    run_epochs(job, aside=AsideReads(lambda task: reads.append(task) or next(read_aside([task]))))
    source.execute("UPDATE t SET version = 7 WHERE uid < 100", "INSERT INTO t VALUES (5000, 1, NULL)")
    run_epochs(job)
    assert len(list(changes_of(tmp_path / "out" / f"{source.schema}.t"))) > ROWS
    assert len(reads) == 1
    assert_copied(tmp_path, source)


def test_a_job_that_ends_with_its_rows_can_go_on(source: Database, tmp_path: Path, monkeypatch) -> None:
    """Mode `full` ends at one position of the log over all tables."""
    job, run = job_of(source, tmp_path), Run(source, monkeypatch, waits=0)
    phases = run_epochs(job, "mode=full", aside=AsideReads(run._read))
    assert "stream" not in phases
    assert run.reads == 1
    run.is_over = True
    run_epochs(job)
    assert_copied(tmp_path, source)


@pytest.mark.parametrize("kind", ["mysql", pytest.param("mariadb", marks=pytest.mark.every_server)])
def test_the_primary_dies_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    with replicated(kind) as (primary, replica), fresh_database(primary) as source:
        source.execute("CREATE TABLE t (uid bigint, version int, note text)", f"INSERT INTO t VALUES {VALUES}")
        source.execute(
            "ANALYZE TABLE t", "CREATE TABLE k (id int PRIMARY KEY, version int)", "INSERT INTO k VALUES (1, 0)"
        )
        run = Run(source, monkeypatch)

        def before(record: PlanRecord) -> None:
            if run.stages.count("log aside") == 2:
                raise StoppedError

        run.before = before
        with pytest.raises(StoppedError):
            run.once(job_of(source, tmp_path))
        await_replica(primary, replica)
        promote(replica)
        run.is_over, there = True, on(replica, source)
        there.execute("UPDATE t SET version = 9 WHERE uid < 50", "DELETE FROM t WHERE uid > 3990")
        run_epochs(job_of(there, tmp_path))
        assert_copied(tmp_path, there)
        there.execute("UPDATE t SET version = 10 WHERE uid < 50")
        run_epochs(job_of(there, tmp_path))
        assert_copied(tmp_path, there)


def test_a_task_of_spark_reads_it(mysql_database: Database, tmp_path: Path) -> None:
    """As on a cluster, where executors read."""
    source = mysql_database
    source.execute(
        "CREATE TABLE t (uid bigint, version int, note text)", f"INSERT INTO t VALUES {VALUES}", "ANALYZE TABLE t"
    )
    job = job_of(source, tmp_path, format_="parquet")
    sessions = SparkSessions(load_job_file(job), Notes())
    try:
        run_epochs(job, aside=AsideReads(sessions.read_aside))
        assert sessions.is_started
    finally:
        sessions.stop()
    assert_copied(tmp_path, source)


def test_a_mirror_appends_the_rows(source: Database, postgres_database: Database, tmp_path: Path) -> None:
    sink = {"type": "mirror", "url": postgres_database.url, "keyless": "append"}
    job = write_job(tmp_path, source=source_of(source), sink=sink, snapshot={"split_rows": 1500, "parallelism": 2})
    run_epochs(job)
    source.execute("INSERT INTO t VALUES (5000, 1, NULL)")
    run_epochs(job)
    found = "SELECT format('%I.%I', table_schema, table_name) FROM information_schema.columns WHERE column_name = 'uid'"
    ((copy,),) = postgres_database.query(found)
    rows = "SELECT uid, version, note FROM {}"
    assert Counter(postgres_database.query(rows.format(copy))) == Counter(source.query(rows.format("t")))


class StoppedError(Exception):
    """The run ends in the middle of it."""


def is_released(record: PlanRecord) -> bool:
    """True if the epoch releases chunks of `t`."""
    work = record.plan.work
    splits = [split for task in work.tasks for split in task] if isinstance(work, SnapshotWork) else []
    return any(isinstance(split.pages, ReleaseChunk) for split in splits)
