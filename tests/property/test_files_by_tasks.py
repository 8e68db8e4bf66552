"""Files of a copy are folded and compared by tasks as a model folds them."""

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.property.test_files_by_ranges import (
    DELETE,
    INSERT,
    OTHER_SCHEMAS,
    SCHEMAS,
    TRUNCATE,
    UPDATE,
    Change,
    File,
    batch,
    changed,
    file_lists,
    in_fours,
    kinds_of,
    logs,
    schema_of,
    splits,
    unlike,
    write,
)
from tests.support.reconciling import in_buckets, in_tasks
from tidemark.jobs.reconcile import folded_copy as folded_copies
from tidemark.jobs.reconcile import folding_tasks, range_looks
from tidemark.jobs.reconcile.folded_copy import FoldedCopy, folded_copy
from tidemark.jobs.reconcile.hashed_ranges import HashedRange, HashingTask, RangeRows
from tidemark.jobs.reconcile.ranges import Range
from tidemark.sinks.files.comparing import FilesComparison, comparable_files
from tidemark.sinks.files.part import Format
from tidemark.sinks.folded import rows_by_key
from tidemark.state.change_batch import batch_schema
from tidemark.state.split import KeyRange, Split
from tidemark.state.table import TableSchema


@dataclass(frozen=True)
class Source:
    """A `TableLook` of a source with these rows. `bounds`: of its ranges. Pickled with tasks."""

    output: TableSchema
    rows: dict[int, int]
    bounds: Sequence[int | None]
    has_condition: bool = False

    @property
    def job(self) -> Any:
        return SimpleNamespace(snapshot=SimpleNamespace(split_rows=10, parallelism=3))

    @contextmanager
    def in_task(self) -> Iterator[None]:
        yield

    def expected(self, each: Range, reader: Any, anchor: Any) -> pa.Table:
        start, end = self.bounds[each.number], self.bounds[each.number + 1]
        rows = [
            Change(INSERT, key, stars)
            for key, stars in self.rows.items()
            if (start is None or key >= start) and (end is None or key < end)
        ]
        batches = [batch(self.output, 0, File(True, tuple(rows)), 0, len(rows))] if rows else []
        return pa.Table.from_batches(batches, batch_schema(self.output))

    @property
    def ranges(self) -> list[Range]:
        split = Split(0, self.output.table, 1, self.output.key, KeyRange(None, None))
        return [Range(number, split, None) for number in range(len(self.bounds) - 1)]


def found(source: Source, copy: FilesComparison, folded: FoldedCopy, *, is_first: bool) -> set[Any]:
    """Returns the rows that differ, after tasks have read the rows that may."""
    pairs = set()
    for each in source.ranges:
        expected = source.expected(each, None, None)
        task = HashingTask(cast(Any, source), folded.hashing, 1000)
        result = task.read(HashedRange(each, folded.wanted(each.number, is_first=is_first)), expected)
        assert isinstance(result, RangeRows)
        assert result.rows is not None
        copy.stage(result.rows.to_batches())
        pairs |= kinds_of(copy.differing())
        copy.keep_keys()
        copy.stage(expected.to_batches())  # others are no part of the comparison any more
        pairs |= kinds_of(copy.differing())
        copy.clear()
    return pairs | kinds_of(copy.surplus_of_all(100))


def _cases() -> list[Any]:
    usual = {("integer", 1000, "parquet"), ("both", 3, "jsonl"), ("text and integer", 3, "parquet")}
    all_cases = itertools.product([*SCHEMAS, *OTHER_SCHEMAS], [1000, 3], ["parquet", "jsonl"])
    return [case if case in usual else pytest.param(*case, marks=pytest.mark.every_server) for case in all_cases]


