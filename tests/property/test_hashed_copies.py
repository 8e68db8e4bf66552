"""Rows of a copy are found by hashes of their keys as its server finds them, to which keys may be equal that look different."""

import itertools
import pickle
import tempfile
import tracemalloc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemark.jobs.reconcile import hashed_copy, hashed_ranges
from tidemark.jobs.reconcile.copy_hashing import CopyHashing
from tidemark.jobs.reconcile.copy_reading import CopyReading
from tidemark.jobs.reconcile.hashed_copy import HashedCopy
from tidemark.jobs.reconcile.hashed_ranges import HashedRanges
from tidemark.jobs.reconcile.range_looks import RangeLooks, TableLook
from tidemark.jobs.reconcile.ranges import Range
from tidemark.sinks.comparing import CopyTable, Key, Pair
from tidemark.sinks.folded import rows_by_key
from tidemark.state.copied_range import CopiedRange
from tidemark.state.split import KeyRange, Split
from tidemark.state.table import Column, TableId, TableSchema

SCHEMA = TableSchema(
    TableId("shop", "codes"),
    1,
    (
        Column("code", "varchar(20)", "string", nullable=False),
        Column("n", "smallint", "int16", nullable=True),
        Column("note", "text", "string", nullable=True, toastable=True),
    ),
    ("code",),
)
HELD = pa.schema([("n", pa.int32()), ("note", pa.string()), ("code", pa.string())])
REJECTED = 3
"""A value that the mirror keeps out of the copy."""
Rows = Mapping[str, int | None]

codes = st.sampled_from(["a", "A", "a ", "b", "B", "c", "d", "D ", "é", "É", "x", "y", "z"])
values = st.none() | st.integers(0, REJECTED - 1)


def folded(code: str) -> str:
    """The server takes keys as equal that differ only in case or in spaces at their end."""
    return code.lower().rstrip(" ")


@st.composite
def sides(draw: st.DrawFn) -> tuple[tuple[Rows, Rows], tuple[Rows, Rows]]:
    """A source and a copy of it, in which some rows are wrong; then the same after some changes."""
    source = draw(st.dictionaries(codes, values | st.just(REJECTED), max_size=12))
    copy = copied(source) | by_fold(draw(st.dictionaries(codes, values, max_size=3)))
    for code in draw(st.lists(codes, max_size=2)):
        copy.pop(folded(code), None)
    later = source | draw(st.dictionaries(codes, values | st.just(REJECTED), max_size=3))
    for code in draw(st.lists(codes, max_size=2)):
        later.pop(code, None)
    copy_later = copied(later)
    for code in draw(st.lists(codes, max_size=4)):
        if folded(code) in copy:
            copy_later[folded(code)] = copy[folded(code)]
    return (source, dict(copy.values())), (later, dict(copy_later.values()))


def by_fold(rows: Rows) -> dict[str, tuple[str, int | None]]:
    """The rows of a copy: no two have keys that its server takes as equal."""
    return {folded(code): (code, n) for code, n in rows.items()}


def copied(source: Rows) -> dict[str, tuple[str, int | None]]:
    return by_fold({code: n for code, n in source.items() if n != REJECTED})


def table_of(rows: Rows) -> pa.Table:
    columns = [list(rows), list(rows.values()), [f"note {n}" for n in rows.values()]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA.arrow_schema(), strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA.arrow_schema())


