"""A PostgreSQL table in memory whose log leaves long values out, and the splits and keys that are read of it."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tests.property.model_database import FIRST_XID, xid_of
from tidemark.readers.snapshot.split_read import SplitRead
from tidemark.state.change_batch import ChangeType, batch_schema
from tidemark.state.position import WalPosition
from tidemark.state.split import Report
from tidemark.state.table import Column, TableId, TableSchema
from tidemark.state.wal_snapshot import SnapshotWatermarks

SCHEMA = TableSchema(
    TableId("public", "t"),
    1,
    (
        Column("id", "integer", "int32", nullable=False),
        Column("n", "integer", "int32", nullable=False),
        Column("body", "text", "string", nullable=True, toastable=True),
    ),
    ("id",),
)
KEYS = range(12)
CUTS = (4, 8)
LOST = 0.1

Rows = dict[int, tuple[int, str | None]]
"""By key: the number of the transaction that left the row as it is, and its body."""


@dataclass(frozen=True)
class Change:
    """A change in the log. `body` is "" where the log leaves it out."""

    kind: ChangeType
    key: int
    body: str | None = None


@dataclass
class MovingTable:
    """Transactions count from 0, in the log's order, and become visible in another one."""

    chance: random.Random
    log: list[list[Change]] = field(default_factory=list)
    visible: list[int] = field(default_factory=list)
    rows: Rows = field(default_factory=lambda: {key: (-1, f"old {key}") for key in KEYS if key % 2})
    seen: Rows = field(default_factory=dict)
    """The rows that a SELECT finds."""

    def __post_init__(self) -> None:
        self.seen = dict(self.rows)

    def live(self, steps: int) -> None:
        for _ in range(steps):
            hidden = [number for number in range(len(self.log)) if number not in self.visible]
            if hidden and (len(hidden) > 1 or self.chance.random() < 0.4):
                self._show(self.chance.choice(hidden))
            else:
                self._write({change.key for number in hidden for change in self.log[number]})

    def show_all(self) -> None:
        for number in range(len(self.log)):
            if number not in self.visible:
                self._show(number)

    def _show(self, number: int) -> None:
        self.visible.append(number)
        touched = {change.key for change in self.log[number]}
        for key in touched:
            self.seen.pop(key, None)
        self.seen |= {key: row for key, row in self._states[number].items() if key in touched}

    def _write(self, locked: set[int]) -> None:
        number, changes = len(self.log), []
        for _ in range(self.chance.randint(1, 4)):
            key = self.chance.choice(KEYS)
            other = self.chance.choice([free for free in KEYS if free not in self.rows] or KEYS)
            if key in locked or other in locked:
                continue
            body = f"{number}.{len(changes)}" if self.chance.random() < 0.2 else ""
            found = self.rows.get(key)
            if found is None:
                self.rows[key] = (number, body or f"new {number}")
                changes.append(Change(ChangeType.INSERT, key, body or f"new {number}"))
                continue
            stays = (number, body or found[1])
            match self.chance.randrange(8):
                case 0:
                    del self.rows[key]
                    changes.append(Change(ChangeType.DELETE, key))
                case 1 | 2:
                    self.rows[key] = stays
                    changes.append(Change(ChangeType.UPDATE_POSTIMAGE, key, body))
                case _ if other not in self.rows:
                    del self.rows[key]
                    self.rows[other] = stays
                    changes += [Change(ChangeType.DELETE, key), Change(ChangeType.INSERT, other, body)]
        if changes:
            self.log.append(changes)
            self._states.append(dict(self.rows))

    _states: list[Rows] = field(default_factory=list)

    # --- reading

    @property
    def end(self) -> int:
        return version_of(len(self.log))

    def high(self) -> WalPosition:
        """A high of pg_current_snapshot() and the log's end."""
        visible = {xid_of(number) for number in self.visible}
        xmax = max(visible, default=FIRST_XID) + 1
        running = [xid for xid in range(FIRST_XID, xmax) if xid not in visible and xid % 2**32 > 2]
        return WalPosition(self.end, f"{min([*running, xmax])}:{xmax}:{','.join(map(str, running))}")

    def changes(self, start: int, stop: int) -> pa.RecordBatch:
        """The changes of the transactions whose version is in [start, stop)."""
        listed = [
            (number, seq, change)
            for number, changes in enumerate(self.log)
            if start <= version_of(number) < stop
            for seq, change in enumerate(changes)
        ]
        bodies = [change.body for _, _, change in listed]
        arrays = [
            pa.array([change.key for _, _, change in listed], pa.int32()),
            pa.array([number for number, _, _ in listed], pa.int32()),
            pa.array([body or None for body in bodies], pa.string()),
            pa.array([int(change.kind) for _, _, change in listed], pa.int8()),
            pa.array([version_of(number) for number, _, _ in listed], pa.int64()),
            pa.array([0] * len(listed), pa.timestamp("us", tz="UTC")),
            pa.array([seq for _, seq, _ in listed], pa.int32()),
            pa.array([str(xid_of(number) % 2**32) for number, _, _ in listed], pa.string()).dictionary_encode(),
            pa.array([False] * len(listed), pa.bool_()),
            pa.array([["body"] if body == "" else None for body in bodies], pa.list_(pa.string())),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=batch_schema(SCHEMA))


