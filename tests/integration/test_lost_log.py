"""The source has lost the log that a job needs: all tables are read again (docs/adr/0030)."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.server import Server
from devtools.servers import start_server
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.history import assert_copied, assert_mirrored
from tests.support.jobs import source_of, write_workload_job
from tests.support.lost_logs import drop_kept_slots, end_of_log, kept_slots, lose_log, reset_log
from tests.support.servers import Database, fresh_database
from tests.support.workload import UPDATE_ALL, Uids, Writers, create_tables
from tidemark.jobs.recovery.lost_log import ATTEMPTS
from tidemark.readers.postgres.slot import slot
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import LogPositionLostError

pytestmark = pytest.mark.integration

SERVERS: dict[str, tuple[str, dict[str, str]]] = {
    "mysql-gtid": ("mysql", {}),
    "mysql-nogtid": ("mysql", {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}),
    "mariadb": ("mariadb", {}),
    "postgres": ("postgres", {}),
}


@pytest.fixture(scope="module", params=list(SERVERS))
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Its log is purged: other jobs must not need it."""
    kind, options = SERVERS[request.param]
    with start_server(kind, options) as server:
        yield server


@pytest.fixture
def source(own_server: Server) -> Iterator[Database]:
    with fresh_database(own_server) as database:
        create_tables(database, rows=60, uids=Uids())
        yield database


def job_of(database: Database, folder: Path, target: Database | None = None, **source: Any) -> Path:
    return write_workload_job(folder, source_of(database, **({"on_log_lost": "resnapshot"} | source)), target)


def warnings(notes: Notes) -> list[str]:
    return [facts["text"] for event, facts in notes.found if event == "warning"]


@pytest.mark.servers_in_turn("sink")  # each server with one of them
@pytest.mark.parametrize("sink", ["files", "mirror"])
def test_all_rows_are_read_again_each_time(
    source: Database, request: pytest.FixtureRequest, tmp_path: Path, sink: str
) -> None:
    target: Database | None = request.getfixturevalue("postgres_database") if sink == "mirror" else None
    job = job_of(source, tmp_path, target)

    def assert_equal() -> None:
        if target is None:
            assert_copied(tmp_path / "out", source)
        else:
            assert_mirrored(source, target)

    run_epochs(job)
    for _ in range(2):
        source.execute(*UPDATE_ALL, "DELETE FROM customers WHERE code LIKE '%3'", "DELETE FROM orders WHERE id % 7 = 0")
        lose_log(source)
        source.execute(*UPDATE_ALL)
        notes = Notes()
        run_epochs(job, notes=notes)
        assert sum("the rows of all tables are read again" in text for text in warnings(notes)) == 1
        assert_equal()
        source.execute(*UPDATE_ALL)
        assert run_epochs(job) == ["stream"]
        assert_equal()


@pytest.mark.servers_in_turn("own_server")
@pytest.mark.once_per_family
@pytest.mark.parametrize(
    "point", ["log.before_report", "sink.before_commit", "sink.after_commit", "driver.epoch_written"]
)
def test_it_is_lost_while_an_epoch_is_not_committed(source: Database, tmp_path: Path, point: str) -> None:
    job = job_of(source, tmp_path)
    run_epochs(job)
    source.execute(*UPDATE_ALL)
    die_at(job, point)
    source.execute(*UPDATE_ALL)
    lose_log(source)
    run_epochs(job)
    assert_copied(tmp_path / "out", source)
    source.execute(*UPDATE_ALL)
    run_epochs(job)
    assert_copied(tmp_path / "out", source)


@pytest.mark.servers_in_turn("own_server")
@pytest.mark.once_per_family
@pytest.mark.parametrize(
    "point",
    [
        "log.lost",
        "tables.before_joined",
        "tables.after_joined",
        "planner.before_plan",
        "planner.after_plan",
        "sink.before_commit",
        "sink.after_commit",
        "driver.epoch_written",
        "snapshot.after_low",
    ],
)
def test_the_job_dies_while_it_reads_again(source: Database, tmp_path: Path, point: str) -> None:
    if source.kind == "postgres" and point == "snapshot.after_low":
        point = "publish.before"
    job = job_of(source, tmp_path)
    run_epochs(job)
    source.execute(*UPDATE_ALL)
    lose_log(source)
    die_at(job, point)
    source.execute(*UPDATE_ALL, "DELETE FROM order_lines WHERE line_no = 1")
    run_epochs(job)
    assert_copied(tmp_path / "out", source)