class Copy:
    """A copy's table and its server. A `CopyComparison`, `ComparesTable` and `TableRows`."""

    copy_table: CopyTable
    row_count = 0

    def __init__(self, rows: Rows) -> None:
        self.schema = SimpleNamespace(arrow_schema=lambda: HELD)
        self.rows = dict(rows)
        self.staged: Rows = {}
        self.seen: set[str] = set()
        self.staged_count = 0

    def orders_alike(self, orders: Mapping[str, str]) -> bool:
        raise NotImplementedError

    def condition(self, within: CopiedRange | None) -> str:
        return "TRUE"

    def pass_on(self, condition: str, names: Sequence[str], take: Callable[[pa.RecordBatch], None]) -> None:
        rows = table_of(self.rows).select(HELD.names).cast(HELD)
        for batch in rows.select([name for name in HELD.names if name in names]).to_batches(max_chunksize=3):
            take(batch)

    def stage(self, batches: Iterable[pa.RecordBatch]) -> None:
        rows = pa.Table.from_batches(batches, SCHEMA.arrow_schema())
        self.staged_count += rows.num_rows
        values = zip(rows["code"].to_pylist(), rows["n"].to_pylist(), strict=True)
        self.staged = {code: n for code, n in values if n != REJECTED}
        self.row_count = len(self.staged)

    def differing(self) -> list[Pair]:
        held = {folded(code): (code, n) for code, n in self.rows.items()}
        found = []
        for row in self.staged.items():
            if held.get(folded(row[0])) != row:
                other = held.get(folded(row[0]))
                found.append(Pair((row[0],), str(row), None if other is None else str(other)))
        return found

    def keep_keys(self) -> None:
        self.seen |= set(map(folded, self.staged))

    def surplus(self, within: CopiedRange | None, limit: int) -> list[Pair]:
        raise NotImplementedError

    def surplus_of_all(self, limit: int) -> list[Pair]:
        return [Pair((row[0],), None, str(row)) for row in self.rows.items() if folded(row[0]) not in self.seen][:limit]

    def surplus_among(self, keys: pa.RecordBatch, limit: int) -> list[Pair] | None:
        wanted = set(map(folded, keys.column("code").to_pylist()))
        return [pair for pair in self.surplus_of_all(1000) if folded(pair.key[0]) in wanted][:limit]

    def clear(self) -> None:
        self.staged = {}

    def close(self) -> None:
        self.clear()
        self.seen = set()


def looks_at(copy: Copy, hashed: HashedCopy, *, is_first: bool) -> RangeLooks:
    table = cast(TableLook, SimpleNamespace(has_own_surplus=lambda each: False))
    none: Any = None
    reading = CopyReading(
        copy, copy, SCHEMA.key, [column.name for column in SCHEMA.captured], lambda: nullcontext(copy)
    )
    return RangeLooks(table, none, copy, reading, none, hashed, is_first)


class Source:
    """A source that moves once, from one reading of a range on. `moves`: after so many readings; None: never."""

    def __init__(self, before: Rows, after: Rows, moves: int | None, move_copy: Callable[[], None]) -> None:
        self.rows, self.readings = before, 0
        self._after, self._moves, self._move_copy = after, moves, move_copy

    def expected(self, is_inside: Callable[[str], bool]) -> pa.Table:
        if self.readings == self._moves:
            self.rows = self._after
            self._move_copy()
        self.readings += 1
        return table_of({code: n for code, n in self.rows.items() if is_inside(code)})


def looked_in_tasks(
    looks: RangeLooks,
    hashed: HashedCopy,
    source: Source,
    ranges: Sequence[tuple[Range, Callable[[str], bool]]],
    at_once: int,
    *,
    keeps_keys: bool = True,
) -> dict[int, list[Pair]]:
    """Looks at ranges: at the first one in this process, at the others in tasks. Each task reads `at_once` ranges."""
    inside = {each.number: is_inside for each, is_inside in ranges}

    def run_tasks(look: TableLook, function: Any, tasks: Sequence[Sequence[Any]]) -> list[Any]:
        task = pickle.loads(pickle.dumps(replace(function, look=None)))
        return [
            pickle.loads(pickle.dumps(task.read(each, source.expected(inside[each.range.number]))))
            for items in tasks
            for each in items[:at_once]
        ]

    snapshot = SimpleNamespace(split_rows=10, parallelism=2)
    none: Any = None
    table = SimpleNamespace(
        job=SimpleNamespace(snapshot=snapshot),
        has_own_surplus=lambda each: False,
        expected=lambda each, reader, anchor: source.expected(inside[each.number]),
    )
    anchor = SimpleNamespace(position=lambda: None)
    looks = replace(looks, table=cast(TableLook, table), anchor=cast(Any, anchor), reader=none)
    found: dict[int, list[Pair]] = {}
    to_hash = HashedRanges(looks, hashed, run_tasks, keeps_keys)
    for number, (each, _) in enumerate(ranges):
        look = to_hash.add(each) if number and hashed.is_useful else looks.at(each, keeps_keys=keeps_keys)
        if look is not None:
            found[number] = look.pairs
    while to_hash.waiting:
        for look in to_hash.looked():
            assert look.number not in found
            found[look.number] = look.pairs
    return found


