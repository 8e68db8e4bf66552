"""Which part of the log an epoch reads, and what reading it found."""

from dataclasses import dataclass, field

from state.position import BinlogPosition, Position
from state.table import TableId


@dataclass(frozen=True, slots=True)
class PreparedXa:
    """An XA transaction that was prepared but not yet committed or rolled back: its rows stand in (start, end]."""

    xid: str
    start: BinlogPosition
    end: BinlogPosition


@dataclass(frozen=True, slots=True)
class LogRange:
    """The transactions after `start`, up to the first transaction boundary at or after `stop`, whose additions don't count.

    The plan fixes both, and the log does not change, so that every reading of a range gives the same changes: a retry,
    a speculative attempt or a restart emits what the first attempt emitted. The stop lies at or before the log's end
    at planning.
    """

    start: Position
    stop: Position
    prepared: tuple[PreparedXa, ...] = ()


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Changes of one table by kind. An update of a key (and any in a table without one) counts as the delete and the
    insert that it travels as; truncations are not counted here."""

    table: TableId
    inserts: int
    updates: int
    deletes: int


@dataclass(frozen=True, slots=True)
class LogReport:
    """`end` is the boundary where the next range starts. Counts are of the captured tables' changes. `changes`: those
    that were emitted, by table, in the tables' order; tables without any are left out. `last_high`: the greatest of rows
    that were read again, None where none were. `reconnects` are those of the attempt that wrote the report: other attempts
    have others."""

    end: Position
    prepared: tuple[PreparedXa, ...]
    emitted_changes: int
    filtered_changes: int
    transactions: int
    end_timestamp_us: int | None
    """When the last transaction was committed, by the source's clock, microseconds since 1970."""
    changes: tuple[TableChanges, ...] = ()
    last_high: Position | None = None
    reconnects: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class LogTotals:
    """What the committed log epochs of a job brought since its first start; `newest_commit_us`: as `end_timestamp_us`,
    of the newest transaction taken."""

    changes: tuple[TableChanges, ...] = ()
    filtered_changes: int = 0
    transactions: int = 0
    reconnects: int = 0
    newest_commit_us: int | None = None

    def plus(self, report: LogReport) -> "LogTotals":
        by_table = {sums.table: sums for sums in self.changes}
        for more in report.changes:
            now = by_table.get(more.table, TableChanges(more.table, 0, 0, 0))
            by_table[more.table] = TableChanges(
                more.table, now.inserts + more.inserts, now.updates + more.updates, now.deletes + more.deletes
            )
        newest = report.end_timestamp_us
        return LogTotals(
            changes=tuple(by_table[table] for table in sorted(by_table)),
            filtered_changes=self.filtered_changes + report.filtered_changes,
            transactions=self.transactions + report.transactions,
            reconnects=self.reconnects + report.reconnects,
            newest_commit_us=self.newest_commit_us if newest is None else newest,
        )


NOTHING_READ = LogTotals()
