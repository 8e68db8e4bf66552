"""Random valid changes to NOTES as PostgreSQL's log has them: the log may leave out values that an update did not
touch."""

from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from tests.support.change_parts import DELETE, INSERT, NOTES, UNCHANGED, UPDATE, Change

Notes = dict[tuple[str, int], tuple[Any, ...]]
"""Rows by key."""

KEYS = [(lang, number) for number in (1, 2, 3) for lang in ("en", "EN")]
_PLACES = {column.name: i for i, column in enumerate(NOTES.captured)}
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "stars": st.none() | st.integers(0, 5),
    "body": st.sampled_from([None, "", "a", "long " * 500, "é'\\"]),
    "scan": st.sampled_from([None, b"", b"\0\xff"]),
    "size": st.sampled_from([None, Decimal("0.00"), Decimal("-1234567890123456789012345678.90")]),
}


def key_of(row: tuple[Any, ...]) -> tuple[str, int]:
    return row[1], row[0]


def rows_of(key: tuple[str, int]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(key[1]), st.just(key[0]), *_VALUES.values())


@st.composite
def note_changes(draw: st.DrawFn, held: Notes, max_size: int = 12) -> list[Change]:
    """Changes of one transaction to `held`, which becomes their result."""
    changes: list[Change] = []
    for _ in range(draw(st.integers(1, max_size))):
        key = draw(st.sampled_from(KEYS))
        if key not in held:
            held[key] = draw(rows_of(key))
            changes.append((INSERT, held[key]))
            continue
        row = held.pop(key)
        absent = [k for k in KEYS if k not in held and k != key]
        action = draw(st.sampled_from(["update", "update", "delete", *(["move", "move"] if absent else [])]))
        if action != "update":
            changes.append((DELETE, (*row[:2], None, None, None, None) if draw(st.booleans()) else row))
        if action == "delete":
            continue
        target = key if action == "update" else draw(st.sampled_from(absent))
        left_out = draw(st.sets(st.sampled_from(NOTES.toastable)))
        new = [target[1], target[0], *draw(rows_of(target))[2:]]
        logged = list(new)
        for name in left_out:
            new[_PLACES[name]], logged[_PLACES[name]] = row[_PLACES[name]], UNCHANGED
        held[target] = tuple(new)
        changes.append((UPDATE if action == "update" else INSERT, tuple(logged)))
    return changes


@st.composite
def note_histories(draw: st.DrawFn, transactions: int = 4) -> tuple[list[list[Change]], Notes]:
    """Transactions from an empty table on, and the rows that result."""
    held: Notes = {}
    return [draw(note_changes(held)) for _ in range(draw(st.integers(1, transactions)))], held
