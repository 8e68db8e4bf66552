"""MySQL group replication: the job goes on at another member (docs/adr/0098)."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from devtools.server import Server
from tests.support.epochs import Notes, run_epochs
from tests.support.failover import on
from tests.support.group_replication import (
    applying_stopped,
    await_applied,
    await_online,
    await_states,
    execute,
    group_of,
    join,
    leave,
    make_group,
)
from tests.support.history import assert_copied, assert_mirrored, assert_newest_rows
from tests.support.jobs import source_of, write_workload_job
from tests.support.remedies import remedy_of
from tests.support.servers import Database, fresh_database
from tests.support.workload import UPDATE_ALL, Uids, Writers, create_tables
from tidemark.readers.mysql import source as mysql_source
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError, SourceUnavailableError

pytestmark = pytest.mark.integration

UPDATE_1 = "UPDATE orders SET version = version + 1 WHERE id = 1"


@pytest.fixture(scope="module")
def own_group() -> Iterator[list[Server]]:
    with group_of(3) as servers:
        yield servers


@pytest.fixture
def group(own_group: list[Server]) -> list[Server]:
    """Three members that accept writes."""
    await_online(own_group)
    return own_group


@pytest.fixture
def source(group: list[Server]) -> Iterator[Database]:
    """On the first member."""
    with fresh_database(group[0]) as database:
        create_tables(database, rows=60, uids=Uids())
        await_applied(group)
        yield database


def job_of(database: Database, folder: Path, target: Database | None = None, **source: Any) -> Path:
    return write_workload_job(folder, source_of(database, **({"on_log_lost": "stop"} | source)), target)


def moved(notes: Notes) -> list[str]:
    return [facts["text"] for event, facts in notes.found if event == "moved"]


def commit_in_another_order(source: Database, there: Database, job: Path, first: str, second: str) -> None:
    """Both members commit `first` and `second`, the one in this order, the other in the other one. The job has read only the
    first one."""
    with applying_stopped(there.server, f"{source.name}.orders"):
        source.execute(first)
        run_epochs(job)
        there.execute("SET gtid_next = 'AUTOMATIC:elsewhere'", second)


@pytest.mark.parametrize("sink", ["files", pytest.param("mirror", marks=pytest.mark.every_server)])
def test_a_member_that_has_committed_in_another_order(
    source: Database, group: list[Server], request: pytest.FixtureRequest, tmp_path: Path, sink: str
) -> None:
    """Only the rows are read again that the transactions changed which the job has not read."""
    target: Database | None = request.getfixturevalue("postgres_database") if sink == "mirror" else None
    there, job = on(group[1], source), job_of(source, tmp_path, target)

    def check() -> None:
        await_applied(group)
        assert set(run_epochs(job_of(there, tmp_path, target))) <= {"stream"}
        assert_newest_rows(tmp_path / "out", there) if target is None else assert_mirrored(there, target)

    run_epochs(job)
    commit_in_another_order(source, there, job, UPDATE_1, "DELETE FROM customers LIMIT 1")
    await_applied(group)
    with pytest.raises(LogPositionLostError, match=r"has not read them\. They change the job's tables") as caught:
        run_epochs(job_of(there, tmp_path, target))
    assert "it reads the rows again that these transactions changed" in caught.value.remedy
    notes = Notes()
    job = job_of(there, tmp_path, target, on_log_lost="resnapshot")
    assert set(run_epochs(job, notes=notes)) == {"stream"}
    (text,) = moved(notes)
    assert f"The rows that they changed are read again: 1 key of {source.name}.customers." in text
    assert ("lacks the changes that the job has not read" in text) == (target is None)
    check()
    there.execute(*UPDATE_ALL)
    check()


def test_a_member_that_applies_late_is_waited_for(
    source: Database, group: list[Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has received what the job has read, or has left its group and may join it again."""
    monkeypatch.setattr(mysql_source, "REPLICA_SECONDS", 1)
    there = on(group[1], source)
    run_epochs(job_of(source, tmp_path))
    execute(
        group[0],
        "CREATE USER IF NOT EXISTS reads_little IDENTIFIED BY 'Kq7-vel1'",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reads_little",
        f"GRANT SELECT ON {source.name}.* TO reads_little",
    )
    await_applied(group)
    little = there.server.url.replace(f"{there.server.user}@", "reads_little:Kq7-vel1@")
    with applying_stopped(group[1], f"{source.name}.orders"):
        source.execute(*UPDATE_ALL)
        run_epochs(job_of(source, tmp_path))
        remedy = remedy_of(job_of(there, tmp_path), SourceUnavailableError)
        assert remedy.startswith("Wait until it has caught up")
        grants = remedy_of(job_of(there, tmp_path, url=little), SourceNotUsableError)
    execute(group[1], "STOP GROUP_REPLICATION")
    source.execute(UPDATE_1)
    run_epochs(job_of(source, tmp_path))
    assert "let it join its group again" in remedy_of(job_of(there, tmp_path), SourceUnavailableError)
    group[1].kill()  # MySQL 8.0: it has no MEMBER_ID among the members then, until it joins them again
    group[1].start()
    execute(group[1], "SET GLOBAL super_read_only = ON")
    remedy_of(job_of(there, tmp_path), SourceUnavailableError)
    join(group[1])
    await_online(group)
    execute(group[0], *grants.rstrip(".").replace("<account>", "reads_little").split(" and "))
    await_applied(group)
    there.execute(*UPDATE_ALL)
    await_applied(group)
    assert set(run_epochs(job_of(there, tmp_path, url=little))) == {"stream"}
    assert_copied(tmp_path / "out", there)


