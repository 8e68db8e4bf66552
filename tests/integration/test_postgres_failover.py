"""A standby of the source is promoted: the job goes on there (docs/adr/0034)."""

import contextlib
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.server import Server
from tests.support.cli import CommandLine
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.history import assert_copied, assert_mirrored, read_history
from tests.support.jobs import BY_DRIVER, running, source_of, write_job, write_workload_job
from tests.support.keyless import CREATE
from tests.support.postgres_standby import PHYSICAL_SLOT, Pair, primary_and_standby
from tests.support.servers import Database, fresh_database
from tests.support.workload import KEYS, UPDATE_ALL, Uids, Writers, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.recovered_state import recover_state
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import LogPositionLostError
from tidemark.state.plan import Exhausted, Releasing, Staging, Untouched

pytestmark = pytest.mark.integration


@pytest.fixture
def bare_pair() -> Iterator[Pair]:
    with primary_and_standby("shop") as servers:
        create_tables(servers.database, rows=60, uids=Uids())
        yield servers


@pytest.fixture
def pair(bare_pair: Pair) -> Pair:
    """With a slot for the job, of which the standby has a copy."""
    publication = f"CREATE PUBLICATION shop FOR TABLE {', '.join(KEYS)} WITH (publish_via_partition_root = true)"
    slot = "SELECT pg_create_logical_replication_slot('shop', 'pgoutput', false, false, true)"
    bare_pair.database.execute(publication, slot)
    bare_pair.await_slot(advance=True)
    return bare_pair


def job_of(pair: Pair, folder: Path, target: Database | None = None, **changes: Any) -> Path:
    return write_workload_job(folder, source_of(pair.database, url=pair.url, on_log_lost="stop"), target, **changes)


def moved(notes: Notes) -> list[str]:
    return [facts["text"] for event, facts in notes.found if event == "moved"]


def emptied(folder: Path) -> list[str]:
    """The tables whose copies were emptied to be read again."""
    return [t for t in KEYS if "truncate" in read_history(folder / "out", "public", t)["_change_type"].to_pylist()]


def test_a_job_goes_on_at_the_promoted_standby(pair: Pair, tmp_path: Path) -> None:
    job = job_of(pair, tmp_path)
    run_epochs(job)
    pair.database.execute(*UPDATE_ALL)
    run_epochs(job)
    pair.database.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 7 = 0")
    pair.await_standby()
    pair.fail_over()
    pair.promoted.execute(*UPDATE_ALL)
    notes = Notes()
    assert set(run_epochs(job, notes=notes)) == {"stream"}
    assert ["has all that the job has read" in text for text in moved(notes)] == [True]
    assert_copied(tmp_path / "out", pair.promoted)
    assert emptied(tmp_path) == []
    pair.promoted.execute(*UPDATE_ALL)
    assert run_epochs(job) == ["stream"]
    pair.primary.start()
    pair.address.server = pair.primary
    with pytest.raises(LogPositionLostError, match="a former primary answers"):
        run_epochs(job, "source.on_log_lost=resnapshot")
    pair.address.server = pair.standby
    run_epochs(job)
    assert_copied(tmp_path / "out", pair.promoted)
    assert emptied(tmp_path) == []


def test_it_goes_on_while_it_runs_under_writers(bare_pair: Pair, tmp_path: Path) -> None:
    """The job creates its slot. It reads nothing that the standby lacks (synchronized_standby_slots)."""
    pair = bare_pair
    wait = f"ALTER SYSTEM SET synchronized_standby_slots = '{PHYSICAL_SLOT}'"
    pair.database.execute(wait, "SELECT pg_reload_conf()")
    uids = Uids()
    uids.take(10_000)  # those of `create_tables`
    job = job_of(pair, tmp_path, trigger="100ms")
    with running(job, *BY_DRIVER) as process:
        process.wait_until(lambda: any(event.get("phase") == "stream" for event in process.events()))
        writers = Writers(pair.database, uids, count=2, seed=5, pause_seconds=0.02)
        writers.start()
        pair.await_slot()
        process.wait_until(lambda: writers.transactions > 100)
        pair.primary.kill()
        with pytest.raises(Exception, match=r"connection|terminat"):
            writers.stop()
        pair.fail_over()
        with Writers(pair.promoted, uids, count=2, seed=6, pause_seconds=0.02) as writers:
            process.wait_until(lambda: any(event["event"] == "moved" for event in process.events()))
            process.wait_until(lambda: writers.transactions > 100)
        process.popen.send_signal(signal.SIGINT)
        assert process.wait() == 130, process.error_text()
    run_epochs(job, "trigger=once")
    assert_copied(tmp_path / "out", pair.promoted)
    assert emptied(tmp_path) == []


