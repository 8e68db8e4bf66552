"""Files of a copy are compared range by range, or by hashes of their keys, as they are with all rows in the state, and as a
model folds them."""

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemark.sinks.comparing import CopyComparison, Pair
from tidemark.sinks.files import comparing
from tidemark.sinks.files.comparing import comparable_files
from tidemark.sinks.files.part import Format, open_table_file
from tidemark.sinks.folded import rows_by_key
from tidemark.state.change_batch import ChangeType, batch_schema
from tidemark.state.copied_range import CopiedRange
from tidemark.state.integer_range import IntegerRange
from tidemark.state.table import Column, TableId, TableSchema

SCHEMAS = {
    "integer": ("id",),
    "unsigned": ("big",),
    "both": ("id", "big"),
}
OTHER_SCHEMAS = {
    "text": ("code",),
    "text and integer": ("code", "id"),
}
INSERT, UPDATE, DELETE, TRUNCATE = (
    ChangeType.INSERT,
    ChangeType.UPDATE_POSTIMAGE,
    ChangeType.DELETE,
    ChangeType.TRUNCATE,
)
KeyValues = tuple[str, int, int]


def schema_of(kind: str) -> TableSchema:
    columns = (
        Column("code", "varchar(20)", "string", nullable=False),
        Column("id", "int", "int32", nullable=False),
        Column("big", "bigint unsigned", "decimal(20,0)", nullable=False),
        Column("stars", "int", "int64", nullable=True),
        Column("note", "text", "string", nullable=True, toastable=True),
    )
    return TableSchema(TableId("shop", "notes"), 1, columns, (SCHEMAS | OTHER_SCHEMAS)[kind])


@dataclass(frozen=True)
class Change:
    kind: ChangeType
    key: int
    stars: int
    leaves_out: bool = False


@dataclass(frozen=True)
class File:
    """`changes`: of a split if all are inserts of one version, else of the log."""

    is_split: bool
    changes: tuple[Change, ...]


