"""Tables → splits: the next ranges of a table's key, and a cursor from which the one after can be had.

For each table: a table of fewer rows than a split holds is one range. Any other is cut up to the greatest key that it
has when its turn comes; the open range behind that key comes *first*, while it is still small, however fast the table
grows: what is inserted later lies in its gap and arrives by the log. Then the others in the key's order.

An evenly spread integer key is cut by arithmetic, without asking the source again; any other by walking the key's
index. Whether a key is even is not taken from the server's row estimate, which may be wrong by any factor, but from
looking how far one split reaches at some places of the key. What those places don't show costs little: an arithmetic
split covers at most MAX_GAP × split_rows key values, and so holds at most as many rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from enumerator.source import KeySource
from state.errors import SourceNotUsableError
from state.key_statistics import IntegerKey, KeyStatistics
from state.plan import Collecting, Cursor, Emitting, Exhausted, Stepping, TableState, Untouched, Walking
from state.rank import integer_rank
from state.split import Bound, KeyRange

MAX_SPLIT_BYTES = 64 << 20
"""A split's rows are held in memory while they are normalised; by the server's average row length they are no more."""

MAX_GAP = 4
"""A key with more than this many values for one row is walked."""

MIN_STEPS = 16
"""A table of fewer splits is walked: that costs no more than finding out whether its key is even."""

SAMPLES = 8
SPARSE_SAMPLES_ALLOWED = 2

_SIGN = 1 << 63


def next_ranges(
    table: TableState, source: KeySource, *, split_rows: int, count: int
) -> tuple[list[KeyRange], TableState]:
    """The table's next ranges, at least one and at most `count`, and the table with its cursor behind them.

    Fewer than `count` only if the table is exhausted by them. Raises ValueError if it was already.
    """
    ranges: list[KeyRange] = []
    if isinstance(table.cursor, Untouched):
        ranges, table = _open(table, source, split_rows)
    while len(ranges) < count and not isinstance(table.cursor, Exhausted):
        more, cursor = _cut(table, source, count - len(ranges))
        ranges += more
        table = replace(table, cursor=cursor)
    if not ranges:
        raise ValueError(f"all splits of {table.table} are planned")
    return ranges, replace(table, planned_splits=table.planned_splits + len(ranges))


def estimated_splits(table: TableState) -> int | None:
    """How many splits the table will have had in the end; None where that can't be said yet."""
    match table.cursor:
        case Untouched():
            return None
        case Exhausted():
            return table.planned_splits
        case Stepping(origin, next_start, until, step):
            return table.planned_splits + -(-(until - (origin if next_start is None else next_start)) // step)
        case Walking(_, _, rows):
            if table.estimated_rows is None:
                return None
            return max(table.planned_splits + 1, -(-table.estimated_rows // rows) + 1)
        case Collecting(_, _, _, until, pages) | Emitting(_, _, until, pages):
            return -(-until // pages)


def _open(table: TableState, source: KeySource, split_rows: int) -> tuple[list[KeyRange], TableState]:
    """The first range, and the cursor for the others."""
    whole = [KeyRange(None, None)]
    if not table.columns:
        return whole, replace(table, cursor=Exhausted())
    statistics = source.describe(table.table, table.columns)
    table = replace(table, estimated_rows=statistics.row_estimate)
    rows = _rows_per_split(split_rows, statistics.average_row_bytes)
    if statistics.greatest is None:
        return whole, replace(table, cursor=Exhausted())
    first = _bounds(table, source, Walking(None, statistics.greatest, rows), count=1, until=None)
    if not first:
        return whole, replace(table, cursor=Exhausted())
    cursor = _cursor(table, source, statistics, rows)
    return [KeyRange(statistics.greatest, None)], replace(table, cursor=cursor)


def _rows_per_split(split_rows: int, average_row_bytes: int | None) -> int:
    if average_row_bytes is None or average_row_bytes <= 0:
        return split_rows
    return max(1, min(split_rows, MAX_SPLIT_BYTES // average_row_bytes))


def _cursor(table: TableState, source: KeySource, statistics: KeyStatistics, rows: int) -> Cursor:
    assert statistics.greatest is not None
    walking = Walking(None, statistics.greatest, rows)
    key = statistics.integers
    if key is None or key.greatest - key.least < MIN_STEPS * rows:
        return walking
    gap = _sampled_gap(table, source, key, walking)
    if gap is None or int(gap) > MAX_GAP:  # a sampled place may lie just behind a key: up to one gap is not the key's
        return walking
    step = min(max(int(rows * gap), rows), rows * MAX_GAP)
    until = _integer_of(statistics.greatest, key.unsigned)  # where the open range begins, to the very value
    return Stepping(key.least, None, until, step, key.unsigned)


def _sampled_gap(table: TableState, source: KeySource, key: IntegerKey, walking: Walking) -> float | None:
    """Key values per row, the median over places spread evenly; None if too much of the key is nearly empty."""
    gaps = []
    for i in range(SAMPLES):
        place = key.least + (key.greatest - key.least) * i // SAMPLES
        at = replace(walking, next_start=_integer_bound(place, key.unsigned))
        found = _bounds(table, source, at, count=1, until=walking.until)
        if found:
            gaps.append((_integer_of(found[0], key.unsigned) - place) / walking.rows)
    if len(gaps) < SAMPLES - SPARSE_SAMPLES_ALLOWED:
        return None
    return sorted(gaps)[len(gaps) // 2]


def _cut(table: TableState, source: KeySource, count: int) -> tuple[list[KeyRange], Cursor]:
    match table.cursor:
        case Stepping() as cursor:
            return _step(cursor, count)
        case Walking() as cursor:
            return _walk(table, source, cursor, count)
        case _:
            raise ValueError(f"{table.table} has no cursor to cut from")


def _step(cursor: Stepping, count: int) -> tuple[list[KeyRange], Cursor]:
    ranges = []
    start = None if cursor.next_start is None else _integer_bound(cursor.next_start, cursor.unsigned)
    place = cursor.origin if cursor.next_start is None else cursor.next_start
    for _ in range(count):
        place += cursor.step
        end = _integer_bound(min(place, cursor.until), cursor.unsigned)
        ranges.append(KeyRange(start, end))
        if place >= cursor.until:
            return ranges, Exhausted()
        start = end
    return ranges, replace(cursor, next_start=place)


def _walk(table: TableState, source: KeySource, cursor: Walking, count: int) -> tuple[list[KeyRange], Cursor]:
    bounds = _bounds(table, source, cursor, count=count, until=cursor.until)
    starts = [cursor.next_start, *bounds]
    ranges = [KeyRange(a, b) for a, b in zip(starts, bounds, strict=False)]
    if len(bounds) < count:
        return [*ranges, KeyRange(starts[-1], cursor.until)], Exhausted()
    return ranges, replace(cursor, next_start=bounds[-1])


def _bounds(table: TableState, source: KeySource, at: Walking, *, count: int, until: Bound | None) -> Sequence[Bound]:
    """The source's bounds. Their ranks must rise as the server says that the keys do, else a change would be looked up
    in the wrong split later: raises SourceNotUsableError."""
    bounds = source.next_bounds(table.table, table.columns, after=at.next_start, until=until, rows=at.rows, count=count)
    limits = [b for b in (at.next_start, *bounds, until) if b is not None]
    ranks = [bytes.fromhex(b.rank) for b in limits]
    if len(bounds) > count or any(a >= b for a, b in pairwise(ranks)):
        raise SourceNotUsableError(
            f"{table.table}: the server orders the key {', '.join(table.columns)} otherwise than Tidemark does; "
            f"see the keys {[b.literals for b in limits]}.",
            "Name another split key for the table (source.keys), and report this with the column's type and collation.",
        )
    return bounds


def _integer_bound(value: int, unsigned: bool) -> Bound:
    return Bound((str(value),), integer_rank(value, unsigned=unsigned).hex())


def _integer_of(bound: Bound, unsigned: bool) -> int:
    rank = int.from_bytes(bytes.fromhex(bound.rank), "big")
    return rank if unsigned else rank - _SIGN
