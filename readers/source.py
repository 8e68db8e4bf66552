"""The protocol of a source: what a job asks of a database. `mysql/source.py` and `postgres/source.py` implement it.

A source of every kind has the protocols of the first part. The second part has optional capabilities, which only some
sources have: callers ask with `isinstance`, each capability in one place.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, runtime_checkable

import pyarrow as pa

from tidemark.readers.findings import Finding
from tidemark.readers.log.gap_filter import FinishedSplits, Int64s
from tidemark.readers.log.log_batch import LogBatch
from tidemark.readers.snapshot.split_read import SplitRead
from tidemark.readers.statistics import TableStatistics
from tidemark.state.errors import SourceNotUsableError, SourceUnavailableError
from tidemark.state.job_state import JobState, Membership
from tidemark.state.key_source import KeySource
from tidemark.state.key_statistics import PageStatistics
from tidemark.state.log_extent import KnownLog, LogExtent
from tidemark.state.log_range import LogRange, LogReport
from tidemark.state.partitions import PartitionLook, Partitions, WatchedTable
from tidemark.state.position import Position
from tidemark.state.split import Bound, Split
from tidemark.state.table import TableId, TableSchema
from tidemark.state.upgrade_mark import Upgraded, UpgradeMark


class Lease(Protocol):
    """The right to run a job. It is held inside the `with` block."""

    cause: SourceUnavailableError | SourceNotUsableError | None
    """Why the lease is lost, if the source was out of reach for too long, or refused it."""

    def held(self) -> bool:
        """False once the lease is lost; it does not come back."""

    def prove(self) -> bool:
        """Asks the source. Returns False if the lease is lost, or if there is no answer soon."""

    def __enter__(self) -> "Lease": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PlannerAccess(Protocol):
    """The planner's questions. A question is repeated on a new connection if the connection was lost."""

    @property
    def keys(self) -> KeySource: ...

    def log_end(self) -> Position: ...

    def log_extent(self) -> LogExtent: ...


@runtime_checkable
class ProvesLog(Protocol):
    """A PlannerAccess whose log's positions don't tell whether it is the log that the job has read."""

    def require_known_log(self, position: Position, known: KnownLog, reached: Position) -> None:
        """Raises LogPositionLostError if the log before `position`, which the job has read, is another one. It is asked after
        the server was started again, and before more of the log is read. `reached`: how far all that the job has of the server
        goes; a server that gets its log from another one is waited for."""


class SplitReading(Protocol):
    def read(self, split: Split, schema: TableSchema, anchor: Position) -> SplitRead:
        """Returns the split's rows as of its high watermark. `anchor`: where the replay of MySQL's log may begin
        (docs/adr/0003), or a position up to which PostgreSQL's rows must contain the log."""


class LogReading(Protocol):
    def read(self, log_range: LogRange) -> Iterator[LogBatch]: ...

    @property
    def report(self) -> LogReport:
        """The report of the last range that was read to its end."""


class KeyRouting(Protocol):
    """Finds the split that a changed row belongs to."""

    def owners(
        self, schema: TableSchema, columns: tuple[str, ...], rows: pa.RecordBatch, finished_splits: FinishedSplits
    ) -> Int64s:
        """Returns for each row the index of its split in `finished_splits`."""


class SourceServer(Protocol):
    """A source as job startup found it. It is pickled to the planner and the executors, and opens their connections."""

    def planner_access(self, state: JobState) -> PlannerAccess: ...

    def split_reading(self, schemas: Sequence[TableSchema], job_uuid: str) -> AbstractContextManager[SplitReading]: ...

    def log_reading(self, schemas: Sequence[TableSchema]) -> LogReading: ...

    def key_routing(self, schemas: Sequence[TableSchema]) -> AbstractContextManager[KeyRouting]: ...


