"""The protocol of comparisons: `tidemark reconcile` asks this of a sink whose copies it can compare with the source."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.source import Tls
from tidemark.sinks.sink import Finding, JobIdentity
from tidemark.state.copied_range import CopiedRange
from tidemark.state.integer_range import IntegerRange
from tidemark.state.table import TableId, TableSchema

Key: TypeAlias = tuple[str, ...]
"""A row's key, each value as the target's text; bytes as hexadecimal digits after 0x."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A key with the hashes of the row that is expected and of the row that the copy has; None for no row."""

    key: Key
    expected: str | None
    held: str | None


class CopyComparison(Protocol):
    """Compares rows of the source with one copy: `stage` the rows of a range, ask, then `clear`. What it tells of the copy is
    read after the last `stage`."""

    row_count: int
    """The rows that are staged, without those that the copy must not have."""

    def stage(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Takes the source's rows of a range as change batches of the copy's table. Raises SinkError for a value that the sink
        refuses."""

    def differing(self) -> list[Pair]:
        """Returns the staged rows that the copy lacks or has differently."""

    def surplus(self, within: CopiedRange | None, limit: int) -> list[Pair]:
        """Returns rows of the copy that are not staged, at most `limit`. `within`: only these keys, which are integers or
        ordered alike (`ComparesTable`); None: all."""

    def keep_keys(self) -> None:
        """Adds the keys of the staged rows to those of the ranges before, for `surplus_of_all`."""

    def surplus_of_all(self, limit: int) -> list[Pair]:
        """Returns rows of the copy whose keys were not kept, at most `limit`, and forgets the keys."""

    def clear(self) -> None:
        """Forgets the staged rows."""

    def close(self) -> None:
        """Forgets staged rows and kept keys."""


@dataclass(frozen=True, slots=True)
class CopyTable:
    """A table of a database that is a copy, and how to connect to it."""

    endpoint: Endpoint
    tls: Tls | None
    table: TableId


@runtime_checkable
class ComparesTable(Protocol):
    """A CopyComparison whose copy is a table of a database, which can be read as a source's is."""

    @property
    def copy_table(self) -> CopyTable: ...

    def orders_alike(self, orders: Mapping[str, str]) -> bool:
        """True if the copy orders each of these columns as the source does (docs/adr/0055)."""

    def condition(self, within: CopiedRange | None) -> str:
        """Returns the condition in SQL that a row of the copy, which is named `c`, counts and has one of these keys; None: any
        key."""

    def surplus_among(self, keys: pa.RecordBatch, limit: int) -> list[Pair] | None:
        """Returns the rows of the copy that have one of these keys and none that was kept (`keep_keys`), at most `limit`.
        `keys`: columns of the key, with their types of the schema. None if the server can't be given one of them unchanged."""


class Comparisons(Protocol):
    def __call__(self, keys: Collection[Key] | None = None) -> AbstractContextManager[CopyComparison]:
        """Opens a comparison with one copy, which is closed at the end of the `with` block. `keys`: of the pairs that the
        comparison returns, only those with these keys need to be right now; None: all. A copy that can't be asked by key may
        be read when such a comparison opens."""


class ComparableSink(Protocol):
    def check(
        self, schemas: Sequence[TableSchema], job: JobIdentity | None = None, written: Collection[TableId] = ()
    ) -> list[Finding]: ...

    def comparable(self, schema: TableSchema) -> AbstractContextManager[Comparisons]:
        """Compares a table's copy with expected rows inside the `with` block. Raises SinkError if the copy is gone or can't
        hold the source's values."""

    def keys_within(self, schema: TableSchema, within: IntegerRange, limit: int) -> list[Key]:
        """Returns the keys that a table's copy has in a range, at most `limit`. Raises SinkError as `comparable` does."""
