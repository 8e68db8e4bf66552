"""Rows of a table that were read again, and wait to be written."""

from dataclasses import dataclass

from tidemark.state.position import Position
from tidemark.state.split import KeyRange
from tidemark.state.table import TableId


@dataclass(frozen=True, slots=True)
class KeyRepair:
    """Rows of given keys that a signal has had read again.

    `signal` 0: a failover had, because of lost changes of them. `version`: of the table's schema. `file`: of the checkpoint,
    with the rows that the source has, and a DELETE for each key that it lacks. `high`: what the rows contain is not after it.
    `rest`: what the signal has still to be read of the split key, once these rows are written; None for nothing.
    """

    signal: int
    table: TableId
    version: int
    file: str
    high: Position
    rows: int
    rest: KeyRange | None = None
