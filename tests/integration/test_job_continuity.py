"""A job goes on only on the log that it has read. The servers are the tests' own: their logs are reset, their data
replaced."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from devtools.server import Server
from devtools.servers import start_server
from tests.support.altered_tables import folded, rows_of
from tests.support.epochs import Notes, run_epochs
from tests.support.history import read_history
from tests.support.jobs import write_job
from tests.support.lost_logs import end_of_log, grow_log, purge_log, reset_log
from tests.support.servers import Database, fresh_database
from tidemark.conf.load import load_job_file
from tidemark.jobs.startup import hold_job
from tidemark.readers.mysql.binlog.connection import ServerLog
from tidemark.readers.mysql.binlog.reader import LogReader
from tidemark.readers.mysql.connect import connect
from tidemark.readers.mysql.server import read_server
from tidemark.readers.mysql.snapshot import anchors
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import LogPositionLostError
from tidemark.state.log_range import LogRange
from tidemark.state.position import binlog_position

pytestmark = [
    pytest.mark.integration,
    pytest.mark.pitfall(45),
    pytest.mark.servers_in_turn("own_server", always="mysql-gtid"),  # without GTIDs, or on MariaDB, there are offsets
]

SERVERS = {
    "mysql-gtid": ("mysql", {}),
    "mysql-nogtid": ("mysql", {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}),
    "mariadb": ("mariadb", {}),
}


@pytest.fixture(scope="module", params=list(SERVERS))
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    kind, options = SERVERS[request.param]
    with start_server(kind, options) as server:
        yield server


@dataclass(frozen=True)
class Copy:
    """A job that has copied a table `t`, and its source."""

    database: Database
    path: Path

    def write(self, rows: int) -> None:
        self.database.execute(*["INSERT INTO t (note) VALUES (REPEAT('x', 100))"] * rows)

    def run(self, *overrides: str, at_most: int | None = None) -> list[str]:
        return run_epochs(self.path, *overrides, at_most=at_most)

    def reset_log(self) -> None:
        """The new log grows beyond the end of the old one."""
        end = end_of_log(self.database)
        reset_log(self.database)
        grow_log(self.database, end)

    def refused_as_different_log(self, *overrides: str) -> None:
        message = self.refused(*overrides)
        assert "log is a different one" in message or "no longer has all transactions" in message

    def refused(self, *overrides: str) -> str:
        with pytest.raises(LogPositionLostError) as caught:
            self.run(*overrides)
        assert caught.value.exit_code == 4
        assert "empty target" in caught.value.remedy
        return caught.value.message


@pytest.fixture
def copy(own_server: Server, tmp_path: Path) -> Iterator[Copy]:
    with fresh_database(own_server) as database:
        database.execute("CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, note TEXT)")
        path = write_job(
            tmp_path,
            source={"url": own_server.url, "tables": [f"{database.name}.t"]},
            snapshot={"split_rows": 4, "parallelism": 2},
            sink={"type": "files", "path": str(tmp_path / "out")},
        )
        made = Copy(database, path)
        made.write(20)
        yield made


def test_rotation_purge_and_restart_of_the_server_change_nothing(copy: Copy) -> None:
    assert copy.run()[-1] == "snapshot"
    copy.write(2)
    copy.database.execute("FLUSH BINARY LOGS")
    copy.write(2)
    assert copy.run() == ["stream"]
    copy.database.server.restart()
    copy.write(2)
    assert copy.run() == ["stream"]
    purge_log(copy.database)
    copy.write(2)
    assert copy.run() == ["stream"]
    assert copy.run() == []


def test_a_log_that_was_reset_is_refused(copy: Copy) -> None:
    copy.run()
    copy.write(1)
    assert copy.run() == ["stream"]
    copy.reset_log()
    copy.refused_as_different_log()


def test_a_log_that_was_reset_during_the_snapshot_is_refused(copy: Copy) -> None:
    assert copy.run(at_most=1) == ["snapshot"]
    copy.reset_log()
    copy.refused_as_different_log()


def test_a_log_that_was_purged_is_refused(copy: Copy) -> None:
    copy.run()
    copy.write(1)
    copy.database.execute("FLUSH BINARY LOGS")
    purge_log(copy.database)
    assert "no longer has" in copy.refused()


def test_a_copy_that_is_complete_needs_no_log(copy: Copy) -> None:
    copy.run("mode=full")
    copy.reset_log()
    assert copy.run("mode=full") == []
    shutil.rmtree(copy.path.parent / "checkpoint/committed")  # as where the query is its user's own
    with hold_job(load_job_file(copy.path, ["mode=full"]), Notes()):
        pass
    copy.refused_as_different_log("mode=full+incremental")


def test_a_server_that_was_restored_from_a_copy_is_refused(copy: Copy, tmp_path: Path) -> None:
    server = copy.database.server
    if server.data_folder is None:
        pytest.skip("the server's files are not on this machine")
    copy.run()
    server.stop()
    shutil.copytree(server.data_folder, tmp_path / "backup")
    server.start()
    copy.write(3)
    copy.run()
    end = end_of_log(copy.database)
    copy.database.execute("DO SLEEP(1.1)")  # files that were begun in one second look alike
    server.stop()
    shutil.rmtree(server.data_folder)
    shutil.copytree(tmp_path / "backup", server.data_folder)
    server.start()  # begins a file of the same name as the one that the job has read since
    grow_log(copy.database, end)
    copy.refused_as_different_log()
    copy.run("source.on_log_lost=resnapshot")
    assert folded(tmp_path, copy.database, "id", "note") == rows_of(copy.database, "t", "id", "note")
    copy.write(1)
    assert copy.run() == ["stream"]
    assert folded(tmp_path, copy.database, "id", "note") == rows_of(copy.database, "t", "id", "note")


def test_another_server_behind_the_same_name_is_refused(copy: Copy) -> None:
    copy.run()
    kind = copy.database.kind
    with start_server(kind) as server, contextlib.closing(server.connect()) as connection:
        connection.cursor().execute(f"CREATE DATABASE {copy.database.name}")
        other = Database(server, copy.database.name)
        other.execute("CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, note TEXT)")
        grow_log(other, end_of_log(copy.database))
        message = copy.refused(f"source.url={server.url}")
    assert ("Another server answers" if kind == "mysql" else "log is a different one") in message


def test_a_reader_notices_a_different_log_whenever_it_connects(copy: Copy) -> None:
    copy.run()
    job = load_job_file(copy.path)
    start = binlog_position(Checkpoint.at(job.checkpoint).job_state().start)  # type: ignore[union-attr]
    assert start.begun is not None
    with contextlib.closing(connect(job.source.url, None)) as connection:
        log = ServerLog.of(job.source.url, None, read_server(connection, job.source.url.kind), tuple(job.server_ids))  # type: ignore[arg-type]
    copy.write(1)
    end = replace(start, pos=start.pos + 1)
    assert list(LogReader(log, {}).read(LogRange(start, end))) == []
    with pytest.raises(LogPositionLostError, match="different"):
        list(LogReader(log, {}).read(LogRange(replace(start, begun=start.begun - 5), end)))


def test_a_first_load_needs_no_log_before_the_jobs_position(
    copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The greatest high of the splits is before it once the log was read between epochs of splits."""
    copy.run(at_most=1)
    copy.database.execute("FLUSH BINARY LOGS")
    copy.write(1)
    copy.run(at_most=1)
    checkpoint = Checkpoint.at(str(tmp_path / "checkpoint"))
    assert [checkpoint.plan(epoch).plan.work.kind for epoch in checkpoint.plan_epochs()] == ["snapshot", "log"]
    purge_log(copy.database)
    monkeypatch.setattr(anchors, "_newest", {})  # as in another process
    copy.run()
    history = read_history(tmp_path / "out", copy.database.schema, "t")
    assert sorted(history["id"].to_pylist()) == [
        found for (found,) in copy.database.query("SELECT id FROM t ORDER BY id")
    ]
