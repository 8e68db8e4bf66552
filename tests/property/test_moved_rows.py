"""Rows that get other keys while rows are read again: each value of the part's rows is right in the copy, or is known to be
only in the copy."""

from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.property.test_placed_rereads import KEYS, NOTES, Place, Source, batches_of, folded, reread_rows
from tests.support.change_parts import DELETE, INSERT, UNCHANGED, Change, rows
from tidemark.readers.log import moved_rows
from tidemark.readers.log.moved_rows import MovedRows
from tidemark.readers.log.placed_rereads import PlacedRereads
from tidemark.state.change_batch import ChangeType

Placed = tuple[Place, ChangeType, Any, bool]


@pytest.mark.parametrize("holds", ["rows", "changes"])
@given(data=st.data())
def test_a_value_that_only_the_copy_has_is_known(holds: str, data: st.DataObject) -> None:
    known = data.draw(st.sets(st.sampled_from(KEYS)))
    source = Source({key: (-key, f"first {key}") for key in known}, leaves_out=True)
    for _ in range(data.draw(st.integers(0, 6))):
        source.transact(data)
    part = data.draw(st.sets(st.sampled_from(KEYS), min_size=1))
    states = [source.states[data.draw(st.integers(0, len(source.log)))] for _ in KEYS]
    read = {key: states[i].get(key) for i, key in enumerate(sorted(part))}
    found: list[Change] = [(INSERT, (key, *row)) for key, row in read.items() if row is not None]
    lacked: list[Change] = [(DELETE, (key, None, None)) for key, row in read.items() if row is None]
    moved = MovedRows(NOTES, [(key,) for key in part])
    placing = PlacedRereads({NOTES.table: (NOTES, [reread_rows(NOTES, each) for each in (lacked, found) if each])})
    for version, changes in enumerate(source.log, 1):
        for batch in batches_of(NOTES, version, changes, is_cut=False):
            moved.take(batch)
            placing.take(NOTES.table, batch)
    every: list[Placed] = [
        ((version, seq), kind, values, values[2] is UNCHANGED)
        for version, changes in enumerate(source.log, 1)
        for seq, (kind, values) in enumerate(changes)
    ]
    if holds == "rows":
        reused = moved.removed & moved.inserted
        file = [change for change in lacked if (change[1][0],) not in moved.removed]
        file += [change for change in found if (change[1][0],) not in reused]
        every += [((0, seq), kind, values, False) for seq, (kind, values) in enumerate(file)]
    else:
        every += [
            ((row["_commit_version"], row["_seq"]), ChangeType(row["_change_type"]),
             (row["id"], row["stars"], row["body"]), False)
            for _, batch in placing.placed()
            for row in batch.to_pylist()
        ]  # fmt: skip
    copy = folded({key: (-100, f"wrong {key}") for key in source.states[0]}, every)
    assert copy.keys() == source.now.keys()
    keys_read = {(values[0],) for _, values in found}
    lacking = moved.lacking(keys_read, under_any_key=holds == "changes")
    for key, row in copy.items():
        if row.source is None:
            assert row.body == source.now[key][1]
        elif key in part or row.source in part:
            event("only the copy has the value")
            assert lacking[(key,)].keys[0] == (row.source,)


def test_a_batch_without_moves_has_none() -> None:
    moved = MovedRows(NOTES, [(1,), (2,)])
    moved.take(rows(NOTES, [(DELETE, (1, None, None)), (INSERT, (1, 5, "a"))], version=1))
    assert (moved.has_moves, moved.lacking((), under_any_key=False)) == (False, {})
    assert (moved.removed, moved.inserted) == ({(1,)}, {(1,)})


def test_many_changed_rows_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys that were read are, and whether any row moved."""
    monkeypatch.setattr(moved_rows, "MAX_ROWS", 2)
    moved = MovedRows(NOTES, [(1,)])
    moved.take(rows(NOTES, [(INSERT, (key, 0, "a")) for key in (5, 6, 7)], version=1))
    assert moved.is_known
    moved.take(rows(NOTES, [(DELETE, (1, None, None)), (INSERT, (2, 0, UNCHANGED))], version=2))
    assert (moved.is_known, moved.removed, moved.inserted) == (False, {(1,)}, set())


def test_rows_before_a_truncation_are_gone() -> None:
    moved = MovedRows(NOTES, [(2,)])
    moved.take(rows(NOTES, [(DELETE, (1, None, None)), (INSERT, (2, 0, UNCHANGED))], version=1))
    assert moved.lacking((), under_any_key=True).keys() == {(2,)}
    moved.take(rows(NOTES, [(ChangeType.TRUNCATE, (None, None, None))], version=2))
    assert moved.lacking((), under_any_key=True) == {}
