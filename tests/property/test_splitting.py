"""For any key set and any split size the splits are disjoint, cover everything, come in order, and can be resumed
anywhere."""

import contextlib
import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from devtools.key_source import SeesAll
from tidemark.enumerator.splitting import MAX_GAP, MIN_STEPS, estimated_splits, next_ranges
from tidemark.state.copied_range import CopiedRange, EncodedText
from tidemark.state.integer_range import IntegerRange, united
from tidemark.state.key_encoding import encode_bytes, encode_composite, encode_integer
from tidemark.state.key_order import CODE_POINTS, INTEGERS
from tidemark.state.key_statistics import IntegerKey, KeyStatistics
from tidemark.state.plan import Exhausted, Stepping, TableState
from tidemark.state.split import Bound, KeyRange
from tidemark.state.table import TableId

TABLE = TableId("shop", "orders")
CODEC: TypeAdapter[TableState] = TypeAdapter(TableState)


class KeyList(SeesAll):
    """A KeySource of one table. `encoded_keys` may hold an encoded key more than once: many rows share the split
    key."""

    def __init__(
        self, encoded_keys: Sequence[bytes], integers: Sequence[int] | None = None, *, unsigned: bool = False
    ) -> None:
        self.encoded_keys = sorted(encoded_keys)
        self.integers = integers
        self.unsigned = unsigned
        self.questions = 0

    @classmethod
    def of_integers(cls, values: Sequence[int], *, unsigned: bool = False) -> "KeyList":
        return cls([encode_integer(v, unsigned=unsigned) for v in values], values, unsigned=unsigned)

    def describe(self, table: TableId, columns: tuple[str, ...]) -> KeyStatistics:
        assert (table, columns) == (TABLE, ("k",))
        if not self.encoded_keys:
            return KeyStatistics(None, None, None, None)
        ends = None
        if self.integers is not None:
            ends = IntegerKey(min(self.integers), max(self.integers), self.unsigned)
        return KeyStatistics(self.bound(self.encoded_keys[-1]), ends, row_estimate=7, average_row_bytes=100)

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
        self.questions += 1
        at = 0 if after is None else bisect_left(self.encoded_keys, bytes.fromhex(after.encoded_key))
        limit = (
            len(self.encoded_keys)
            if until is None
            else bisect_left(self.encoded_keys, bytes.fromhex(until.encoded_key))
        )
        bounds: list[Bound] = []
        while len(bounds) < count and at + rows < limit:
            at = bisect_right(self.encoded_keys, self.encoded_keys[at + rows - 1])
            if at >= limit:
                break
            bounds.append(self.bound(self.encoded_keys[at]))
        return bounds

    def bound(self, encoded_key: bytes) -> Bound:
        if self.integers is None:
            return Bound((f"0x{encoded_key.hex()}",), encoded_key.hex())
        return Bound((str(int.from_bytes(encoded_key, "big") - (0 if self.unsigned else 2**63)),), encoded_key.hex())


def plan_all(source: KeyList, split_rows: int, counts: Sequence[int] = (10**9,)) -> tuple[list[KeyRange], TableState]:
    """All ranges, asked for in portions. The cursor goes through JSON after each."""
    table = TableState(TABLE, 1, ("k",))
    ranges: list[KeyRange] = []
    asked = 0
    while not isinstance(table.cursor, Exhausted):
        count = counts[asked % len(counts)]
        more, table = next_ranges(table, source, split_rows=split_rows, count=count)
        assert 1 <= len(more) <= count
        assert len(more) == count or isinstance(table.cursor, Exhausted)
        ranges += more
        asked += 1
        table = CODEC.validate_json(CODEC.dump_json(table), strict=True)
        assert table.planned_splits == len(ranges)
        assert isinstance(table.cursor, Exhausted) or (estimated_splits(table) or 10**9) > len(ranges)
    assert estimated_splits(table) == len(ranges)
    return ranges, table


