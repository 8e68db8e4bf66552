"""Files of a copy are folded and compared by tasks as a model folds them."""

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
    folded,
    in_fours,
    key_of,
    key_values,
    kinds_of,
    logs,
    note,
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
from tidemark.state.position import WalPosition
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

    def read(self, each: Range, reader: Any, anchor: Any) -> tuple[pa.Table, WalPosition]:
        return self.expected(each, reader, anchor), position(1 << 20)

    @property
    def ranges(self) -> list[Range]:
        split = Split(0, self.output.table, 1, self.output.key, KeyRange(None, None))
        return [Range(number, split, None) for number in range(len(self.bounds) - 1)]


def position(version: int) -> WalPosition:
    """The position right after a commit version."""
    return WalPosition(version + 1)


@dataclass
class Log:
    """A `CopiedLog` of this many versions. `wait`: what the job does meanwhile."""

    versions: int
    wait: Callable[[], None] = lambda: None
    version_offset: int = 0

    def end(self) -> WalPosition:
        return position(self.versions)


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
                log = Log(len(files))
                folded = folded_copy(cast(Any, source), copy, source.ranges, in_tasks, in_buckets, log=log)
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
        folded = folded_copy(cast(Any, source), copy, source.ranges, in_tasks, in_buckets, log=Log(1))
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
        assert folded_copy(cast(Any, source), copy, source.ranges, in_tasks, in_buckets, log=Log(2)) is None


State = dict[int, tuple[int, int | None]]


@dataclass(frozen=True)
class MovingSource(Source):
    """A source whose ranges were read at different times. `states`: after each version, from 0 on. `contained`: the version of
    which the rows of each range are. `highs`: what its report says of that. `rows` stays empty until all were read."""

    states: Sequence[State] = ()
    contained: Sequence[int] = ()
    highs: Sequence[int] = ()

    def read(self, each: Range, reader: Any, anchor: Any) -> tuple[pa.Table, WalPosition]:
        return self._rows(each, self.states[self.contained[each.number]]), position(self.highs[each.number])

    def expected(self, each: Range, reader: Any, anchor: Any) -> pa.Table:
        return self._rows(each, self.states[-1])

    def _rows(self, each: Range, state: State) -> pa.Table:
        start, end = self.bounds[each.number], self.bounds[each.number + 1]
        keys = [k for k in state if (start is None or k >= start) and (end is None or k < end)]
        schema = batch_schema(self.output)
        if not keys:
            return schema.empty_table()
        changes = tuple(Change(INSERT, key, state[key][0]) for key in keys)
        rows = pa.Table.from_batches([batch(self.output, 0, File(True, changes), 0, len(keys))], schema)
        notes = pa.array([note(Change(INSERT, key, cast(int, state[key][1]))) for key in keys])
        return rows.set_column(schema.get_field_index("note"), schema.field("note"), notes)


def _followed(files: Sequence[File]) -> list[File]:
    """The same, as the log of a source has them: a change leaves a value out only if the row has one."""
    followed = list[File]()
    for file in files:
        changes = list[Change]()
        for change in file.changes:
            known = folded([*followed, File(file.is_split, tuple(changes))])
            changes.append(replace(change, leaves_out=change.leaves_out and change.key in known))
        followed.append(File(file.is_split, tuple(changes)))
    return followed


def _spoiled(files: Sequence[File], faults: Sequence[tuple[int, int | None]]) -> list[File]:
    """The files with faults: of each one, the number of a change, and its other value; None if it is lost."""
    numbered = [(i, j) for i, file in enumerate(files) for j, change in enumerate(file.changes)]
    changes = [list[Change | None](file.changes) for file in files]
    for number, value in faults if numbered else ():
        i, j = numbered[number % len(numbered)]
        of_file = files[i].changes[j]
        if of_file.kind not in (TRUNCATE, DELETE) or value is None:
            changes[i][j] = None if value is None else replace(of_file, stars=value, leaves_out=False)
    return [
        File(file.is_split, tuple(c for c in kept if c is not None)) for file, kept in zip(files, changes, strict=True)
    ]


moves = st.lists(
    st.builds(
        lambda changes: File(False, tuple(changes)),
        st.lists(
            st.builds(Change, st.sampled_from([INSERT, UPDATE, UPDATE, DELETE]), st.integers(0, 24), st.integers(0, 3))
            | st.builds(Change, st.just(UPDATE), st.integers(0, 24), st.integers(0, 3), st.just(True)),
            max_size=6,
        ),
    ),
    max_size=6,
)


