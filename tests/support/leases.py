"""A standby that takes a lease over, with the locks of any source."""

import threading
import time
from collections.abc import Callable

from tidemark.readers.lease import Lease, Lock

DEADLINE_SECONDS = 30.0


def wait_until(condition: Callable[[], object]) -> None:
    """A server gives a lock of a closed connection back a moment after it was closed."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline


def a_standby_takes_over(lock: Callable[[], Lock]) -> None:
    """`lock`: makes a lock of the same name each time."""
    taken = threading.Event()
    leases: list[Lease] = []

    def stand_by() -> None:
        leases.append(Lease.acquire(lock(), wait=True))
        taken.set()

    with Lease.acquire(lock()):
        thread = threading.Thread(target=stand_by)
        thread.start()
        assert not taken.wait(0.2)
    assert taken.wait(DEADLINE_SECONDS)
    thread.join()
    with leases[0] as second:
        assert second.held()
