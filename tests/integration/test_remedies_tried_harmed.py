"""Remedies for a checkpoint that somebody has changed or another Tidemark wrote, and for a source that is no longer what the
checkpoint says, done as they are printed: the job goes on, and its copies are those of the source."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devtools.servers import start_server
from tests.support.cli import CommandLine
from tests.support.epochs import die_at, run_epochs
from tests.support.lost_logs import drop_kept_slots
from tests.support.remedy_ways import mirror_job, require_copies, start_over, told_by, told_of
from tests.support.servers import Database, fresh_database
from tidemark import __version__
from tidemark.readers.log import gap_filter
from tidemark.readers.postgres.source import PostgresAccess
from tidemark.state.checkpoint import codec
from tidemark.state.checkpoint.layout import plan_file
from tidemark.state.log_extent import WalExtent
from tidemark.state.plan import SnapshotWork
from tidemark.state.remedies import RESTORE_CHECKPOINT, START_OVER
from tidemark.state.split import Bound, KeyRange

pytestmark = pytest.mark.integration


def a_job(folder: Path, source: Database, target: Database, **settings: Any) -> Path:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a')")
    return mirror_job(folder, source, target, **settings)


def change(source: Database) -> None:
    source.execute(
        "INSERT INTO orders SELECT max(id) + 1, 'b' FROM orders", "UPDATE orders SET note = 'z' WHERE id = 1"
    )


def require_goes_on(job: Path, source: Database, target: Database, *overrides: str) -> None:
    for _ in range(2):
        assert told_by(job, *overrides) is None
        require_copies(source, target)
        change(source)


ONE_BY_ONE = ("snapshot.split_rows=1", "snapshot.parallelism=1")


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_a_boundary_that_is_no_key(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, kind: str
) -> None:
    """Whoever wrote it knows how to write checksums."""
    source, target, checkpoint = mysql_database, postgres_database, tmp_path / "checkpoint"
    if kind == "postgres":
        source, target = target, source
    job = a_job(tmp_path, source, target)
    change(source)
    die_at(job, "publish.before", *ONE_BY_ONE)
    shutil.copytree(checkpoint, tmp_path / "saved")
    file = checkpoint / plan_file(1)
    record = codec.PLAN.decode(file.read_bytes(), "plan")
    assert isinstance(record.plan.work, SnapshotWork)
    ((split,),) = record.plan.work.tasks
    bound = Bound(("1 OR TRUE",), "8000000000000001")
    tasks = ((replace(split, range=KeyRange(bound, split.range.end)),),)
    changed = replace(record, plan=replace(record.plan, work=replace(record.plan.work, tasks=tasks)))
    file.write_bytes(codec.PLAN.encode(changed))
    told_of(job, f"Find out who changed the checkpoint's files. {RESTORE_CHECKPOINT}", *ONE_BY_ONE)
    shutil.rmtree(checkpoint)
    (tmp_path / "saved").rename(checkpoint)
    require_goes_on(job, source, target, *ONE_BY_ONE)


@pytest.mark.every_server
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_files_that_the_index_of_the_log_lacks_or_has_in_another_order(
    kind: str, postgres_database: Database, tmp_path: Path
) -> None:
    """A server sends what its index names. Only GTIDs of MySQL tell what is missing."""
    target = postgres_database
    options = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"} if kind == "mysql" else {}
    with start_server(kind, options) as server, fresh_database(server) as source:
        folder = server.data_folder
        if folder is None:
            pytest.skip("the server's files are elsewhere")
        job = a_job(tmp_path, source, target)
        run_epochs(job)
        for _ in range(2):
            source.execute("FLUSH BINARY LOGS")
            change(source)
        index = folder / "binlog.index"
        files = index.read_text().splitlines(keepends=True)
        new: list[str] = []

        def rewrite(*lines: str) -> None:
            server.stop()
            index.write_text("".join([*lines, *new]))
            server.start()
            new.append(index.read_text().splitlines(keepends=True)[-1])

        rewrite(files[0], files[2])
        told_of(job, "name them in the source's binlog index file and restart the source; then run the job again")
        rewrite(files[1], files[0], files[2])
        told_of(job, "Correct the source's binlog index file, which names each file once, the oldest first")
        rewrite(*files)
        require_goes_on(job, source, target)


@pytest.mark.every_server
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_file_of_the_log_that_is_cut_off_between_two_transactions(
    kind: str, postgres_database: Database, tmp_path: Path
) -> None:
    """The server sends what is left, and goes on with the next file. Only GTIDs of MySQL tell what is missing."""
    target = postgres_database
    options = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"} if kind == "mysql" else {}
    with start_server(kind, options) as server, fresh_database(server) as source:
        folder = server.data_folder
        if folder is None:
            pytest.skip("the server's files are elsewhere")
        job = a_job(tmp_path, source, target)
        run_epochs(job)
        change(source)
        name = source.query("SHOW BINARY LOGS")[-1][0]
        (*_, cut) = [event[4] for event in source.query(f"SHOW BINLOG EVENTS IN '{name}'") if event[2] == "Xid"]
        change(source)
        source.execute("FLUSH BINARY LOGS")
        change(source)
        file = folder / name
        whole = file.read_bytes()
        file.write_bytes(whole[:cut])
        told_of(
            job, "If there is a whole copy of the file, put it in its place, and run the job again: nothing is lost."
        )
        file.write_bytes(whole)
        require_goes_on(job, source, target)
        source.execute("FLUSH BINARY LOGS")
        change(source)
        file.write_bytes(whole[:cut])
        require_goes_on(job, source, target)


@contextmanager
def another_tidemark(changed: object, name: str, value: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changed, name, value)
        yield


@contextmanager
def later_tidemark() -> Iterator[None]:
    """It knows a further version of plans."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec.PLAN, "version", codec.PLAN.version + 1)
        patch.setattr(codec.PLAN, "_last", None)
        yield
    codec.PLAN._last = None