DEATHS = (
    ("planner.after_plan", "files"),
    ("log.before_report", "files"),
    ("sink.before_commit", "files"),
    ("sink.after_commit", "files"),
    ("sink.before_commit", "mirror"),
    ("sink.after_commit", "mirror"),
)


def another_job(pair: Pair, folder: Path, target: Database | None = None) -> Path:
    """A job with a slot of its own: many of them have one failover."""
    folder.mkdir()
    slot = f"slot_{folder.name}"
    pair.create_slot(slot)
    source = source_of(pair.database, url=pair.url, on_log_lost="stop", slot=slot)
    return write_workload_job(folder, source, target, job=folder.name)


def test_the_job_dies_together_with_the_primary(pair: Pair, postgres_server: Server, tmp_path: Path) -> None:
    """Several jobs do, each at another point."""
    jobs: list[tuple[str, Path, Database | None]] = []
    with contextlib.ExitStack() as stack:
        for number, (point, sink) in enumerate(DEATHS):
            target = stack.enter_context(fresh_database(postgres_server)) if sink == "mirror" else None
            jobs.append((point, another_job(pair, tmp_path / f"job{number}", target), target))
        for _ in range(2):
            for _, job, _ in jobs:
                run_epochs(job)
            pair.database.execute(*UPDATE_ALL)
        for point, job, _ in jobs:
            die_at(job, point)
        pair.await_standby()
        pair.fail_over()
        pair.promoted.execute(*UPDATE_ALL)
        for _, job, target in jobs:
            die_at(job, "another_server.moved")
            notes = Notes()
            run_epochs(job, notes=notes)
            assert not any(event == "joined" for event, _ in notes.found)
            if target is None:
                assert_copied(job.parent / "out", pair.promoted)
            else:
                assert_mirrored(pair.promoted, target)


def jobs_ahead(pair: Pair, folder: Path, *points: str) -> list[Path]:
    """Jobs that have died at these points, or have ended by themselves (""), with changes that the promoted standby lacks."""
    jobs = [another_job(pair, folder / f"job{number}") for number in range(len(points))]
    for _ in range(2):
        for job in jobs:
            run_epochs(job)
        pair.database.execute(*UPDATE_ALL)
    for job in jobs:
        run_epochs(job)
    pair.await_standby()
    pair.fall_behind()
    pair.database.execute(*UPDATE_ALL, "DELETE FROM customers")
    for job, point in zip(jobs, points, strict=True):
        if point:
            die_at(job, point)
        else:
            run_epochs(job)
    pair.fail_over()
    pair.promoted.execute("DELETE FROM orders WHERE id % 7 = 0")
    return jobs


@pytest.mark.every_server
def test_a_planned_epoch_that_the_promoted_standby_lacks_is_not_read(pair: Pair, tmp_path: Path) -> None:
    for job in jobs_ahead(pair, tmp_path, "planner.after_plan", "log.before_report"):
        run_epochs(job)
        assert_copied(job.parent / "out", pair.promoted)
        pair.promoted.execute(*UPDATE_ALL)
        run_epochs(job)
        assert_copied(job.parent / "out", pair.promoted)
        assert emptied(job.parent) == []


