"""Splits: one table and a half-open range of its key, and what is known of a split that was read."""

from dataclasses import dataclass

from state.position import Position
from state.table import TableId


@dataclass(frozen=True, slots=True)
class Bound:
    """A place in a table's key order: everything from this key on lies right of it.

    `literals`: one SQL literal per split-key column, the server's own text in a form that the server compares
    without loss (`42`, `_utf8mb4 0x6162`, `'2024-02-29'`). Only the server compares them.
    `rank`: the same place as bytes whose order is the server's order (see state/rank.py), in hex.
    The gap filter compares it.
    """

    literals: tuple[str, ...]
    rank: str


@dataclass(frozen=True, slots=True)
class KeyRange:
    """[start, end); None is unbounded."""

    start: Bound | None
    end: Bound | None


@dataclass(frozen=True, slots=True)
class Split:
    """`id` is unique in the job and never reused. `columns` are the split-key columns, a prefix of an index's columns;
    () for a table without a key, which is one split, read whole."""

    id: int
    table: TableId
    schema_version: int
    columns: tuple[str, ...]
    range: KeyRange


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a published split. `low` is None where nothing had to be replayed (exact watermarks).
    `high` carries GTIDs where the source has them: such a position is an anchor for later splits (docs/adr/0003)."""

    split_id: int
    table: TableId
    schema_version: int
    high: Position
    row_count: int
    replayed_changes: int
