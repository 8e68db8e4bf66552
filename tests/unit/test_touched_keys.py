"""The note of the keys that an epoch touches."""

import pyarrow as pa
import pytest

from tidemark.readers.log import touched_keys
from tidemark.readers.log.touched_keys import TouchedKeysNote, keys_of_note
from tidemark.state.change_batch import ChangeType
from tidemark.state.log_range import TouchedKeys
from tidemark.state.table import Column, TableId, TableSchema

ONE, TWO, KEYLESS = (TableId("shop", name) for name in ("one", "two", "keyless"))
COLUMNS = (
    Column("a", "int", "int32", nullable=False),
    Column("b", "text", "string", nullable=False),
    Column("long", "text", "string", nullable=True),
)
OUTPUTS = (
    TableSchema(ONE, 3, COLUMNS, ("b", "a")),
    TableSchema(TWO, 1, COLUMNS, ("a",)),
    TableSchema(KEYLESS, 1, COLUMNS, ()),
)


def changes(*numbers: int, kind: ChangeType = ChangeType.UPDATE_POSTIMAGE, text: str = "k") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "a": pa.array(numbers, pa.int32()),
            "b": [f"{text}{number}" for number in numbers],
            "long": ["x" * 10_000] * len(numbers),
            "_change_type": pa.array([int(kind)] * len(numbers), pa.int8()),
        }
    )


def noted(note: tuple[TouchedKeys, ...]) -> dict[TableId, list[tuple[object, ...]] | None]:
    return {
        touched.table: None
        if touched.keys is None
        else [tuple(row.values()) for row in keys_of_note(touched.keys).to_pylist()]
        for touched in note
    }


def test_the_keys_of_all_changes_are_noted() -> None:
    note = TouchedKeysNote(OUTPUTS)
    note.take(TWO, changes(5))
    note.take(ONE, changes(1, 2))
    note.take(ONE, changes(2, kind=ChangeType.DELETE))
    note.take(ONE, changes())
    touched = note.touched()
    assert [(each.table, each.version) for each in touched] == [(ONE, 3), (TWO, 1)]
    assert noted(touched) == {ONE: [("k1", 1), ("k2", 2), ("k2", 2)], TWO: [(5,)]}


def test_a_note_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of rows with long values. The limits hold for all tables together."""
    note = TouchedKeysNote(OUTPUTS)
    note.take(ONE, changes(*range(1000)))
    assert sum(len(touched.keys or "") for touched in note.touched()) < 20_000
    monkeypatch.setattr(touched_keys, "MAX_KEYS", 3)
    note = TouchedKeysNote(OUTPUTS)
    note.take(ONE, changes(1, 2))
    note.take(TWO, changes(3, 4))
    assert noted(note.touched()) == {ONE: [("k1", 1), ("k2", 2)], TWO: None}
    monkeypatch.setattr(touched_keys, "MAX_BYTES", 5000)
    note = TouchedKeysNote(OUTPUTS)
    note.take(TWO, changes(1))
    note.take(ONE, changes(1, text="".join(map(chr, range(5000)))))
    assert noted(note.touched()) == {ONE: None, TWO: [(1,)]}


def test_a_table_stays_unknown() -> None:
    note = TouchedKeysNote(OUTPUTS)
    note.take(ONE, changes(1))
    note.take(ONE, changes(0, kind=ChangeType.TRUNCATE))
    note.take(ONE, changes(2))
    note.take(KEYLESS, changes(1))
    note.give_up(TWO)
    note.take(TWO, changes(1))
    assert noted(note.touched()) == {ONE: None, TWO: None, KEYLESS: None}
