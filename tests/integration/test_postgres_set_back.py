"""A PostgreSQL source that was restored from an older copy of its files, without a new timeline, and was written since."""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from devtools.server import Server
from devtools.servers import start_server
from tests.support.epochs import die_at, run_epochs
from tests.support.remedy_ways import mirror_job, require_copies, told_by
from tests.support.servers import Database, fresh_database
from tests.support.sink_state import SinkCase
from tidemark.conf.load import load_job_file
from tidemark.jobs.recovery.rollback import roll_back
from tidemark.state.checkpoint.layout import Checkpoint

pytestmark = pytest.mark.integration
MESSAGE = "the server was restored from an older copy, and was written since"


@dataclass(frozen=True)
class SetBack:
    """A source whose files can be copied and put back."""

    server: Server
    source: Database
    target: Database
    job: Path
    copy: Path

    def save(self) -> None:
        self.server.stop()
        shutil.rmtree(self.copy, ignore_errors=True)
        subprocess.run(["cp", "-a", self.folder, self.copy], check=True)
        self.server.start()

    def put_back(self) -> None:
        """Ends when the log has grown beyond what it was."""
        end = self.end()
        self.server.stop()
        shutil.rmtree(self.folder)
        subprocess.run(["cp", "-a", self.copy, self.folder], check=True)
        self.server.start()
        while self.end() <= end:
            self.source.execute("CREATE TABLE unrelated AS SELECT generate_series(1, 20000)", "DROP TABLE unrelated")

    def end(self) -> int:
        ((end,),) = self.source.query("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint")
        return int(end)

    @property
    def folder(self) -> Path:
        assert self.server.data_folder is not None
        return self.server.data_folder

    def write(self, note: str) -> None:
        self.source.execute(
            f"INSERT INTO orders SELECT max(id) + 1, '{note}' FROM orders",
            f"UPDATE orders SET note = '{note}' WHERE id = 1",
        )


@pytest.fixture
def set_back(postgres_database: Database, tmp_path: Path) -> Iterator[SetBack]:
    with start_server("postgres") as server, fresh_database(server) as source:
        if server.data_folder is None:
            pytest.skip("the server's files are not on this machine")
        source.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a')"
        )
        job = mirror_job(tmp_path, source, postgres_database)
        run_epochs(job)
        yield SetBack(server, source, postgres_database, job, tmp_path / "data")


@pytest.mark.parametrize(
    "is_written_after", [True, pytest.param(False, marks=pytest.mark.every_server)], ids=["changes", "nothing"]
)
def test_it_is_found_though_its_log_is_longer(set_back: SetBack, *, is_written_after: bool) -> None:
    """Also if the new log has no changes of the job's tables where the job has read some."""
    set_back.write("before")
    run_epochs(set_back.job)
    set_back.save()
    set_back.write("lost")
    run_epochs(set_back.job)
    set_back.put_back()
    if is_written_after:
        set_back.write("other")
    error = told_by(set_back.job)
    assert error is not None
    assert MESSAGE in str(error)
    assert told_by(set_back.job, "source.on_log_lost=resnapshot") is None
    require_copies(set_back.source, set_back.target)
    set_back.write("later")
    run_epochs(set_back.job)
    require_copies(set_back.source, set_back.target)


def test_changes_at_places_that_the_job_has_passed(set_back: SetBack) -> None:
    """The new log has a change before the job's position, where the old one had none."""
    set_back.write("before")
    run_epochs(set_back.job)
    set_back.save()
    set_back.source.execute("CREATE TABLE unrelated AS SELECT generate_series(1, 200000)", "DROP TABLE unrelated")
    run_epochs(set_back.job)
    end = set_back.end()
    set_back.server.stop()
    shutil.rmtree(set_back.folder)
    subprocess.run(["cp", "-a", set_back.copy, set_back.folder], check=True)
    set_back.server.start()
    set_back.write("other")
    while set_back.end() <= end:
        set_back.source.execute("CREATE TABLE unrelated AS SELECT generate_series(1, 20000)", "DROP TABLE unrelated")
    error = told_by(set_back.job)
    assert error is not None
    assert MESSAGE in str(error)
    assert told_by(set_back.job, "source.on_log_lost=resnapshot") is None
    require_copies(set_back.source, set_back.target)


@pytest.mark.every_server
def test_the_job_was_rolled_back_before(set_back: SetBack) -> None:
    """Its copies have what the server has lost."""
    set_back.write("before")
    run_epochs(set_back.job)
    set_back.save()
    set_back.write("lost")
    run_epochs(set_back.job)
    epoch = Checkpoint.at(str(set_back.job.parent / "checkpoint")).committed_epoch()
    roll_back(load_job_file(set_back.job), epoch, standby=True)
    set_back.put_back()
    set_back.source.execute("INSERT INTO orders VALUES (700, 'other')")
    error = told_by(set_back.job)
    assert error is not None
    assert MESSAGE in str(error)
    assert told_by(set_back.job, "source.on_log_lost=resnapshot") is None
    require_copies(set_back.source, set_back.target)


@pytest.mark.parametrize("point", ["", pytest.param("planner.before_plan", marks=pytest.mark.every_server)])
def test_the_target_is_restored_as_well(set_back: SetBack, point: str) -> None:
    """Source and target are restored from backups of about the same time. The target's is newer, and has what the source lacks.
    Or the source is restored after the job has noted that the target was."""
    set_back.write("before")
    run_epochs(set_back.job)
    set_back.save()
    set_back.source.execute("INSERT INTO orders VALUES (700, 'lost')")
    run_epochs(set_back.job)
    put_target_back = SinkCase("postgres", None, set_back.target).back_up()  # type: ignore[arg-type]
    set_back.write("lost as well")
    run_epochs(set_back.job)
    put_target_back()
    if point:
        die_at(set_back.job, point)
    set_back.put_back()
    set_back.write("other")
    error = told_by(set_back.job)
    assert error is not None
    assert MESSAGE in str(error)
    assert told_by(set_back.job, "source.on_log_lost=resnapshot") is None
    require_copies(set_back.source, set_back.target)
    set_back.write("later")
    run_epochs(set_back.job)
    require_copies(set_back.source, set_back.target)


@pytest.mark.every_server
def test_an_epoch_that_was_planned_is_not_read(set_back: SetBack) -> None:
    set_back.write("before")
    run_epochs(set_back.job)
    set_back.save()
    set_back.write("lost")
    run_epochs(set_back.job)
    set_back.write("planned")
    die_at(set_back.job, "planner.after_plan")
    set_back.put_back()
    set_back.write("other")
    error = told_by(set_back.job)
    assert error is not None
    assert MESSAGE in str(error)
    assert told_by(set_back.job, "source.on_log_lost=resnapshot") is None
    require_copies(set_back.source, set_back.target)


@pytest.mark.parametrize(
    "is_read", [True, pytest.param(False, marks=pytest.mark.every_server)], ids=["read", "not read"]
)
def test_a_server_that_was_only_restarted_goes_on(set_back: SetBack, *, is_read: bool) -> None:
    """Nothing is read again, though the slot may be further back than it was."""
    for note in ("before", "between"):
        set_back.write(note)
        if is_read:
            run_epochs(set_back.job)
        set_back.server.stop()
        set_back.server.start()
    set_back.write("later")
    assert told_by(set_back.job) is None
    require_copies(set_back.source, set_back.target)