def version_of(number: int) -> int:
    return 100 + 10 * number


@dataclass
class MovingKeys:
    """A `readers.source.KeyReading`. The table changes meanwhile, and all re-reads see one snapshot until that is
    lost."""

    table: MovingTable
    taken: tuple[WalPosition, Rows] | None = None

    def texts(self, schema: TableSchema, rows: pa.RecordBatch | pa.Table) -> pa.LargeStringArray:
        return pa.array(map(str, rows.column("id").to_pylist()), pa.large_string())

    def read_again(self, schema: TableSchema, rows: pa.RecordBatch) -> SplitRead:
        self.table.live(self.table.chance.randint(0, 3))
        if self.taken is None or self.table.chance.random() < LOST:
            self.taken = (self.table.high(), dict(self.table.seen))
        high, seen = self.taken
        found = [(key, *seen[key]) for key in set(rows.column("id").to_pylist()) if key in seen]
        self.table.chance.shuffle(found)
        columns = list(zip(*found, strict=True)) or [(), (), ()]
        schema_of = SCHEMA.arrow_schema()
        table = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema_of, strict=True)], schema=schema_of)
        return SplitRead(Report(-1, SCHEMA.table, 1, high, len(found), 0), table, 0)

    def restart(self) -> None:
        self.taken = None


@dataclass
class Splits:
    """The table's splits, each read at another time."""

    highs: list[WalPosition]
    rows: Rows

    @classmethod
    def read(cls, table: MovingTable) -> "Splits":
        pieces = list(range(len(CUTS) + 1))
        table.chance.shuffle(pieces)
        highs: dict[int, WalPosition] = {}
        rows: Rows = {}
        for piece in pieces:
            table.live(table.chance.randint(2, 20))
            highs[piece] = table.high()
            rows |= {key: row for key, row in table.seen.items() if owner(key) == piece}
        return cls([highs[piece] for piece in sorted(highs)], rows)

    def kept(self, keys: Iterable[int], xids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        snapshots = SnapshotWatermarks.of([high.snapshot or "" for high in self.highs])
        return ~snapshots.covered(np.array([owner(key) for key in keys], np.int64), xids)


def owner(key: int) -> int:
    return sum(key >= cut for cut in CUTS)


@dataclass
class Copy:
    """A copy that takes an epoch's changes one by one. Raises AssertionError for a value of no row, and for a step
    back."""

    rows: Rows
    stamps: dict[int, int] = field(default_factory=dict)
    moved: str | None = None

    def apply(self, change: dict[str, Any]) -> None:
        key, number, body = change["id"], change["n"], change["body"]
        assert self.stamps.get(key, -1) <= number, f"a step back: {change}"
        self.stamps[key] = number
        before = self.rows.pop(key, None)
        if change["_change_type"] == ChangeType.DELETE:
            assert before is not None, f"not there: {change}"
            self.moved = before[1]
            return
        is_insert = change["_change_type"] == ChangeType.INSERT
        assert is_insert == (before is None), f"{change} after {before}"
        if change["_unchanged"]:
            body = self.moved if is_insert else before[1] if before else None
            assert body is not None, f"a value of no row: {change}"
        self.moved = None
        self.rows[key] = (number, body)
