"""One driver at a time, whatever happens to its connections."""

import contextlib
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.server import Server
from devtools.servers import start_server
from tests.support.epochs import Notes
from tests.support.jobs import source_of, write_job
from tests.support.leases import DEADLINE_SECONDS, a_standby_takes_over, wait_until
from tests.support.mysql_accounts import account, root_endpoint
from tests.support.servers import Database, FindServer
from tidemark.conf.load import load_job_file
from tidemark.conf.reconnect import Reconnect
from tidemark.jobs.startup import hold_job
from tidemark.readers import lease as leasing
from tidemark.readers.lease import Lease, checkpoint_lock, lock_name
from tidemark.readers.mysql import lease as mysql_lease
from tidemark.readers.mysql.lease import MySqlLock
from tidemark.state.errors import JobHeldError, SourceNotUsableError, SourceUnavailableError

pytestmark = pytest.mark.integration


@pytest.fixture
def name() -> str:
    return lock_name("shop-mirror", secrets.token_hex(8))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasing, "PING_SECONDS", 0.05)


def holder_of(server: Server, name: str) -> int | None:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT IS_USED_LOCK(%s)", (name,))
        return cursor.fetchone()[0]


def kill(server: Server, session: int | None) -> None:
    assert session is not None
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("KILL %s", (session,))


@contextlib.contextmanager
def rival_waiting(server: Server, name: str) -> Iterator[threading.Event]:
    """Another connection that waits for the lock; the event says that it has got it. It keeps it till the end."""
    got = threading.Event()
    with contextlib.closing(server.connect()) as connection:

        def wait() -> None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT GET_LOCK(%s, %s)", (name, DEADLINE_SECONDS))
                if cursor.fetchone()[0] == 1:
                    got.set()

        thread = threading.Thread(target=wait)
        thread.start()
        with contextlib.closing(server.connect()) as watcher, watcher.cursor() as cursor:
            found = None
            while not found:
                cursor.execute(
                    f"SELECT 1 FROM {server.processlist} WHERE id = %s AND info LIKE 'SELECT GET_LOCK%%'",
                    (connection.thread_id(),),
                )
                found = cursor.fetchone()
        yield got
        thread.join()


def test_a_second_driver_is_told_who_holds_the_job(source_database: Database, name: str) -> None:
    server = source_database.server
    with account(server) as endpoint, Lease.acquire(MySqlLock(endpoint, None, name)) as first:
        assert first.held()
        with pytest.raises(JobHeldError) as caught:
            Lease.acquire(MySqlLock(endpoint, None, name))
        assert f"connection {holder_of(server, name)}" in caught.value.message
        assert f"{endpoint.user} from" in caught.value.message
        assert "--standby" in caught.value.remedy
        with Lease.acquire(MySqlLock(endpoint, None, lock_name("another-job", "x"))) as other:
            assert other.held()
    assert not first.held()
    wait_until(lambda: holder_of(server, name) is None)


def test_a_standby_takes_over_when_the_holder_ends(source_database: Database, name: str) -> None:
    a_standby_takes_over(lambda: MySqlLock(root_endpoint(source_database.server), None, name))


def test_a_broken_connection_is_replaced(source_database: Database, name: str) -> None:
    server = source_database.server
    with Lease.acquire(MySqlLock(root_endpoint(server), None, name)) as lease:
        before = holder_of(server, name)
        kill(server, before)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (now := holder_of(server, name)) in {None, before}:
            assert time.monotonic() < deadline
        assert now != before
        assert lease.held()


@pytest.mark.servers_in_turn("source_database")
def test_a_lease_that_another_driver_took_is_lost(source_database: Database, name: str) -> None:
    server = source_database.server
    lost = threading.Event()
    with Lease.acquire(MySqlLock(root_endpoint(server), None, name), on_lost=lost.set) as lease:
        with rival_waiting(server, name) as got:
            kill(server, holder_of(server, name))
            assert got.wait(DEADLINE_SECONDS)
            assert lost.wait(DEADLINE_SECONDS)
        assert not lease.held()


def test_a_restart_of_the_source_does_not_lose_the_lease(name: str) -> None:
    with start_server("mariadb") as server, Lease.acquire(MySqlLock(root_endpoint(server), None, name)) as lease:
        server.kill()
        server.start()
        wait_until(lambda: holder_of(server, name) is not None)
        assert lease.held()