def ranges_of(ends: Sequence[str]) -> list[tuple[Range, Callable[[str], bool]]]:
    """Ranges by code points, each with the function that tells which keys are in it."""
    bounds = ["", *sorted(set(ends)), "\U0010ffff"]
    split = Split(0, SCHEMA.table, 1, SCHEMA.key, KeyRange(None, None))
    return [
        (Range(i, split, None), lambda code, start=start, end=end: start <= code < end)  # type: ignore[misc]
        for i, (start, end) in enumerate(itertools.pairwise(bounds))
    ]


def compared(
    looks: RangeLooks, source: Rows, each: tuple[Range, Callable[[str], bool]], *, keeps_keys: bool
) -> list[Pair]:
    number, is_inside = each
    expected = table_of({code: n for code, n in source.items() if is_inside(code)})
    return looks.compared(number, expected, keeps_keys=keeps_keys).pairs


def surplus_of(looks: RangeLooks, limit: int) -> list[Pair] | None:
    found = looks.surplus_of_all(limit)
    assert found is None or found[1] == (len(found[0]) < limit)
    return None if found is None else found[0]


def differences(source: Rows, copy: Rows) -> dict[Key, Pair]:
    """The rows that differ, as the copy's server finds them in all rows at once."""
    whole = Copy(copy)
    whole.stage(table_of(source).to_batches())
    whole.keep_keys()
    return by_key([*whole.differing(), *whole.surplus_of_all(1000)])


def by_key(pairs: Iterable[Pair]) -> dict[Key, Pair]:
    return {pair.key: pair for pair in pairs}


@pytest.mark.parametrize(
    ("rows_in_memory", "keys_at_once", "least_rows"), [(1000, 1000, 1), (3, 1, 1), (1000, 1000, 4)]
)
@settings(max_examples=150, deadline=None)
@given(both=sides(), ends=st.lists(codes, max_size=3), moves_at=st.none() | st.integers(0, 4))
@example(  # a row that is rejected, and a key that only looks different
    both=(
        ({"a": 1, "b": REJECTED, "c": 1, "d": 1, "x": 1}, {"A": 1, "b": 1, "c": 1, "d": 1, "x": 1}),
        ({}, {}),
    ),
    ends=[],
    moves_at=None,
)
@example(  # a row that the copy alone has is written to the source meanwhile
    both=(
        ({"b": 1, "c": 1, "d": 1}, {"b": 1, "c": 1, "d": 1, "a": 1}),
        ({"b": 1, "c": 1, "d": 1, "a": 1}, {"b": 1, "c": 1, "d": 1, "a": 1}),
    ),
    ends=["c"],
    moves_at=4,
)
@example(  # the same in another form, and the copy stays as it was
    both=(
        ({"b": 1, "c": 1, "d": 1}, {"b": 1, "c": 1, "d": 1, "a": 1}),
        ({"b": 1, "c": 1, "d": 1, "A": 1}, {"b": 1, "c": 1, "d": 1, "a": 1}),
    ),
    ends=["c"],
    moves_at=4,
)
def test_rows_differ_as_the_copys_server_finds_them(
    rows_in_memory: int,
    keys_at_once: int,
    least_rows: int,
    both: tuple[tuple[Rows, Rows], tuple[Rows, Rows]],
    ends: list[str],
    moves_at: int | None,
) -> None:
    """Both sides may move before a range, or after the last one. They are at rest when suspects are looked at again."""
    (source, rows), after = both
    with pytest.MonkeyPatch.context() as patched, closing(HashedCopy(SCHEMA, least_rows)) as hashed:
        patched.setattr(rows_by_key, "MAX_ROWS", rows_in_memory)
        patched.setattr(rows_by_key, "_BUCKET_BITS", 2)
        patched.setattr(hashed_copy, "KEYS_AT_ONCE", keys_at_once)
        patched.setattr(hashed_copy, "MAX_NOTED_OF_ALL", keys_at_once)
        ranges = ranges_of(ends)
        copy = Copy(rows)
        looks = looks_at(copy, hashed, is_first=True)
        found: dict[int, list[Pair]] = {}
        for number, each in enumerate(ranges):
            if number == moves_at:
                source, copy.rows = after[0], dict(after[1])
            found[number] = compared(looks, source, each, keeps_keys=True)
        surplus = surplus_of(looks, 1000)
        assert surplus is not None
        suspects = by_key([pair for pairs in [*found.values(), surplus] for pair in pairs])
        if moves_at is None or moves_at >= len(ranges):
            assert suspects == differences(source, rows)
        if moves_at is not None:
            source, rows = after
        now = {key: pair for key, pair in differences(source, rows).items() if key in suspects}

        again = looks_at(Copy(rows), hashed, is_first=False)
        pairs: list[Pair] = []
        for number, each in enumerate(ranges):
            if surplus or found[number]:
                pairs += compared(again, source, each, keeps_keys=bool(surplus))
        if surplus:
            pairs += surplus_of(again, 1000) or []
        looked = {key: pair for key, pair in by_key(pairs).items() if key in suspects}
        assert looked.items() <= now.items()
        unseen = {pair.key for key, pair in now.items() if key not in looked}
        assert unseen <= {
            pair.key for pair in now.values() if pair.expected is None and pair.key not in by_key(surplus)
        }


