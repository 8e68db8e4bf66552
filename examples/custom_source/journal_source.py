"""A complete source as an example: a table whose whole history is one file. docs/extend/source.md explains it.

The first line names the journal. Each further line is a transaction. A line counts once its newline is written:

    {"journal": "6f1c"}
    {"at": 1704067200000000, "changes": [["insert", {"id": 1, "body": "milk"}], ["delete", {"id": 7, "body": null}]]}

So the file is a log with transaction boundaries. A position is an offset in it. A SELECT sees all lines so far.
Therefore watermarks are exact, and nothing has to be replayed.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.conf.model import JobFile
from tidemark.readers.findings import Finding, refusal
from tidemark.readers.log.gap_filter import FinishedSplits, Int64s
from tidemark.readers.log.log_batch import LogBatch, meta_arrays
from tidemark.readers.snapshot.split_read import SplitRead
from tidemark.readers.statistics import TableStatistics
from tidemark.state.change_batch import ChangeType, batch_schema
from tidemark.state.errors import JobHeldError, LogPositionLostError
from tidemark.state.job_state import JobState
from tidemark.state.key_encoding import encode_integer
from tidemark.state.key_statistics import IntegerKey, KeyStatistics, TableSize
from tidemark.state.log_extent import WalExtent
from tidemark.state.log_range import LogRange, LogReport
from tidemark.state.partitions import Partitions
from tidemark.state.position import Position, WalPosition, wal_position
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.split import Bound, Report, Split
from tidemark.state.table import Column, TableId, TableSchema

NOTES = TableSchema(
    TableId("journal", "notes"),
    1,
    (Column("id", "bigint", "int64", nullable=False), Column("body", "text", "string", nullable=True)),
    ("id",),
)
_OPERATIONS = {"insert": ChangeType.INSERT, "update": ChangeType.UPDATE_POSTIMAGE, "delete": ChangeType.DELETE}
_SIGN = 1 << 63


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction. `end`: the position after it, which is also its commit version."""

    end: int
    at_us: int
    changes: list[tuple[ChangeType, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Journal:
    """The file. Each query opens it, so a Journal can be pickled."""

    path: str

    def identity(self) -> str:
        with Path(self.path).open("rb") as file:
            return str(json.loads(file.readline())["journal"])

    def end(self) -> int:
        """Returns the offset after the last complete line."""
        return Path(self.path).read_bytes().rfind(b"\n") + 1

    def transactions(self, start: int, stop: int) -> Iterator[Transaction]:
        """Yields the transactions from `start` up to the first boundary at or after `stop`."""
        with Path(self.path).open("rb") as file:
            file.seek(start)
            while file.tell() < stop:
                line = file.readline()
                content = json.loads(line)
                if "journal" not in content:
                    changes = [(_OPERATIONS[name], row) for name, row in content["changes"]]
                    yield Transaction(file.tell(), content["at"], changes)

    def rows(self, end: int) -> dict[int, dict[str, Any]]:
        """Returns the table's rows by key, as of a position."""
        rows: dict[int, dict[str, Any]] = {}
        for transaction in self.transactions(0, end):
            for kind, row in transaction.changes:
                if kind is ChangeType.DELETE:
                    rows.pop(row["id"], None)
                else:
                    rows[row["id"]] = row
        return dict(sorted(rows.items()))


# The planner's queries


def _bound(key: int) -> Bound:
    return Bound((str(key),), encode_integer(key, unsigned=False).hex())


@dataclass(frozen=True, slots=True)
class JournalKeys:
    """`KeySource`: the smallest and the greatest key of the table, and possible split boundaries."""

    journal: Journal

    def size(self, table: TableId) -> TableSize:
        return TableSize(len(list(self.journal.rows(self.journal.end()))), None)

    def describe(self, table: TableId, columns: tuple[str, ...]) -> KeyStatistics:
        keys = list(self.journal.rows(self.journal.end()))
        if not keys:
            return KeyStatistics(None, None, 0, None)
        return KeyStatistics(_bound(keys[-1]), IntegerKey(keys[0], keys[-1], unsigned=False), len(keys), None)

    def next_bounds(
        self,
        table: TableId,
        columns: tuple[str, ...],
        *,
        after: Bound | None,
        until: Bound | None,
        rows: int,
        count: int,
    ) -> Sequence[Bound]:
        keys = list(self.journal.rows(self.journal.end()))
        if after is not None:
            keys = [key for key in keys if key >= int(after.literals[0])]
        if until is not None:
            keys = [key for key in keys if key < int(until.literals[0])]
        return [_bound(key) for key in keys[rows::rows][:count]]

    def sees(self, position: Position, unseen: Sequence[int]) -> bool:
        """Always true: readers see what the journal has."""
        return True


@dataclass(frozen=True, slots=True)
class JournalAccess:
    """`PlannerAccess`: the keys, and the extent of the log."""

    journal: Journal

    @property
    def keys(self) -> JournalKeys:
        return JournalKeys(self.journal)

    def log_end(self) -> WalPosition:
        return WalPosition(self.journal.end())

    def log_extent(self) -> WalExtent:
        return WalExtent(WalPosition(0), WalPosition(self.journal.end()))


# Reading on executors


@dataclass(frozen=True, slots=True)
class JournalSplits:
    """`SplitReading`. Low and high are equal: the rows are exactly the result of the lines before one position."""

    journal: Journal

    def read(self, split: Split, schema: TableSchema, anchor: Position) -> SplitRead:
        end = self.journal.end()
        start, stop = (None if b is None else int(b.literals[0]) for b in (split.range.start, split.range.end))
        rows = [
            row
            for key, row in self.journal.rows(end).items()
            if (start is None or key >= start) and (stop is None or key < stop)
        ]
        high = WalPosition(end)
        report = Report(split.id, split.table, split.schema_version, high, len(rows), 0, high)
        last = max((transaction.at_us for transaction in self.journal.transactions(0, end)), default=0)
        return SplitRead(report, pa.Table.from_pylist(rows, schema=schema.arrow_schema()), last)


@dataclass(slots=True)
class JournalLog:
    """`LogReading`. A range gives the same changes each time that it is read."""

    journal: Journal
    _report: LogReport | None = field(default=None)

    def read(self, log_range: LogRange) -> Iterator[LogBatch]:
        end, at_us, count = wal_position(log_range.start).lsn, None, 0
        for transaction in self.journal.transactions(end, wal_position(log_range.stop).lsn):
            end, at_us, count = transaction.end, transaction.at_us, count + 1
            if transaction.changes:
                yield LogBatch(NOTES.table, NOTES.version, _batch(transaction))
        self._report = LogReport(WalPosition(end), (), 0, 0, count, at_us)

    @property
    def report(self) -> LogReport:
        assert self._report is not None, "the range was not read to its end"
        return self._report


def _batch(transaction: Transaction) -> pa.RecordBatch:
    count = len(transaction.changes)
    rows = pa.RecordBatch.from_pylist([row for _, row in transaction.changes], schema=NOTES.arrow_schema())
    meta = meta_arrays(
        np.array([kind for kind, _ in transaction.changes], np.uint8),
        np.full(count, transaction.end, np.int64),
        np.full(count, transaction.at_us, np.int64),
        np.arange(count, dtype=np.int32),
        pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([f"offset:{transaction.end}"])),
    )
    return pa.RecordBatch.from_arrays([*rows.columns, *meta], schema=batch_schema(NOTES))


@dataclass(frozen=True, slots=True)
class JournalRouting:
    """`KeyRouting`: the key is an integer, so the client finds its split."""

    def owners(
        self, schema: TableSchema, columns: tuple[str, ...], rows: pa.RecordBatch, finished_splits: FinishedSplits
    ) -> Int64s:
        keys = rows.column("id").to_numpy()
        return finished_splits.owners(keys.view(np.uint64) ^ np.uint64(_SIGN))


@dataclass(frozen=True, slots=True)
class JournalServer:
    """`SourceServer`: pickled to the planner and the executors."""

    journal: Journal

    def planner_access(self, state: JobState) -> JournalAccess:
        return JournalAccess(self.journal)

    def split_reading(self, schemas: Sequence[TableSchema], job_uuid: str) -> AbstractContextManager[JournalSplits]:
        return nullcontext(JournalSplits(self.journal))

    def log_reading(self, schemas: Sequence[TableSchema]) -> JournalLog:
        return JournalLog(self.journal)

    def key_routing(self, schemas: Sequence[TableSchema]) -> AbstractContextManager[JournalRouting]:
        return nullcontext(JournalRouting())


# Job startup


@dataclass(frozen=True, slots=True)
class FoundJournal:
    """`FoundSource`: the journal as job startup found it."""

    journal: Journal
    schemas: tuple[TableSchema, ...]
    findings: tuple[Finding, ...]

    @property
    def name(self) -> str:
        return "journal 1"

    @property
    def split_columns(self) -> dict[TableId, tuple[str, ...]]:
        return {schema.table: schema.key for schema in self.schemas}

    def watermarks(self) -> str:
        return "offsets"

    def statistics(self, table: TableId) -> TableStatistics:
        return TableStatistics(None, None, None)

    def identity(self) -> str:
        return self.journal.identity()

    def first_start(self) -> WalPosition:
        return WalPosition(self.journal.end())

    def joining_start(self, tables: Sequence[TableId], *, goes_on: bool = False) -> WalPosition:
        return WalPosition(self.journal.end())

    def schemas_now(self, tables: Sequence[TableId]) -> dict[TableId, TableSchema]:
        return {schema.table: schema for schema in self.schemas if schema.table in tables}

    def extended(self, known: TableSchema, seen: Partitions | None) -> TableSchema | None:
        return None  # its table never gets a column

    def require_same_log(self, state: JobState, positions: Sequence[Position]) -> None:
        if self.identity() != state.server_identity or any(
            wal_position(position).lsn > self.journal.end() for position in positions
        ):
            raise LogPositionLostError(
                f"{self.journal.path} is not the journal that the job has read.",
                START_OVER_NOW,
            )

    def server(self, state: JobState) -> JournalServer:
        return JournalServer(self.journal)


@contextlib.contextmanager
def find_journal(job: JobFile) -> Iterator[FoundJournal]:
    """Finds the source of a job. See `tidemark.jobs.sources.find_source`."""
    wanted = any(glob.matches(NOTES.table.database, NOTES.table.name) for glob in job.source.tables)
    findings = [] if wanted else [refusal("The journal has only the table journal.notes.", "Name it in source.tables.")]
    yield FoundJournal(Journal(str(job.source.url.database)), (NOTES,) if wanted else (), tuple(findings))


class JournalLease:
    """`Lease`: a lock on a file, which ends with the process."""

    def __init__(self, job: JobFile, *, wait: bool) -> None:
        self._descriptor: int | None = os.open(f"{job.source.url.database}.{job.job}.lease", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise JobHeldError(f"Another driver runs job {job.job}.", "Stop that driver first.") from error

    def held(self) -> bool:
        return self._descriptor is not None

    def prove(self) -> bool:
        return self.held()

    def __enter__(self) -> "JournalLease":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