class FoundSource(Protocol):
    """A source and its tables, as found on one connection, which is open as long as this object is used."""

    @property
    def name(self) -> str:
        """Product and version."""

    @property
    def schemas(self) -> tuple[TableSchema, ...]:
        """The tables whose columns can be copied. `findings` may refuse some of them for another reason."""

    @property
    def split_columns(self) -> Mapping[TableId, tuple[str, ...]]: ...

    @property
    def findings(self) -> tuple[Finding, ...]: ...

    def watermarks(self) -> str:
        """The method by which watermarks are taken, for people."""

    def statistics(self, table: TableId) -> TableStatistics: ...

    def identity(self) -> str:
        """The server that the job's positions belong to; stored as JobState.server_identity."""

    def first_start(self) -> Position:
        """Returns the position from which a new job reads the log. What is committed after this call is in that log."""

    def joining_start(self, tables: Sequence[TableId], *, goes_on: bool = False) -> Position:
        """Returns the log's end: the position from which tables that join a running job are read. PostgreSQL: publishes
        the tables first. Without tables: from which rows are read again. `goes_on`: the job skips the log up to there, so that
        it does not read the time of its newest transaction, which a failover asks for. Then MySQL's position has it: an older
        file of the log may have to be read for it."""

    def schemas_now(self, tables: Sequence[TableId]) -> Mapping[TableId, TableSchema]:
        """Returns the schemas of these tables, read again. A table that is refused now is missing."""

    def extended(self, known: TableSchema, seen: Partitions | None) -> TableSchema | None:
        """Returns `known` with the columns that the table got and lost since, and with wider types of others, if nothing else
        of it changed, and if it is known what the new ones are in all rows that it had; else None. MySQL's log tells with each
        ALTER TABLE whether that is so.
        `seen`: PostgreSQL's tables when the table did not have the columns."""

    def require_same_log(self, state: JobState, positions: Sequence[Position]) -> None:
        """Raises LogPositionLostError unless this is the job's server, and its log still has `positions`, up to which the
        job has read, and everything after them."""

    def server(self, state: JobState) -> SourceServer: ...


# Optional capabilities


@runtime_checkable
class ReadsPages(Protocol):
    """A FoundSource that can read a table without a key by page ranges."""

    def pages(self, table: TableId) -> PageStatistics | None:
        """None if this table can't be read by pages."""


@runtime_checkable
class ProvesDropped(Protocol):
    """A FoundSource that can tell a table that was dropped from one that the account may not see."""

    def was_dropped(self, schema: TableSchema) -> bool:
        """Returns True only if the source certainly has no such table any more. MySQL's and MariaDB's may have another name."""


@runtime_checkable
class FindsDrops(Protocol):
    """A FoundSource that can't tell from the catalog whether a table is another one of the same name."""

    def was_dropped_since(self, schema: TableSchema, positions: Sequence[Position]) -> bool:
        """True if the log says, after the last of the positions, that the table was dropped. False also if the log is lost."""


@runtime_checkable
class PublishesTables(Protocol):
    """A FoundSource whose log contains only published tables."""

    def memberships(self) -> tuple[Membership, ...]:
        """Returns how each table is published. Call `first_start` before."""


@runtime_checkable
class ChecksConditions(Protocol):
    """A FoundSource that can tell whether the server takes a `snapshot.where`."""

    def condition_problem(self, table: TableId, where: str) -> str | None:
        """Returns why the server refuses the condition, None if it does not. Reads no row."""


@runtime_checkable
class OrdersTexts(Protocol):
    """A FoundSource, and its SplitReading, whose schemas don't tell how the server orders texts."""

    def text_orders(self, table: TableId, columns: Sequence[str]) -> Mapping[str, str]:
        """Returns the orders of those of the columns that are texts, as `tidemark.state.key_order` names them. One that is not
        certain is missing."""


@runtime_checkable
class FindsPartitions(Protocol):
    """A FoundSource whose log contains neither renames and rewrites of tables nor changes to partitions (ATTACH, DETACH,
    DROP).
    """

    def partitions(self, tables: Sequence[TableId]) -> Partitions | None:
        """Returns the tables and their partitions."""

    def watched_now(self, known: WatchedTable) -> WatchedTable:
        """Returns a table and its partitions as they are now, also if its columns can't be copied. Raises SchemaChangedError if
        it is gone."""