@pytest.mark.parametrize(("at_once", "most_noted", "most_bytes"), [(10, 1000, 1 << 20), (1, 1, 1 << 20), (2, 1000, 0)])
@settings(max_examples=150, deadline=None)
@given(both=sides(), ends=st.lists(codes, min_size=1, max_size=4), moves=st.none() | st.integers(0, 9))
@example(  # a row is deleted after it was hashed, and the copy has another one of its key
    both=(
        ({"b": 1, "c": 1, "d": 1, "x": 1}, {"b": 1, "c": 1, "d": 1, "X": 2}),
        ({"b": 1, "c": 1, "d": 1}, {"b": 1, "c": 1, "d": 1, "X": 2}),
    ),
    ends=["x"],
    moves=2,
)
@example(  # the same, and the copy follows
    both=(
        ({"b": 1, "c": 1, "d": 1, "x": 1}, {"b": 1, "c": 1, "d": 1, "X": 2}),
        ({"b": 1, "c": 1, "d": 1}, {"b": 1, "c": 1, "d": 1}),
    ),
    ends=["x"],
    moves=2,
)
@example(  # a row gets a key in another range after that was hashed
    both=(
        ({"a": 1, "b": 1, "c": 1, "x": 1, "y": 1}, {"a": 1, "b": 1, "c": 1, "x": 2, "y": 2}),
        ({"a": 1, "b": 1, "c": 1, "d": 1, "y": 1}, {"a": 1, "b": 1, "c": 1, "d": 1, "y": 2}),
    ),
    ends=["d", "x"],
    moves=3,
)
def test_rows_differ_in_the_same_way_where_tasks_read_them(
    at_once: int,
    most_noted: int,
    most_bytes: int,
    both: tuple[tuple[Rows, Rows], tuple[Rows, Rows]],
    ends: list[str],
    moves: int | None,
) -> None:
    """Both sides may move between any two readings of a range."""
    (before, rows), (after, rows_after) = both
    with pytest.MonkeyPatch.context() as patched, closing(HashedCopy(SCHEMA)) as hashed:
        patched.setattr(hashed_ranges, "MAX_NOTED", most_noted)
        patched.setattr(hashed_ranges, "MAX_BYTES_OF_ROWS", most_bytes)
        ranges, copy = ranges_of(ends), Copy(rows)
        source = Source(before, after, moves, lambda: setattr(copy, "rows", dict(rows_after)))
        looks = looks_at(copy, hashed, is_first=True)
        found = looked_in_tasks(looks, hashed, source, ranges, at_once)
        assert found.keys() == set(range(len(ranges)))
        surplus = surplus_of(looks, 1000)
        assert surplus is not None
        suspects = by_key([pair for pairs in [*found.values(), surplus] for pair in pairs])
        first, now = differences(before, rows), differences(source.rows, copy.rows)
        if source.rows is before:
            assert suspects == first
        assert first.items() & now.items() <= suspects.items()

        now = {key: pair for key, pair in now.items() if key in suspects}
        again = looks_at(Copy(copy.rows), hashed, is_first=False)
        at_rest = Source(source.rows, source.rows, None, lambda: None)
        pairs = [pair for each in looked_in_tasks(again, hashed, at_rest, ranges, at_once).values() for pair in each]
        pairs += surplus_of(again, 1000) or []
        looked = {key: pair for key, pair in by_key(pairs).items() if key in suspects}
        assert looked.items() <= now.items()
        unseen = {pair.key for key, pair in now.items() if key not in looked}
        assert unseen <= {
            pair.key for pair in now.values() if pair.expected is None and pair.key not in by_key(surplus)
        }


