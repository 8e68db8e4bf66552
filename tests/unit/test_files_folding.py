"""The folded state of files stays right while files are merged, and while it is read."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tidemark.sinks.comparing import Pair
from tidemark.sinks.files.folding import Folding
from tidemark.sinks.files.hashing import ChangesFile
from tidemark.sinks.files.part import open_table_file
from tidemark.sinks.folded.comparing import FoldedComparison
from tidemark.sinks.folded.state import FoldedState
from tidemark.state.change_batch import ChangeType, batch_schema
from tidemark.state.errors import SinkError
from tidemark.state.table import Column, TableId, TableSchema

NOTES = TableSchema(
    TableId("public", "notes"),
    1,
    (
        Column("id", "integer", "int32", nullable=False),
        Column("stars", "integer", "int32", nullable=True),
        Column("body", "text", "string", nullable=True, toastable=True),
    ),
    ("id",),
)
Change = tuple[ChangeType, int, int, int | None, str | None]
"""Kind, version, id, stars, body; a body of None is left out."""
BASE: list[Change] = [(ChangeType.INSERT, 1, 1, 0, "one"), (ChangeType.INSERT, 1, 5, 0, "five")]
FIRST: list[Change] = [(ChangeType.DELETE, 2, 1, None, None), (ChangeType.INSERT, 2, 2, 0, None)]
SECOND: list[Change] = [(ChangeType.DELETE, 3, 2, None, None), (ChangeType.INSERT, 3, 3, 0, None)]
THIRD: list[Change] = [(ChangeType.UPDATE_POSTIMAGE, 4, 3, 9, None)]
NOW: list[Change] = [(ChangeType.INSERT, 5, 3, 9, "one"), (ChangeType.INSERT, 5, 5, 0, "five")]


def batch(changes: list[Change]) -> pa.RecordBatch:
    kinds, versions, ids, stars, bodies = (list(values) for values in zip(*changes, strict=True))
    left_out = [["body"] if b is None and k != ChangeType.DELETE else None for k, b in zip(kinds, bodies, strict=True)]
    count = len(changes)
    seqs = [i if version > 1 else 1 << 30 for i, version in enumerate(versions)]
    none = pa.DictionaryArray.from_arrays(pa.nulls(count, pa.int32()), pa.array([], pa.string()))
    schema = batch_schema(NOTES)
    arrays = [
        ids,
        stars,
        bodies,
        [int(kind) for kind in kinds],
        versions,
        [0] * count,
        seqs,
        none,
        [False] * count,
        left_out,
    ]
    return pa.RecordBatch.from_arrays(
        [a if isinstance(a, pa.Array) else pa.array(a, f.type) for a, f in zip(arrays, schema, strict=True)],
        schema=schema,
    )


def write(folder: Path, name: str, *changes: list[Change]) -> None:
    file = open_table_file("parquet", folder / name, NOTES)
    for each in changes:
        file.write([batch(each)])
    file.close()


@pytest.fixture
def folding(tmp_path: Path) -> Iterator[Folding]:
    (tmp_path / "copy").mkdir()
    with FoldedState.opened(NOTES, "The copy") as state:
        yield Folding(state, tmp_path / "copy", "parquet")


def differing(folding: Folding, expected: list[Change]) -> list[Pair]:
    with contextlib.closing(FoldedComparison(folding.state, 0, folding.stage, folding.refresh)) as comparison:
        comparison.stage([batch(expected)])
        return comparison.differing() + comparison.surplus(None, 10)


def test_a_merged_file_with_changes_that_are_known_adds_the_others(folding: Folding) -> None:
    write(folding.copy_folder, "e0000000001-s0.parquet", BASE)
    write(folding.copy_folder, "e0000000002-log.parquet", FIRST)
    assert {pair.key for pair in differing(folding, NOW)} == {("2",), ("3",)}
    write(folding.copy_folder, "e0000000002-e0000000004-log.parquet", FIRST, SECOND, THIRD)
    (folding.copy_folder / "e0000000002-log.parquet").unlink()
    assert differing(folding, NOW) == []
    write(folding.copy_folder, "e0000000002-e0000000003-log.parquet", FIRST, SECOND)  # left by a crash
    assert differing(folding, NOW) == []


def test_files_that_are_merged_while_they_are_read_are_read_in_the_merged_file(
    folding: Folding, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folding.copy_folder
    write(folder, "e0000000001-s0.parquet", BASE)
    names = [f"e{epoch:010d}-log.parquet" for epoch in (2, 3, 4)]
    for name, changes in zip(names, (FIRST, SECOND, THIRD), strict=True):
        write(folder, name, changes)
    load = Folding.load

    def merging(self: Folding, table: str, paths: list[Path]) -> None:
        if table == "fresh" and (folder / names[0]).exists():
            write(folder, "e0000000002-e0000000004-log.parquet", FIRST, SECOND, THIRD)
            for name in names:
                (folder / name).unlink()
        load(self, table, paths)

    monkeypatch.setattr(Folding, "load", merging)
    assert differing(folding, NOW) == []


def test_a_file_that_many_were_merged_into_is_read_once_for_all_of_them(folding: Folding) -> None:
    write(folding.copy_folder, "e0000000002-e0000000004-log.parquet", FIRST, SECOND, THIRD)
    gone = [ChangesFile(folding.copy_folder / f"e{epoch:010d}-log.parquet", (epoch, epoch)) for epoch in (2, 3, 4)]
    changes = list(folding.hashing.changes_of(gone))
    assert sum(each.num_rows for _, each in changes) == len(FIRST + SECOND + THIRD)


def test_a_damaged_file_is_named(folding: Folding) -> None:
    write(folding.copy_folder, "e0000000001-s0.parquet", BASE)
    (folding.copy_folder / "e0000000002-log.parquet").write_bytes(b"PAR1 what is this PAR1")
    with pytest.raises(SinkError, match=r"e0000000002-log\.parquet can't be read"):
        folding.refresh()


def test_a_task_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "only on the driver"
    with FoldedState.opened(NOTES, str(folder)) as state:
        hashing = Folding(state, folder, "parquet").hashing
        with pytest.raises(SinkError, match="no folder") as caught:
            list(hashing.changes_of([ChangesFile(folder / "e1-log.parquet", (1, 1))]))
    assert "all executors share" in caught.value.remedy
