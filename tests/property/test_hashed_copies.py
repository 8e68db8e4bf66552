"""Rows of a copy are found by hashes of their keys as its server finds them, to which keys may be equal that look different."""

import itertools
import tempfile
import tracemalloc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemark.jobs.reconcile import hashed_copy
from tidemark.jobs.reconcile.copy_reading import CopyReading
from tidemark.jobs.reconcile.hashed_copy import HashedCopy
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
    reading = CopyReading(copy, copy, SCHEMA.key, [column.name for column in SCHEMA.captured])
    return RangeLooks(table, none, copy, reading, none, hashed, is_first)


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


@pytest.mark.parametrize(("rows_in_memory", "keys_at_once"), [(1000, 1000), (3, 1)])
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
    both: tuple[tuple[Rows, Rows], tuple[Rows, Rows]],
    ends: list[str],
    moves_at: int | None,
) -> None:
    """Both sides may move before a range, or after the last one. They are at rest when suspects are looked at again."""
    (source, rows), after = both
    with pytest.MonkeyPatch.context() as patched, closing(HashedCopy(SCHEMA)) as hashed:
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