def test_rows_that_are_alike_are_not_given_to_the_server() -> None:
    rows: Rows = {f"key {i}": i % REJECTED for i in range(100)}
    wrong = {**rows, "key 7": None, "key 200": 1}
    del wrong["key 50"]
    with closing(HashedCopy(SCHEMA)) as hashed:
        copy = Copy(wrong)
        looks, (each,) = looks_at(copy, hashed, is_first=True), ranges_of([])
        assert set(by_key(compared(looks, rows, each, keeps_keys=True))) == {("key 7",), ("key 50",)}
        assert set(by_key(surplus_of(looks, 10) or [])) == {("key 200",)}
        assert copy.staged_count == 2
        again = looks_at(copy, hashed, is_first=False)
        assert set(by_key(compared(again, rows, each, keeps_keys=True))) == {("key 7",), ("key 50",)}
        assert set(by_key(surplus_of(again, 10) or [])) == {("key 200",)}
        assert copy.staged_count == 4


def test_a_new_row_does_not_let_the_server_compare_all() -> None:
    """The range with the greatest keys comes first, and its one row may not be in the copy yet."""
    old: Rows = {f"key {i:02}": i % REJECTED for i in range(20)}
    with closing(HashedCopy(SCHEMA, least_rows=10)) as hashed:
        copy = Copy(old)
        looks, ranges = looks_at(copy, hashed, is_first=True), ranges_of(["new"])
        for each in reversed(ranges):
            pairs = compared(looks, {**old, "new": 1}, each, keeps_keys=True)
            assert set(by_key(pairs)) == ({("new",)} if each is ranges[1] else set())
        assert surplus_of(looks, 10) == []
        assert copy.staged_count == 1


def test_rows_that_are_alike_are_not_given_to_the_server_where_tasks_read_them() -> None:
    rows: Rows = {f"key {i:03}": i % REJECTED for i in range(100)}
    wrong = {**rows, "key 077": None, "zz": 1}
    del wrong["key 050"]
    with closing(HashedCopy(SCHEMA)) as hashed:
        copy = Copy(wrong)
        source, ranges = Source(rows, rows, None, lambda: None), ranges_of(["key 030", "key 060", "key 090"])
        for is_first, staged in ((True, 2), (False, 4)):
            looks = looks_at(copy, hashed, is_first=is_first)
            found = looked_in_tasks(looks, hashed, source, ranges, 10)
            assert {number: set(by_key(pairs)) for number, pairs in found.items()} == {
                0: set(), 1: {("key 050",)}, 2: {("key 077",)}, 3: set(),
            }  # fmt: skip
            assert set(by_key(surplus_of(looks, 10) or [])) == {("zz",)}
            assert copy.staged_count == staged
        assert source.readings == 2 * (4 + 2)


