"""The range of the log that an epoch reads, and the report of reading it."""

from dataclasses import dataclass, field

from tidemark.state.position import BinlogPosition, Position
from tidemark.state.table import TableId


@dataclass(frozen=True, slots=True)
class PreparedXa:
    """An XA transaction that is prepared but not yet committed or rolled back. Its rows are in (start, end]."""

    xid: str
    start: BinlogPosition
    end: BinlogPosition


@dataclass(frozen=True, slots=True)
class LogRange:
    """The transactions after `start`, up to the first transaction boundary at or after `stop`, which is a bare position.

    The plan fixes both, and the log does not change. So every read of a range gives the same changes: a retry, a
    speculative attempt or a restart emits what the first attempt emitted. `stop` is not after the end that the log had
    when the plan was made.
    """

    start: Position
    stop: Position
    prepared: tuple[PreparedXa, ...] = ()


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The number of changes of one table by kind. An update of a key, and any update of a table without a key, counts as a
    delete and an insert. Truncations are not counted."""

    table: TableId
    inserts: int
    updates: int
    deletes: int


@dataclass(frozen=True, slots=True)
class TouchedKeys:
    """The keys of the rows of a table that an epoch's changes touched: before and after each change, in any order, perhaps
    several times. `version`: of the table's schema. `keys`: an Arrow IPC stream of the columns of the copy's key, as Base64.
    None if they are not all there: there were too many, a TRUNCATE was among the changes, the table has no key, or its rows
    were still being read."""

    table: TableId
    version: int
    keys: str | None


@dataclass(frozen=True, slots=True)
class LogReport:
    """The facts of a log range that was read. Counts are of the captured tables' changes.

    `end`: the transaction boundary where the next range starts. `prepared`: the XA transactions open there. `changes`: the
    emitted ones by table, in the tables' order, without tables that have none. `last_high`: the greatest high of rows that
    were read again, None if there were none. `unseen` (PostgreSQL): the ids of transactions that SELECTs did not see yet when
    the range had been read; only looked for while splits are left. `reconnects` and `unseen` are of the attempt that wrote the
    report; they may differ between attempts. `withheld`: the tables of which changes were withheld. `touched`: of each table of
    which the range has changes; None if nothing was noted, as by earlier versions, or where no failover is followed.
    """

    end: Position
    prepared: tuple[PreparedXa, ...]
    emitted_changes: int
    filtered_changes: int
    transactions: int
    end_timestamp_us: int | None
    """The commit time of the last transaction, by the source's clock, microseconds since 1970."""
    changes: tuple[TableChanges, ...] = ()
    last_high: Position | None = None
    reconnects: int = field(default=0, compare=False)
    unseen: tuple[int, ...] = field(default=(), compare=False)
    withheld: tuple[TableId, ...] = ()
    touched: tuple[TouchedKeys, ...] | None = field(default=None, compare=False)
    last_commit: Position | None = None
    """PostgreSQL: where the commit record of the last transaction starts."""


@dataclass(frozen=True, slots=True)
class LogTotals:
    """The sums of a job's log reports since its first start. `newest_commit_us`: the commit time of the newest transaction,
    as in `end_timestamp_us`."""

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
