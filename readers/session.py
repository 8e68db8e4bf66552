"""One connection for questions that may be asked again: opened at the first, opened anew when it was lost."""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from state.errors import SourceNotUsableError, SourceUnavailableError

Row: TypeAlias = Sequence[Any]
Answer = TypeVar("Answer")
Connection = TypeVar("Connection")

ATTEMPTS = 5
FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 5.0


class AskingSession(ABC, Generic[Connection]):
    """`connect` must give a connection to the job's server, or raise. Can be used again after `close`."""

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
        """One more connection, which is the caller's."""
        return self._connect()

    def query(self, sql: str) -> Sequence[Row]:
        """All rows. Errors as `ask`."""

        def fetch(connection: Any) -> Sequence[Row]:
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
            except self.error_class as error:
                passing = self.will_pass(error, connection)
                self.close()
                if not passing:
                    raise SourceNotUsableError(
                        f"The source refuses a question about a table: {self.error_text(error)}",
                        "Check that the table is still there and that the account may SELECT from it.",
                    ) from error
                if attempt == ATTEMPTS:
                    raise SourceUnavailableError(
                        f"The connection was lost {attempt} times in a row: {self.error_text(error)}",
                        "Check the server and the network between it and the driver and executors.",
                    ) from error
            pause(attempt)
        raise AssertionError("unreachable")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self.is_open(connection):
            connection.close()  # type: ignore[attr-defined]  # every driver's has it

    @staticmethod
    @abstractmethod
    def will_pass(error: Any, connection: Connection) -> bool:
        """True if the same question may get an answer on another connection. `error` is an `error_class`."""

    @staticmethod
    @abstractmethod
    def error_text(error: BaseException) -> str:
        """For messages, without secrets."""

    @staticmethod
    @abstractmethod
    def is_open(connection: Connection) -> bool:
        """As far as the client knows."""


def pause(attempt: int) -> None:
    """Before the attempt that follows on this one (from 1): longer each time, not the same in all processes."""
    longest = min(FIRST_DELAY_SECONDS * 2 ** (attempt - 1), LONGEST_DELAY_SECONDS)
    time.sleep(longest * random.uniform(0.5, 1.0))