def test_a_further_look_reads_a_range_once_at_most_and_hashes_keys_of_surplus_rows_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: Rows = {f"key {i:03}": i % REJECTED for i in range(100)}
    wrong: Rows = {**rows, "key 040": None, "zz": 1, **{f"key {i:03}": None for i in range(60, 70)}}
    monkeypatch.setattr(hashed_copy, "MAX_NOTED", 5)
    keys_of, hashed_keys = CopyHashing.keys_of, list[int]()

    def counted(hashing: CopyHashing, keys: pa.RecordBatch) -> Any:
        hashed_keys.append(keys.num_rows)
        return keys_of(hashing, keys)

    with closing(HashedCopy(SCHEMA)) as hashed:
        copy, source = Copy(wrong), Source(rows, rows, None, lambda: None)
        ranges = ranges_of(["key 030", "key 060", "key 090"])
        looks = looks_at(copy, hashed, is_first=True)
        found = looked_in_tasks(looks, hashed, source, ranges, 10)
        assert set(by_key(surplus_of(looks, 10) or [])) == {("zz",)}
        source.readings = 0
        looks = looks_at(copy, hashed, is_first=False)
        assert looked_in_tasks(looks, hashed, source, ranges, 10, keeps_keys=False) == found
        assert source.readings == 3, "this process looks at the first range; the last one has no row that may differ"
        monkeypatch.setattr(CopyHashing, "keys_of", counted)
        assert looked_in_tasks(looks, hashed, source, ranges, 10) == found
        assert hashed_keys == []


@pytest.mark.parametrize("broken", ["rows of other values", "keys that the server can't be given"])
def test_the_server_compares_all_rows_where_hashes_are_of_no_use(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Rows = {f"key {i}": i % REJECTED for i in range(20)}
    held = dict(rows) | {"key 20": 1}
    if broken == "rows of other values":
        held |= {f"key {i}": None for i in range(11)}
    else:
        monkeypatch.setattr(Copy, "surplus_among", lambda *_: None)
    with closing(HashedCopy(SCHEMA)) as hashed:
        copy = Copy(held)
        looks, (each,) = looks_at(copy, hashed, is_first=True), ranges_of([])
        found = compared(looks, rows, each, keeps_keys=True)
        surplus = surplus_of(looks, 10)
        if broken != "rows of other values":
            assert (found, surplus) == ([], None)
            found = compared(looks, rows, each, keeps_keys=True)
            surplus = surplus_of(looks, 10)
        assert copy.staged_count == 20
        assert by_key([*found, *(surplus or [])]) == differences(rows, held)


@pytest.mark.parametrize("forgets", ["begin", "close", "rows of other values", "keys that the server can't be given"])
def test_the_space_on_disk_is_freed(forgets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(rows_by_key, "MAX_ROWS", 3)
    monkeypatch.setattr(Copy, "surplus_among", lambda *_: None)
    rows: Rows = {f"key {i}": i % REJECTED for i in range(20)}
    others: Rows = dict.fromkeys(rows, None)
    copy, hashed = Copy(rows | {"key 20": 1}), HashedCopy(SCHEMA)
    looks, (each,) = looks_at(copy, hashed, is_first=True), ranges_of([])
    compared(looks, others if forgets == "rows of other values" else rows, each, keeps_keys=True)
    if forgets != "rows of other values":
        assert len(list(tmp_path.iterdir())) == 1
    if forgets == "begin":
        hashed.begin()
    elif forgets == "close":
        hashed.close()
    elif forgets != "rows of other values":
        assert surplus_of(looks, 10) is None
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_which_the_source_has_few_rows_takes_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are counted, and their keys read in batches. Two hashes of each key would be 16 bytes."""
    count, kept = 200_000, 1000
    monkeypatch.setattr(Copy, "surplus_among", lambda _, keys, limit: [])
    monkeypatch.setattr(hashed_copy, "KEYS_AT_ONCE", 1000)
    rows: Rows = {f"key {i}": 1 for i in range(count)}
    copy = Copy(rows)
    table = table_of(rows).select(HELD.names).cast(HELD)
    monkeypatch.setattr(
        copy,
        "pass_on",
        lambda _, names, take: [
            take(batch) for batch in table.select([n for n in HELD.names if n in names]).to_batches(max_chunksize=1000)
        ],
    )
    with closing(HashedCopy(SCHEMA)) as hashed:
        looks, (each,) = looks_at(copy, hashed, is_first=True), ranges_of([])
        few = dict(itertools.islice(rows.items(), kept))
        assert compared(looks, few, each, keeps_keys=True) == []
        tracemalloc.start()
        try:
            assert surplus_of(looks, 10) == []
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 4 * count
