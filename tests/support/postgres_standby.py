"""A PostgreSQL primary, its standby, and an address that leads to one of them."""

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from devtools.server import Server
from devtools.servers import start_server
from tests.support.forwarder import Forwarder, forwarding
from tests.support.servers import Database

WAIT_SECONDS = 60
PHYSICAL_SLOT = "standby"
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Pair:
    """`database` is on the primary. `address` leads to it until the standby is promoted."""

    primary: Server
    standby: Server
    database: Database
    address: Forwarder

    @property
    def url(self) -> str:
        return f"postgresql://{self.primary.user}@127.0.0.1:{self.address.port}/{self.database.name}"

    @property
    def promoted(self) -> Database:
        """The database on the server that was the standby."""
        return replace(self.database, server=self.standby)

    def await_standby(self) -> None:
        """Until the standby has replayed all that the primary has written."""
        _ask(self.primary, "SELECT pg_switch_wal()")
        end = _ask(self.primary, "SELECT pg_current_wal_flush_lsn()::text")
        _until(self.standby, f"SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn")

    def create_slot(self, slot: str) -> None:
        """Creates a slot, and waits until the standby has a copy of it that it keeps."""
        self.database.query(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', false, false, true)")
        self.await_slot(slot, advance=True)

    def await_slot(self, slot: str | None = None, *, advance: bool = False) -> None:
        """Until the standby has a copy of the slot, by default the job's, that it keeps when it is promoted. For that, the slot
        must go on after the standby has begun to copy it: by a running job, or by `advance`."""
        slot = self.database.name if slot is None else slot
        kept = (
            "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE synced AND NOT temporary AND invalidation_reason IS NULL "
            f"AND slot_name = '{slot}')"
        )
        deadline = time.monotonic() + WAIT_SECONDS
        while not _ask(self.standby, kept):
            assert time.monotonic() < deadline, _ask(self.standby, "SELECT jsonb_agg(s) FROM pg_replication_slots AS s")
            _ask(self.primary, "SELECT pg_log_standby_snapshot()")
            if advance:
                end = "pg_current_wal_flush_lsn()"
                self.database.query(f"SELECT pg_replication_slot_advance('{slot}', {end})")
            _ask(
                self.standby, "SELECT pg_reload_conf()"
            )  # wakes the process that copies slots, which sleeps up to 30 s
            time.sleep(_POLL_SECONDS)

    def promote(self) -> None:
        _ask(self.standby, "SELECT pg_promote()")
        _until(self.standby, "SELECT NOT pg_is_in_recovery()")

    def fall_behind(self) -> None:
        """The standby gets nothing from now on, until it is promoted."""
        self.standby.stop()

    def fail_over(self) -> None:
        """Kills the primary, promotes the standby and lets the address lead to it."""
        self.primary.kill()
        assert self.standby.process is not None
        if self.standby.process.exit_code() is not None:
            self.standby.start()
        self.promote()
        self.address.server = self.standby


@contextmanager
def primary_and_standby(name: str, version: str = "18", **options: str | int | bool) -> Iterator[Pair]:
    """Servers of the caller's own, with an empty database. The standby keeps copies of slots (PostgreSQL 17 and later)."""
    with start_server("postgres", options, version) as primary:
        assert primary.data_folder is not None
        keeps_slots = {"sync_replication_slots": True} if int(version) >= 17 else {}
        conninfo = f"host=127.0.0.1 port={primary.port} user={primary.user} dbname=postgres"
        follows = {"primary_conninfo": conninfo, "primary_slot_name": PHYSICAL_SLOT, "hot_standby_feedback": "on"}
        _ask(primary, f"SELECT pg_create_physical_replication_slot('{PHYSICAL_SLOT}', true)")
        _ask(primary, f"CREATE DATABASE {name}", rows=False)
        settings = {**options, **keeps_slots}
        standby = start_server("postgres", settings, version, fill=lambda data: _copy(primary, data, follows))
        with standby, forwarding(primary) as address:
            yield Pair(primary, standby, Database(primary, name), address)


@contextmanager
def another_standby(pair: Pair, version: str = "18") -> Iterator[Server]:
    """A second standby of the primary, for a while."""
    primary = pair.primary
    follows = {
        "primary_conninfo": f"host=127.0.0.1 port={primary.port} user={primary.user}",
        "hot_standby_feedback": "on",
    }
    given = {"max_prepared_transactions": 10, "wal_keep_size": "256MB"}
    with start_server("postgres", given, version, fill=lambda data: _copy(primary, data, follows)) as standby:
        yield standby


@dataclass(frozen=True)
class Standbys:
    """A primary with two standbys. Jobs read the one of `pair`; the other one is promoted."""

    pair: Pair
    other: Server

    @property
    def promoted(self) -> Database:
        """The database on the other standby."""
        return replace(self.pair.database, server=self.other)

    def await_other(self) -> None:
        """Until the other standby has replayed all that the primary has written."""
        end = _ask(self.pair.primary, "SELECT pg_current_wal_flush_lsn()::text")
        _until(self.other, f"SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn")

    def fail_over(self) -> None:
        """Kills the primary, and promotes the other standby."""
        self.pair.primary.kill()
        if self.other.process is not None and self.other.process.exit_code() is not None:
            self.other.start()
        _ask(self.other, "SELECT pg_promote()")
        _until(self.other, "SELECT NOT pg_is_in_recovery()")
        _ask(self.other, f"SELECT pg_create_physical_replication_slot('{PHYSICAL_SLOT}', true)")

    def follow(self) -> None:
        """The standby that the jobs read follows the promoted one, without a restart."""
        _ask(self.pair.standby, f"ALTER SYSTEM SET primary_conninfo = '{self._conninfo}'", rows=False)
        _ask(self.pair.standby, "SELECT pg_reload_conf()")

    def await_standby(self) -> None:
        """Until the standby that the jobs read has replayed all that the promoted one has written."""
        end = _ask(self.other, "SELECT pg_current_wal_flush_lsn()::text")
        _until(self.pair.standby, f"SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn")

    def rebuild(self, kept: Path | None = None) -> None:
        """Rebuilds the standby that the jobs read from the files of the promoted one, which had got less. Its slots are gone
        unless they were copied to `kept` before."""
        data = self.pair.standby.data_folder
        assert data is not None
        self.pair.standby.stop()
        follows = {"primary_conninfo": self._conninfo, "primary_slot_name": PHYSICAL_SLOT, "hot_standby_feedback": "on"}
        settings = (data / "postgresql.conf").read_bytes()
        _copy(self.other, data, follows)
        (data / "postgresql.conf").write_bytes(settings)
        if kept is not None:
            shutil.rmtree(data / "pg_replslot")
            subprocess.run(["cp", "-a", kept, data / "pg_replslot"], check=True)
        self.pair.standby.start()

    def keep_slots(self, kept: Path) -> None:
        """Copies the slots of the standby that the jobs read."""
        data = self.pair.standby.data_folder
        assert data is not None
        _ask(self.pair.standby, "CHECKPOINT", rows=False)
        subprocess.run(["cp", "-a", data / "pg_replslot", kept], check=True)

    @property
    def now(self) -> Pair:
        """The promoted standby and the one that the jobs read."""
        return replace(self.pair, primary=self.other, database=self.promoted)

    @property
    def _conninfo(self) -> str:
        return f"host=127.0.0.1 port={self.other.port} user={self.other.user} dbname=postgres"


@contextmanager
def two_standbys(name: str, version: str) -> Iterator[Standbys]:
    options = {"max_prepared_transactions": 10, "wal_keep_size": "256MB"}
    with primary_and_standby(name, version, **options) as pair, another_standby(pair, version) as other:
        yield Standbys(pair, other)


@contextmanager
def own_database(pair: Pair, name: str) -> Iterator[Pair]:
    """The pair with another, empty database, which is dropped with its slots."""
    pair.database.execute(f"CREATE DATABASE {name}")
    own = replace(pair, database=replace(pair.database, name=name))
    own.await_standby()
    yield own
    slots = f"FROM pg_replication_slots WHERE database = '{name}'"
    own.database.query(f"SELECT pg_drop_replication_slot(slot_name) {slots}")
    own.promoted.query(f"SELECT pg_terminate_backend(active_pid, 5000) {slots} AND active AND NOT synced")
    own.promoted.query(f"SELECT pg_drop_replication_slot(slot_name) {slots} AND NOT synced")
    _until(own.standby, f"SELECT count(*) = 0 {slots}")
    pair.database.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def primary_logs(pair: Pair) -> Iterator[None]:
    """The primary logs which transactions run, which a standby waits for to create a slot, more often than by itself."""
    ended = threading.Event()

    def log() -> None:
        with contextlib.closing(pair.database.connect()) as connection, connection.cursor() as cursor:
            while not ended.wait(0.05):
                cursor.execute("SELECT pg_log_standby_snapshot()")

    thread = threading.Thread(target=log)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _copy(primary: Server, data: Path, settings: Mapping[str, str]) -> None:
    """Makes `data` the data of a standby: PostgreSQL's low-level backup. `settings`: those that ALTER SYSTEM can change."""
    assert primary.data_folder is not None
    owner = data.stat()
    shutil.rmtree(data)
    with contextlib.closing(primary.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_backup_start('standby', true)")
        shutil.copytree(
            primary.data_folder,
            data,
            symlinks=True,
            ignore=lambda folder, names: (
                {"postmaster.pid", "postmaster.opts"}.intersection(names)
                | (set(names) if folder.endswith(("pg_replslot", "pg_dynshmem")) else set())
            ),
        )
        cursor.execute("SELECT labelfile FROM pg_backup_stop(false)")
        ((label,),) = cursor.fetchall()
    (data / "backup_label").write_text(label)
    (data / "standby.signal").touch()
    with (data / "postgresql.auto.conf").open("a") as lines:
        lines.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
    for folder, _, names in os.walk(data):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    data.chmod(0o700)


def _until(server: Server, question: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not _ask(server, question):
        assert time.monotonic() < deadline, question
        time.sleep(_POLL_SECONDS)


def _ask(server: Server, query: str, *, rows: bool = True) -> object:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0] if rows else None