@pytest.mark.parametrize(("kind", "rows_in_memory", "file_format"), _cases())
@settings(max_examples=15, deadline=None)
@given(
    files=file_lists,
    later=st.lists(splits | logs, max_size=2),
    changes=st.dictionaries(st.integers(0, 26), st.none() | st.integers(0, 3), max_size=5),
    ends=st.lists(st.integers(0, 26), max_size=4),
)
@example(  # a TRUNCATE counts in all buckets, and so does a value that a change leaves out
    files=[
        File(True, tuple(Change(INSERT, key, 1) for key in range(8))),
        File(False, (Change(TRUNCATE, 0, 0), *(Change(INSERT, key, 2) for key in range(4, 12)))),
        File(False, tuple(Change(UPDATE, key, 2, True) for key in range(4, 8))),
    ],
    later=[],
    changes={5: 3, 6: None, 20: 1},
    ends=[5, 9],
)
@example(  # rows that may differ change meanwhile, and get right
    files=[File(True, (Change(INSERT, 1, 1), Change(INSERT, 2, 1), Change(INSERT, 3, 1)))],
    later=[File(False, (Change(UPDATE, 1, 2), Change(UPDATE, 3, 2), Change(UPDATE, 9, 2)))],
    changes={2: 3},
    ends=[2],
)
@example(  # what a key had before its row was deleted counts later, as if the command had read it
    files=[File(True, (Change(INSERT, 0, 1), Change(INSERT, 4, 1))), File(False, (Change(DELETE, 0, 0),))],
    later=[File(False, (Change(UPDATE, 0, 1, True),))],
    changes={},
    ends=[],
)
def test_tasks_find_what_differs(
    kind: str,
    rows_in_memory: int,
    file_format: Format,
    files: list[File],
    later: list[File],
    changes: dict[int, int | None],
    ends: list[int],
) -> None:
    """Files that come later count for rows that may differ."""
    if kind == "integer":  # each of four numbers has the same one
        files, later = (
            [File(file.is_split, tuple({c.key // 4: in_fours(c) for c in file.changes}.values())) for file in each]
            for each in (files, later)
        )
        changes, ends = {n // 4 * 4: value for n, value in changes.items()}, [n // 4 * 4 for n in ends]
    schema = schema_of(kind)
    expected = changed([*files, *later], changes)
    suspected = {key for _, key, _ in unlike(files, expected, schema)}
    differences = {each for each in unlike([*files, *later], expected, schema) if each[1] in suspected}
    source = Source(schema, expected, [None, *sorted(set(ends)), None])
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patched:
        patched.setattr(rows_by_key, "MAX_ROWS", rows_in_memory)
        patched.setattr(rows_by_key, "_BUCKET_BITS", 2)
        patched.setattr(folding_tasks, "ROWS_AT_ONCE", 5)
        patched.setattr(folded_copies, "FILES_OF_A_TASK", 2)
        patched.setattr(range_looks.Anchor, "position", lambda anchor: None)
        write(Path(name), schema, files, file_format)
        with comparable_files(Path(name), schema, file_format) as comparisons:
            with comparisons() as copy:
                assert isinstance(copy, FilesComparison)
                folded = folded_copy(cast(Any, source), copy, source.ranges, in_tasks, in_buckets)
                assert folded is not None
                assert (folded.row_count, folded.unlisted, folded.unlisted_surplus) == (len(expected), 0, 0)
                write(Path(name), schema, later, file_format, first_epoch=len(files) + 1)
                assert found(source, copy, folded, is_first=True) == differences
            wanted = [key for _, key, _ in differences]
            with comparisons(wanted) as copy:
                assert isinstance(copy, FilesComparison)
                folded.look_for(wanted)
                assert found(source, copy, folded, is_first=False) == differences


def test_more_rows_than_are_taken_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folded_copies, "MAX_OTHERS", 6)
    monkeypatch.setattr(range_looks.Anchor, "position", lambda anchor: None)
    schema = schema_of("text")
    write(tmp_path, schema, [File(True, tuple(Change(INSERT, key, 1) for key in range(100)))], "parquet")
    source = Source(schema, {key: key % 2 + 1 for key in range(50, 150)}, [None, 80, None])
    with comparable_files(tmp_path, schema, "parquet") as comparisons, comparisons() as copy:
        assert isinstance(copy, FilesComparison)
        folded = folded_copy(cast(Any, source), copy, source.ranges, in_tasks, in_buckets)
        assert folded is not None
        listed = sum(len(keys[0]) for keys in folded.others.values())
        assert listed == 6
        assert folded.unlisted == 25 + 50 - 6  # different and missing ones
        assert folded.unlisted_surplus == 3  # at least one in each bucket
        assert len(copy.surplus_of_all(100)) >= 6
        assert all(kind != "surplus" or key for kind, key, _ in kinds_of(copy.surplus_of_all(100)))


def test_a_table_of_which_values_are_left_out_at_a_new_key_is_not_folded_by_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_looks.Anchor, "position", lambda anchor: None)
    schema = schema_of("text")
    files = [
        File(True, tuple(Change(INSERT, key, 1) for key in range(4))),
        File(False, (Change(INSERT, 9, 1, True),)),
    ]
    write(tmp_path, schema, files, "parquet")
    source = Source(schema, {}, [None, None])
    with comparable_files(tmp_path, schema, "parquet") as comparisons, comparisons() as copy:
        assert isinstance(copy, FilesComparison)
        assert folded_copy(cast(Any, source), copy, source.ranges, in_tasks, in_buckets) is None
