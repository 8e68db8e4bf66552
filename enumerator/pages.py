"""Tables without a key → chunks of pages, in two rounds (docs/adr/0017). First all chunks are staged: read under one
snapshot and published. Once all are staged they are released: their rows are emitted, as those of splits.

An UPDATE moves a row to another page, and the log does not say to which. So each row is in exactly one chunk only if all
chunks are read under the same snapshot. The snapshot ends with the session that exported it, the planner's. Then the
attempt's staged chunks are discarded (no sink has seen them), and the next attempt stages all chunks again.

The log is followed meanwhile. The table's own changes since the snapshot are withheld: they wait in the checkpoint until all
chunks are released (docs/adr/0062).

A table that has no such pages (MySQL, MariaDB, a partitioned table, a standby) can't be cut, and its one SELECT may take hours.
A task reads it beside the epochs and stages its rows in chunks, which are released in the same way (docs/adr/0084).
"""

from collections.abc import Mapping
from dataclasses import replace

from tidemark.enumerator.splitting import MAX_SPLIT_BYTES
from tidemark.state.key_encoding import encode_integer
from tidemark.state.key_source import KeySource, SharesSnapshots
from tidemark.state.key_statistics import PageStatistics
from tidemark.state.plan import (
    Aside,
    EnumeratorState,
    Exhausted,
    Plan,
    Releasing,
    SnapshotWork,
    Staging,
    TableState,
    Untouched,
    Withheld,
)
from tidemark.state.position import Position
from tidemark.state.split import AsideRead, Bound, KeyRange, ReleaseChunk, Report, StageChunk

MAX_FAILED_ATTEMPTS = 5
"""After so many the table is read as one split, which needs no exported snapshot."""
UNKNOWN_BYTES = 8 << 20
"""The most bytes of one split of a table without a key whose rows the server has never counted."""


def started(
    table: TableState, source: KeySource, *, split_rows: int, attempt: int, base: Position, epoch: int
) -> TableState:
    """Prepares a table without a key for planning: with a cursor by pages, if it is to be read in chunks. `attempt`: a number
    that was never used. `base`: up to where the log has been read, by epochs up to `epoch`."""
    if not isinstance(source, SharesSnapshots):
        return table
    if isinstance(table.cursor, Releasing) and not table.cursor.reader:
        source.release_snapshot(table.table)
    if isinstance(table.cursor, Staging) and not source.is_shared(table.table, table.cursor.snapshot):
        table = _discarded(table)
    if not isinstance(table.cursor, Untouched) or table.failed_attempts >= MAX_FAILED_ATTEMPTS:
        return table
    statistics = source.pages(table.table)
    if statistics is None:
        return table
    pages = pages_per_split(statistics, split_rows)
    table = replace(table, estimated_rows=statistics.row_estimate)
    if statistics.page_count <= pages:
        return table
    snapshot = source.share_snapshot(table.table)
    cursor = Staging(attempt, snapshot, 0, statistics.page_count, pages, base)
    return replace(table, cursor=cursor, withheld=Withheld(epoch))


def next_pages(table: TableState, count: int) -> tuple[list[KeyRange], StageChunk | ReleaseChunk, TableState]:
    """Returns the next chunks' ranges (at least one, at most `count`), whether to stage or to release them, and the table
    after them."""
    cursor = table.cursor
    if not isinstance(cursor, (Staging, Releasing)) or cursor.next_start is None:
        raise ValueError(f"all pages of {table.table} are planned")
    starts = list(range(cursor.next_start, cursor.until, cursor.pages)[:count])
    end = starts[-1] + cursor.pages
    more = end < cursor.until
    ranges = [KeyRange(page_bound(start), page_bound(start + cursor.pages)) for start in starts]
    if not more:
        ranges[-1] = replace(ranges[-1], end=None)
    match cursor:
        case Staging():
            after = replace(cursor, next_start=end if more else None)
            planned = table.planned_splits + len(ranges)
            return (
                ranges,
                StageChunk(cursor.attempt, cursor.snapshot, cursor.base),
                replace(table, cursor=after, planned_splits=planned),
            )
        case Releasing():
            rest = replace(cursor, next_start=end) if more else Exhausted()
            return ranges, ReleaseChunk(cursor.attempt, cursor.reader), replace(table, cursor=rest)


