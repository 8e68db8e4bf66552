"""Half moves, and the points that mend them (docs/adr/0016).

An update of a key is a DELETE and an INSERT, and each goes to its own split. Where the DELETE's split contains it and the
INSERT's does not, a value that the log leaves out of the INSERT is in no split: a half move. Its key is read again. It
becomes a point: from the half move's place in the log on, the snapshot of that reading decides about changes of the key.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state.change_batch import UNCHANGED_FIELD, ChangeType
from state.points import PointReading
from state.wal_snapshot import SnapshotWatermarks

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """A table's changes, in their order. `keys`: texts, equal for equal keys; `xids` have 32 bits."""

    keys: pa.LargeStringArray
    versions: Int64s
    seqs: Int64s
    xids: Int64s

    def place(self, i: int) -> tuple[int, int]:
        return int(self.versions[i]), int(self.seqs[i])


@dataclass(frozen=True, slots=True)
class TablePoints:
    """Points of one table: point i is of key `distinct[codes[i]]` and has the snapshot `readings[i]`."""

    distinct: pa.LargeStringArray
    codes: Int64s
    versions: Int64s
    seqs: Int64s
    readings: Int64s
    snapshots: SnapshotWatermarks

    @classmethod
    def of(cls, readings: Sequence[PointReading]) -> "TablePoints":
        keys = pa.array([key for reading in readings for key in reading.keys], pa.large_string()).dictionary_encode()
        return cls(
            keys.dictionary,
            keys.indices.to_numpy().astype(np.int64),
            np.array([version for reading in readings for version in reading.versions], np.int64),
            np.array([seq for reading in readings for seq in reading.seqs], np.int64),
            np.repeat(np.arange(len(readings)), [len(reading.keys) for reading in readings]),
            SnapshotWatermarks.of([reading.high.snapshot or "" for reading in readings]),
        )

    def covered(self, changes: KeyChanges) -> Mask:
        """Which changes the last point of their key before them contains."""
        found = pc.index_in(changes.keys, value_set=self.distinct)
        covered = np.zeros(len(changes.keys), np.bool_)
        mine = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
        codes = found.take(pa.array(mine)).to_numpy(zero_copy_only=False).astype(np.int64)
        points = self._last_before(codes, changes.versions[mine], changes.seqs[mine])
        mine, points = mine[points >= 0], points[points >= 0]
        covered[mine] = self.snapshots.covered(self.readings[points], changes.xids[mine])
        return covered

    def snapshots_covering(self, xid: int) -> Mask:
        """Which readings contain the transaction."""
        count = len(self.snapshots.xmins)
        return self.snapshots.covered(np.arange(count), np.full(count, xid, np.int64))

    def _last_before(self, codes: Int64s, versions: Int64s, seqs: Int64s) -> Int64s:
        """The point of each change, -1 where there is none."""
        count = len(self.codes)
        is_point = np.arange(count + len(codes)) < count
        every = np.concatenate([self.codes, codes])
        order = np.lexsort(
            (is_point, np.concatenate([self.seqs, seqs]), np.concatenate([self.versions, versions]), every)
        )
        ranked = np.where(is_point[order], np.arange(len(order)), -1)
        last = np.maximum.accumulate(ranked)
        points = np.where(last >= 0, order[last], -1)
        points[every[points] != every[order]] = -1
        found = np.empty(len(order), np.int64)
        found[order] = points
        result: Int64s = found[count:]
        return result


def moved_in(rows: pa.RecordBatch) -> Mask:
    """Which changes are the INSERT of an update of the key that leaves values out; the DELETE is the row before it."""
    kinds = rows.column("_change_type").to_numpy()
    marked = rows.column(UNCHANGED_FIELD.name).is_valid().to_numpy(zero_copy_only=False)
    found: Mask = marked & (kinds == ChangeType.INSERT)
    return found


def half_moves(rows: pa.RecordBatch, kept: Mask) -> Int64s:
    """Those of a table's changes whose other half is not `kept`."""
    if rows.column(UNCHANGED_FIELD.name).null_count == rows.num_rows:
        return np.empty(0, np.int64)
    halved = moved_in(rows) & kept
    halved[0] = False
    halved[1:] &= ~kept[:-1]
    return np.flatnonzero(halved)


def can_be_read_together(rows: pa.RecordBatch, keys: pa.LargeStringArray, moves: Int64s) -> Int64s:
    """Of half moves: those with no other such INSERT of their key since the first of them. So they stay half moves, whatever
    becomes of what lies between."""
    inserts = np.flatnonzero(moved_in(rows))
    inserts = inserts[inserts >= moves[0]]
    codes = keys.take(pa.array(inserts)).dictionary_encode().indices.to_numpy()
    firsts = inserts[np.unique(codes, return_index=True)[1]]
    return np.intersect1d(moves, firsts)