def check_tiling(ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Checks the ranges in the key's order: the open one behind the greatest key comes first, then all others in
    order."""
    assert ranges
    ordered = [*ranges[1:], ranges[0]]
    assert ordered[0].start is None
    assert ordered[-1].end is None
    for a, b in pairwise(ordered):
        assert a.end == b.start
        assert a.end is not None
    for key_range in ordered:
        if key_range.start is not None and key_range.end is not None:
            assert key_range.start.encoded_key < key_range.end.encoded_key
    return ordered


def rows_in(key_range: KeyRange, encoded_keys: Sequence[bytes]) -> int:
    first = 0 if key_range.start is None else bisect_left(encoded_keys, bytes.fromhex(key_range.start.encoded_key))
    end = (
        len(encoded_keys)
        if key_range.end is None
        else bisect_left(encoded_keys, bytes.fromhex(key_range.end.encoded_key))
    )
    return end - first


integers = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60, unique=True),
    st.lists(st.integers(-100, 300), max_size=200, unique=True),
    st.builds(
        lambda a, n, gap: [a + i * gap for i in range(n)],
        st.integers(-500, 500),
        st.integers(0, 300),
        st.integers(1, 6),
    ),
)
texts = st.lists(st.text("aAbBzß\0é", max_size=4), max_size=60, unique=True)
counts = st.lists(st.integers(1, 9), min_size=1, max_size=5)
split_sizes = st.integers(1, 12)


@given(values=integers, split_rows=split_sizes, counts=counts)
def test_integer_keys(values: list[int], split_rows: int, counts: list[int]) -> None:
    source = KeyList.of_integers(values)
    ranges, _ = plan_all(source, split_rows, counts)
    ordered = check_tiling(ranges)
    assert sum(rows_in(r, source.encoded_keys) for r in ordered) == len(values)
    assert max(rows_in(r, source.encoded_keys) for r in ordered) <= MAX_GAP * split_rows
    if values:
        assert len(ranges) <= (max(values) - min(values)) // split_rows + 3
    assert plan_all(source, split_rows)[0] == ranges


@pytest.mark.pitfall(16)
@given(
    values=st.lists(st.integers(2**63 - 200, 2**63 + 200), max_size=200, unique=True),
    split_rows=split_sizes,
    counts=counts,
)
def test_unsigned_keys_beyond_the_signed_range(values: list[int], split_rows: int, counts: list[int]) -> None:
    source = KeyList.of_integers(values, unsigned=True)
    ranges, _ = plan_all(source, split_rows, counts)
    assert sum(rows_in(r, source.encoded_keys) for r in check_tiling(ranges)) == len(values)


@given(values=integers, others=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), split_rows=split_sizes)
def test_each_integer_that_a_copy_may_have_is_in_one_range(
    values: list[int], others: list[int], split_rows: int
) -> None:
    """Also if the source does not have it: what a copy has in each range is replaced (docs/adr/0052)."""
    found = [IntegerRange.of(("k",), r) for r in plan_all(KeyList.of_integers(values), split_rows)[0]]
    for key in {-(2**63), 2**63 - 1, *values[:20], *others}:
        assert [r is not None and r.contains((key,)) for r in found].count(True) == 1


threes = st.tuples(st.integers(-2, 2), st.integers(-(2**63), 2**63 - 1), st.integers(-1, 1))


@given(bounds=st.lists(threes, min_size=1, max_size=4, unique=True), keys=st.lists(threes, min_size=1, max_size=9))
def test_ranges_of_several_columns_are_the_same_in_sql(
    bounds: list[tuple[int, int, int]], keys: list[tuple[int, int, int]]
) -> None:
    columns, ends = ("a", "b", "c"), [None, *sorted(bounds), None]
    ranges = [IntegerRange(columns, start, end) for start, end in pairwise(ends)]
    with contextlib.closing(sqlite3.connect(":memory:")) as server:
        for key in (*keys, *bounds):
            values = dict(zip(columns, map(str, key), strict=True))
            for by_rows in (False, True):
                conditions = [r.condition(values.__getitem__, by_rows=by_rows) for r in ranges]
                (found,) = server.execute(f"SELECT {', '.join(conditions)}")
                assert list(map(bool, found)) == [r.contains(key) for r in ranges]
                assert sum(found) == 1


words = st.tuples(st.integers(-1, 1), st.text("aAé'\\%😀\uffee", max_size=2))


@given(bounds=st.lists(words, min_size=1, max_size=4, unique=True), keys=st.lists(words, min_size=1, max_size=9))
def test_ranges_of_numbers_and_texts_are_the_same_in_sql(
    bounds: list[tuple[int, str]], keys: list[tuple[int, str]]
) -> None:
    """By code points: in SQLite as in Python."""

    def literal(value: object) -> str:
        text = value.data.decode() if isinstance(value, EncodedText) else str(value)
        return "'" + text.replace("'", "''") + "'" if isinstance(value, EncodedText) else text

    ends = [None, *((n, EncodedText("utf8mb4", text.encode())) for n, text in sorted(bounds)), None]
    orders = (INTEGERS, CODE_POINTS)
    ranges = [CopiedRange(("a", "b"), orders, start, end) for start, end in pairwise(ends)]
    with contextlib.closing(sqlite3.connect(":memory:")) as server:
        for number, text in (*keys, *bounds):
            values = {"a": str(number), "b": literal(EncodedText("utf8mb4", text.encode()))}
            place = sum((number, text) >= bound for bound in bounds)
            for by_rows in (False, True):
                conditions = [r.condition(values.__getitem__, literal, by_rows=by_rows) for r in ranges]
                (found,) = server.execute(f"SELECT {', '.join(conditions)}")
                assert [i for i, is_in in enumerate(found) if is_in] == [place]


@given(
    bounds=st.lists(threes, min_size=1, max_size=4, unique=True),
    chosen=st.sets(st.integers(0, 4)),
    keys=st.lists(threes, min_size=1, max_size=9),
)
def test_united_ranges_have_the_same_keys(
    bounds: list[tuple[int, int, int]], chosen: set[int], keys: list[tuple[int, int, int]]
) -> None:
    ends = [None, *sorted(bounds), None]
    ranges = [IntegerRange(("a", "b", "c"), start, end) for start, end in pairwise(ends)]
    assert united(ranges[::-1]) == [IntegerRange(("a", "b", "c"), None, None)]
    some = [IntegerRange.from_text(r.text) for n, r in enumerate(ranges) if n in chosen]
    assert some == [r for n, r in enumerate(ranges) if n in chosen]
    found = united(some[::-1])
    for key in (*keys, *bounds):
        assert [r.contains(key) for r in found].count(True) == [r.contains(key) for r in some].count(True)
    assert all(a.end is not None and b.start is not None and a.end < b.start for a, b in pairwise(found))


@pytest.mark.pitfall(14)
@given(values=texts, seed=st.permutations(list("aAbBzß\0é")), split_rows=split_sizes, counts=counts)
def test_texts_in_any_order_of_letters(values: list[str], seed: list[str], split_rows: int, counts: list[int]) -> None:
    encoded_keys = [encode_bytes(bytes(seed.index(letter) for letter in text)) for text in values]
    check_walked(KeyList(encoded_keys), split_rows, counts, shared=1)


@pytest.mark.pitfall(18)
@given(
    values=st.lists(st.tuples(st.integers(-3, 3), st.text("ab\0", max_size=3)), max_size=60, unique=True),
    split_rows=split_sizes,
    counts=counts,
)
def test_composite_keys(values: list[tuple[int, str]], split_rows: int, counts: list[int]) -> None:
    encoded_keys = [encode_composite([encode_integer(n, unsigned=False), encode_bytes(t.encode())]) for n, t in values]
    check_walked(KeyList(encoded_keys), split_rows, counts, shared=1)


@given(values=st.lists(st.integers(0, 9), max_size=80), split_rows=split_sizes, counts=counts)
def test_many_rows_of_one_split_key(values: list[int], split_rows: int, counts: list[int]) -> None:
    shared = max((values.count(v) for v in set(values)), default=1)
    check_walked(KeyList([bytes([v, 0, 0]) for v in values]), split_rows, counts, shared)


def check_walked(source: KeyList, split_rows: int, counts: list[int], shared: int) -> None:
    ranges, _ = plan_all(source, split_rows, counts)
    ordered = check_tiling(ranges)
    assert sum(rows_in(r, source.encoded_keys) for r in ordered) == len(source.encoded_keys)
    assert max(rows_in(r, source.encoded_keys) for r in ordered) < split_rows + shared
    assert len(ranges) <= len(source.encoded_keys) // split_rows + 2
    assert plan_all(source, split_rows)[0] == ranges


@settings(max_examples=50)
@given(
    least=st.integers(-(10**6), 10**6),
    gap=st.integers(1, MAX_GAP),
    row_count=st.integers(1000, 3000),
    split_rows=st.integers(5, 50),
)
def test_even_integer_keys_are_cut_by_arithmetic_alone(least: int, gap: int, row_count: int, split_rows: int) -> None:
    source = KeyList.of_integers([least + i * gap for i in range(row_count)])
    assume((row_count - 1) * gap >= MIN_STEPS * split_rows)
    _, table = next_ranges(TableState(TABLE, 1, ("k",)), source, split_rows=split_rows, count=1)
    assert isinstance(table.cursor, Stepping)
    asked = source.questions
    ranges, _ = next_ranges(table, source, split_rows=split_rows, count=10**9)
    assert source.questions == asked
    assert all(rows_in(r, source.encoded_keys) <= split_rows + 1 for r in ranges)
    assert len(ranges) <= row_count / split_rows + 2


@pytest.mark.pitfall(21)
@given(values=st.lists(st.integers(0, 200), min_size=20, max_size=150, unique=True), split_rows=split_sizes)
def test_rows_inserted_while_splits_are_planned_have_one_split_each(values: list[int], split_rows: int) -> None:
    """Half of the rows are there at the beginning, the others come between the portions, below, within and above."""
    early = values[: len(values) // 2]
    source = KeyList.of_integers(early)
    table, ranges = TableState(TABLE, 1, ("k",)), []
    late = [v * 2 - 100 for v in values]
    while not isinstance(table.cursor, Exhausted):
        more, table = next_ranges(table, source, split_rows=split_rows, count=2)
        ranges += more
        present = {*(source.integers or ()), *late[:3]}
        late = late[3:]
        source = KeyList.of_integers(sorted(present))
    ordered = check_tiling(ranges)
    assert sum(rows_in(r, source.encoded_keys) for r in ordered) == len(source.encoded_keys)
    assert ranges[0].start is None or rows_in(ranges[0], KeyList.of_integers(early).encoded_keys) == 1


def test_a_table_in_state_keeps_its_size() -> None:
    source = KeyList.of_integers(range(5000))
    table = TableState(TABLE, 1, ("k",))
    sizes = set()
    while not isinstance(table.cursor, Exhausted):
        _, table = next_ranges(table, source, split_rows=3, count=100)
        sizes.add(len(CODEC.dump_json(replace(table, planned_splits=0))))
    assert max(sizes) < 400