def staged(table: TableState, reports: list[Report]) -> TableState:
    """Returns the table after the reports of its planned chunks: released next if all are staged."""
    cursor = table.cursor
    if not isinstance(cursor, Staging):
        return table
    if any(report.kind == "expired" for report in reports):
        return _discarded(table)
    if cursor.next_start is None:
        return replace(table, cursor=Releasing(cursor.attempt, 0, cursor.until, cursor.pages))
    return table


def pages_per_split(statistics: PageStatistics, split_rows: int) -> int:
    """Returns how many pages have `split_rows` rows by the server's estimate, and at most MAX_SPLIT_BYTES."""
    count = max(1, statistics.page_count)
    pages = count * MAX_SPLIT_BYTES // max(1, statistics.data_bytes)
    if statistics.row_estimate:
        pages = min(pages, count * split_rows // statistics.row_estimate)
    return max(1, pages)


def attempts(plan: Plan, state: EnumeratorState) -> set[int]:
    """Returns the attempts whose staged chunks are still needed, by this plan or after it."""
    splits = [split for task in plan.work.tasks for split in task] if isinstance(plan.work, SnapshotWork) else []
    planned = {split.pages.attempt for split in splits if split.pages is not None}
    return planned | {t.cursor.attempt for t in state.tables if isinstance(t.cursor, (Staging, Aside, Releasing))}


def is_read_aside(table: TableState, source: KeySource, *, split_rows: int) -> bool:
    """True for a table without a key that is larger than a split, and of which nothing is planned yet: not even its pages."""
    if table.columns or not isinstance(table.cursor, Untouched) or table.failed_attempts >= MAX_FAILED_ATTEMPTS:
        return False
    size = source.size(table.table)
    if size.data_bytes is None or size.data_bytes > (UNKNOWN_BYTES if size.row_estimate is None else MAX_SPLIT_BYTES):
        return True
    return size.row_estimate is not None and size.row_estimate > split_rows


def begun_aside(table: TableState, source: KeySource, *, attempt: int, base: Position, epoch: int) -> TableState:
    """Returns the table once its read beside the epochs is planned. `attempt`, `base`, `epoch`: as in `started`."""
    estimated_rows = source.size(table.table).row_estimate
    return replace(table, cursor=Aside(attempt, base), withheld=Withheld(epoch), estimated_rows=estimated_rows)


def after_aside(table: TableState, reads: Mapping[int, AsideRead | None]) -> TableState:
    """Returns the table as the driver finds it. `reads`: those that this run has begun, by attempt; None for one that is not
    done. A read of an earlier run has ended with it."""
    cursor = table.cursor
    if not isinstance(cursor, Aside):
        return table
    if cursor.attempt not in reads:
        return _discarded(table)
    read = reads[cursor.attempt]
    if read is None:
        return table
    return replace(
        table,
        cursor=Releasing(cursor.attempt, 0, read.chunk_count, 1, read.reader),
        planned_splits=table.planned_splits + read.chunk_count,
        done_splits=table.done_splits + read.chunk_count,
        done_rows=table.done_rows + read.row_count,
    )


def _discarded(table: TableState) -> TableState:
    return replace(
        table,
        cursor=Untouched(),
        planned_splits=0,
        done_splits=0,
        done_rows=0,
        failed_attempts=table.failed_attempts + 1,
        withheld=None,
    )


def page_bound(page: int) -> Bound | None:
    """Returns the bound at the start of a page, or of a chunk's number; None for the first."""
    return Bound((f"({page},0)",), encode_integer(page, unsigned=True).hex()) if page else None
