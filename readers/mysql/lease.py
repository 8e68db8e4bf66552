"""One driver at a time: a lock in the source with the job's name, held as long as its connection lives.

GET_LOCK needs no grant, writes nothing and works on a read-only replica. It is one server's, not a
Galera cluster's or a replication group's: all runs of a job must connect to the same server, as their positions ask.
"""

import hashlib
import threading
import time
from collections.abc import Callable
from types import TracebackType

import pymysql

from conf.endpoint import Endpoint
from conf.source import Tls
from readers.mysql.connect import Connection, connect, flavour_of, version_of
from state.errors import JobHeldError, SourceNotUsableError, SourceUnavailableError

PING_SECONDS = 2.0
READ_TIMEOUT_SECONDS = 10.0
WAIT_ROUND_SECONDS = 2
"""A waiting GET_LOCK returns this often, so that a signal is heard."""

CLOSE_SECONDS = 5.0
"""How long `close` waits for a thread that may be connecting."""

REACQUIRE_SECONDS = 60.0
"""A lease that could not be had again for so long after its connection broke counts as lost."""

_SHOWN_BY_PERFORMANCE_SCHEMA_SINCE = (8, 0, 22)


def lock_name(job: str, checkpoint: str) -> str:
    """At most 64 characters, which is what MySQL allows. `checkpoint`: what tells jobs of one name apart."""
    return "tidemark:" + hashlib.sha256(f"{job}\0{checkpoint}".encode()).hexdigest()[:40]


class Lease:
    """Held from `acquire` to `close`; a thread of its own watches over it.

    When the connection breaks the lease is taken again on a new one. If another driver has it then, or nothing could be
    had for REACQUIRE_SECONDS, it is lost: `held()` is False from then on, and `on_lost` is called once, in that thread.
    """

    def __init__(
        self, endpoint: Endpoint, tls: Tls | None, name: str, on_lost: Callable[[], None] | None = None
    ) -> None:
        self._endpoint = endpoint
        self._tls = tls
        self._name = name
        self._on_lost = on_lost
        self._closing = threading.Event()
        self._lost = threading.Event()
        self._connection: Connection | None = None
        self._own_id: int | None = None
        self._thread = threading.Thread(target=self._watch, name="tidemark lease", daemon=True)

    @classmethod
    def acquire(
        cls,
        endpoint: Endpoint,
        tls: Tls | None,
        name: str,
        *,
        wait: bool = False,
        on_lost: Callable[[], None] | None = None,
    ) -> "Lease":
        """`name` from `lock_name`. Raises JobHeldError, naming the holder, if another driver has the lease; with `wait`
        it is waited for without end. Raises SourceUnavailableError."""
        lease = cls(endpoint, tls, name, on_lost)
        while not lease._try_to_take(WAIT_ROUND_SECONDS if wait else 0):
            if not wait:
                try:
                    raise lease._held_by_another()
                finally:
                    lease._drop_connection()
        lease._thread.start()
        return lease

    def held(self) -> bool:
        return not self._lost.is_set() and not self._closing.is_set()

    def close(self) -> None:
        """Gives the lease back. May be called twice."""
        self._closing.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():  # else it is connecting, and drops what it gets when it sees that we close
            self._drop_connection()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _watch(self) -> None:
        while not self._closing.wait(PING_SECONDS):
            if not self._is_mine() and not self._take_again():
                break
        self._drop_connection()
        if not self._closing.is_set():
            self._lost.set()
            if self._on_lost is not None:
                self._on_lost()

    def _is_mine(self) -> bool:
        if self._connection is None:
            return False
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("SELECT IS_USED_LOCK(%s) = CONNECTION_ID()", (self._name,))
                row = cursor.fetchone()
        except (pymysql.MySQLError, OSError):
            return False
        return row is not None and row[0] == 1

    def _take_again(self) -> bool:
        """The server frees the lock of a broken connection when it notices the break, perhaps after us: so once is not
        enough, unless it is somebody else's connection that holds it."""
        deadline = time.monotonic() + REACQUIRE_SECONDS
        former = self._own_id
        self._drop_connection()
        while time.monotonic() < deadline and not self._closing.is_set():
            try:
                if self._try_to_take(WAIT_ROUND_SECONDS):
                    return True
                if self._holder_id() not in {former, None}:
                    return False
            except (SourceUnavailableError, pymysql.MySQLError, OSError):
                self._drop_connection()
                self._closing.wait(PING_SECONDS)
            except SourceNotUsableError:  # refused: waiting longer will not help
                return False
        return False

    def _try_to_take(self, wait_seconds: int) -> bool:
        if self._connection is None:
            self._connection = connect(
                self._endpoint, self._tls, purpose="lease", read_timeout_seconds=READ_TIMEOUT_SECONDS
            )
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("SELECT GET_LOCK(%s, %s), CONNECTION_ID()", (self._name, wait_seconds))
                row = cursor.fetchone()
        except (pymysql.MySQLError, OSError) as error:
            self._drop_connection()
            raise SourceUnavailableError(
                f"The connection to {self._endpoint.host} broke while the job's lease was asked for.",
                "Start the job again.",
            ) from error
        if row is None or row[0] != 1:
            return False
        self._own_id = int(row[1])
        return True

    def _holder_id(self) -> int | None:
        if self._connection is None:
            return None
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT IS_USED_LOCK(%s)", (self._name,))
            row = cursor.fetchone()
        return None if row is None or row[0] is None else int(row[0])

    def _held_by_another(self) -> JobHeldError:
        holder = self._holder_id()
        shown = "" if holder is None else f" (connection {holder} to the source{self._whereabouts(holder)})"
        kill = "" if holder is None else f", or KILL {holder} on the source if its process is gone"
        return JobHeldError(
            f"Another driver runs this job{shown}.",
            f"Wait until it ends, stop it{kill}; with --standby this one waits and takes over.",
        )

    def _whereabouts(self, holder: int) -> str:
        """An account sees its own connections without any grant; the holder is one of them as a rule."""
        connection = self._connection
        assert connection is not None
        recent = version_of(connection) >= _SHOWN_BY_PERFORMANCE_SCHEMA_SINCE and flavour_of(connection) == "mysql"
        schema = "performance_schema" if recent else "information_schema"
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT user, host FROM {schema}.processlist WHERE id = %s", (holder,))
            row = cursor.fetchone()
        return "" if row is None else f", {row[0]} from {row[1]}"

    def _drop_connection(self) -> None:
        """Closing a connection frees its locks."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()
