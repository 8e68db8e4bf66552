"""The job's lease on PostgreSQL: an advisory lock of the session.

It needs no privilege, writes nothing, and belongs to the database that the job reads.
"""

import hashlib
import time
from typing import ClassVar

import psycopg2

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.source import Tls
from tidemark.readers.lease import Lock, connection_broke
from tidemark.readers.postgres.connect import Connection, connect

POLL_SECONDS = 0.2

# pg_locks shows a bigint key as two halves: https://www.postgresql.org/docs/current/view-pg-locks.html
_HOLDER = """
SELECT pid FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = %s
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


class AdvisoryLock(Lock):
    error_class: ClassVar[type[Exception]] = psycopg2.Error

    def __init__(self, endpoint: Endpoint, tls: Tls | None, name: str) -> None:
        self._endpoint, self._tls, self._key = endpoint, tls, lock_key(name)
        self._connection: Connection | None = None

    def try_to_take(self, wait_seconds: int) -> int | None:
        if self._connection is None:
            self._connection = connect(self._endpoint, self._tls)
        deadline = time.monotonic() + wait_seconds
        try:
            with self._connection.cursor() as cursor:
                while True:
                    cursor.execute("SELECT pg_try_advisory_lock(%s), pg_backend_pid()", (self._key,))
                    row = cursor.fetchone()
                    if row is not None and row[0]:
                        return int(row[1])
                    if time.monotonic() >= deadline:
                        return None
                    time.sleep(POLL_SECONDS)
        except psycopg2.Error as error:
            self.drop()
            raise connection_broke(self._endpoint.host) from error

    def is_mine(self) -> bool:
        return self._connection is not None and self.holder_id() == self._connection.info.backend_pid

    def holder_id(self) -> int | None:
        if self._connection is None:
            return None
        with self._connection.cursor() as cursor:
            cursor.execute(_HOLDER, (self._key,))
            row = cursor.fetchone()
        return None if row is None else int(row[0])

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
