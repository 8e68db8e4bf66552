"""One driver at a time: a lock in the source with the job's name, held as long as its connection lives.

It is one server's, not a cluster's: all runs of a job must connect to the same server, as their positions ask.
"""

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar

from state.errors import JobHeldError, SourceNotUsableError, SourceUnavailableError

PING_SECONDS = 2.0
WAIT_ROUND_SECONDS = 2
"""Waiting for a lock returns this often, so that a signal is heard."""

CLOSE_SECONDS = 5.0
"""How long `close` waits for a thread that may be connecting."""

REACQUIRE_SECONDS = 60.0
"""A lease that could not be had again for so long after its connection broke counts as lost."""


def lock_name(job: str, checkpoint: str) -> str:
    """At most 64 characters, which is what MySQL allows. `checkpoint`: what tells jobs of one name apart."""
    return "tidemark:" + hashlib.sha256(f"{job}\0{checkpoint}".encode()).hexdigest()[:40]


class Lock(ABC):
    """A lock of the source's, on a connection of its own that `try_to_take` opens."""

    error_class: ClassVar[type[Exception]]
    """The root of the driver's errors, which all questions may raise besides OSError."""

    @abstractmethod
    def try_to_take(self, wait_seconds: int) -> int | None:
        """The own connection's id; None where another one has the lock. Raises SourceUnavailableError,
        SourceNotUsableError."""

    @abstractmethod
    def is_mine(self) -> bool: ...

    @abstractmethod
    def holder_id(self) -> int | None:
        """The id of the connection that has it."""

    @abstractmethod
    def whereabouts(self, holder: int) -> str:
        """`user from host` of a connection, "" where the server does not say."""

    @abstractmethod
    def ending(self, holder: int) -> str:
        """The statement that ends a connection."""

    @abstractmethod
    def drop(self) -> None:
        """Closes the connection, which frees the lock. May be called twice."""


class Lease:
    """Held from `take` to `close`; a thread of its own watches over it.

    When the connection breaks the lease is taken again on a new one. If another driver has it then, or nothing could be
    had for REACQUIRE_SECONDS, it is lost: `held()` is False from then on, and `on_lost` is called once, in that thread.
    """

    def __init__(self, lock: Lock, on_lost: Callable[[], None] | None = None) -> None:
        self._lock = lock
        self._on_lost = on_lost
        self._closing = threading.Event()
        self._lost = threading.Event()
        self._own_id: int | None = None
        self._thread = threading.Thread(target=self._watch, name="tidemark lease", daemon=True)

    def take(self, *, wait: bool) -> None:
        """Raises JobHeldError, naming the holder, if another driver has the lease; with `wait` it is waited for without
        end. Raises SourceUnavailableError, SourceNotUsableError."""
        while not self._try_to_take(WAIT_ROUND_SECONDS if wait else 0):
            if not wait:
                try:
                    raise self._held_by_another()
                finally:
                    self._lock.drop()
        self._thread.start()

    def held(self) -> bool:
        return not self._lost.is_set() and not self._closing.is_set()

    def close(self) -> None:
        """Gives the lease back. May be called twice."""
        self._closing.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():  # else it is connecting, and drops what it gets when it sees that we close
            self._lock.drop()

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
        self._lock.drop()
        if not self._closing.is_set():
            self._lost.set()
            if self._on_lost is not None:
                self._on_lost()

    def _is_mine(self) -> bool:
        try:
            return self._lock.is_mine()
        except (self._lock.error_class, OSError):
            return False

    def _take_again(self) -> bool:
        """The server frees the lock of a broken connection when it notices the break, perhaps after us: so once is not
        enough, unless it is somebody else's connection that holds it."""
        deadline = time.monotonic() + REACQUIRE_SECONDS
        former = self._own_id
        self._lock.drop()
        while time.monotonic() < deadline and not self._closing.is_set():
            try:
                if self._try_to_take(WAIT_ROUND_SECONDS):
                    return True
                if self._lock.holder_id() not in {former, None}:
                    return False
            except (SourceUnavailableError, self._lock.error_class, OSError):
                self._lock.drop()
                self._closing.wait(PING_SECONDS)
            except SourceNotUsableError:  # refused: waiting longer will not help
                return False
        return False

    def _try_to_take(self, wait_seconds: int) -> bool:
        own_id = self._lock.try_to_take(wait_seconds)
        if own_id is not None:
            self._own_id = own_id
        return own_id is not None

    def _held_by_another(self) -> JobHeldError:
        holder = self._lock.holder_id()
        if holder is None:
            return JobHeldError("Another driver runs this job.", "Wait until it ends, or stop it.")
        where = self._lock.whereabouts(holder)
        shown = f"connection {holder} to the source" + (f", {where}" if where else "")
        return JobHeldError(
            f"Another driver runs this job ({shown}).",
            f"Wait until it ends, stop it, or {self._lock.ending(holder)} on the source if its process is gone; with "
            "--standby this one waits and takes over.",
        )
