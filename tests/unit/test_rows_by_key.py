"""Rows are known again by two hashes of their keys, also if many keys have one first hash, and if the rows are on disk."""

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.sinks.folded import hashed_rows, rows_by_key
from tidemark.sinks.folded.hashed_rows import Ordinals
from tidemark.sinks.folded.hashing import RowHashing
from tidemark.sinks.folded.rows_by_key import RowsByKey, SeenKeys, places_of
from tidemark.state.errors import SinkError
from tidemark.state.table import Column, TableId, TableSchema

SEED = 0x5EED
SCHEMA = TableSchema(TableId("shop", "notes"), 1, (Column("code", "varchar(9)", "string", nullable=False),), ("code",))
FIRST = [("insert", code) for code in ("0a", "0b", "1a", "1b", "2a", "2b")]
CHANGES = [
    FIRST,
    [("delete", "0b"), ("update_postimage", "2a"), ("insert", "3a"), ("delete", "1a")],
    [("update_postimage", "1a"), ("insert", None), ("delete", "3a")],
]
"""The changes of three versions: the kind and the code. Nobody knows a row without a key."""
keys = st.tuples(st.integers(0, 3), st.integers(0, 5))


def by_letters(columns: list[pa.Array], seed: int) -> tuple[Ordinals, Ordinals]:
    """Gives all codes with the same digit one first hash."""
    codes = columns[0].to_pylist()
    return np.array([int(code[0]) << 62 for code in codes], np.uint64), np.array([ord(c[1]) for c in codes], np.uint64)


def hashed(version: int, changes: list[tuple[str, str | None]]) -> pa.Table:
    columns = {
        "code": pa.array([code for _, code in changes], pa.string()),
        "_change_type": pa.array([kind for kind, _ in changes]),
        "_commit_version": pa.array([version] * len(changes), pa.int64()),
        "_seq": pa.array(range(len(changes)), pa.int64()),
    }
    return RowHashing(SCHEMA, SEED).changes(columns, len(changes))


@given(st.sets(keys), st.lists(keys))
def test_each_key_is_found_at_its_place(held: set[tuple[int, int]], wanted: list[tuple[int, int]]) -> None:
    among = sorted(held)
    columns = [tuple(np.array([key[i] for key in some], np.uint64) for i in (0, 1)) for some in (wanted, among)]
    places = [among.index(key) if key in held else -1 for key in wanted]
    assert places_of(columns[0], columns[1]).tolist() == places


@pytest.mark.parametrize("rows_in_memory", [3, 1000])
@pytest.mark.parametrize("settled_after", [1, 3])
def test_rows_in_memory_and_on_disk_are_the_same(
    rows_in_memory: int, settled_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_by_key, "MAX_ROWS", rows_in_memory)
    monkeypatch.setattr(hashed_rows, "key_hashes", by_letters)
    rows = RowsByKey(SCHEMA, SEED, tmp_path)
    for version, changes in enumerate(CHANGES, 1):
        rows.add(hashed(version, changes))
        if version == settled_after:
            rows.settle()
    rows.settle()
    assert any(tmp_path.glob("column-*")) == (rows_in_memory == 3)
    expected = rows.expected([hashed(0, [("insert", code) for code in ("0a", "0b", "1a", "3b")])])
    assert rows.among(expected).version.tolist() == [1, 3]  # 0a, 1a
    rows.add(hashed(0, [("delete", "2b"), ("insert", "3a")]))  # a file that others were merged into has older changes
    rows.settle()
    seen = SeenKeys(rows)
    seen.add(expected.keys)
    assert sorted(rows.others(seen, 100).version.tolist()) == [1, 1, 2]  # 1b, 2b, 2a
    assert len(rows.others(seen, 2)) == 2
    rows.add(hashed(4, [("truncate", None), ("insert", "0b")]))
    rows.settle()
    assert rows.among(expected).version.tolist() == [4]
    assert len(rows.others(seen, 100)) == 0


@pytest.mark.parametrize("name", ["keys-*", "column-*"])
def test_a_full_disk_is_told(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost hashes would let equal rows be called different."""
    monkeypatch.setattr(rows_by_key, "MAX_ROWS", 3)
    opened = Path.open

    def on_full_device(self: Path, *arguments: Any) -> Any:
        return opened(Path("/dev/full"), "ab") if self.match(name) else opened(self, *arguments)

    monkeypatch.setattr(Path, "open", on_full_device)
    rows = RowsByKey(SCHEMA, SEED, tmp_path)

    def fill() -> None:
        for changes in CHANGES:
            rows.add(hashed(1, changes))
        rows.settle()

    with pytest.raises(SinkError, match="No space left on device") as error:
        fill()
    assert error.value.remedy == f"Check that there is space in {tmp_path.parent} (TMPDIR)."
    assert error.value.table == SCHEMA.table


def test_a_folder_is_made_when_it_is_needed_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_by_key, "MAX_ROWS", 20)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with contextlib.closing(RowsByKey(SCHEMA, SEED)) as rows:
        rows.add(hashed(1, CHANGES[0]))
        assert list(tmp_path.iterdir()) == []
        monkeypatch.setattr(rows_by_key, "MAX_ROWS", 3)
        for changes in CHANGES[1:]:
            rows.add(hashed(1, changes))
        rows.settle()
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_by_key, "MAX_ROWS", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    rows = RowsByKey(SCHEMA, SEED)
    with pytest.raises(SinkError, match=r"A temporary folder can't be made: No such file .* \(TMPDIR\)") as error:
        rows.add(hashed(1, CHANGES[0]))
    assert error.value.table == SCHEMA.table
