"""Tables without a key → splits by the pages that the rows are in. Two rounds: every split is collected, that is read and
published, under one snapshot; only when all of them are there they are emitted.

A row has another place after each UPDATE, and the log does not say which: only under one and the same snapshot each row
is in one split. The snapshot dies with the session that exported it, the planner's. What was collected until then is a
generation that nobody has seen; the next one begins anew.
"""

from dataclasses import replace

from enumerator.source import KeySource
from enumerator.splitting import MAX_SPLIT_BYTES
from state.key_statistics import PageStatistics
from state.plan import Collecting, Emitting, EnumeratorState, Exhausted, Plan, SnapshotWork, TableState, Untouched
from state.rank import integer_rank
from state.split import Bound, Collect, Emit, KeyRange, Report

MOST_LOST_GENERATIONS = 5
"""Then the table is one split, which needs nobody else's session."""


def begun(table: TableState, source: KeySource, *, split_rows: int, generation: int) -> TableState:
    """A table without a key that is to be planned: with a cursor by pages, if that is how it is read. `generation`: one
    that was never used."""
    if isinstance(table.cursor, Emitting):
        source.release_snapshot(table.table)
    if isinstance(table.cursor, Collecting) and not source.is_shared(table.table, table.cursor.snapshot):
        table = _lost(table)
    if not isinstance(table.cursor, Untouched) or table.lost_generations >= MOST_LOST_GENERATIONS:
        return table
    statistics = source.pages(table.table)
    if statistics is None:
        return table
    pages = pages_per_split(statistics, split_rows)
    table = replace(table, estimated_rows=statistics.row_estimate)
    if statistics.page_count <= pages:
        return table
    snapshot = source.share_snapshot(table.table)
    return replace(table, cursor=Collecting(generation, snapshot, 0, statistics.page_count, pages))


def next_pages(table: TableState, count: int) -> tuple[list[KeyRange], Collect | Emit, TableState]:
    """The next splits' ranges, at least one and at most `count`, what becomes of them, and the table behind them."""
    cursor = table.cursor
    if not isinstance(cursor, (Collecting, Emitting)) or cursor.next_start is None:
        raise ValueError(f"{table.table} has no pages to plan")
    starts = list(range(cursor.next_start, cursor.until, cursor.pages)[:count])
    end = starts[-1] + cursor.pages
    more = end < cursor.until
    ranges = [KeyRange(_bound(start), _bound(start + cursor.pages)) for start in starts]
    if not more:
        ranges[-1] = replace(ranges[-1], end=None)
    match cursor:
        case Collecting():
            after = replace(cursor, next_start=end if more else None)
            planned = table.planned_splits + len(ranges)
            return (
                ranges,
                Collect(cursor.generation, cursor.snapshot),
                replace(table, cursor=after, planned_splits=planned),
            )
        case Emitting():
            rest = replace(cursor, next_start=end) if more else Exhausted()
            return ranges, Emit(cursor.generation), replace(table, cursor=rest)


def collected(table: TableState, reports: list[Report]) -> TableState:
    """A table that is being collected, once the planned splits' reports are there."""
    cursor = table.cursor
    if not isinstance(cursor, Collecting):
        return table
    if any(report.kind == "void" for report in reports):
        return _lost(table)
    if cursor.next_start is None:
        return replace(table, cursor=Emitting(cursor.generation, 0, cursor.until, cursor.pages))
    return table


def pages_per_split(statistics: PageStatistics, split_rows: int) -> int:
    """By the server's guess as many rows as a split has, and no more bytes."""
    count = max(1, statistics.page_count)
    pages = count * MAX_SPLIT_BYTES // max(1, statistics.data_bytes)
    if statistics.row_estimate:
        pages = min(pages, count * split_rows // statistics.row_estimate)
    return max(1, pages)


def generations(plan: Plan, state: EnumeratorState) -> set[int]:
    """Those that are still needed, by this plan and after it."""
    splits = [split for task in plan.work.tasks for split in task] if isinstance(plan.work, SnapshotWork) else []
    planned = {split.pages.generation for split in splits if split.pages is not None}
    return planned | {t.cursor.generation for t in state.tables if isinstance(t.cursor, (Collecting, Emitting))}


def _lost(table: TableState) -> TableState:
    return replace(
        table,
        cursor=Untouched(),
        planned_splits=0,
        done_splits=0,
        done_rows=0,
        lost_generations=table.lost_generations + 1,
    )


def _bound(page: int) -> Bound | None:
    return Bound((f"({page},0)",), integer_rank(page, unsigned=True).hex()) if page else None
