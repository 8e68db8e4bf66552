"""Reads splits one after another on one connection. A split is read again if the connection breaks."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from tidemark.readers.session import FIND_LOCK, AskingSession, pause
from tidemark.readers.snapshot.split_read import SplitRead
from tidemark.state.errors import (
    SchemaChangedError,
    SourceNotUsableError,
    TableLockedError,
    UnreadableRowsError,
    UnreadableTableError,
    concerning,
)
from tidemark.state.position import Position
from tidemark.state.remedies import START_OVER, START_OVER_NOW
from tidemark.state.split import Split
from tidemark.state.table import TableId, TableSchema

READ_ATTEMPTS = 5
"""Attempts to read one split, while connections break."""

Connection = TypeVar("Connection")
Hook: TypeAlias = Callable[[], None]


def no_hook() -> None:
    """A Hook that does nothing."""


@dataclass(slots=True)
class ReadCounters:
    """`fresh_reads`: reads restarted because of changes. `replays`: reads of the log from low to high."""

    splits: int = 0
    lost_connections: int = 0
    fresh_reads: int = 0
    replays: int = 0
    replayed_changes: int = 0


class RetryingSplitReader(ABC, Generic[Connection]):
    """A context manager. Not thread-safe."""

    table_is_gone: ClassVar[frozenset[Any]]
    """The server's error codes for a missing table or column."""

    def __init__(self, session: AskingSession[Connection]) -> None:
        self._session = session
        self.counters = ReadCounters()

    def __enter__(self) -> "RetryingSplitReader[Connection]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()

    def read(self, split: Split, schema: TableSchema, anchor: Position) -> SplitRead:
        """Returns the rows of the split at its high. `anchor` is the plan's.

        Raises SchemaChangedError if the table no longer has the columns of `schema`, SourceUnavailableError after
        READ_ATTEMPTS broken connections, SourceNotUsableError if the server refuses or a value does not fit its type.
        """
        if (split.table, split.schema_version) != (schema.table, schema.version):
            raise ValueError(f"split of {split.table} version {split.schema_version} and schema of {schema.table}")
        lost = 0
        while True:
            try:
                with concerning(schema.table):
                    read = self._read(split, schema, anchor)
            except self._session.error_class as error:
                lost += 1
                self._count_lost(error, schema.table, lost)
            except BaseException:
                self._session.close()  # it is inside a transaction or a result
                raise
            else:
                self.counters.splits += 1
                return read

    @abstractmethod
    def _read(self, split: Split, schema: TableSchema, anchor: Position) -> SplitRead:
        """Reads once. The database driver's errors are left to `read`."""

    @staticmethod
    @abstractmethod
    def _error_code(error: Any) -> Any:
        """Returns the server's error code."""

    def _count_lost(self, error: Exception, table: TableId, lost: int) -> None:
        """Returns when the split may be read again. Raises if it may not."""
        text = self._session.error_text(error)
        passing = self._session.will_pass(error, self._session.connection)
        self._session.close()
        self.counters.lost_connections += 1
        if not passing:
            raise self._refusal(table, error, text) from error
        if lost == READ_ATTEMPTS and self._session.is_locked(error):
            raise self._locked(table, text) from error
        if lost == READ_ATTEMPTS:
            message = f"The connection was lost {lost} times while reading a split of {table}: {text}"
            raise self._session.unavailable(message, error) from error
        pause(lost)

    def _locked(self, table: TableId, text: str) -> TableLockedError:
        """The error of a table that could not be read in READ_ATTEMPTS attempts, because another session keeps it locked."""
        return TableLockedError(f"Another session keeps {table} locked: {text}.", FIND_LOCK, table)

    def _refusal(self, table: TableId, error: Exception, text: str) -> SourceNotUsableError:
        if self._error_code(error) in self.table_is_gone:
            what = "the columns that the job knows, or that snapshot.where names"
            return columns_are_gone(table, f"{table} no longer has {what}: {text}.")
        if self._session.is_of_rows(error):
            return self._of_rows(table, error, f"The source can't read rows of {table}: {text}.")
        message = f"The source refuses to read {table}: {text}."
        remedy = f"Let the account SELECT from the whole table. Or correct snapshot.where, and {START_OVER}."
        if self._session.is_of_table(error):
            return UnreadableTableError(message, remedy, table)
        return SourceNotUsableError(message, remedy)

    def _of_rows(self, table: TableId, error: Any, message: str) -> UnreadableRowsError:
        return UnreadableRowsError(
            message,
            "Correct these rows, or the condition if there is one (snapshot.where), or leave the table out: "
            "source.exclude_tables.",
            table,
        )


def columns_are_gone(table: TableId, message: str, remedy: str = START_OVER_NOW) -> SchemaChangedError:
    return SchemaChangedError(message, remedy, table)