@pytest.mark.every_server
def test_a_job_that_has_read_what_the_promoted_standby_lacks_reads_all_again_or_stops(
    pair: Pair, tmp_path: Path
) -> None:
    """The epoch that had it is perhaps not written. Others: tests/integration/test_postgres_lost_transactions.py."""
    for job in jobs_ahead(pair, tmp_path, "sink.before_commit", "sink.after_commit"):
        for _ in range(2):
            with pytest.raises(LogPositionLostError, match="lacked transactions that are in the copies") as caught:
                run_epochs(job)
            assert caught.value.exit_code == 4
            assert "set source.on_log_lost: resnapshot" in caught.value.remedy
        run_epochs(job, "source.on_log_lost=resnapshot")
        assert_copied(job.parent / "out", pair.promoted)
        assert emptied(job.parent) == list(KEYS)
        pair.promoted.execute(*UPDATE_ALL)
        assert run_epochs(job) == ["stream"]
        assert_copied(job.parent / "out", pair.promoted)


@pytest.mark.parametrize("lacks", [True, False], ids=["lost", "kept"])
def test_rows_that_were_read_again_are_written_only_if_the_promoted_standby_has_what_they_contain(
    pair: Pair, postgres_database: Database, tmp_path: Path, lacks: bool
) -> None:
    job, orders = job_of(pair, tmp_path, postgres_database), TableName("public", "orders")
    run_epochs(job)
    pair.database.execute(*UPDATE_ALL)
    run_epochs(job)
    pair.await_standby()
    if lacks:
        pair.fall_behind()
    pair.database.execute("UPDATE orders SET version = 999 WHERE id = 5")
    postgres_database.execute("UPDATE copy_orders SET version = 0 WHERE id = 6")
    resnapshot(load_job_file(job), [orders], keys=["5", "6"])
    die_at(job, "repairs.joined")
    if not lacks:
        pair.await_standby()
    pair.fail_over()
    more_log = "CREATE TABLE elsewhere.t AS SELECT generate_series(1, 50000) AS i"
    pair.promoted.execute("CREATE SCHEMA elsewhere", more_log, "UPDATE orders SET version = 3 WHERE id = 7")
    notes = Notes()
    run_epochs(job, notes=notes)
    assert len(moved(notes)) == 1
    outcome = Checkpoint.at(load_job_file(job).checkpoint).outcomes()[1]
    assert (outcome.accepted, "Give the signal again." in outcome.text) == (not lacks, lacks)
    if lacks:
        resnapshot(load_job_file(job), [orders], keys=["5", "6"])
        run_epochs(job)
    assert_mirrored(pair.promoted, postgres_database)


def test_a_promoted_standby_without_the_slot_has_no_log(pair: Pair, tmp_path: Path) -> None:
    job = job_of(pair, tmp_path)
    run_epochs(job)
    pair.database.execute(*UPDATE_ALL)
    run_epochs(job)
    pair.await_standby()
    pair.fail_over()
    pair.promoted.query("SELECT pg_drop_replication_slot('shop')")
    pair.promoted.execute(*UPDATE_ALL)
    with pytest.raises(LogPositionLostError, match="The replication slot shop is gone"):
        run_epochs(job)
    run_epochs(job, "source.on_log_lost=resnapshot")
    assert_copied(tmp_path / "out", pair.promoted)
    assert emptied(tmp_path) == list(KEYS)


@pytest.mark.parametrize("version", ["15"])
def test_standbys_of_older_servers_have_no_slots(version: str, tidemark: CommandLine, tmp_path: Path) -> None:
    with primary_and_standby("shop", version) as pair:
        create_tables(pair.database, rows=60, uids=Uids())
        job = job_of(pair, tmp_path)
        ended = tidemark("validate", job, "--connect")
        assert (ended.code, "has no copies of logical slots on standbys" in ended.out) == (0, True)
        run_epochs(job)
        pair.await_standby()
        pair.fail_over()
        pair.promoted.execute(*UPDATE_ALL)
        run_epochs(job, "source.on_log_lost=resnapshot")
        assert_copied(tmp_path / "out", pair.promoted)


