"""Tables → splits: the next ranges of a table's key, and a cursor for the ranges after them.

A table with fewer rows than a split is one range. Any other table is split up to the greatest key that it has when its
turn comes. The open range after that key is read *first*, while it is small, however fast the table grows: rows that are
inserted later are in its gap and come from the log. Then the other ranges follow in the key's order.

An evenly spread integer key is split by arithmetic, without asking the source again. Any other key is split by walking its
index. The server's row estimate may be wrong by any factor, so it does not decide whether a key is even. Instead, samples
show how many key values a split's rows take at some points of the key. A wrong decision costs little: an arithmetic split
covers at most MAX_GAP × split_rows key values, so it has at most as many rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from tidemark.state.errors import SourceNotUsableError
from tidemark.state.key_encoding import encode_integer
from tidemark.state.key_source import KeySource
from tidemark.state.key_statistics import IntegerKey, KeyStatistics
from tidemark.state.plan import Aside, Cursor, Exhausted, Releasing, Staging, Stepping, TableState, Untouched, Walking
from tidemark.state.split import Bound, KeyRange

MAX_SPLIT_BYTES = 64 << 20
"""The most bytes of a split, by the server's average row length. A split's rows are in memory while they are normalised."""

MAX_GAP = 4
"""A key with more values per row is walked."""

MIN_STEPS = 16
"""A table with fewer splits is walked: that costs no more than testing whether its key is even."""

SAMPLES = 8
SPARSE_SAMPLES_ALLOWED = 2

_SIGN = 1 << 63


def next_ranges(
    table: TableState, source: KeySource, *, split_rows: int, count: int
) -> tuple[list[KeyRange], TableState]:
    """Returns the table's next ranges (at least one, at most `count`), and the table with its cursor after them.

    There are fewer than `count` only if they are the last ones. Raises ValueError if all ranges were planned before.
    """
    ranges: list[KeyRange] = []
    if isinstance(table.cursor, Untouched):
        ranges, table = _open(table, source, split_rows)
    while len(ranges) < count and not isinstance(table.cursor, Exhausted):
        more, cursor = _next(table, source, count - len(ranges))
        ranges += more
        table = replace(table, cursor=cursor)
    if not ranges:
        raise ValueError(f"all splits of {table.table} are planned")
    return ranges, replace(table, planned_splits=table.planned_splits + len(ranges))


def estimated_splits(table: TableState) -> int | None:
    """Returns the estimated number of all splits of the table; None before the first one is planned, or without an estimate."""
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
        case Aside():
            return None
        case Staging(_, _, _, until, pages) | Releasing(_, _, until, pages):
            return -(-until // pages)


def _open(table: TableState, source: KeySource, split_rows: int) -> tuple[list[KeyRange], TableState]:
    """Returns the first range, and the table with the cursor for the others."""
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
    if gap is None or int(gap) > MAX_GAP:  # a sample may start just after a key: up to one gap is not the key's
        return walking
    step = min(max(int(rows * gap), rows), rows * MAX_GAP)
    until = _integer_of(statistics.greatest, key.unsigned)  # exactly the start of the open range
    return Stepping(key.least, None, until, step, key.unsigned)


def _sampled_gap(table: TableState, source: KeySource, key: IntegerKey, walking: Walking) -> float | None:
    """Key values per row: the median over evenly spread samples. None if too much of the key is nearly empty."""
    gaps = []
    for i in range(SAMPLES):
        value = key.least + (key.greatest - key.least) * i // SAMPLES
        at = replace(walking, next_start=_integer_bound(value, key.unsigned))
        found = _bounds(table, source, at, count=1, until=walking.until)
        if found:
            gaps.append((_integer_of(found[0], key.unsigned) - value) / walking.rows)
    if len(gaps) < SAMPLES - SPARSE_SAMPLES_ALLOWED:
        return None
    return sorted(gaps)[len(gaps) // 2]


def _next(table: TableState, source: KeySource, count: int) -> tuple[list[KeyRange], Cursor]:
    match table.cursor:
        case Stepping() as cursor:
            return _step(cursor, count)
        case Walking() as cursor:
            return _walk(table, source, cursor, count)
        case _:
            raise ValueError(f"all splits of {table.table} are planned")


def _step(cursor: Stepping, count: int) -> tuple[list[KeyRange], Cursor]:
    ranges = []
    start = None if cursor.next_start is None else _integer_bound(cursor.next_start, cursor.unsigned)
    value = cursor.origin if cursor.next_start is None else cursor.next_start
    for _ in range(count):
        value += cursor.step
        end = _integer_bound(min(value, cursor.until), cursor.unsigned)
        ranges.append(KeyRange(start, end))
        if value >= cursor.until:
            return ranges, Exhausted()
        start = end
    return ranges, replace(cursor, next_start=value)


def _walk(table: TableState, source: KeySource, cursor: Walking, count: int) -> tuple[list[KeyRange], Cursor]:
    bounds = _bounds(table, source, cursor, count=count, until=cursor.until)
    starts = [cursor.next_start, *bounds]
    ranges = [KeyRange(a, b) for a, b in zip(starts, bounds, strict=False)]
    if len(bounds) < count:
        return [*ranges, KeyRange(starts[-1], cursor.until)], Exhausted()
    return ranges, replace(cursor, next_start=bounds[-1])


def _bounds(table: TableState, source: KeySource, at: Walking, *, count: int, until: Bound | None) -> Sequence[Bound]:
    """Returns the source's bounds. Raises SourceNotUsableError unless their key encodings ascend like the server's keys:
    otherwise the gap filter would find the wrong split for a change."""
    bounds = source.next_bounds(table.table, table.columns, after=at.next_start, until=until, rows=at.rows, count=count)
    limits = [b for b in (at.next_start, *bounds, until) if b is not None]
    encoded_keys = [bytes.fromhex(b.encoded_key) for b in limits]
    if len(bounds) > count or any(a >= b for a, b in pairwise(encoded_keys)):
        raise SourceNotUsableError(
            f"{table.table}: the server orders the key {', '.join(table.columns)} differently from Tidemark.",
            "Name another split key for the table (source.keys), and report this with the column's type and collation.",
        )
    return bounds


def _integer_bound(value: int, unsigned: bool) -> Bound:
    return Bound((str(value),), encode_integer(value, unsigned=unsigned).hex())


def _integer_of(bound: Bound, unsigned: bool) -> int:
    encoded_key = int.from_bytes(bytes.fromhex(bound.encoded_key), "big")
    return encoded_key if unsigned else encoded_key - _SIGN