def key_of(number: int) -> KeyValues:
    """The numbers are in the order of the key, and no column of two alone is the key."""
    return f"'{number % 5} \u00e9' {number}", (number // 4) - 3, (2**63 - 2) + number % 4 + 4 * (number // 4)


splits = st.builds(
    lambda first, stars: File(True, tuple(Change(INSERT, first + i, value) for i, value in enumerate(stars))),
    st.integers(0, 20),
    st.lists(st.integers(0, 3), max_size=12),
)
logs = st.builds(
    lambda changes: File(False, tuple(changes)),
    st.lists(
        st.builds(Change, st.sampled_from([INSERT, UPDATE, DELETE]), st.integers(0, 24), st.integers(0, 3))
        | st.builds(Change, st.just(UPDATE), st.integers(0, 24), st.integers(0, 3), st.just(True))
        | st.just(Change(TRUNCATE, 0, 0)),
        min_size=1,
        max_size=6,
    ),
)
file_lists = st.lists(splits | logs, min_size=1, max_size=6)


def write(
    folder: Path, schema: TableSchema, files: Sequence[File], file_format: Format, *, first_epoch: int = 1
) -> None:
    for epoch, file in enumerate(files, first_epoch):
        name = f"e{epoch:010d}-{'s' + str(epoch) if file.is_split else 'log'}.{file_format}"
        written = open_table_file(file_format, folder / name, schema)
        if file.changes:
            half = (len(file.changes) + 1) // 2
            for first in range(0, len(file.changes), half):
                written.write([batch(schema, epoch, file, first, first + half)])
        written.close()


def batch(schema: TableSchema, epoch: int, file: File, first: int, end: int) -> pa.RecordBatch:
    changes = file.changes[first:end]
    count = len(changes)
    rows = [
        [
            *([None] * 3 if change.kind is TRUNCATE else key_of(change.key)),
            None if change.kind is TRUNCATE else change.stars,
            note(change) if not change.leaves_out and change.kind is not TRUNCATE else None,
        ]
        for change in changes
    ]
    values = [list(column) for column in zip(*rows, strict=True)]
    seqs = [1 << 30] * count if file.is_split else list(range(first, first + count))
    none = pa.DictionaryArray.from_arrays(pa.nulls(count, pa.int32()), pa.array([], pa.string()))
    left_out = [["note"] if change.leaves_out else None for change in changes]
    meta: list[Any] = [
        [int(c.kind) for c in changes],
        [epoch] * count,
        [0] * count,
        seqs,
        none,
        [file.is_split] * count,
    ]
    arrays = [
        a if isinstance(a, pa.Array) else pa.array(a, f.type)
        for a, f in zip([*values, *meta, left_out], batch_schema(schema), strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batch_schema(schema))


def in_fours(change: Change) -> Change:
    return replace(change, key=change.key // 4 * 4)


def note(change: Change) -> str:
    return f"a note of {change.stars} stars"


def folded(files: Sequence[File]) -> dict[int, tuple[int, int | None]]:
    """The stars of each key, and those of its note; None for a note that nobody knows. A note that a change leaves out is the
    last one since a TRUNCATE, also from before a DELETE, as readers take it: a log has no such change after a DELETE."""
    rows: dict[int, tuple[int, int | None]] = {}
    notes: dict[int, int] = {}
    for file in files:
        for change in file.changes:
            if change.kind is TRUNCATE:
                rows, notes = {}, {}
            elif change.kind is DELETE:
                rows.pop(change.key, None)
            elif change.leaves_out:
                rows[change.key] = change.stars, notes.get(change.key)
            else:
                rows[change.key] = change.stars, change.stars
                notes[change.key] = change.stars
    return rows


def found(
    folder: Path, schema: TableSchema, expected: dict[int, int], ends: Sequence[int], file_format: Format
) -> set[tuple[str, Any]]:
    """Keys and kinds of what differs, looked at range by range, twice."""
    bounds = [None, *sorted(set(ends)), None]
    with comparable_files(folder, schema, file_format) as comparisons:
        looks = []
        for wanted in (None, []):
            pairs = set()
            with comparisons(wanted) as copy:
                for start, end in itertools.pairwise(bounds):
                    stage(copy, schema, expected, start, end)
                    keys = IntegerRange(schema.key, bound(schema, start), bound(schema, end))
                    pairs |= kinds_of(copy.differing() + copy.surplus(CopiedRange.of_integers(keys), 100))
                    copy.clear()
            looks.append(pairs)
    assert looks[0] == looks[1]
    return looks[0]


def stage(
    copy: CopyComparison, schema: TableSchema, expected: dict[int, int], start: int | None, end: int | None
) -> None:
    inside = [
        Change(INSERT, key, stars)
        for key, stars in expected.items()
        if (start is None or key >= start) and (end is None or key < end)
    ]
    rows = File(True, tuple(inside))
    copy.stage([batch(schema, 0, rows, 0, len(inside))] if inside else [])
    assert copy.row_count == len(inside)


def kinds_of(pairs: Sequence[Pair]) -> set[tuple[str, Any, bool]]:
    kinds = set()
    for pair in pairs:
        kind = "missing" if pair.held is None else "surplus" if pair.expected is None else "different"
        kinds.add((kind, pair.key, pair.expected == pair.held))
    return kinds


def bound(schema: TableSchema, number: int | None) -> tuple[int, ...] | None:
    return None if number is None else key_values(schema, number)


def key_values(schema: TableSchema, number: int) -> tuple[Any, ...]:
    values = dict(zip(("code", "id", "big"), key_of(number), strict=True))
    return tuple(values[name] for name in schema.key)


def unlike(files: Sequence[File], expected: dict[int, int], schema: TableSchema) -> set[tuple[str, Any, bool]]:
    held = folded(files)
    kinds = set()
    for number in expected.keys() | held.keys():
        key = tuple(map(str, key_values(schema, number)))
        if number not in held:
            kinds.add(("missing", key, False))
        elif number not in expected:
            kinds.add(("surplus", key, False))
        elif held[number] != (expected[number], expected[number]):
            kinds.add(("different", key, False))
    return kinds


def changed(files: Sequence[File], changes: dict[int, int | None]) -> dict[int, int]:
    """The stars of the rows that are expected: those of the files, with these changes."""
    rows = {key: row[0] for key, row in folded(files).items()} | changes
    return {key: stars for key, stars in rows.items() if stars is not None}


@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
@pytest.mark.parametrize("kind", SCHEMAS)
@settings(max_examples=10, deadline=None)
@given(
    files=file_lists,
    changes=st.dictionaries(st.integers(0, 26), st.none() | st.integers(0, 3), max_size=5),
    ends=st.lists(st.integers(0, 26), max_size=4),
)
@example(  # rows are read again, and the log left a value out before
    files=[
        File(True, (Change(INSERT, 1, 1), Change(INSERT, 2, 1))),
        File(False, (Change(UPDATE, 1, 2, True), Change(DELETE, 2, 0))),
        File(True, (Change(INSERT, 1, 3), Change(INSERT, 2, 3))),
    ],
    changes={},
    ends=[2],
)
def test_ranges_of_files_are_compared_as_the_folded_state(
    kind: str, file_format: Format, files: list[File], changes: dict[int, int | None], ends: list[int]
) -> None:
    if kind == "integer":  # each of four numbers has the same one
        files = [File(file.is_split, tuple({c.key // 4: in_fours(c) for c in file.changes}.values())) for file in files]
        changes, ends = {n // 4 * 4: value for n, value in changes.items()}, [n // 4 * 4 for n in ends]
    schema = schema_of(kind)
    expected = changed(files, changes)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patched:
        write(Path(name), schema, files, file_format)
        by_ranges = found(Path(name), schema, expected, ends, file_format)
        patched.setattr(comparing, "has_integer_key", lambda _: False)
        assert by_ranges == found(Path(name), schema, expected, ends, file_format)
        assert by_ranges == unlike(files, expected, schema)


@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
@pytest.mark.parametrize(("kind", "rows_in_memory"), [("text", 1000), ("text and integer", 1000), ("text", 3)])
@settings(max_examples=10, deadline=None)
@given(
    files=file_lists,
    later=st.lists(splits | logs, max_size=3),
    changes=st.dictionaries(st.integers(0, 26), st.none() | st.integers(0, 3), max_size=5),
    ends=st.lists(st.integers(0, 26), max_size=4),
)
@example(  # a value is left out after keys were kept
    files=[File(True, (Change(INSERT, 1, 1), Change(INSERT, 2, 1), Change(INSERT, 9, 1)))],
    later=[File(False, (Change(UPDATE, 1, 2, True), Change(DELETE, 2, 0), Change(INSERT, 3, 1)))],
    changes={9: None, 4: 1},
    ends=[2, 4],
)
@example(  # a row of which the copy had none when keys were kept
    files=[File(True, (Change(INSERT, 1, 1),))],
    later=[File(False, (Change(INSERT, 0, 1), Change(DELETE, 1, 0), Change(INSERT, 7, 1)))],
    changes={7: None},
    ends=[2],
)
@example(  # the row that had the value is from before a DELETE
    files=[File(True, ())],
    later=[
        File(True, (Change(INSERT, 1, 0),)),
        File(False, (Change(DELETE, 1, 0), Change(UPDATE, 1, 0, True))),
    ],
    changes={},
    ends=[],
)
@example(  # the row that had the value is from before a TRUNCATE: the one after it is lacking
    files=[File(True, (Change(INSERT, 1, 1),)), File(False, (Change(UPDATE, 1, 2, True),))],
    later=[File(False, (Change(TRUNCATE, 0, 0), Change(UPDATE, 1, 1, True)))],
    changes={},
    ends=[],
)
def test_rows_are_compared_by_hashes_of_their_keys(
    kind: str,
    rows_in_memory: int,
    file_format: Format,
    files: list[File],
    later: list[File],
    changes: dict[int, int | None],
    ends: list[int],
) -> None:
    """Files are added after the first range was compared. The second look sees all of them."""
    schema = schema_of(kind)
    expected, bounds = changed([*files, *later], changes), [None, *sorted(set(ends)), None]
    differences = unlike([*files, *later], expected, schema)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patched:
        patched.setattr(rows_by_key, "MAX_ROWS", rows_in_memory)
        patched.setattr(rows_by_key, "_BUCKET_BITS", 2)
        patched.setattr(rows_by_key, "CHUNK_ROWS", 4)
        write(Path(name), schema, files, file_format)
        with comparable_files(Path(name), schema, file_format) as comparisons:
            for is_first in (True, False):
                found = set[Any]()
                with comparisons() as copy:
                    for start, end in itertools.pairwise(bounds):
                        stage(copy, schema, expected, start, end)
                        found |= kinds_of(copy.differing())
                        copy.keep_keys()
                        copy.clear()
                        if is_first and start is None:
                            write(Path(name), schema, later, file_format, first_epoch=len(files) + 1)
                    surplus = kinds_of(copy.surplus_of_all(100))
                if not is_first or (len(bounds) > 2 and later):
                    assert surplus == {found for found in differences if found[0] == "surplus"}
                if not is_first or not later:
                    assert found | surplus == differences
            with comparisons() as copy:
                stage(copy, schema, expected, None, None)
                assert kinds_of(copy.differing() + copy.surplus(None, 100)) == differences
