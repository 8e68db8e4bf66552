"""One driver at a time on a PostgreSQL source, whatever happens to its connections."""

import contextlib
import secrets
import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from devtools.servers import start_server
from tests.support.jobs import source_of, write_job
from tests.support.leases import DEADLINE_SECONDS, a_standby_takes_over, wait_until
from tests.support.postgres_roles import role, superuser
from tests.support.servers import Database, fresh_database
from tidemark.conf.endpoint import parse_endpoint
from tidemark.conf.load import load_job_file
from tidemark.conf.reconnect import Reconnect
from tidemark.jobs.sources import acquire_lease
from tidemark.readers import lease as leasing
from tidemark.readers.lease import Lease, lock_name
from tidemark.readers.postgres import lease as postgres_lease
from tidemark.readers.postgres.lease import AdvisoryLock, lock_key
from tidemark.state.errors import JobHeldError, SourceNotUsableError, SourceUnavailableError

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family]

RUNS_ON_POSTGRES_14 = True
VERSIONS = [pytest.param(version, marks=pytest.mark.every_server) for version in ("14", "15")]

HOLDERS = (
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND (classid::bigint << 32) | objid::bigint = %s"
)


@pytest.fixture
def name() -> str:
    return lock_name("shop-mirror", secrets.token_hex(8))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasing, "PING_SECONDS", 0.05)


def holder_of(database: Database, name: str) -> int | None:
    rows = database.query(HOLDERS, (lock_key(name),))
    return rows[0][0] if rows else None


@contextlib.contextmanager
def rival_waiting(database: Database, name: str) -> Iterator[threading.Event]:
    """Another connection that waits for the lock; the event says that it has got it. It keeps it till the end."""
    got = threading.Event()
    with contextlib.closing(database.connect()) as connection:

        def wait() -> None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_lock(%s)", (lock_key(name),))
                got.set()

        thread = threading.Thread(target=wait)
        thread.start()
        pid = connection.info.backend_pid
        wait_until(lambda: database.query("SELECT 1 FROM pg_locks WHERE NOT granted AND pid = %s", (pid,)))
        yield got
        thread.join()


def test_a_second_driver_is_told_who_holds_the_job(postgres_source_database: Database, name: str) -> None:
    with role(postgres_source_database) as endpoint, Lease.acquire(AdvisoryLock(endpoint, None, name)) as first:
        assert first.held()
        with pytest.raises(JobHeldError) as caught:
            Lease.acquire(AdvisoryLock(endpoint, None, name))
        assert f"connection {holder_of(postgres_source_database, name)}" in caught.value.message
        assert f"{endpoint.user} from 127.0.0.1" in caught.value.message
        assert "--standby" in caught.value.remedy
        with Lease.acquire(AdvisoryLock(endpoint, None, lock_name("another-job", "x"))) as other:
            assert other.held()
        first.close()
        assert not first.held()
        wait_until(lambda: holder_of(postgres_source_database, name) is None)


def test_a_standby_takes_over_when_the_holder_ends(postgres_source_database: Database, name: str) -> None:
    a_standby_takes_over(lambda: AdvisoryLock(superuser(postgres_source_database), None, name))


def test_a_broken_connection_is_replaced(postgres_source_database: Database, name: str) -> None:
    with Lease.acquire(AdvisoryLock(superuser(postgres_source_database), None, name)) as lease:
        before = holder_of(postgres_source_database, name)
        postgres_source_database.query("SELECT pg_terminate_backend(%s, 5000)", (before,))
        wait_until(lambda: holder_of(postgres_source_database, name) not in {None, before})
        assert lease.held()


def test_a_lease_that_another_driver_took_is_lost(postgres_source_database: Database, name: str) -> None:
    lost = threading.Event()
    with Lease.acquire(AdvisoryLock(superuser(postgres_source_database), None, name), on_lost=lost.set) as lease:
        with rival_waiting(postgres_source_database, name) as got:
            postgres_source_database.query(
                "SELECT pg_terminate_backend(%s, 5000)", (holder_of(postgres_source_database, name),)
            )
            assert got.wait(DEADLINE_SECONDS)
            assert lost.wait(DEADLINE_SECONDS)
        assert not lease.held()


@pytest.mark.parametrize("version", [*VERSIONS, "18"])
def test_a_restart_of_the_source_does_not_lose_the_lease(name: str, version: str) -> None:
    with (
        start_server("postgres", version=version) as server,
        fresh_database(server) as database,
        Lease.acquire(AdvisoryLock(superuser(database), None, name)) as lease,
    ):
        server.kill()
        server.start()
        wait_until(lambda: holder_of(database, name) is not None)
        assert lease.held()


