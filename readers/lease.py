"""The lease: locks in the source, named after the job's checkpoint and its slot. It ensures that one driver at a time runs a
job, and that two jobs do not share a slot.

The checkpoint is known by a text that is in it, so it does not matter how its folder is written. The locks are held as long as
their connection lives. They are locks of one server, not of a cluster. All runs of a job must connect to the same server, which
their positions require too. The lease only avoids wasted work: that a late driver writes nothing is for the sink's fence
(tidemark.sinks.fencing).
"""

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar

from tidemark.conf.reconnect import AT_START, Reconnect
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobHeldError, SourceNotUsableError, SourceUnavailableError

PING_SECONDS = 1.0
WAIT_ROUND_SECONDS = 2
"""The interval at which waiting for a lock returns, so that signals are handled."""

CLOSE_SECONDS = 5.0
"""The time that `close` waits for a thread that may be connecting."""

REACQUIRE_SECONDS = 60.0
"""The time after a broken connection in which the lease must be taken again. Then it counts as lost."""

PROOF_SECONDS = REACQUIRE_SECONDS + 30.0
"""A lease that was not seen in the server for so long counts as lost, whatever its watcher is doing."""

PROVE_SECONDS = 15.0
"""How long a driver waits for the proof that it holds the lease, before it changes what another driver would go on from."""

IDLE_SECONDS = 5
"""The server ends the connection of a lease that asks nothing for so long: its process is frozen, or its machine is dead.
Then another driver takes over within ten seconds, which include its start. A process that was only slow takes the lease
again, unless another one has it by then. So short a time is safe only because of the sink's fence."""


def lock_name(kind: str, name: str) -> str:
    """Returns a name of at most 64 characters, MySQL's limit."""
    return "tidemark:" + hashlib.sha256(f"{kind}\0{name}".encode()).hexdigest()[:40]


def checkpoint_lock(checkpoint: str) -> str:
    """Returns the name of the lock that the driver of a checkpoint holds. `checkpoint`: as in the job file."""
    return lock_name("checkpoint", Checkpoint.at(checkpoint).lease_id())


class Lock(ABC):
    """One or more locks in the source, taken in their order, on a separate connection that `try_to_take` opens."""

    error_class: ClassVar[type[Exception]]
    """The base class of the database driver's errors. All queries may raise them or OSError."""
    held_for: str = "runs this job"
    """The activity of the session that holds the lock, for messages."""

    @abstractmethod
    def open(self, reconnect: Reconnect) -> None:
        """Opens the connection if there is none, with attempts as the policy says. Raises SourceUnavailableError,
        SourceNotUsableError."""

    @abstractmethod
    def try_to_take(self, wait_seconds: int) -> int | None:
        """Returns the own connection's id, None if another connection has one of the locks after `wait_seconds`.

        Raises SourceUnavailableError, SourceNotUsableError.
        """

    @abstractmethod
    def is_mine(self) -> bool:
        """True if this connection has all of the locks."""

    @abstractmethod
    def holder_id(self) -> int | None:
        """Returns the id of another connection that has one of the locks, None if there is none."""

    @abstractmethod
    def whereabouts(self, holder: int) -> str:
        """Returns `user from host` of a connection, "" if the server does not show it."""

    @abstractmethod
    def ending(self, holder: int) -> str:
        """Returns the statement that ends a connection."""

    @abstractmethod
    def drop(self) -> None:
        """Closes the connection, which releases the lock. May be called twice."""


def connection_broke(host: str) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"The connection to {host} broke while the job's lease was taken.", "Start the job again."
    )


