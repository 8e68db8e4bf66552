"""A rollback, or a target that was set back, and then another server, or one that was restored from an older copy."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from devtools.server import Server
from devtools.servers import start_server
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.failover import await_replica, follow, on, promote, replicated, stop_receiving
from tests.support.history import assert_mirrored
from tests.support.jobs import source_of, write_workload_job
from tests.support.servers import Database, fresh_database
from tests.support.sink_state import SinkCase
from tests.support.workload import UPDATE_ALL, Uids, create_tables
from tidemark.conf.load import load_job_file
from tidemark.jobs.recovery.rollback import roll_back
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import LogPositionLostError
from tidemark.state.failpoints import FailpointError

pytestmark = pytest.mark.integration

LAST = ("UPDATE orders SET version = 7 WHERE id = 3", "DELETE FROM orders WHERE id = 6", "DELETE FROM order_lines")
"""Only the copies have them in the end."""


def job_of(folder: Path, source: Database, target: Database, on_log_lost: str = "resnapshot") -> Path:
    return write_workload_job(folder, source_of(source, on_log_lost=on_log_lost), target)


def go_back(job: Path, epochs: int) -> None:
    committed = Checkpoint.at(str(job.parent / "checkpoint")).committed_epoch()
    roll_back(load_job_file(job), committed - epochs, standby=True)


@pytest.mark.parametrize("kind", ["mysql", "mysql-without-gtids", "mariadb"])
@pytest.mark.every_server
def test_the_source_is_restored_from_an_older_copy_after_a_rollback(
    kind: str, postgres_database: Database, tmp_path: Path
) -> None:
    options = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"} if kind.endswith("gtids") else {}
    with start_server(kind.partition("-")[0], options) as server, fresh_database(server) as source:
        if server.data_folder is None:
            pytest.skip("the server's files are not on this machine")
        create_tables(source, rows=60, uids=Uids())
        job = job_of(tmp_path, source, postgres_database, "stop")
        run_epochs(job)
        source.execute(*UPDATE_ALL)
        run_epochs(job)
        exchange_files(server, server.data_folder, tmp_path / "data")
        source.execute(*LAST)
        run_epochs(job)
        go_back(job, 1)
        exchange_files(server, tmp_path / "data", server.data_folder)
        source.execute("UPDATE customers SET version = version + 1")
        with pytest.raises(LogPositionLostError):
            run_epochs(job)
        run_epochs(job, "source.on_log_lost=resnapshot")
        assert_mirrored(source, postgres_database)


def exchange_files(server: Server, source: Path, copy: Path) -> None:
    """Copies the server's files while it is stopped."""
    server.stop()
    if copy.exists():
        shutil.rmtree(copy)
    subprocess.run(["cp", "-a", source, copy], check=True)
    server.start()


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize("is_read_between", [False, True])
@pytest.mark.every_server
def test_the_second_server_that_takes_over_after_a_rollback_lacks_what_the_first_one_had(
    kind: str, postgres_database: Database, tmp_path: Path, *, is_read_between: bool
) -> None:
    extra = {"log_slave_updates": True} if kind == "mariadb" else {}
    with replicated(kind) as (primary, first), start_server(kind, {"server_id": 13, **extra}) as second:
        follow(second, primary)
        with fresh_database(primary) as source:
            create_tables(source, rows=60, uids=Uids())
            job = job_of(tmp_path, source, postgres_database)
            run_epochs(job)
            source.execute(*UPDATE_ALL)
            run_epochs(job)
            await_replica(primary, first)
            await_replica(primary, second)
            stop_receiving(second)
            source.execute(*LAST)
            run_epochs(job)
            await_replica(primary, first)
            go_back(job, 1)
            notes = Notes()
            job = job_of(tmp_path, on(first, source), postgres_database)
            promote(first)
            run_epochs(job, at_most=0 if not is_read_between else None, notes=notes)
            promote(second)
            there = on(second, source)
            there.execute("UPDATE customers SET version = version + 1")
            run_epochs(job_of(tmp_path, there, postgres_database), notes=notes)
            assert_mirrored(there, postgres_database)
            there.execute(*UPDATE_ALL)
            assert run_epochs(job) == ["stream"]
            assert_mirrored(there, postgres_database)


@pytest.mark.every_server
def test_a_failover_before_a_job_that_was_rolled_back_runs(postgres_database: Database, tmp_path: Path) -> None:
    """It reads the log again from where it was rolled back to, also if an epoch was planned at the first server."""
    with replicated("mysql") as (primary, replica), fresh_database(primary) as source:
        create_tables(source, rows=60, uids=Uids())
        job = job_of(tmp_path, source, postgres_database)
        run_epochs(job)
        source.execute(*UPDATE_ALL)
        run_epochs(job)
        source.execute(*LAST)
        run_epochs(job)
        source.execute("UPDATE customers SET version = version + 1")
        die_at(job, "planner.after_plan")
        postgres_database.execute("UPDATE copy_orders SET version = 77 WHERE id = 3")
        go_back(job, 1)
        await_replica(primary, replica)
        promote(replica)
        job = job_of(tmp_path, on(replica, source), postgres_database)
        notes = Notes()
        assert set(run_epochs(job, notes=notes)) == {"stream"}
        assert [event for event, _ in notes.found].count("moved") == 1
        assert_mirrored(on(replica, source), postgres_database)


@pytest.mark.every_server
def test_a_failover_before_a_target_that_was_set_back_got_what_it_lacks(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has noted from where the log is to be read again, and an epoch was planned at the first server."""
    target = SinkCase("postgres", None, postgres_database)  # type: ignore[arg-type]
    with replicated("mysql") as (primary, replica), fresh_database(primary) as source:
        create_tables(source, rows=60, uids=Uids())
        job = job_of(tmp_path, source, postgres_database)
        run_epochs(job)
        source.execute(*UPDATE_ALL)
        run_epochs(job)
        put_back = target.back_up()
        source.execute(*LAST)
        run_epochs(job)
        source.execute("UPDATE customers SET version = version + 1")
        die_at(job, "planner.after_plan")
        put_back()
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "create_joined", ended_after(Checkpoint.create_joined))
            with pytest.raises(FailpointError):
                run_epochs(job)
        await_replica(primary, replica)
        promote(replica)
        there = on(replica, source)
        run_epochs(job_of(tmp_path, there, postgres_database))
        assert_mirrored(there, postgres_database)


def ended_after(act: Callable[..., object]) -> Callable[..., object]:
    def acting(*arguments: object) -> object:
        act(*arguments)
        raise FailpointError("create_joined")

    return acting