def test_a_checkpoint_of_a_later_tidemark(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source, target = mysql_database, postgres_database
    job = a_job(tmp_path, source, target)
    with later_tidemark():
        run_epochs(job)
    change(source)
    told_of(job, f"Run the job with Tidemark {__version__} or a later one.")
    with later_tidemark():
        require_goes_on(job, source, target)


@pytest.mark.parametrize("way", ["run with it", pytest.param("start over", marks=pytest.mark.every_server)])
def test_splits_in_the_format_of_another_tidemark(
    mysql_database: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path, way: str
) -> None:
    source, target = mysql_database, postgres_database
    job = a_job(tmp_path, source, target)
    change(source)
    with another_tidemark(gap_filter, "_VERSION", 1):
        run_epochs(job, *ONE_BY_ONE, at_most=1)
    change(source)
    told_of(job, f"Run the job with the Tidemark version that wrote the checkpoint, or {START_OVER}.", *ONE_BY_ONE)
    if way == "start over":
        start_over(job, source, target, tidemark)
        require_goes_on(job, source, target, *ONE_BY_ONE)
    else:
        with another_tidemark(gap_filter, "_VERSION", 1):
            require_goes_on(job, source, target, *ONE_BY_ONE)


def test_a_report_of_the_log_that_is_another_ones(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    """The epoch is written but not marked so. It is read again, and what was read is compared."""
    source, target, checkpoint = mysql_database, postgres_database, tmp_path / "checkpoint"
    job = a_job(tmp_path, source, target)
    for _ in range(2):
        run_epochs(job)
        change(source)
    die_at(job, "driver.epoch_written")
    shutil.copytree(checkpoint, tmp_path / "saved")
    newest = max((checkpoint / "logs").iterdir())
    report = codec.LOG_REPORT.decode(newest.read_bytes(), "report")
    newest.write_bytes(codec.LOG_REPORT.encode(replace(report, transactions=report.transactions + 1)))
    told_of(job, f"log reset, or the checkpoint's files changed. {RESTORE_CHECKPOINT}")
    shutil.rmtree(checkpoint)
    (tmp_path / "saved").rename(checkpoint)
    require_goes_on(job, source, target)


def before_the_next_plan(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Acts once after the checks of a start."""
    log_extent, acts = PostgresAccess.log_extent, [act]

    def acting(access: PostgresAccess) -> WalExtent:
        if acts:
            acts.pop()()
        return log_extent(access)

    patch.setattr(PostgresAccess, "log_extent", acting)


def test_a_slot_that_another_client_advances(
    postgres_database: Database,
    mysql_database: Database,
    tidemark: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the job runs."""
    source, target = postgres_database, mysql_database
    job = a_job(tmp_path, source, target)
    run_epochs(job)
    change(source)

    def advance() -> None:
        change(source)
        drop_kept_slots(source)
        source.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (source.name,))

    before_the_next_plan(monkeypatch, advance)
    told_of(job, f"Let no other client use the slot, and {START_OVER}.")
    start_over(job, source, target, tidemark)
    require_goes_on(job, source, target)


@pytest.mark.every_server
def test_a_source_that_is_set_back_while_the_job_runs(
    mysql_database: Database, tidemark: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = mysql_database
    with start_server("postgres") as server, fresh_database(server) as source:
        folder = server.data_folder
        if folder is None:
            pytest.skip("the server's files are elsewhere")
        job = a_job(tmp_path, source, target)
        run_epochs(job)
        server.stop()
        subprocess.run(["cp", "-a", folder, tmp_path / "data"], check=True)
        server.start()
        source.execute("CREATE TABLE more AS SELECT generate_series(1, 10000)")
        change(source)

        def restore() -> None:
            server.stop()
            shutil.rmtree(folder)
            subprocess.run(["cp", "-a", tmp_path / "data", folder], check=True)
            server.start()

        source.execute("DROP TABLE more")
        run_epochs(job)
        before_the_next_plan(monkeypatch, restore)
        told_of(job, f"If the source was restored or failed over, {START_OVER}.", "reconnect.attempts=9")
        start_over(job, source, target, tidemark)
        require_goes_on(job, source, target)
