"""What the jobs ask of a source, whichever kind of database it is. The kinds: mysql_source.py, postgres_source.py."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

import pyarrow as pa

from conf.model import JobFile
from enumerator.log_extent import LogExtent
from enumerator.source import KeySource
from readers.findings import Finding
from readers.gap_filter import Int64s, TableRoutes
from readers.log_batch import LogBatch
from readers.split_read import SplitRead
from readers.statistics import TableStatistics
from state.job_state import JobState, Membership
from state.key_statistics import PageStatistics
from state.log_range import LogRange, LogReport
from state.partitions import PartitionLook, Partitions
from state.position import Position
from state.split import Split
from state.table import TableId, TableSchema


class Lease(Protocol):
    """Held while inside."""

    def held(self) -> bool:
        """False once it is lost, for good."""

    def __enter__(self) -> "Lease": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PlannerAccess(Protocol):
    """What the planner asks. Every question is asked again where the connection was lost."""

    @property
    def keys(self) -> KeySource: ...

    def log_end(self) -> Position: ...

    def log_extent(self) -> LogExtent: ...

    def look_at_partitions(self, known: Partitions) -> PartitionLook:
        """PostgreSQL: the same tables' partitions now. Raises PartitionsChangedError where rows came or went with one."""

    def committed(self, position: Position) -> None:
        """The sink and the checkpoint hold everything before `position`: the source need not keep that log for us."""


class SplitReading(Protocol):
    def read(self, split: Split, schema: TableSchema, anchor: Position) -> SplitRead:
        """The rows of the split at its high."""


class LogReading(Protocol):
    def read(self, log_range: LogRange) -> Iterator[LogBatch]: ...

    @property
    def report(self) -> LogReport:
        """Of the range that was read to its end."""


class KeyRouting(Protocol):
    """Tells which split a changed row belongs to."""

    def owners(
        self, schema: TableSchema, columns: tuple[str, ...], rows: pa.RecordBatch, routes: TableRoutes
    ) -> Int64s:
        """The piece of `routes` of each row."""

    def transactions(self, rows: pa.RecordBatch) -> Int64s | None:
        """The transaction id of each row, where snapshots decide by them."""


class KeyReading(Protocol):
    """Reads rows again by their keys."""

    def texts(self, schema: TableSchema, rows: pa.RecordBatch | pa.Table) -> pa.LargeStringArray:
        """Of the rows' keys: equal for equal ones, byte for byte."""

    def read_again(self, schema: TableSchema, rows: pa.RecordBatch) -> SplitRead:
        """What is there under the keys of `rows`, in any order, and other rows perhaps; by a snapshot that was taken after
        this reader was made, and after `begin_anew`."""

    def begin_anew(self) -> None: ...


class SourceServer(Protocol):
    """A source as a start found it. It is pickled to the planner and the executors, and opens their connections."""

    def planner_access(self, state: JobState) -> PlannerAccess: ...

    def split_reading(self, schemas: Sequence[TableSchema], job_uuid: str) -> AbstractContextManager[SplitReading]: ...

    def log_reading(self, schemas: Sequence[TableSchema]) -> LogReading: ...

    def key_routing(self, schemas: Sequence[TableSchema]) -> AbstractContextManager[KeyRouting]: ...

    def key_reading(self, schemas: Sequence[TableSchema]) -> AbstractContextManager[KeyReading | None]:
        """None where the log never leaves values out of changes."""


class FoundSource(Protocol):
    """A source that is being looked at, on one connection."""

    @property
    def name(self) -> str:
        """Product and version."""

    @property
    def schemas(self) -> tuple[TableSchema, ...]:
        """Of the tables that are not refused."""

    @property
    def split_columns(self) -> Mapping[TableId, tuple[str, ...]]: ...

    @property
    def findings(self) -> tuple[Finding, ...]: ...

    def watermarks(self) -> str:
        """How they are taken."""

    def statistics(self, table: TableId) -> TableStatistics: ...

    def pages(self, table: TableId) -> PageStatistics | None:
        """Of a table without a key, where its rows can be read by pages."""

    def identity(self) -> str:
        """Which server the job's positions belong to; JobState.server_identity."""

    def first_start(self) -> Position:
        """Where the log is read from; what is committed after this call comes by the log."""

    def joining_start(self, tables: Sequence[TableId]) -> Position:
        """Where the log is read from for tables that join a job that has started: its end. PostgreSQL: they are published
        from then on."""

    def require_same_log(self, state: JobState, places: Sequence[Position]) -> None:
        """Raises LogPositionLostError unless this is the job's server, and its log still has `places`, to which the job
        has read it, and what comes after them."""

    def memberships(self) -> tuple[Membership, ...]:
        """PostgreSQL: how the tables stand in the publication, once `first_start` has been asked; else ()."""

    def partitions(self, tables: Sequence[TableId]) -> Partitions | None:
        """PostgreSQL: of those that are partitioned; None where none is."""

    def server(self, state: JobState) -> SourceServer: ...


def find_source(job: JobFile) -> AbstractContextManager[FoundSource]:
    """Looks at the source, with a connection that lives while inside. Raises SourceNotUsableError where it can't even be
    looked at; findings say the rest."""
    if job.source.url.kind == "postgresql":
        from jobs.postgres_source import find_postgres

        return find_postgres(job)
    from jobs.mysql_source import find_mysql

    return find_mysql(job)


def acquire_lease(job: JobFile, *, wait: bool) -> Lease:
    """Raises JobHeldError where another driver has it and `wait` is False."""
    if job.source.url.kind == "postgresql":
        from jobs.postgres_source import acquire_postgres_lease

        return acquire_postgres_lease(job, wait=wait)
    from jobs.mysql_source import acquire_mysql_lease

    return acquire_mysql_lease(job, wait=wait)
