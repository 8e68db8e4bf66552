"""The job's lease on PostgreSQL: an advisory lock of the session.

It needs no privilege, writes nothing, and belongs to the database that the job reads.
"""

import hashlib
import time
from typing import ClassVar

import psycopg2

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.reconnect import AT_START, Reconnect
from tidemark.conf.source import Tls
from tidemark.readers.lease import IDLE_SECONDS, Lock, connection_broke
from tidemark.readers.postgres.connect import Connection, connect
from tidemark.state.errors import SourceNotUsableError

POLL_SECONDS = 0.2

# pg_locks shows a bigint key as two halves: https://www.postgresql.org/docs/current/view-pg-locks.html
_HOLDERS = """
SELECT pid, count(*) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = ANY(%s)
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
GROUP BY pid"""


class AdvisoryLock(Lock):
    """`names`: the job's lock, then that of its slot. `standby`: the server may be one (source.standby)."""

    error_class: ClassVar[type[Exception]] = psycopg2.Error

    def __init__(self, endpoint: Endpoint, tls: Tls | None, *names: str, standby: bool = False) -> None:
        self._standby = standby
        self._endpoint, self._tls, self._keys = endpoint, tls, [lock_key(name) for name in names]
        self._connection: Connection | None = None

    def open(self, reconnect: Reconnect) -> None:
        if self._connection is not None:
            return
        # At a start, the checks refuse a standby. Later, a lock there would be none on the primary.
        is_start = reconnect is AT_START
        self._connection = connect(
            self._endpoint, self._tls, reconnect=reconnect, primary=not is_start and not self._standby
        )
        try:
            self._prepare(self._connection)
        except psycopg2.Error as error:
            self.drop()
            raise connection_broke(self._endpoint.host) from error

    def try_to_take(self, wait_seconds: int) -> int | None:
        deadline = time.monotonic() + wait_seconds
        try:
            self.open(AT_START)
            assert self._connection is not None
            while not self._take_all(self._connection):
                if time.monotonic() >= deadline:
                    return None
                time.sleep(POLL_SECONDS)
        except SourceNotUsableError:
            self.drop()
            raise
        except psycopg2.Error as error:
            self.drop()
            raise connection_broke(self._endpoint.host) from error
        return self._connection.info.backend_pid

    def _take_all(self, connection: Connection) -> bool:
        """Takes the locks one after the other, so that two drivers never wait for each other."""
        with connection.cursor() as cursor:
            for number, key in enumerate(self._keys):
                cursor.execute("SELECT pg_try_advisory_lock(%s)", (key,))
                if cursor.fetchone() != (True,):
                    self.held_for = "uses the replication slot of this job" if number else "runs this job"
                    return False
        return True

    def _prepare(self, connection: Connection) -> None:
        with connection.cursor() as cursor:
            # A dead machine, or a frozen process, must not keep the locks for long: the server notices neither at once.
            cursor.execute(
                "SET tcp_keepalives_idle = 3; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 2; "
                f"SELECT set_config(name, '{IDLE_SECONDS}s', false) FROM pg_settings WHERE name = 'idle_session_timeout'"
            )

    def is_mine(self) -> bool:
        return self._connection is not None and self._holders() == {self._connection.info.backend_pid: len(self._keys)}

    def holder_id(self) -> int | None:
        if self._connection is None:
            return None
        own = self._connection.info.backend_pid
        return next((pid for pid in self._holders() if pid != own), None)

    def _holders(self) -> dict[int, int]:
        """How many of the locks each connection has."""
        assert self._connection is not None
        with self._connection.cursor() as cursor:
            cursor.execute(_HOLDERS, (self._keys,))
            return {int(pid): int(count) for pid, count in cursor.fetchall()}

    def whereabouts(self, holder: int) -> str:
        """Needs no privilege if the holder has the same role, which is the rule: a role sees its own connections."""
        connection = self._connection
        assert connection is not None
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT usename, coalesce(host(client_addr), 'the same machine') FROM pg_stat_activity WHERE pid = %s",
                (holder,),
            )
            row = cursor.fetchone()
        return "" if row is None or row[0] is None else f"{row[0]} from {row[1]}"

    def ending(self, holder: int) -> str:
        return f"SELECT pg_terminate_backend({holder})"

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.closed:
            connection.close()


def lock_key(name: str) -> int:
    """Returns the key of the lock: a bigint hash of its name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
