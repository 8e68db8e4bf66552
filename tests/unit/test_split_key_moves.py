"""Key re-reads: which changes they contain, and which split key moves one re-read may complete."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.support.change_parts import DELETE, INSERT, NOTES, UNCHANGED, UPDATE, Change, rows
from tidemark.readers.log.split_key_moves import KeyChanges, TableRereads, readable_together, split_key_moves
from tidemark.state.change_batch import ChangeType
from tidemark.state.key_rereads import KeyReread
from tidemark.state.position import WalPosition
from tidemark.state.table import TableId

TABLE = TableId("public", "t")
READING = KeyReread(TABLE, WalPosition(900, "100:105:103"), ("a", "b"), (500, 500), (3, 7))


def changes(*given: tuple[str, int, int, int]) -> KeyChanges:
    keys, versions, seqs, xids = zip(*given, strict=True)
    return KeyChanges(
        pa.array(keys, pa.large_string()), *(np.array(values, np.int64) for values in (versions, seqs, xids))
    )


def test_a_point_counts_behind_its_place_for_its_key() -> None:
    given = changes(
        ("a", 499, 0, 100), ("a", 500, 2, 100), ("a", 500, 3, 100), ("a", 500, 4, 100), ("b", 500, 7, 100),
        ("c", 501, 0, 100), ("b", 501, 0, 100), ("b", 501, 0, 103), ("b", 501, 0, 105),
    )  # fmt: skip
    covered = TableRereads.of([READING]).covered(given)
    assert covered.tolist() == [False, False, False, True, False, False, True, False, False]


def test_the_last_point_of_a_key_counts() -> None:
    later = replace(READING, high=WalPosition(990, "105:105:"), versions=(600, 700))
    rereads = TableRereads.of([READING, later])
    given = changes(("a", 599, 9, 103), ("a", 600, 4, 103), ("b", 650, 0, 103), ("b", 700, 8, 103), ("a", 800, 0, 105))
    assert rereads.covered(given).tolist() == [False, True, False, True, False]
    assert rereads.snapshots_covering(103).tolist() == [False, True]


def note(key: int, body: object = UNCHANGED) -> tuple[object, ...]:
    return key, "en", 0, body, b"", None


def moved(old: int, new: int) -> list[Change]:
    return [(DELETE, note(old, None)), (INSERT, note(new))]


def test_split_key_moves_are_inserts_that_lack_values_and_the_delete_before_them() -> None:
    batch = rows(NOTES, [*moved(1, 2), *moved(2, 3), (UPDATE, note(3)), (INSERT, note(4, "whole")), *moved(5, 6)])
    kept = np.array([False, True, True, True, True, True, False, False])
    assert split_key_moves(batch, kept).tolist() == [1]
    assert batch.column("_change_type")[1].as_py() == ChangeType.INSERT
    assert split_key_moves(batch, np.ones(8, np.bool_)).tolist() == []


@pytest.mark.parametrize(
    ("moves", "together"),
    [([1, 3, 7], [1, 3]), ([3, 7], [3]), ([5, 7], [5]), ([7], [7])],
)
def test_a_key_to_which_another_row_moves_in_between_is_read_later(moves: list[int], together: list[int]) -> None:
    batch = rows(NOTES, [*moved(1, 2), *moved(3, 4), *moved(2, 4), *moved(5, 4)])
    keys = pa.array(map(str, batch.column("id").to_pylist()), pa.large_string())
    assert readable_together(batch, keys, np.array(moves)).tolist() == together
