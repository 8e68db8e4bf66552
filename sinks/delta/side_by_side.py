"""Writes the tables of an epoch concurrently, because most of a small commit's time is planning on the driver.

A Spark session has one transaction identifier for Delta and one set of views, so each thread gets a session of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeVar

from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target
from pyspark.version import __version__ as spark_version

TABLES_AT_ONCE = 4
_Table = TypeVar("_Table")


@dataclass(frozen=True, slots=True)
class SideSessions:
    """Sessions for threads, reused from epoch to epoch."""

    _free: "SimpleQueue[SparkSession]" = field(default_factory=SimpleQueue)

    @contextmanager
    def borrowed(self, beside: SparkSession) -> Iterator[SparkSession]:
        """Lends a session to one thread. It shares the Spark application and the cached data of `beside`."""
        try:
            session = self._free.get_nowait()
        except Empty:
            session = beside.newSession()
        yield session
        self._free.put(session)


def write_side_by_side(session: SparkSession, tables: Sequence[_Table], write: Callable[[_Table], None]) -> None:
    """Writes each table. After an error no further table is started; the error is raised when the started ones have ended."""
    if not tables:
        return
    with ThreadPoolExecutor(min(TABLES_AT_ONCE, len(tables))) as threads:
        # With this thread's Spark properties, stopping the query stops the threads' Spark jobs, too.
        running = [threads.submit(_inheriting(session, write), table) for table in tables]
        wait(running, return_when=FIRST_EXCEPTION)
        for future in running:
            future.cancel()
    for future in running:
        if not future.cancelled():
            future.result()


def _inheriting(session: SparkSession, write: Callable[[_Table], None]) -> Callable[[_Table], None]:
    """Returns `write` with the Spark properties of this thread, for another one."""
    if spark_version.startswith("3."):
        inheriting: Callable[[_Table], None] = inheritable_thread_target(write)
    else:  # with the session's tags, too
        inheriting = inheritable_thread_target(session)(write)
    return inheriting