class Lease:
    """A lease, held from `take` to `close`. A background thread watches it.

    If the connection breaks, the lease is taken again on a new one. It is lost if another driver has it then, if it can't be
    taken for REACQUIRE_SECONDS, if the source refuses it, if the thread ends for any other reason, or if it was not seen for
    PROOF_SECONDS. From then on `held()` is False. `on_lost` is called once, in the background thread.

    While the server is out of reach nobody can take the lease: it counts as held as long as `reconnect` allows, and the sink's
    fence keeps out a driver that errs. After that it is lost, and `cause` says why, as it does if the source refuses the lease.
    """

    @classmethod
    def acquire(
        cls,
        lock: Lock,
        *,
        wait: bool = False,
        on_lost: Callable[[], None] | None = None,
        reconnect: Reconnect = AT_START,
    ) -> "Lease":
        """Creates a lease and takes it. Raises the errors of `take`."""
        lease = cls(lock, on_lost, reconnect)
        lease.take(wait=wait)
        return lease

    def __init__(self, lock: Lock, on_lost: Callable[[], None] | None = None, reconnect: Reconnect = AT_START) -> None:
        self._lock = lock
        self._on_lost = on_lost
        self._reconnect = reconnect
        self._connecting = threading.Event()
        self.cause: SourceUnavailableError | SourceNotUsableError | None = None
        self._closing = threading.Event()
        self._asked = threading.Event()
        """Wakes the watcher before its next question is due."""
        self._lost = threading.Event()
        self._own_id: int | None = None
        self._proven_at = time.monotonic()
        self._seen_at = 0.0
        """When the question was asked that the server answered last: the lease is held."""
        self._thread = threading.Thread(target=self._watch, name="tidemark lease", daemon=True)

    def take(self, *, wait: bool) -> None:
        """Takes the lease. If another driver has it, waits without limit with `wait`, else raises JobHeldError, which names it.

        Raises SourceUnavailableError, SourceNotUsableError.
        """
        while not self._try_to_take(WAIT_ROUND_SECONDS if wait else 0):
            if not wait:
                try:
                    raise self._held_by_another()
                finally:
                    self._lock.drop()
        self._thread.start()

    def held(self) -> bool:
        is_recent = self._connecting.is_set() or time.monotonic() - self._proven_at < PROOF_SECONDS
        return is_recent and not self._lost.is_set() and not self._closing.is_set()

    def prove(self) -> bool:
        """Lets the watcher ask the server at once. Returns False if the lease is lost, or if there is no answer within
        PROVE_SECONDS."""
        asked_at = time.monotonic()
        self._asked.set()
        while self.held() and self._seen_at < asked_at:
            if time.monotonic() > asked_at + PROVE_SECONDS:
                return False
            self._lost.wait(0.02)
        return self.held()

    def close(self) -> None:
        """Gives the lease back. May be called twice."""
        self._closing.set()
        self._asked.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)
        if (
            not self._thread.is_alive()
        ):  # else it is connecting, and drops the lock once it sees that the lease is closing
            self._lock.drop()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _watch(self) -> None:
        try:
            while self._question_is_due():
                if not self._is_mine() and not self._take_again():
                    break
        finally:  # after an unexpected error, too: nobody watches the lease any more
            is_lost = not self._closing.is_set()
            if is_lost:
                self._lost.set()
            self._lock.drop()
            if is_lost and self._on_lost is not None:
                self._on_lost()

    def _question_is_due(self) -> bool:
        """Waits until PING_SECONDS are over or somebody asks. Returns False once the lease is closing."""
        self._asked.wait(PING_SECONDS)
        self._asked.clear()  # before the question: one who asks from here on gets another
        return not self._closing.is_set()

    def _is_mine(self) -> bool:
        asked_at = time.monotonic()
        try:
            is_mine = self._lock.is_mine()
        except (self._lock.error_class, OSError):
            return False
        if is_mine:
            self._proven_at = self._seen_at = asked_at
        return is_mine

    def _take_again(self) -> bool:
        """Takes the lease on a new connection. Returns False if it is lost.

        The server releases the lock of a broken connection when it notices the break, perhaps later than this driver. So the
        lease is tried again, unless another driver's connection holds it.
        """
        former = self._own_id
        self._lock.drop()
        deadline = None
        while not self._closing.is_set() and (deadline is None or time.monotonic() < deadline):
            try:
                if not self._connect() or self._closing.is_set():
                    return False
                deadline = time.monotonic() + REACQUIRE_SECONDS if deadline is None else deadline
                if self._try_to_take(WAIT_ROUND_SECONDS):
                    return True
                if self._lock.holder_id() not in {former, None}:
                    return False
            except (SourceUnavailableError, self._lock.error_class, OSError):
                self._lock.drop()
                self._closing.wait(PING_SECONDS)
            except SourceNotUsableError as error:  # waiting longer will not help
                self.cause = error
                return False
        return False

    def _connect(self) -> bool:
        """Opens the connection. Returns False if the server stays out of reach."""
        self._connecting.set()
        try:
            self._lock.open(self._reconnect)
        except SourceUnavailableError as error:
            self.cause = error
            return False
        finally:
            self._proven_at = time.monotonic()  # nobody could have taken it
            self._connecting.clear()
        return True

    def _try_to_take(self, wait_seconds: int) -> bool:
        asked_at = time.monotonic()
        own_id = self._lock.try_to_take(wait_seconds)
        if own_id is None:
            return False
        self._own_id = own_id
        self._proven_at = self._seen_at = asked_at
        return True

    def _held_by_another(self) -> JobHeldError:
        holder = self._lock.holder_id()
        if holder is None:
            return JobHeldError(f"Another driver {self._lock.held_for}.", "Start the job again.")
        where = self._lock.whereabouts(holder)
        shown = f"connection {holder} to the source" + (f", {where}" if where else "")
        return JobHeldError(
            f"Another driver {self._lock.held_for} ({shown}).",
            f"Wait until it ends, stop it, or {self._lock.ending(holder)} on the source if its process is gone; with "
            "--standby this one waits and takes over.",
        )