@runtime_checkable
class WatchesPartitions(Protocol):
    """A PlannerAccess that compares tables and partitions, because renames, rewrites and changes to partitions are not in
    the log.
    """

    def look_at_partitions(self, known: Partitions) -> PartitionLook:
        """Returns the same tables and partitions as they are now. Raises PartitionsChangedError if rows came or went with a
        partition, SchemaChangedError if a table is another one or was rewritten."""


@runtime_checkable
class KnowsLabels(Protocol):
    """A PlannerAccess of a source whose enums may get labels while a job runs."""

    def labels(self, types: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """Returns the labels of those of the types, by schema and name, that are enums, in their order: all that the log has
        up to the end that was asked for last."""


@runtime_checkable
class RetainsLog(Protocol):
    """A PlannerAccess whose server keeps the log until the job releases it."""

    def committed(self, position: Position) -> None:
        """Releases the log before `position`: the sink and the checkpoint contain all of it."""


@runtime_checkable
class RegainsLog(Protocol):
    """A FoundSource whose server may have the log that the job needs, although it does not have it ready."""

    def regain_log(self, state: JobState, position: Position) -> bool:
        """Makes the log readable from `position` on, durably. Returns False if it is, or if the server no longer has it. Only
        the lease's holder may."""


@runtime_checkable
class RoutesByTransaction(Protocol):
    """A KeyRouting of a source whose high watermarks are sets of transactions."""

    def transactions(self, rows: pa.RecordBatch) -> Int64s:
        """Returns the transaction id of each row."""

    def unseen(self, transactions: Int64s) -> tuple[int, ...]:
        """Returns those of the committed transactions that later SELECTs may not see yet."""


@runtime_checkable
class MeasuresReplicaLag(Protocol):
    """A PlannerAccess of a source that may be a replica."""

    def replica_lag_seconds(self) -> float | None:
        """Returns how far the source is behind its own source, None if it is no replica. Infinite if it does not follow."""


@runtime_checkable
class FindsLocks(Protocol):
    """A PlannerAccess of a source in which a session can keep all others from reading a table."""

    def locked_tables(self, tables: Collection[TableId]) -> Mapping[TableId, str]:
        """Returns those of the tables that can't be read now, each with a text: which session keeps it, and what ends that."""


@runtime_checkable
class BoundsKeys(Protocol):
    """The KeySource of a PlannerAccess that can make split boundaries of any keys, so that rows can be read again by key."""

    def bounds_of(self, table: TableId, columns: tuple[str, ...], rows: pa.RecordBatch) -> Sequence[Bound] | None:
        """Returns the boundary at each key, also of keys that the table lacks. `rows` has the columns. None if the server can't
        be given such a key."""


class KeyReading(Protocol):
    """Reads rows again by their keys."""

    def texts(self, schema: TableSchema, rows: pa.RecordBatch | pa.Table) -> pa.LargeStringArray:
        """Returns the rows' keys as text. Equal keys have equal bytes."""

    def read_again(self, schema: TableSchema, rows: pa.RecordBatch) -> SplitRead:
        """Returns the source's rows for the keys of `rows`, in any order, perhaps with other rows. The snapshot was taken
        after this reader was created, and after the last `restart`."""

    def restart(self) -> None:
        """Discards the snapshot; the next read takes a new one."""


@runtime_checkable
class RereadsKeys(Protocol):
    """A SourceServer whose log leaves unchanged long values out (PostgreSQL's TOAST), so that rows are re-read."""

    def key_reading(self, schemas: Sequence[TableSchema]) -> AbstractContextManager[KeyReading]: ...


@runtime_checkable
class TakesConditions(Protocol):
    """A SourceServer that can read only those rows of a table that an SQL condition takes."""

    def with_condition(self, table: TableId, where: str) -> SourceServer:
        """Returns a server whose `split_reading` reads only these rows of the table, in transactions that can't write.
        `snapshot.where` holds, too."""


@runtime_checkable
class FindsPlace(Protocol):
    """A FoundSource that can find in its log what a job has read on another server."""

    def same_place(self, state: JobState, position: Position) -> Position:
        """Returns the position in this server's log up to which the log has exactly the transactions of the job's tables that
        the other server's log has up to `position`. Raises LogPositionLostError, with the reason, if there is none, and
        SourceUnavailableError if this server may still get them."""

    def is_related(self, state: JobState, position: Position) -> bool:
        """True if this server has transactions that the other one had before `position`: it is a copy of it, however old."""


class LostTransactions(Protocol):
    """Transactions of another server's log that this server lacks, and no server will have. Its text names them."""

    def any_before(self, position: Position) -> bool:
        """True if one of them is before this position of the other server's log."""


@runtime_checkable
class FindsLost(FindsPlace, Protocol):
    """A FoundSource that can tell which transactions of another server's log it lacks."""

    def lost(self, state: JobState, position: Position) -> LostTransactions | None:
        """Returns those before a position of the other server's log, None if there are none or it can't be told."""

    def place_without(self, state: JobState, since: Position, position: Position, lost: LostTransactions) -> Position:
        """Returns what `same_place` does, but without the lost transactions. They all are between `since` and `position`. May
        return the place of `since` instead: the caller reads all rows again that the job has found changed after it."""


class UnreadTransactions(Protocol):
    """Transactions that this server's log has before `place`, and the other server's has not before the job's position: it
    committed them later, in another order, or not at all. They changed tables of the job."""

    @property
    def place(self) -> Position:
        """The position in this server's log up to which it has all transactions that the job has read."""

    def changes(self, schemas: Sequence[TableSchema], unreadable: set[TableId]) -> Iterator[LogBatch]:
        """Reads their changes of these tables, some of them perhaps twice. A table of which changes can't be read is added to
        `unreadable`, and left out from there on. Raises TidemarkError for other reasons."""


@runtime_checkable
class FindsUnread(FindsPlace, Protocol):
    """A FoundSource whose log may have transactions in another order than that of another server."""

    def unread(self, state: JobState, position: Position, lost: LostTransactions | None = None) -> UnreadTransactions:
        """Returns those before the place of a position of the other server's log, which the log without `lost` is searched for.
        Raises as `same_place`, but not because of them."""


@runtime_checkable
class SharesLog(FindsPlace, Protocol):
    """A FoundSource whose log may be, up to some position, the same as that of the server that it was promoted from."""

    def shared_until(self, state: JobState, known: KnownLog | None = None) -> Position:
        """Returns that position. Positions up to there, transactions before them and snapshots whose position is not after it
        mean the same on both servers. Raises LogPositionLostError, with the reason, if there is none. `known`: what the log was
        known by when the newest epoch was planned. It tells whether it is still the same process of the same server, which
        only follows another primary: then all that the job has of it is of the same log."""

    def is_standby(self) -> bool:
        """True if the server gets its log from another one."""

    def after_failover(self) -> str:
        """Returns what the job does after a standby was promoted, for people."""


@runtime_checkable
class OutlivesUpgrade(FindsPlace, Protocol):
    """A FoundSource whose server can be replaced by one with another identifier: upgraded, or filled from a dump. A person says
    so."""

    def system(self) -> str:
        """Returns the identifier that a person names the server by. It is the same on all copies of its files."""

    def is_of_another_system(self, state: JobState) -> bool:
        """True if this server has another identifier than the job's."""

    def next_transaction(self) -> int | None:
        """Returns the number of the server's next transaction, None while one is open. Raises SourceNotUsableError if no
        upgrade of this server keeps its log."""

    def log_end(self) -> Position:
        """Returns the end of the log, once it can be read."""

    def set_mark(self, mark: UpgradeMark) -> None:
        """Releases the log before the mark's position, and creates its slot."""

    def remove_mark(self, mark: UpgradeMark) -> None:
        """Drops the mark's slot if it is there."""

    def after_upgrade(self, state: JobState, mark: UpgradeMark, before: Partitions) -> Upgraded:
        """Returns what is proven of this server if it was made by an upgrade of the one with the mark. `before`: the last look
        at the job's tables. Raises LogPositionLostError, with the reason, if nothing is."""