@pytest.mark.servers_in_turn("own_server")
@pytest.mark.once_per_family
@pytest.mark.parametrize("again", ["log.lost", "tables.after_joined", "sink.before_commit", "driver.epoch_written"])
def test_the_job_dies_again_before_the_epoch_of_the_lost_log_is_committed(
    source: Database, tmp_path: Path, again: str
) -> None:
    """That epoch's log is needed no more, and is not asked for at the next start."""
    job = job_of(source, tmp_path)
    run_epochs(job)
    source.execute(*UPDATE_ALL)
    die_at(job, "log.before_report")
    source.execute(*UPDATE_ALL)
    lose_log(source)
    die_at(job, again)
    source.execute(*UPDATE_ALL)
    run_epochs(job)
    assert_copied(tmp_path / "out", source)


@pytest.mark.servers_in_turn("own_server")
@pytest.mark.once_per_family
@pytest.mark.parametrize("point", ["log.before_report", "sink.before_commit", "sink.after_commit"])
def test_a_table_is_excluded_while_an_epoch_of_the_lost_log_is_not_committed(
    source: Database, tmp_path: Path, point: str
) -> None:
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    job = job_of(source, tmp_path)
    run_epochs(job)
    source.execute(*UPDATE_ALL, "INSERT INTO t VALUES (2)")
    die_at(job, point)
    source.execute(*UPDATE_ALL)
    lose_log(source)
    job_of(source, tmp_path, exclude_tables=[f"{source.schema}.t"])
    run_epochs(job)
    assert_copied(tmp_path / "out", source)


def read_first_rows(job: Path) -> None:
    """Reads the first two splits: one epoch, because a second one could read all the others."""
    assert run_epochs(job, at_most=1) == ["snapshot"]


@pytest.mark.servers_in_turn("own_server", always="postgres")
@pytest.mark.parametrize("ends", ["lost", "complete"])
def test_it_is_lost_during_the_first_load_under_writers_and_again(source: Database, tmp_path: Path, ends: str) -> None:
    """A job whose log is lost whenever it reads its rows would read them again and again. So it stops at last."""
    uids = Uids()
    uids.take(10_000)  # those of `create_tables`
    job = job_of(source, tmp_path)
    with Writers(source, uids, count=2, seed=3, pause_seconds=0.02):
        read_first_rows(job)
        for _ in range(ATTEMPTS - (ends == "complete")):
            lose_log(source)
            read_first_rows(job)
    if ends == "complete":
        lose_log(source)
        run_epochs(job)
        run_epochs(job)
        assert_copied(tmp_path / "out", source)
        for _ in range(ATTEMPTS):  # it is counted from zero again
            lose_log(source)
            run_epochs(job, at_most=1)
        run_epochs(job)
        assert_copied(tmp_path / "out", source)
        return
    lose_log(source)
    with pytest.raises(LogPositionLostError) as caught:
        run_epochs(job)
    assert caught.value.exit_code == 4
    assert "empty target" in caught.value.remedy


@pytest.mark.servers_in_turn("own_server", always="postgres")
def test_it_is_lost_once_during_the_first_load_under_writers(source: Database, tmp_path: Path) -> None:
    uids = Uids()
    uids.take(10_000)  # those of `create_tables`
    job = job_of(source, tmp_path)
    with Writers(source, uids, count=2, seed=4, pause_seconds=0.02):
        read_first_rows(job)
        lose_log(source)
        run_epochs(job)
    run_epochs(job)
    assert_copied(tmp_path / "out", source)


def test_the_policy_stop_names_the_other_one(source: Database, tmp_path: Path) -> None:
    """It is MariaDB's default: there nothing proves that it is the same server."""
    policy = None if source.kind == "mariadb" else "stop"
    job = job_of(source, tmp_path, on_log_lost=policy)
    run_epochs(job)
    source.execute(*UPDATE_ALL)
    lose_log(source)
    for _ in range(2):
        with pytest.raises(LogPositionLostError) as caught:
            run_epochs(job)
        assert "set source.on_log_lost: resnapshot, and run the job again" in caught.value.remedy
    state = Checkpoint.at(str(tmp_path / "checkpoint")).job_state()
    assert state is not None
    assert not state.left
    run_epochs(job, "source.on_log_lost=resnapshot")
    assert_copied(tmp_path / "out", source)


def test_a_log_that_was_reset(source: Database, tmp_path: Path) -> None:
    """All rows are read again. Versions of changes never become smaller, though positions do."""
    if source.kind == "postgres":
        pytest.skip("PostgreSQL's log is never reset while the server has its identity")
    source.execute("CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, note TEXT)")
    source.execute("FLUSH BINARY LOGS")
    job = job_of(source, tmp_path)
    run_epochs(job)
    for _ in range(2):
        end = end_of_log(source)
        reset_log(source)
        source.execute(*UPDATE_ALL)
        assert end_of_log(source) < end
        run_epochs(job)
        assert_copied(tmp_path / "out", source)
        source.execute(*UPDATE_ALL, "FLUSH BINARY LOGS")
        assert run_epochs(job) == ["stream"]
        assert_copied(tmp_path / "out", source)