@pytest.mark.pitfall(114)
@pytest.mark.parametrize("version", [*VERSIONS, "18"])
def test_a_source_that_stays_away_loses_the_lease(name: str, version: str) -> None:
    soon, lost = Reconnect(attempts=1, max_delay_seconds=0.1), threading.Event()
    with start_server("postgres", version=version) as server:
        endpoint = parse_endpoint(f"{server.url}postgres")
        with Lease.acquire(AdvisoryLock(endpoint, None, name), on_lost=lost.set, reconnect=soon) as lease:
            server.kill()
            assert lost.wait(DEADLINE_SECONDS)
            assert not lease.held()
            assert isinstance(lease.cause, SourceUnavailableError)


def test_leases_of_different_databases_are_different(postgres_source_database: Database, name: str) -> None:
    with (
        fresh_database(postgres_source_database.server) as other,
        Lease.acquire(AdvisoryLock(superuser(postgres_source_database), None, name)) as first,
        Lease.acquire(AdvisoryLock(superuser(other), None, name)) as second,
    ):
        time.sleep(0.2)
        assert first.held()
        assert second.held()


@pytest.mark.pitfall(94)
def test_two_jobs_with_one_slot_do_not_run_at_once(postgres_source_database: Database, tmp_path: Path) -> None:
    postgres_source_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
    section = source_of(postgres_source_database)
    first, second = (
        load_job_file(write_job(folder, job="shop", source=section, sink={"type": "console"}))
        for folder in (tmp_path / "a", tmp_path / "b")
        if folder.mkdir() is None
    )
    slot_is_held = pytest.raises(JobHeldError, match="Another driver uses the replication slot of this job")
    with acquire_lease(first, wait=False), slot_is_held:
        acquire_lease(second, wait=False)
    with acquire_lease(second, wait=False) as lease:
        assert lease.held()


@pytest.mark.pitfall(94)
def test_a_job_runs_once_under_two_spellings_of_its_checkpoint(
    postgres_source_database: Database, tmp_path: Path
) -> None:
    postgres_source_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
    (tmp_path / "link").symlink_to(tmp_path)
    job = write_job(tmp_path, source=source_of(postgres_source_database), sink={"type": "console"})
    # Another slot, whose lock would keep it out, too.
    other = [f"checkpoint={tmp_path}/link/checkpoint/", f"source.slot={postgres_source_database.name}_2"]
    with (
        acquire_lease(load_job_file(job), wait=False),
        pytest.raises(JobHeldError, match="Another driver runs this job"),
    ):
        acquire_lease(load_job_file(job, other), wait=False)


@pytest.mark.pitfall(95)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_unexpected_error_of_the_watcher_loses_the_lease(
    postgres_source_database: Database, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class UnexpectedError(Exception):
        pass

    def is_mine(lock: AdvisoryLock) -> bool:
        raise UnexpectedError

    lost = threading.Event()
    lock = AdvisoryLock(superuser(postgres_source_database), None, name)
    with Lease.acquire(lock, on_lost=lost.set) as lease:
        monkeypatch.setattr(AdvisoryLock, "is_mine", is_mine)
        assert lost.wait(DEADLINE_SECONDS)
        assert not lease.held()
    wait_until(lambda: holder_of(postgres_source_database, name) is None)


@pytest.mark.pitfall(95)
def test_a_frozen_driver_loses_its_lease_soon(
    postgres_source_database: Database, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stays open, as that of a dead machine does."""
    monkeypatch.setattr(postgres_lease, "IDLE_SECONDS", 1)
    monkeypatch.setattr(leasing, "PING_SECONDS", 3600)
    endpoint = superuser(postgres_source_database)
    first, second = AdvisoryLock(endpoint, None, name), AdvisoryLock(endpoint, None, name)
    with Lease.acquire(first), Lease.acquire(second, wait=True) as lease:
        assert lease.held()


class Pooler(threading.Thread):
    """Between a client and the server. It tells the client another backend's id and else changes nothing, as pgbouncer does."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(daemon=True)
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.start()

    def run(self) -> None:
        with self._listener:
            client, _ = self._listener.accept()
        with client, socket.create_connection(self._server) as server:
            greeted = False
            while readable := select.select([client, server], [], [], DEADLINE_SECONDS)[0]:
                data = readable[0].recv(1 << 16)
                if not data:
                    return
                if readable[0] is server and not greeted and (place := data.find(b"K\0\0\0\x0c")) >= 0:
                    greeted, data = True, data[: place + 5] + b"\0\0\0\x07" + data[place + 9 :]
                (client if readable[0] is server else server).sendall(data)


@pytest.mark.pitfall(95)
def test_a_pooler_is_refused(postgres_source_database: Database, name: str) -> None:
    direct = superuser(postgres_source_database)
    through = replace(direct, host="127.0.0.1", port=Pooler(direct.host, direct.port).port)
    with pytest.raises(SourceNotUsableError, match="A connection pooler") as caught:
        Lease.acquire(AdvisoryLock(through, None, name))
    assert caught.value.remedy == "Connect directly: write the server's own host and port in source.url."
    wait_until(lambda: holder_of(postgres_source_database, name) is None)
    with Lease.acquire(AdvisoryLock(direct, None, name)) as lease:
        assert lease.held()