@pytest.mark.pitfall(114)
def test_a_source_that_stays_away_loses_the_lease(name: str) -> None:
    soon, lost = Reconnect(attempts=1, max_delay_seconds=0.1), threading.Event()
    with (
        start_server("mariadb") as server,
        Lease.acquire(MySqlLock(root_endpoint(server), None, name), on_lost=lost.set, reconnect=soon) as lease,
    ):
        server.kill()
        assert lost.wait(DEADLINE_SECONDS)
        assert not lease.held()
        assert isinstance(lease.cause, SourceUnavailableError)


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_lease_whose_account_may_not_log_in_any_more_is_lost(
    request: pytest.FixtureRequest, name: str, kind: str
) -> None:
    server: Server = request.getfixturevalue(f"{kind}_server")
    lost = threading.Event()
    with account(server) as user, Lease.acquire(MySqlLock(user, None, name), on_lost=lost.set) as lease:
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"ALTER USER {user.user} PASSWORD EXPIRE")
        kill(server, holder_of(server, name))
        assert lost.wait(DEADLINE_SECONDS)
        assert isinstance(lease.cause, SourceNotUsableError)
        assert "ALTER USER <account> IDENTIFIED BY" in lease.cause.remedy


def test_a_read_only_replica_gives_leases(find_server: FindServer, name: str) -> None:
    server = find_server("mysql", super_read_only=True)
    with Lease.acquire(MySqlLock(root_endpoint(server), None, name)) as lease:
        assert lease.held()
        with pytest.raises(JobHeldError):
            Lease.acquire(MySqlLock(root_endpoint(server), None, name))


@pytest.mark.pitfall(94)
def test_one_checkpoint_has_one_lease_however_it_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    names = {checkpoint_lock(text) for text in (f"{folder}", f"{folder}/", f"file://{folder}", f"{tmp_path}/link")}
    assert len(names) == 1
    shutil.copytree(folder, tmp_path / "copy")
    assert checkpoint_lock(f"{tmp_path}/copy") in names
    assert checkpoint_lock(f"{tmp_path}/other") not in names


@pytest.mark.pitfall(94)
def test_a_job_runs_once_under_two_spellings_of_its_checkpoint(source_database: Database, tmp_path: Path) -> None:
    source_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
    (tmp_path / "link").symlink_to(tmp_path)
    job = write_job(tmp_path, source=source_of(source_database), sink={"type": "console"})
    again = hold_job(load_job_file(job, [f"checkpoint={tmp_path}/link/checkpoint/"]), Notes())
    with (
        hold_job(load_job_file(job), Notes()),
        pytest.raises(JobHeldError, match="Another driver runs this job"),
        again,
    ):
        pass


@pytest.mark.pitfall(95)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_unexpected_error_of_the_watcher_loses_the_lease(
    source_database: Database, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class UnexpectedError(Exception):
        pass

    def is_mine(lock: MySqlLock) -> bool:
        raise UnexpectedError

    lost = threading.Event()
    with Lease.acquire(MySqlLock(root_endpoint(source_database.server), None, name), on_lost=lost.set) as lease:
        monkeypatch.setattr(MySqlLock, "is_mine", is_mine)
        assert lost.wait(DEADLINE_SECONDS)
        assert not lease.held()
    wait_until(lambda: holder_of(source_database.server, name) is None)


@pytest.mark.pitfall(95)
def test_a_lease_whose_watcher_hangs_is_lost(
    source_database: Database, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leasing, "PROOF_SECONDS", 0.5)
    hanging, end = threading.Event(), threading.Event()
    original = MySqlLock.is_mine

    def is_mine(lock: MySqlLock) -> bool:
        hanging.set()
        end.wait(DEADLINE_SECONDS)
        return original(lock)

    with Lease.acquire(MySqlLock(root_endpoint(source_database.server), None, name)) as lease:
        monkeypatch.setattr(MySqlLock, "is_mine", is_mine)
        assert hanging.wait(DEADLINE_SECONDS)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while lease.held():
            assert time.monotonic() < deadline
        end.set()


@pytest.mark.pitfall(95)
def test_a_frozen_driver_loses_its_lease_soon(
    source_database: Database, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stays open, as that of a dead machine does."""
    monkeypatch.setattr(mysql_lease, "IDLE_SECONDS", 1)
    monkeypatch.setattr(leasing, "PING_SECONDS", 3600)
    endpoint = root_endpoint(source_database.server)
    with (
        Lease.acquire(MySqlLock(endpoint, None, name)),
        Lease.acquire(MySqlLock(endpoint, None, name), wait=True) as second,
    ):
        assert second.held()


def test_names_of_locks_fit_and_differ() -> None:
    assert len(lock_name("j" * 200, "c" * 200)) <= 64
    assert len({lock_name("a", "b"), lock_name("a", "c"), lock_name("ab", ""), lock_name("b", "b")}) == 4
