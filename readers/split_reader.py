"""Reads splits one after the other on one connection, and each anew when that breaks."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Generic, TypeVar

from readers.session import AskingSession, pause
from readers.split_read import SplitRead
from state.errors import SchemaChangedError, SourceNotUsableError, SourceUnavailableError
from state.position import Position
from state.split import Split
from state.table import TableId, TableSchema

READ_ATTEMPTS = 5
"""Of a split, against connections that break."""

Connection = TypeVar("Connection")


@dataclass(slots=True)
class ReadCounters:
    """`fresh_reads`: reads begun anew because of changes. `replays`: reads of the log from low to high."""

    splits: int = 0
    lost_connections: int = 0
    fresh_reads: int = 0
    replays: int = 0
    replayed_changes: int = 0


class RetryingSplitReader(ABC, Generic[Connection]):
    """Not for several threads. A context manager."""

    table_is_gone: ClassVar[frozenset[Any]]
    """The server's codes for a table or a column that is not there."""

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
        """The rows of the split at its high. `anchor` is the plan's.

        Raises SchemaChangedError if the table no longer has the columns of `schema`, SourceUnavailableError after
        READ_ATTEMPTS broken connections, SourceNotUsableError where the server refuses or a value has no place.
        """
        if (split.table, split.schema_version) != (schema.table, schema.version):
            raise ValueError(f"split of {split.table} version {split.schema_version} and schema of {schema.table}")
        lost = 0
        while True:
            try:
                read = self._read(split, schema, anchor)
            except self._session.error_class as error:
                lost += 1
                self._count_lost(error, schema.table, lost)
            except BaseException:
                self._session.close()  # in the middle of a transaction, or of a result
                raise
            else:
                self.counters.splits += 1
                return read

    @abstractmethod
    def _read(self, split: Split, schema: TableSchema, anchor: Position) -> SplitRead:
        """One attempt. The driver's own errors are for `read`."""

    @staticmethod
    @abstractmethod
    def _error_code(error: Any) -> Any:
        """The server's."""

    def _count_lost(self, error: Exception, table: TableId, lost: int) -> None:
        """Back when the split can be read again."""
        text = self._session.error_text(error)
        passing = self._session.will_pass(error, self._session.connection)
        self._session.close()
        self.counters.lost_connections += 1
        if not passing:
            raise self._refusal(table, error, text) from error
        if lost == READ_ATTEMPTS:
            raise SourceUnavailableError(
                f"The connection was lost {lost} times while a split of {table} was read: {text}",
                "Check the server and the network between it and the executors.",
            ) from error
        pause(lost)

    def _refusal(self, table: TableId, error: Exception, text: str) -> SourceNotUsableError:
        if self._error_code(error) in self.table_is_gone:
            return columns_are_gone(
                f"{table} no longer has the columns that the job knows: {text}.",
                "Check snapshot.where, which may name a column that is not there. If the table was changed, start",
            )
        return SourceNotUsableError(
            f"The source refuses to read {table}: {text}.",
            "Check that the account may SELECT from the whole table, and snapshot.where for mistakes.",
        )


def columns_are_gone(message: str, remedy: str = "Start") -> SchemaChangedError:
    return SchemaChangedError(message, f"{remedy} the job anew with another checkpoint directory and an empty target.")
