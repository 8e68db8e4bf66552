"""`checkpoints.keep`: PostgreSQL keeps the log for longer than the job needs it, and older cuts are kept."""

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import Notes, die_at, die_in, run_epochs
from tests.support.history import assert_mirrored
from tests.support.jobs import source_of, write_job
from tests.support.lost_logs import drop_kept_slots, kept_slots
from tests.support.servers import Database, FindServer, fresh_database
from tests.support.sink_state import SinkCase
from tests.support.workload import KEYS, UPDATE_ALL, Uids, create_tables
from tidemark.conf.load import load_job_file
from tidemark.jobs.recovery.rollback import roll_back
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import LogPositionLostError

pytestmark = pytest.mark.integration

Change = Callable[[Database], object]


@pytest.fixture
def source(postgres_source_database: Database) -> Database:
    create_tables(postgres_source_database, rows=20, uids=Uids())
    return postgres_source_database


def mirror_of(source: Database, target: Database, folder: Path, keep: str | int = "10m") -> Path:
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}"}
    return write_job(folder, source=source_of(source), sink=sink, checkpoints={"keep": keep})


def follow(job: Path, source: Database, times: int = 1) -> None:
    for _ in range(times):
        source.execute(*UPDATE_ALL)
        assert run_epochs(job) == ["stream"]


def committed(job: Path) -> int:
    return Checkpoint.at(str(job.parent / "checkpoint")).committed_epoch()


def warned(notes: Notes) -> list[str]:
    return [facts["text"] for event, facts in notes.found if event == "warning"]