@pytest.fixture
def divided(group: list[Server], source: Database) -> Iterator[list[Server]]:
    """The first member is alone in its group: the others have left it. All are members of one group again afterwards."""
    leave(*group[1:])
    yield group
    for server in group:
        assert server.process is not None
        if server.process.exit_code() is not None:
            server.start()
    leave(*group)
    make_group(group)


def test_a_member_without_a_majority_is_waited_for(
    source: Database, divided: list[Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It sees itself as online, without end, and has received nothing of what the job has read."""
    monkeypatch.setattr(mysql_source, "REPLICA_SECONDS", 1)
    first, second, third = divided
    run_epochs(job_of(source, tmp_path))
    source.execute(UPDATE_1)
    run_epochs(job_of(source, tmp_path))
    leave(first)
    make_group([second, third])
    third.kill()
    await_states(second, ["ONLINE", "UNREACHABLE"])
    there = on(second, source)
    remedy = remedy_of(job_of(there, tmp_path, on_log_lost="resnapshot"), SourceUnavailableError)
    execute(second, *remedy.rpartition("run there: ")[2].rstrip(".").split("; "))
    notes = Notes()
    assert set(run_epochs(job_of(there, tmp_path, on_log_lost="resnapshot"), notes=notes)) == {"stream"}
    (text,) = moved(notes)
    assert f"Only the other server had them. The rows that they changed are read again: 1 key of {source.name}." in text
    assert_newest_rows(tmp_path / "out", there)


def test_what_an_online_member_is_about_to_receive_is_waited_for(
    source: Database, divided: list[Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A transaction that was sent to it may not be noted yet as received. One that it does not get is lost."""
    monkeypatch.setattr(mysql_source, "REPLICA_SECONDS", 1)
    first, second, _ = divided
    run_epochs(job_of(source, tmp_path))
    source.execute(UPDATE_1)
    run_epochs(job_of(source, tmp_path))
    make_group([second])
    there = on(second, source)
    with pytest.raises(LogPositionLostError, match="Only the other server had them"):
        run_epochs(job_of(there, tmp_path))

    def receive(_seconds: float) -> None:
        leave(second)
        join(second)
        await_online([first, second])
        await_applied([first, second])

    monkeypatch.setattr(mysql_source, "time", SimpleNamespace(sleep=receive, monotonic=time.monotonic))
    assert set(run_epochs(job_of(there, tmp_path))) <= {"stream"}
    there.execute(*UPDATE_ALL)
    assert set(run_epochs(job_of(there, tmp_path))) == {"stream"}
    assert_copied(tmp_path / "out", there)


@pytest.mark.every_server
def test_a_member_is_killed_under_writers(source: Database, group: list[Server], tmp_path: Path) -> None:
    """Nothing that it has committed is lost or repeated. It comes back, and the job with it."""
    uids = Uids()
    uids.take(10_000)  # those of `create_tables`
    writers = Writers(source, uids, count=2, seed=1)
    writers.start()
    run_epochs(job_of(source, tmp_path))
    source.execute("SET gtid_next = 'AUTOMATIC:here'", UPDATE_1)
    run_epochs(job_of(source, tmp_path))
    group[0].kill()
    with pytest.raises(pymysql.MySQLError):
        writers.stop()
    await_online(group[1:])
    there = on(group[1], source)
    with Writers(there, uids, count=2, seed=2):
        assert set(run_epochs(job_of(there, tmp_path))) == {"stream"}
    run_epochs(job_of(there, tmp_path))
    assert_copied(tmp_path / "out", there)
    group[0].start()
    join(group[0])
    await_online(group)
    await_applied(group)
    source.execute(*UPDATE_ALL)
    assert set(run_epochs(job_of(source, tmp_path))) == {"stream"}
    assert_copied(tmp_path / "out", source)
