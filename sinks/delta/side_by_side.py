"""Tables of an epoch are written side by side: most of a small commit's time is planning, and each waits for its own.

A Spark session has one identifier for Delta's transactions and one set of views: each thread gets a session of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeVar

from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

TABLES_AT_ONCE = 4
_Table = TypeVar("_Table")


@dataclass(frozen=True, slots=True)
class SideSessions:
    """Kept from epoch to epoch."""

    _free: "SimpleQueue[SparkSession]" = field(default_factory=SimpleQueue)

    @contextmanager
    def borrowed(self, beside: SparkSession) -> Iterator[SparkSession]:
        """A session that nobody else has meanwhile; of the same Spark as `beside`, with its data in memory."""
        try:
            session = self._free.get_nowait()
        except Empty:
            session = beside.newSession()
        yield session
        self._free.put(session)


def write_side_by_side(session: SparkSession, tables: Sequence[_Table], write: Callable[[_Table], None]) -> None:
    """After an error no further table is begun; it is raised once those that were begun are at their end."""
    if not tables:
        return
    with ThreadPoolExecutor(min(TABLES_AT_ONCE, len(tables))) as threads:
        # Each call copies what Spark knows of this thread: who stops the query stops the threads' Spark jobs too.
        running = [threads.submit(inheritable_thread_target(session)(write), table) for table in tables]
        wait(running, return_when=FIRST_EXCEPTION)
        for future in running:
            future.cancel()
    for future in running:
        if not future.cancelled():
            future.result()
