"""One connection for questions that may be asked again: opened at the first, opened anew when it was lost."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import pymysql

from readers.mysql.connect import Connection, error_code, error_text, is_transient
from state.errors import SourceNotUsableError, SourceUnavailableError

Row: TypeAlias = Sequence[Any]
Answer = TypeVar("Answer")

ATTEMPTS = 5
FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 5.0

_PASSING = frozenset({1205, 1213, 1317, 1927, 3169, 4031})
"""Lock wait, deadlock, query or connection killed, session idle for too long."""


class SqlSession:
    """`connect` must give a connection to the job's server, or raise. Can be used again after `close`."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def query(self, sql: str) -> Sequence[Row]:
        """All rows. Errors as `ask`."""

        def fetch(connection: Connection) -> Sequence[Row]:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return tuple(cursor.fetchall())

        return self.ask(fetch)

    def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """Raises SourceNotUsableError where the server refuses, SourceUnavailableError where it can't be reached."""
        for attempt in range(1, ATTEMPTS + 1):
            connection = self.connection
            try:
                return question(connection)
            except pymysql.MySQLError as error:
                passing = will_pass(error, connection)
                self.close()
                if not passing:
                    raise SourceNotUsableError(
                        f"The source refuses a question about a table: {error_text(error)}",
                        "Check that the table is still there and that the account may SELECT from it.",
                    ) from error
                if attempt == ATTEMPTS:
                    raise SourceUnavailableError(
                        f"The connection was lost {attempt} times in a row: {error_text(error)}",
                        "Check the server and the network between it and the driver and executors.",
                    ) from error
            pause(attempt)
        raise AssertionError("unreachable")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()


def will_pass(error: pymysql.MySQLError, connection: Connection) -> bool:
    """True if the same question may get an answer on another connection."""
    return is_transient(error) or error_code(error) in _PASSING or not connection.open


def pause(attempt: int) -> None:
    """Before the attempt that follows on this one (from 1): longer each time, not the same in all processes."""
    longest = min(FIRST_DELAY_SECONDS * 2 ** (attempt - 1), LONGEST_DELAY_SECONDS)
    time.sleep(longest * random.uniform(0.5, 1.0))
