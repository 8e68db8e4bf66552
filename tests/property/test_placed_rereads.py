"""Rows that were read again are placed where the source had them so, and the copy is right after them."""

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.support.change_parts import DELETE, INSERT, TRUNCATE, UNCHANGED, UPDATE, Change, rows
from tidemark.readers.log import placed_rereads
from tidemark.readers.log.placed_rereads import PlacedRereads
from tidemark.readers.snapshot.split_read import reread_seq
from tidemark.state.change_batch import ChangeType
from tidemark.state.table import Column, TableId, TableSchema

NOTES = TableSchema(
    TableId("public", "notes"),
    1,
    (
        Column("id", "bigint", "int64", nullable=False),
        Column("stars", "integer", "int32", nullable=True),
        Column("body", "text", "string", nullable=True, toastable=True),
    ),
    ("id",),
)
"""Its log leaves `body` out of updates that do not change it."""
WHOLE = replace(NOTES, columns=tuple(replace(column, toastable=False) for column in NOTES.columns))
KEYS = range(3)
SEQ = reread_seq(1, 0)
Row = tuple[int, str | None]
State = dict[int, Row]
Place = tuple[int, int]


@dataclass
class Source:
    """A table, and the log of its transactions. The first one has version 1."""

    now: State
    leaves_out: bool
    states: list[State] = field(default_factory=list)
    """After each transaction, and first before all of them."""
    log: list[list[Change]] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.states.append(dict(self.now))

    def new(self) -> int:
        self.number += 1
        return self.number

    def transact(self, data: st.DataObject) -> None:
        changes: list[Change] = []
        if data.draw(st.integers(0, 19)) == 0:
            self.now.clear()
            changes.append((TRUNCATE, [None, None, None]))
        for _ in range(0 if changes else data.draw(st.integers(1, 5))):
            changes += self.changed(data, data.draw(st.sampled_from(KEYS)))
        self.log.append(changes)
        self.states.append(dict(self.now))

    def changed(self, data: st.DataObject, key: int) -> list[Change]:
        if key not in self.now:
            self.now[key] = (self.new(), f"body {self.number}")
            return [(INSERT, (key, *self.now[key]))]
        stars, body = self.now[key]
        kind = data.draw(st.sampled_from(["stars", "body", "delete", "move"]))
        removed: Change = (DELETE, (key, None, None) if self.leaves_out else (key, stars, body))
        free = [other for other in KEYS if other not in self.now]
        match kind:
            case "delete":
                del self.now[key]
                return [removed]
            case "move" if free:
                to = data.draw(st.sampled_from(free))
                del self.now[key]
                self.now[to] = (self.new(), body)
                return [removed, (INSERT, (to, self.number, self.left_out(body)))]
            case "body":
                self.now[key] = (stars, f"body {self.new()}")
                return [(UPDATE, (key, *self.now[key]))]
            case _:
                self.now[key] = (self.new(), body)
                return [(UPDATE, (key, self.number, self.left_out(body)))]

    def left_out(self, body: str | None) -> Any:
        return UNCHANGED if self.leaves_out else body


@dataclass
class Copied:
    """A row of the copy. `source`: the key whose row of the copy before all this has the body; None: the body is right."""

    stars: int
    body: str | None
    source: int | None


def folded(before: State, changes: list[tuple[Place, ChangeType, Any, bool]]) -> dict[int, Copied]:
    """Folds as docs/sinks.md tells readers to. `before`: what the copy had, which may be wrong."""
    copy = {key: Copied(stars, body, key) for key, (stars, body) in before.items()}
    removed: Copied | None = None
    for _, kind, (key, stars, body), is_left_out in sorted(changes, key=lambda change: change[0]):
        if kind is TRUNCATE:
            copy.clear()
        elif kind is DELETE:
            removed = copy.pop(key, Copied(0, None, key))
        elif is_left_out:
            origin = copy.get(key, Copied(0, None, key)) if kind is UPDATE else removed
            assert origin is not None
            copy[key] = Copied(stars, origin.body, origin.source)
        else:
            copy[key] = Copied(stars, body, None)
    return copy


def batches_of(schema: TableSchema, version: int, changes: list[Change], *, is_cut: bool) -> list[pa.RecordBatch]:
    """A transaction as one batch, or as one for each change."""
    whole = rows(schema, changes, version=version)
    return [whole.slice(i, 1) for i in range(whole.num_rows)] if is_cut else [whole]