def test_validate_says_what_a_fail_over_does(
    postgres18_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    database = postgres18_database
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    job = write_job(tmp_path, source=source_of(database), sink={"type": "console"})

    def validated() -> str:
        ended = tidemark("validate", job, "--connect")
        assert ended.code == 0
        return ended.out

    assert "after a failover the job continues" in validated()
    run_epochs(job)
    flags = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
    assert database.query(flags, (database.name,)) == [(True,)]
    assert "after a failover the job continues. If the job has read what the standby lacks" in validated()
    database.query("SELECT pg_drop_replication_slot(%s)", (database.name,))
    database.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (database.name,))
    told = validated()
    assert "is not copied to standbys: after a failover all rows are read again" in told
    assert f'ALTER_REPLICATION_SLOT "{database.name}" (FAILOVER true)' in told


def test_a_first_load_goes_on(pair: Pair, tmp_path: Path) -> None:
    job = job_of(pair, tmp_path)
    assert "snapshot" in run_epochs(job, at_most=5)
    pair.await_standby()
    pair.fail_over()
    pair.promoted.execute(*UPDATE_ALL)
    run_epochs(job)
    assert_copied(tmp_path / "out", pair.promoted)
    assert emptied(tmp_path) == []


def test_splits_that_may_have_rows_of_lost_transactions_are_read_again(pair: Pair, tmp_path: Path) -> None:
    """The new primary gives the ids of lost transactions to others: a high that was taken on the former one covers them."""
    job = job_of(pair, tmp_path)
    one_by_one = "snapshot.interleave=false", "snapshot.parallelism=1", "snapshot.split_rows=5"
    run_epochs(job, *one_by_one, at_most=2)
    pair.await_standby()
    pair.fall_behind()
    change = (
        "WITH u AS (UPDATE %s SET version = version + 1 RETURNING 1) SELECT pg_current_xact_id()::text, count(*) FROM u"
    )
    lost = [pair.database.query(change % table)[0][0] for table in KEYS]
    assert run_epochs(job, *one_by_one, at_most=1) == ["snapshot"]
    pair.fail_over()
    assert set(lost) <= {pair.promoted.query(change % table)[0][0] for table in (*KEYS, *KEYS)}
    pair.promoted.execute(*UPDATE_ALL)
    run_epochs(job)
    assert_copied(tmp_path / "out", pair.promoted)
    assert emptied(tmp_path) != []


@pytest.mark.parametrize(("cursor", "rows"), [(Staging, 20), (Releasing, 1500)])
def test_chunks_of_a_snapshot_that_the_promoted_standby_lacks_are_not_released(
    pair: Pair, tmp_path: Path, cursor: type[Staging | Releasing], rows: int
) -> None:
    pair.database.execute(*CREATE, "ALTER PUBLICATION shop ADD TABLE t")
    path = job_of(pair, tmp_path)
    job, checkpoint = load_job_file(path), Checkpoint.at(str(tmp_path / "checkpoint"))

    def cursors() -> dict[str, type]:
        state = checkpoint.job_state()
        assert state is not None
        return {table.table.name: type(table.cursor) for table in recover_state(checkpoint, job, state).tables}

    settings = "snapshot.interleave=false", "snapshot.split_rows=100", "snapshot.parallelism=1"
    for _ in KEYS:  # one split each
        run_epochs(path, *settings, at_most=1)
    assert cursors() == {**dict.fromkeys(KEYS, Exhausted), "t": Untouched}
    pair.await_standby()
    pair.fall_behind()
    pair.database.execute("DELETE FROM t WHERE uid < 2000")
    run_epochs(path, settings[0], "snapshot.parallelism=8", f"snapshot.split_rows={rows}", at_most=1)
    assert cursors()["t"] is cursor
    pair.fail_over()
    pair.promoted.execute("UPDATE t SET version = version + 1 WHERE uid > 3000")
    run_epochs(path)
    changes = read_history(tmp_path / "out", "public", "t").to_pylist()
    last = max((i for i, change in enumerate(changes) if change["_change_type"] == "truncate"), default=-1)
    copy = Counter[tuple[Any, ...]]()
    for change in changes[last + 1 :]:
        copy[change["uid"], change["version"], change["note"]] += {"insert": 1, "delete": -1}[change["_change_type"]]
    assert copy == Counter(pair.promoted.query("SELECT uid, version, note FROM t"))
