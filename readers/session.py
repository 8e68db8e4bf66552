"""A connection for repeatable queries: opened at the first query, reopened when it was lost."""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from tidemark.state.errors import (
    SchemaChangedError,
    SourceNotUsableError,
    SourceUnavailableError,
    TableLockedError,
    TidemarkError,
    UnreadableRowsError,
    UnreadableTableError,
)

Row: TypeAlias = Sequence[Any]
Answer = TypeVar("Answer")
Connection = TypeVar("Connection")

ATTEMPTS = 5
FIRST_DELAY_SECONDS = 0.2
MAX_DELAY_SECONDS = 5.0
FIND_LOCK = (
    "Let that session end, or end it. PostgreSQL shows it in pg_locks, MySQL in performance_schema.metadata_locks, both also "
    "in the list of their processes."
)


class AskingSession(ABC, Generic[Connection]):
    """Repeats a query on a new connection when the connection breaks. `connect` must return a connection to the job's
    server, or raise. The session can be used again after `close`."""

    error_class: ClassVar[type[Exception]]
    """The root of the driver's errors."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def another(self) -> Connection:
        """Opens one more connection. The caller owns it."""
        return self._connect()

    def query(self, sql: str) -> Sequence[Row]:
        """Returns all rows. Raises the same errors as `ask`."""

        def fetch(connection: Any) -> Sequence[Row]:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return tuple(cursor.fetchall())

        return self.ask(fetch)

    def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """Returns the answer, retrying on a new connection up to ATTEMPTS times. Raises SchemaChangedError if it has no such
        table or column, UnreadableTableError if only that table can't be read, SourceNotUsableError if it refuses,
        SourceUnavailableError if it can't be reached."""
        for attempt in range(1, ATTEMPTS + 1):
            connection = self.connection
            try:
                return question(connection)
            except self.error_class as error:
                passing = self.will_pass(error, connection)
                self.close()
                if not passing:
                    raise self._refusal(error)(
                        f"The source refuses a query about a table: {self.error_text(error)}",
                        "Check that the table still exists, that its files are whole, and that the account may SELECT from it.",
                    ) from error
                if attempt == ATTEMPTS and self.is_locked(error):
                    raise TableLockedError(
                        f"Another session kept a table locked, and a query about it timed out {attempt} times: "
                        f"{self.error_text(error)}",
                        FIND_LOCK,
                    ) from error
                if attempt == ATTEMPTS:
                    text = f"The connection was lost {attempt} times in a row: {self.error_text(error)}"
                    raise self.unavailable(text, error) from error
            pause(attempt)
        raise AssertionError("unreachable")

    def _refusal(self, error: Any) -> type[SourceNotUsableError]:
        if self.is_gone(error):
            return SchemaChangedError
        if self.is_of_rows(error):
            return UnreadableRowsError
        return UnreadableTableError if self.is_of_table(error) else SourceNotUsableError

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self.is_open(connection):
            connection.close()  # type: ignore[attr-defined]  # every driver's has it

    @staticmethod
    @abstractmethod
    def will_pass(error: Any, connection: Connection) -> bool:
        """True if the same query may succeed on another connection. `error` is an `error_class`."""

    @staticmethod
    def unavailable(message: str, error: Any) -> TidemarkError:
        """Returns the error to raise for one that came in each attempt."""
        return SourceUnavailableError(
            message,
            "Check the server and the network between it and the driver and executors, then run the job again.",
        )

    @staticmethod
    @abstractmethod
    def is_gone(error: Any) -> bool:
        """True if the server has no such table or column."""

    @staticmethod
    @abstractmethod
    def is_of_table(error: Any) -> bool:
        """True if rows of other tables can be read: the table's files are damaged or away, or the account has no privilege on
        it."""

    @staticmethod
    @abstractmethod
    def is_of_rows(error: Any) -> bool:
        """True if other rows of the table can be read: a value of some can't be computed, or they are damaged."""

    @staticmethod
    @abstractmethod
    def is_locked(error: Any) -> bool:
        """True if the query waited too long for another session's lock."""

    @staticmethod
    @abstractmethod
    def error_text(error: BaseException) -> str:
        """Returns the error's text for messages, without secrets."""

    @staticmethod
    @abstractmethod
    def is_open(connection: Connection) -> bool:
        """False if the client knows that the connection is closed."""


def pause(attempt: int) -> None:
    """Sleeps before the next attempt, with exponential back-off and jitter. `attempt` counts the failed ones, from 1."""
    longest = min(FIRST_DELAY_SECONDS * 2 ** (attempt - 1), MAX_DELAY_SECONDS)
    time.sleep(longest * random.uniform(0.5, 1.0))