@pytest.mark.parametrize(
    ("kind", "rows_in_memory", "file_format"), [("text", 1000, "parquet"), ("both", 3, "parquet"), ("text", 3, "jsonl")]
)
@settings(max_examples=25, deadline=None)
@given(
    early=file_lists,
    later=moves | st.lists(logs, max_size=3),
    faults=st.lists(st.tuples(st.integers(0, 30), st.none() | st.integers(4, 6)), max_size=3),
    ends=st.lists(st.integers(0, 26), max_size=4),
    reads=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1)), min_size=5, max_size=5),
    written=st.integers(0, 6),
)
@example(  # of three ranges, read one after the other: rows are changed, removed, inserted, and get other keys
    early=[File(True, tuple(Change(INSERT, key, 1) for key in range(12)))],
    later=[
        File(False, tuple(Change(UPDATE, key, 2) for key in range(12))),
        File(False, (Change(DELETE, 1, 0), Change(INSERT, 20, 1), Change(DELETE, 9, 0), Change(INSERT, 0, 3))),
        File(False, tuple(Change(UPDATE, key, 3, True) for key in range(2, 12))),
    ],
    faults=[],
    ends=[4, 8],
    reads=[(1, 0), (2, 0), (3, 0), (0, 0), (0, 0)],
    written=6,
)
@example(  # rows that were wrong before, and do not get right, also if they change
    early=[File(True, tuple(Change(INSERT, key, 1) for key in range(12))), File(False, (Change(DELETE, 3, 0),))],
    later=[File(False, (Change(UPDATE, 5, 2, True), Change(DELETE, 11, 0)))],
    faults=[(12, None), (0, 5), (5, 5), (7, None), (11, 5)],
    ends=[6],
    reads=[(0, 0), (1, 0), (0, 0), (0, 0), (0, 0)],
    written=6,
)
@example(  # a task reads its range again, because its executor was lost: the copy has not followed the log up to there
    early=[File(True, tuple(Change(INSERT, key, 1) for key in range(6)))],
    later=[File(False, tuple(Change(UPDATE, key, 2) for key in range(6)))],
    faults=[(3, 5)],
    ends=[],
    reads=[(1, 0)] * 5,
    written=0,
)
def test_rows_are_compared_as_they_were_when_their_range_was_read(
    kind: str,
    rows_in_memory: int,
    file_format: Format,
    early: list[File],
    later: list[File],
    faults: list[tuple[int, int | None]],
    ends: list[int],
    reads: list[tuple[int, int]],
    written: int,
) -> None:
    """Each wrong row is found that does not get right by itself. Of right ones, only those that change between the rows of a
    range and what its report says of them, or the copy lacks what these contain, or the table is truncated."""
    schema = schema_of(kind)
    right = _followed([*early, *later])
    copied = [*_spoiled(right[: len(early)], faults), *right[len(early) :]]
    states = [folded(right[:version]) for version in range(len(right) + 1)]
    highs = [min(len(early) + version, len(right)) for version, _ in reads]
    contained = [max(high - lag, len(early)) for high, (_, lag) in zip(highs, reads, strict=True)]
    source = MovingSource(schema, {}, [None, *sorted(set(ends)), None], False, states, contained, highs)
    listed = min(len(early) + written, len(right))
    differences = _unlike(folded(copied), states[-1], schema)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patched:
        patched.setattr(rows_by_key, "MAX_ROWS", rows_in_memory)
        patched.setattr(rows_by_key, "_BUCKET_BITS", 2)
        patched.setattr(folding_tasks, "ROWS_AT_ONCE", 5)
        patched.setattr(range_looks.Anchor, "position", lambda anchor: None)

        def follow(first: int, end: int) -> None:
            write(Path(name), schema, copied[first:end], file_format, first_epoch=first + 1)

        follow(0, len(early))
        with comparable_files(Path(name), schema, file_format) as comparisons:
            with comparisons() as copy:
                assert isinstance(copy, FilesComparison)
                log = Log(len(early), lambda: follow(len(early), listed))
                folded_by = folded_copy(cast(Any, source), copy, source.ranges, in_tasks, in_buckets, log=log)
                assert folded_by is not None
                is_exact = contained == highs and max(highs) <= listed
                if is_exact and not faults and not any(c.kind is TRUNCATE for file in later for c in file.changes):
                    assert not folded_by.others
                    assert not copy.surplus_of_all(100)
                follow(listed, len(right))
                wanted = [key for _, key, _ in found(source, copy, folded_by, is_first=True)]
            with comparisons(wanted) as copy:
                assert isinstance(copy, FilesComparison)
                folded_by.look_for(wanted)
                assert found(source, copy, folded_by, is_first=False) == differences


def _unlike(held: State, rows: State, schema: TableSchema) -> set[tuple[str, Any, bool]]:
    kinds = set()
    for number in rows.keys() | held.keys():
        kind = "missing" if number not in held else "surplus" if number not in rows else "different"
        if held.get(number) != rows.get(number):
            kinds.add((kind, tuple(map(str, key_values(schema, number))), False))
    return kinds


def test_changes_that_were_there_count_whatever_their_version_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has written changes of a later time into the copy's files: wrong values, a row of nobody, and a removal."""
    monkeypatch.setattr(range_looks.Anchor, "position", lambda anchor: None)
    schema = schema_of("text")
    write(tmp_path, schema, [File(True, tuple(Change(INSERT, key, 1) for key in range(9)))], "parquet")
    wrong = File(False, (Change(UPDATE, 2, 2), Change(INSERT, 20, 1), Change(DELETE, 5, 0)))
    write(tmp_path, schema, [wrong], "parquet", first_epoch=5)
    state: State = dict.fromkeys(range(9), (1, 1))
    source = MovingSource(schema, {}, [None, 4, None], False, [state, state, state], [1, 2], [1, 2])

    def follow() -> None:
        write(tmp_path, schema, [File(False, (Change(UPDATE, 3, 1),))] * 4, "parquet", first_epoch=6)

    with comparable_files(tmp_path, schema, "parquet") as comparisons, comparisons() as copy:
        assert isinstance(copy, FilesComparison)
        log = Log(1, follow)
        folded_by = folded_copy(cast(Any, source), copy, source.ranges, in_tasks, in_buckets, log=log)
        assert folded_by is not None
        kinds = {(kind, key) for kind, key, _ in found(source, copy, folded_by, is_first=True)}
        texts = {number: (key_of(number)[0],) for number in (2, 5, 20)}
        assert kinds == {("different", texts[2]), ("missing", texts[5]), ("surplus", texts[20])}
