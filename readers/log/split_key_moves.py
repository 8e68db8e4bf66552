"""Split key moves, and the key re-reads that complete them (docs/adr/0016).

An update of a key is a DELETE and an INSERT, and each belongs to the split of its key. If the DELETE's split contains the
update, or is not read yet, and the INSERT's split does not contain it, a value that the log leaves out of the INSERT is in no
split: a split key move. Its key is read again. From the move on, the snapshot of that re-read decides about changes of the key.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.state.change_batch import UNCHANGED_FIELD, ChangeType
from tidemark.state.key_rereads import KeyReread
from tidemark.state.wal_snapshot import SnapshotWatermarks

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
ChangeId = tuple[int, int]
"""A change of the log: its commit version and its `_seq`."""


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """A table's changes, in the log's order. `keys`: texts, equal for equal keys. `xids` have 32 bits."""

    keys: pa.LargeStringArray
    versions: Int64s
    seqs: Int64s
    xids: Int64s

    def change_id(self, i: int) -> ChangeId:
        return int(self.versions[i]), int(self.seqs[i])


@dataclass(frozen=True, slots=True)
class TableRereads:
    """The key re-reads of one table: entry i is for key `distinct[codes[i]]` and has the snapshot `readings[i]`."""

    distinct: pa.LargeStringArray
    codes: Int64s
    versions: Int64s
    seqs: Int64s
    readings: Int64s
    snapshots: SnapshotWatermarks

    @classmethod
    def of(cls, readings: Sequence[KeyReread]) -> "TableRereads":
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
        """A mask of the changes that the last re-read of their key before them contains."""
        found = pc.index_in(changes.keys, value_set=self.distinct)
        covered = np.zeros(len(changes.keys), np.bool_)
        mine = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
        codes = found.take(pa.array(mine)).to_numpy(zero_copy_only=False).astype(np.int64)
        rereads = self._last_before(codes, changes.versions[mine], changes.seqs[mine])
        mine, rereads = mine[rereads >= 0], rereads[rereads >= 0]
        covered[mine] = self.snapshots.covered(self.readings[rereads], changes.xids[mine])
        return covered

    def snapshots_covering(self, xid: int) -> Mask:
        """A mask of the snapshots that contain the transaction."""
        count = len(self.snapshots.xmins)
        return self.snapshots.covered(np.arange(count), np.full(count, xid, np.int64))

    def _last_before(self, codes: Int64s, versions: Int64s, seqs: Int64s) -> Int64s:
        """The last re-read before each change, -1 if there is none."""
        count = len(self.codes)
        is_reread = np.arange(count + len(codes)) < count
        every = np.concatenate([self.codes, codes])
        order = np.lexsort(
            (is_reread, np.concatenate([self.seqs, seqs]), np.concatenate([self.versions, versions]), every)
        )
        ranked = np.where(is_reread[order], np.arange(len(order)), -1)
        last = np.maximum.accumulate(ranked)
        rereads = np.where(last >= 0, order[last], -1)
        rereads[every[rereads] != every[order]] = -1
        found = np.empty(len(order), np.int64)
        found[order] = rereads
        result: Int64s = found[count:]
        return result


def key_update_inserts(rows: pa.RecordBatch) -> Mask:
    """A mask of the changes that are the INSERT of a key update with values left out. The DELETE is the row before each."""
    kinds = rows.column("_change_type").to_numpy()
    marked = rows.column(UNCHANGED_FIELD.name).is_valid().to_numpy(zero_copy_only=False)
    found: Mask = marked & (kinds == ChangeType.INSERT)
    return found


def split_key_moves(rows: pa.RecordBatch, kept: Mask) -> Int64s:
    """Returns the indices of the split key moves among `rows`: INSERTs that are `kept` and whose DELETE is not."""
    if rows.column(UNCHANGED_FIELD.name).null_count == rows.num_rows:
        return np.empty(0, np.int64)
    moved = key_update_inserts(rows) & kept
    moved[0] = False
    moved[1:] &= ~kept[:-1]
    return np.flatnonzero(moved)


def readable_together(rows: pa.RecordBatch, keys: pa.LargeStringArray, moves: Int64s) -> Int64s:
    """Returns the moves that one re-read can take together: those with no other such INSERT of their key since the first
    move. They remain split key moves whatever is decided about the changes between them."""
    inserts = np.flatnonzero(key_update_inserts(rows))
    inserts = inserts[inserts >= moves[0]]
    codes = keys.take(pa.array(inserts)).dictionary_encode().indices.to_numpy()
    firsts = inserts[np.unique(codes, return_index=True)[1]]
    return np.intersect1d(moves, firsts)