def test_a_slot_that_the_server_invalidated_is_replaced(tmp_path: Path) -> None:
    options = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    with start_server("postgres", options) as server, fresh_database(server) as database:
        create_tables(database, rows=60, uids=Uids())
        job = job_of(database, tmp_path)
        run_epochs(job)
        for _ in range(6):
            database.execute(*UPDATE_ALL, "SELECT pg_switch_wal()", "CHECKPOINT")
        lost = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
        assert database.query(lost, (database.name,)) == [("lost",)]
        run_epochs(job)
        assert_copied(tmp_path / "out", database)
        assert database.query(lost, (database.name,)) != [("lost",)]


# The slot is there, and files of its log are gone


@pytest.fixture(scope="module", params=["14", "18"])
def own_postgres(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Its files are removed: other jobs must not need them."""
    with start_server("postgres", version=request.param) as server:
        yield server


SOON = ("reconnect.attempts=1",)


def in_data_folder(database: Database, commands: str) -> None:
    """Runs a shell's commands in the server's data folder."""
    database.execute(f"COPY (SELECT 1) TO PROGRAM 'cat > /dev/null; {commands}'")


def slot_file(database: Database, slot: str, position: str = "restart_lsn") -> str:
    """The file of the log that has a position, by default the slot's first one."""
    found = database.query(
        f"SELECT pg_walfile_name({position}) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )
    return str(found[0][0])


def next_file(database: Database) -> None:
    """The log goes on in another file, and the server keeps only files that slots need."""
    database.execute("SELECT pg_switch_wal()", "CHECKPOINT")


@pytest.mark.parametrize("is_running", [False, True])
def test_a_slot_whose_log_is_gone_though_the_server_does_not_say_so(
    own_postgres: Server, tmp_path: Path, *, is_running: bool
) -> None:
    """`wal_status` is `reserved`. Slots that keep older log lack it, too, so all rows are read again. The second job's slot
    is behind a file that is gone, and has its own."""
    with fresh_database(own_postgres) as source:
        create_tables(source, rows=60, uids=Uids())
        job = job_of(source, tmp_path)
        run_epochs(job)
        source.execute(*UPDATE_ALL)
        if is_running:
            die_at(job, "planner.after_plan")
        lost = slot_file(source, source.name)
        next_file(source)
        in_data_folder(source, f"rm pg_wal/{lost}")
        source.execute("DELETE FROM orders WHERE id = 8", *UPDATE_ALL)
        notes = Notes()
        assert "snapshot" in run_epochs(job, *SOON, notes=notes)
        assert any("the rows of all tables are read again" in text for text in warnings(notes))
        assert_copied(tmp_path / "out", source)
        source.execute(*UPDATE_ALL)
        assert run_epochs(job) == ["stream"]
        assert_copied(tmp_path / "out", source)


def lose_middle_of_log(database: Database) -> None:
    """Removes a file of the log that the slot needs. The slot's own file is there."""
    next_file(database)
    database.execute(*UPDATE_ALL)
    lost = slot_file(database, database.name, "pg_current_wal_insert_lsn()")
    next_file(database)
    assert slot_file(database, database.name) < lost
    in_data_folder(database, f"rm pg_wal/{lost}")
    database.execute("DELETE FROM orders WHERE id = 8", *UPDATE_ALL)


def slot_begins(database: Database) -> int:
    """The position of the slot's first record."""
    found = database.query(
        "SELECT (restart_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = %s", (database.name,)
    )
    return int(found[0][0])


@pytest.mark.parametrize("is_running", [False, True])
def test_a_file_in_the_middle_of_the_log_is_gone(own_postgres: Server, tmp_path: Path, *, is_running: bool) -> None:
    """Each query about the slot's log reads from before the gap. So the slot is replaced, and rows are read once."""
    with fresh_database(own_postgres) as source:
        create_tables(source, rows=60, uids=Uids())
        job = job_of(source, tmp_path)
        run_epochs(job)
        source.execute(*UPDATE_ALL)
        if is_running:
            die_at(job, "planner.after_plan")
        for _ in range(2):
            before = slot_begins(source)
            lose_middle_of_log(source)
            with pytest.raises(LogPositionLostError) as caught:
                run_epochs(job, *SOON, "source.on_log_lost=stop")
            assert "set source.on_log_lost: resnapshot, and run the job again" in caught.value.remedy
            notes = Notes()
            run_epochs(job, *SOON, notes=notes)
            assert sum("the rows of all tables are read again" in text for text in warnings(notes)) == 1
            assert slot_begins(source) > before
            assert_copied(tmp_path / "out", source)
            source.execute(*UPDATE_ALL)
            assert run_epochs(job) == ["stream"]
            assert_copied(tmp_path / "out", source)


def test_the_source_is_written_while_the_slot_is_moved(
    postgres_source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that starts over finds its slot. It begins where the slot is then, not where the log ended before that."""
    source = postgres_source_database
    create_tables(source, rows=60, uids=Uids())
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        job = job_of(source, folder, on_log_lost="stop")
        run_epochs(job)
        source.execute(*UPDATE_ALL)
        run_epochs(job)
        assert_copied(folder / "out", source)
        looked = slot.lacks_log

        def written(*arguments: Any, looked: Any = looked) -> bool:
            found: bool = looked(*arguments)
            source.execute(*UPDATE_ALL)
            return found

        monkeypatch.setattr(slot, "lacks_log", written)


@pytest.mark.servers_in_turn("own_postgres")
def test_a_file_is_gone_that_only_an_old_transaction_needs(own_postgres: Server, tmp_path: Path) -> None:
    """The job has read all log, and its slot is at the log's end. But the slot begins before the gap."""
    with fresh_database(own_postgres) as source:
        create_tables(source, rows=60, uids=Uids())
        source.execute("CREATE TABLE apart (id INT)")
        job = job_of(source, tmp_path, exclude_tables=["public.apart"])
        run_epochs(job)
        old = source.connect()
        old.autocommit = False
        with contextlib.closing(old), old.cursor() as cursor:
            cursor.execute("INSERT INTO apart VALUES (1)")
            next_file(source)
            source.execute(*UPDATE_ALL)
            lost = slot_file(source, source.name, "pg_current_wal_insert_lsn()")
            next_file(source)
            run_epochs(job)
            source.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", (source.name,))
            old.commit()
        assert slot_file(source, source.name) < lost < slot_file(source, source.name, "confirmed_flush_lsn")
        in_data_folder(source, f"rm pg_wal/{lost}")
        notes = Notes()
        run_epochs(job, *SOON, notes=notes)
        assert sum("the rows of all tables are read again" in text for text in warnings(notes)) == 1
        source.execute(*UPDATE_ALL)
        assert run_epochs(job) == ["stream"]
        assert_copied(tmp_path / "out", source)


@pytest.mark.servers_in_turn("own_postgres")
@pytest.mark.parametrize(
    "point", ["log.lost", "slot.dropped", "tables.before_joined", "tables.after_joined", "planner.after_plan"]
)
def test_the_job_dies_while_it_replaces_a_slot_whose_log_has_a_gap(
    own_postgres: Server, tmp_path: Path, point: str
) -> None:
    with fresh_database(own_postgres) as source:
        create_tables(source, rows=60, uids=Uids())
        job = job_of(source, tmp_path)
        run_epochs(job)
        lose_middle_of_log(source)
        die_at(job, point, *SOON)
        source.execute(*UPDATE_ALL, "DELETE FROM order_lines WHERE line_no = 1")
        run_epochs(job, *SOON)
        assert_copied(tmp_path / "out", source)
        source.execute(*UPDATE_ALL)
        assert run_epochs(job) == ["stream"]
        assert_copied(tmp_path / "out", source)


def test_a_slot_is_put_back_whose_log_is_gone_and_copies_of_it_have_all(own_postgres: Server, tmp_path: Path) -> None:
    with fresh_database(own_postgres) as source:
        create_tables(source, rows=60, uids=Uids())
        job = job_of(source, tmp_path, on_log_lost="stop")
        run_epochs(job)
        in_data_folder(source, f"cp -r pg_replslot/{source.name} old_slot")
        lost = slot_file(source, source.name)
        for _ in range(2):
            next_file(source)
            source.execute(*UPDATE_ALL)
            assert run_epochs(job) == ["stream"]
        checkpoint = Checkpoint.at(str(tmp_path / "checkpoint"))
        reached = checkpoint.plan(checkpoint.committed_epoch()).state.position
        source.query("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (source.name, str(reached)))
        drop_kept_slots(source)
        source.execute(*UPDATE_ALL)
        assert run_epochs(job) == ["stream"]
        next_file(source)
        (kept,) = kept_slots(source)
        assert slot_file(source, kept) > lost
        source.execute("DELETE FROM orders WHERE id = 8", *UPDATE_ALL)
        source.query("SELECT pg_drop_replication_slot(%s)", (source.name,))
        in_data_folder(source, f"mv old_slot pg_replslot/{source.name}; rm -f pg_wal/{lost}")
        own_postgres.restart()
        assert slot_file(source, source.name) == lost
        notes = Notes()
        assert run_epochs(job, *SOON, notes=notes) == ["stream"]
        assert any("reads no rows again" in text for text in warnings(notes))
        assert_copied(tmp_path / "out", source)