def slots(source: Database) -> set[str]:
    return {
        name
        for (name,) in source.query("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    }


@pytest.mark.parametrize("point", ["", "kept_log.dropped", "kept_log.copied"])
def test_a_job_goes_back_to_an_older_epoch(
    source: Database, postgres_database: Database, tmp_path: Path, point: str
) -> None:
    job = mirror_of(source, postgres_database, tmp_path)
    run_epochs(job)
    follow(job, source)
    epoch = committed(job)
    follow(job, source, 3)
    postgres_database.execute("UPDATE copy_orders SET version = 77", "UPDATE copy_customers SET version = 77")
    if point:
        die_in(tmp_path, point, lambda: roll_back(load_job_file(job), epoch, standby=True))
    roll_back(load_job_file(job), epoch, standby=True)
    assert run_epochs(job) == ["stream"]
    assert_mirrored(source, postgres_database)
    follow(job, source)
    assert_mirrored(source, postgres_database)


DRIFTS: dict[str, Change] = {
    "dropped": lambda source: source.query("SELECT pg_drop_replication_slot(%s)", (source.name,)),
    "advanced": lambda source: source.query(
        "SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", (source.name,)
    ),
    "created again": lambda source: source.query(
        "SELECT pg_drop_replication_slot(%s), pg_create_logical_replication_slot(%s, 'pgoutput')",
        (source.name, source.name),
    ),
}


@pytest.mark.parametrize("drift", DRIFTS)
@pytest.mark.parametrize("point", ["", "kept_log.dropped", "kept_log.copied"])
def test_what_happens_to_the_slot_costs_no_rows(
    source: Database, postgres_database: Database, tmp_path: Path, drift: str, point: str
) -> None:
    """Also if a driver dies while it makes the slot again. `on_log_lost` is stop: nothing would be read again."""
    job = mirror_of(source, postgres_database, tmp_path)
    run_epochs(job)
    follow(job, source, 2)
    source.execute("DELETE FROM orders WHERE id = 7", *UPDATE_ALL)
    DRIFTS[drift](source)
    source.execute("DELETE FROM orders WHERE id = 8", *UPDATE_ALL)
    if point:
        die_at(job, point)
    notes = Notes()
    assert run_epochs(job, notes=notes) == ["stream"]
    assert any("reads no rows again" in text for text in warned(notes)) is (point != "kept_log.copied")
    assert_mirrored(source, postgres_database)
    follow(job, source)
    assert_mirrored(source, postgres_database)


def has_failover(source: Database) -> bool:
    ((found,),) = source.query("SELECT failover FROM pg_replication_slots WHERE slot_name = %s", (source.name,))
    return bool(found)


def test_a_driver_dies_before_standbys_may_copy_the_slot_again(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source = postgres18_database
    create_tables(source, rows=20, uids=Uids())
    job = mirror_of(source, postgres_database, tmp_path)
    run_epochs(job)
    follow(job, source, 2)
    source.execute(*UPDATE_ALL)
    DRIFTS["dropped"](source)
    die_at(job, "kept_log.copied")
    assert not has_failover(source)
    run_epochs(job)
    assert has_failover(source)
    assert_mirrored(source, postgres_database)


def test_a_slot_that_somebody_created_without_failover_stays_so(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source = postgres18_database
    create_tables(source, rows=20, uids=Uids())
    source.execute(
        f"CREATE PUBLICATION {source.name} FOR TABLE {', '.join(KEYS)} WITH (publish_via_partition_root = true)"
    )
    source.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (source.name,))
    job = mirror_of(source, postgres_database, tmp_path)
    for _ in range(3):
        run_epochs(job)
    assert kept_slots(source)
    assert not has_failover(source)


@pytest.mark.parametrize("point", ["sink.before_commit", "sink.after_commit"])
def test_the_slot_is_dropped_after_an_epoch_was_read_that_is_not_committed(
    source: Database, postgres_database: Database, tmp_path: Path, point: str
) -> None:
    """The epoch is read once more, so the slot must not be moved to its end."""
    job = mirror_of(source, postgres_database, tmp_path)
    run_epochs(job)
    follow(job, source)
    source.execute("DELETE FROM orders WHERE id = 7", *UPDATE_ALL)
    die_at(job, point)
    DRIFTS["dropped"](source)
    source.execute("DELETE FROM orders WHERE id = 8", *UPDATE_ALL)
    notes = Notes()
    assert set(run_epochs(job, notes=notes)) == {"stream"}
    assert any("reads no rows again" in text for text in warned(notes))
    assert_mirrored(source, postgres_database)


@pytest.mark.parametrize("is_set_back", [False, True])
@pytest.mark.parametrize(
    "point", [pytest.param("planner.after_plan", marks=pytest.mark.every_server), "sink.before_commit"]
)
def test_a_table_is_dropped_as_well(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path, point: str, *, is_set_back: bool
) -> None:
    """The table may leave only once the epoch is committed, for which the log must be there again. Or the target was set back
    to an epoch that is gone, and an older cut is looked for."""
    source, parks = postgres18_database, ("source.on_table_error=park", "source.on_log_lost=resnapshot")
    create_tables(source, rows=20, uids=Uids())
    source.execute("CREATE TABLE gone (id INT PRIMARY KEY)")
    job = mirror_of(source, postgres_database, tmp_path)
    run_epochs(job, *parks)
    follow(job, source, 2)
    put_back, has = SinkCase("postgres", None, postgres_database).back_up(), committed(job)  # type: ignore[arg-type]
    follow(job, source, 2)
    source.execute(*UPDATE_ALL)
    die_at(job, point, *parks)
    source.execute("DROP TABLE gone")
    if is_set_back:
        Checkpoint.at(str(tmp_path / "checkpoint")).forget_plans([has])
        put_back()
    else:
        DRIFTS["dropped"](source)
    source.execute("DELETE FROM orders WHERE id = 8", *UPDATE_ALL)
    notes = Notes()
    phases = run_epochs(job, *parks, notes=notes)
    assert is_set_back or set(phases) == {"stream"}
    told = {facts["table"] for event, facts in notes.found if event == "parked"}
    assert told == {"public.gone"} or "snapshot" in phases  # then it has left with all tables, and waits
    assert_mirrored(source, postgres_database)


def test_a_target_that_was_set_back_gets_what_it_lacks_from_the_log(
    source: Database, postgres_database: Database, tmp_path: Path
) -> None:
    job = mirror_of(source, postgres_database, tmp_path)
    run_epochs(job)
    follow(job, source)
    put_back = SinkCase("postgres", None, postgres_database).back_up()  # type: ignore[arg-type]
    follow(job, source, 3)
    put_back()
    notes = Notes()
    assert set(run_epochs(job, notes=notes)) == {"stream"}
    assert [text for text in warned(notes) if "the log is read again from" in text]
    assert_mirrored(source, postgres_database)


def test_a_target_that_lags_far_behind_gets_the_log_from_an_older_cut_on(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    """The checkpoint no longer has the last epoch that the target has, but an older one."""
    create_tables(mysql_database, rows=20, uids=Uids())
    job = mirror_of(mysql_database, postgres_database, tmp_path)
    run_epochs(job)
    follow(job, mysql_database, 2)
    put_back = SinkCase("postgres", None, postgres_database).back_up()  # type: ignore[arg-type]
    has = committed(job)
    mysql_database.execute("DELETE FROM orders WHERE id = 7")
    follow(job, mysql_database, 4)
    Checkpoint.at(str(tmp_path / "checkpoint")).forget_plans([has])
    put_back()
    notes = Notes()
    assert set(run_epochs(job, notes=notes)) == {"stream"}
    assert [text for text in warned(notes) if "the log is read again from" in text]
    assert_mirrored(mysql_database, postgres_database)
    follow(job, mysql_database)
    assert_mirrored(mysql_database, postgres_database)


def test_an_older_cut_is_none_after_which_the_job_went_back(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    """The target was set back twice. The second time it has an epoch that was written while the job went back the first time,
    and that is gone. The epochs before it had more of the log."""
    create_tables(mysql_database, rows=20, uids=Uids())
    job = mirror_of(mysql_database, postgres_database, tmp_path)
    target = SinkCase("postgres", None, postgres_database)  # type: ignore[arg-type]
    run_epochs(job)
    follow(job, mysql_database)
    put_back = target.back_up()
    for number in range(2, 10):
        grow = [f"UPDATE customers SET note = repeat('{number}', 4000)"] * 3
        mysql_database.execute(f"DELETE FROM orders WHERE id = {number}", *grow)
        run_epochs(job)
    put_back()
    run_epochs(job, "log.max_batch_bytes=64KiB", at_most=1)
    assert (9,) in postgres_database.query("SELECT id FROM copy_orders")
    put_back, has = target.back_up(), committed(job)
    run_epochs(job)
    assert_mirrored(mysql_database, postgres_database)
    Checkpoint.at(str(tmp_path / "checkpoint")).forget_plans([has])
    put_back()
    assert set(run_epochs(job)) == {"stream"}
    assert_mirrored(mysql_database, postgres_database)


def test_there_are_two_slots_beside_the_jobs(source: Database, postgres_database: Database, tmp_path: Path) -> None:
    """One has the log of the time that is wanted, the other one will have it."""
    job = mirror_of(source, postgres_database, tmp_path, keep="2s")
    deadline, seen = time.monotonic() + 9, []
    while time.monotonic() < deadline or committed(job) < 10:  # a cut of the first load can't be gone back to
        source.execute(*UPDATE_ALL)
        run_epochs(job)
        names = kept_slots(source)
        seen += [name for name in names if name not in seen]
        assert 1 <= len(names) <= 2
    assert names == seen[-len(names) :]  # the older ones are gone
    made = [int(name.rpartition("_")[2].rstrip("f")) for name in seen]
    assert len(made) >= 3
    assert all(2 <= after - before <= 4 for before, after in pairwise(made))
    cut = committed(job) - 3
    run_epochs(job, "checkpoints.keep=0")
    assert kept_slots(source) == []
    with pytest.raises(LogPositionLostError):
        roll_back(load_job_file(job), cut, standby=True)


def test_a_slot_is_left_for_others(find_server: FindServer, postgres_database: Database, tmp_path: Path) -> None:
    """Also for one that is needed after the job has made its own."""
    server = find_server("postgres", max_replication_slots=3)
    with fresh_database(server) as source:
        create_tables(source, rows=20, uids=Uids())
        job = mirror_of(source, postgres_database, tmp_path)
        run_epochs(job)
        assert len(kept_slots(source)) == 1
        source.query("SELECT pg_create_physical_replication_slot('other')")
        follow(job, source)
        drop_kept_slots(source)
        follow(job, source)
        assert kept_slots(source) == []
        assert_mirrored(source, postgres_database)
        source.query("SELECT pg_drop_replication_slot('other')")


def test_rows_are_read_again_if_tables_were_published_otherwise(
    source: Database, postgres_database: Database, tmp_path: Path
) -> None:
    """The log of that time does not have all their changes."""
    job = mirror_of(source, postgres_database, tmp_path)
    run_epochs(job)
    follow(job, source)
    source.execute(f"DROP PUBLICATION {source.name}", *UPDATE_ALL)
    source.execute(
        f"CREATE PUBLICATION {source.name} FOR TABLE {', '.join(KEYS)} WITH (publish_via_partition_root = true)"
    )
    source.query("SELECT pg_drop_replication_slot(%s)", (source.name,))
    source.execute(*UPDATE_ALL)
    assert "snapshot" in run_epochs(job, "source.on_log_lost=resnapshot")
    assert_mirrored(source, postgres_database)
    follow(job, source)
    assert_mirrored(source, postgres_database)


def test_drop_and_a_new_start_leave_none(
    source: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    job = mirror_of(source, postgres_database, tmp_path)
    run_epochs(job)
    (before,) = kept_slots(source)
    time.sleep(1.1)  # slots are named after seconds
    again = mirror_of(source, postgres_database, make(tmp_path / "again"))
    again.write_text(again.read_text().replace("copy_", "again_"))
    run_epochs(again)  # by another checkpoint, with the same slot
    assert kept_slots(source) != [before]
    assert tidemark("drop", again, "--yes").code == 0
    assert slots(source) == set()


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_failover_is_survived_as_before(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source = postgres18_database
    create_tables(source, rows=20, uids=Uids())
    job = mirror_of(source, postgres_database, tmp_path)
    run_epochs(job)
    follow(job, source)
    source.query("SELECT pg_drop_replication_slot(%s)", (source.name,))
    follow(job, source)
    assert source.query("SELECT failover FROM pg_replication_slots WHERE slot_name = %s", (source.name,)) == [(True,)]