def reread_rows(schema: TableSchema, changes: list[Change]) -> pa.RecordBatch:
    batch = rows(schema, changes, version=0, snapshot=True)
    at = batch.schema.get_field_index("_seq")
    return batch.set_column(at, batch.schema.field(at), pa.array(np.full(len(changes), SEQ, np.int32)))


@pytest.mark.parametrize("schema", [NOTES, WHOLE], ids=["left-out", "whole"])
@given(data=st.data())
def test_rows_are_placed_where_the_source_had_them_and_the_copy_is_right(
    schema: TableSchema, data: st.DataObject
) -> None:
    known = data.draw(st.sets(st.sampled_from(KEYS)))
    source = Source({key: (-key, f"first {key}") for key in known}, bool(schema.toastable))
    for _ in range(data.draw(st.integers(0, 6))):
        source.transact(data)
    before = {key: (-100, f"wrong {key}") for key in data.draw(st.sets(st.sampled_from(KEYS)))}
    part = sorted(data.draw(st.sets(st.sampled_from(KEYS), min_size=1)))
    read = {key: source.states[data.draw(st.integers(0, len(source.log)))].get(key) for key in part}
    lacking: list[Change] = [(DELETE, (key, None, None)) for key, row in read.items() if row is None]
    found: list[Change] = [(INSERT, (key, *row)) for key, row in read.items() if row is not None]
    given_rows = [reread_rows(schema, changes) for changes in (lacking, found) if changes]
    with pytest.MonkeyPatch.context() as patch:
        is_cut = data.draw(st.booleans())
        patch.setattr(placed_rereads, "KEPT_BYTES", 1 if is_cut else 1 << 20)
        placing = PlacedRereads({schema.table: (schema, given_rows)})
        for version, changes in enumerate(source.log, 1):
            for batch in batches_of(schema, version, changes, is_cut=is_cut):
                placing.take(schema.table, batch)
        placed = [row for _, batch in placing.placed() for row in batch.to_pylist()]
    assert all(row["_is_snapshot"] and row.get("_unchanged") is None for row in placed)
    for row in placed:  # nothing goes back in time: the source had the key so, there
        true = source.states[row["_commit_version"]].get(row["id"])
        assert true == (None if row["_change_type"] == DELETE else (row["stars"], row["body"]))
    every: list[tuple[Place, ChangeType, Any, bool]] = [
        ((version, seq), kind, values, values[2] is UNCHANGED)
        for version, changes in enumerate(source.log, 1)
        for seq, (kind, values) in enumerate(changes)
    ]
    every += [
        ((row["_commit_version"], row["_seq"]), ChangeType(row["_change_type"]),
         (row["id"], row["stars"], row["body"]), False)
        for row in placed
    ]  # fmt: skip
    copy = folded(before, every)
    for key in part:
        assert (key in copy) == (key in source.now)
        if key not in copy:
            continue
        assert copy[key].stars == source.now[key][0]
        origin = copy[key].source
        if origin is None:
            assert copy[key].body == source.now[key][1]
        else:  # a row that got another key, or one of several that had the key
            event("the body is that of the copy")
            changes_of = itertools.chain.from_iterable(source.log)
            inserts = sum(kind is INSERT and values[0] == origin for kind, values in changes_of)
            assert origin not in part or read[origin] is None or inserts + (origin in source.states[0]) > 1


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_row_that_loses_its_key_comes_before_the_whole_transaction(
    is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placed_rereads, "KEPT_BYTES", 1 if is_cut else 1 << 20)
    placing = PlacedRereads(
        {NOTES.table: (NOTES, [reread_rows(NOTES, [(INSERT, (1, 0, "a")), (INSERT, (2, 0, "b"))])])}
    )
    transactions: list[list[Change]] = [
        [(UPDATE, (1, 7, UNCHANGED)), (UPDATE, (2, 7, UNCHANGED))],
        [
            (UPDATE, (1, 8, UNCHANGED)),
            (UPDATE, (2, 8, UNCHANGED)),
            (DELETE, (1, None, None)),
            (INSERT, (3, 9, UNCHANGED)),
        ],
    ]
    for version, changes in enumerate(transactions, 1):
        for batch in batches_of(NOTES, version, changes, is_cut=is_cut):
            placing.take(NOTES.table, batch)
    placed = [row for _, batch in placing.placed() for row in batch.to_pylist()]
    assert [(row["id"], row["stars"], row["body"], row["_commit_version"]) for row in placed] == [
        (1, 7, "a", 1),
        (2, 8, "b", 2),
    ]
