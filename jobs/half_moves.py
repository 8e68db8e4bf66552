"""Mends half moves while the log is caught up with (docs/adr/0016): their rows are read again, and stand in their places.

What was read is published by create-if-absent before anything that depends on it is emitted. Half moves are taken in the
log's order, and a file's name is the place of the first one that it mends: so every attempt finds the files that another
one left, in the same order, however the log was cut into batches.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.sources import KeyReading
from readers.gap_filter import Int64s, Mask
from readers.points import KeyChanges, TablePoints, can_be_read_together, half_moves
from readers.projecting import Projector
from readers.publish import MAX_BATCH_BYTES
from readers.published_points import Published, changes_of, publish_points, read_published_points
from state.change_batch import ChangeType
from state.errors import CheckpointError, SourceNotUsableError
from state.points import PointReading
from state.position import WalPosition, wal_position
from state.store import CheckpointStore
from state.table import TableId, TableSchema
from state.wal_snapshot import SnapshotWatermarks

READ_AT_ONCE = 100
MAX_POINTS = 100_000
"""Of a job, until the log has passed them all."""


class HalfMoves:
    """Of one reading of an epoch's log. `known`: the points of earlier epochs."""

    def __init__(
        self,
        store: CheckpointStore,
        epoch: int,
        reading: KeyReading,
        project: Projector,
        known: Iterable[PointReading],
    ) -> None:
        self._store, self._epoch, self._reading, self._project = store, epoch, reading, project
        self._readings = list(known)
        self._known_count = len(self._readings)
        self._merged: dict[TableId, TablePoints] = {}
        self._mended: dict[tuple[int, int], pa.RecordBatch] = {}
        self._own_high: WalPosition | None = None

    @property
    def found(self) -> tuple[PointReading, ...]:
        """This epoch's, the same for every attempt."""
        return tuple(sorted(self._readings[self._known_count :], key=lambda reading: (reading.table, reading.versions)))

    def filled(self, schema: TableSchema, rows: pa.RecordBatch, kept: Mask, xids: Int64s) -> list[pa.RecordBatch]:
        """Of `rows`, in the log's order, what sinks get: those that splits (`kept`) and points do not contain, and rows
        that were read again in place of the half moves."""
        points = self._points(schema.table, int(rows.column("_commit_version")[0].as_py()))
        if points is None and not len(half_moves(rows, kept)):
            return [self._project.changes(schema.table, rows.filter(pa.array(kept)))]
        versions, seqs = (rows.column(name).to_numpy() for name in ("_commit_version", "_seq"))
        changes = KeyChanges(self._reading.texts(schema, rows), versions, seqs.astype(np.int64), xids)
        if points is not None:
            kept = kept & ~points.covered(changes)
        moves = half_moves(rows, kept)
        while unmended := [i for i in moves.tolist() if changes.place(i) not in self._mended]:
            reading = self._mend(schema, rows, changes, np.array(unmended))
            kept = kept & ~TablePoints.of([reading]).covered(changes)
            moves = half_moves(rows, kept)
        whole = kept.copy()
        whole[moves] = False
        emitted = self._project.changes(schema.table, rows.filter(pa.array(whole)))
        return list(
            _joined(self._in_place(emitted, np.cumsum(whole)[moves], [changes.place(i) for i in moves.tolist()]))
        )

    def covering(self, table: TableId, version: int, xid: int) -> list[bool]:
        """Which of the table's readings contain a transaction that is committed at `version`."""
        points = self._points(table, version)
        return [] if points is None else points.snapshots_covering(xid).tolist()

    def _points(self, table: TableId, version: int) -> TablePoints | None:
        """Those that decide about changes from commit version `version` on."""
        readings = [reading for reading in self._readings if reading.table == table]
        if not any(reading.high.version >= version for reading in readings):
            return None
        if table not in self._merged:
            self._merged[table] = TablePoints.of(readings)
        return self._merged[table]

    def _mend(self, schema: TableSchema, rows: pa.RecordBatch, changes: KeyChanges, unmended: Int64s) -> PointReading:
        """Some half moves, the first one among them."""
        place = changes.place(int(unmended[0]))
        published = read_published_points(self._store, self._epoch, place)
        if published is None:
            moves = can_be_read_together(rows, changes.keys, unmended)[:READ_AT_ONCE]
            published = self._publish(schema, rows, changes, moves)
        report, mended = published
        if report.high != self._own_high:  # another attempt's, and perhaps of a later snapshot
            self._reading.begin_anew()
        places = [(row.column("_commit_version")[0].as_py(), row.column("_seq")[0].as_py()) for row in mended]
        if report.table != schema.table or not places or places[0] != place:
            raise CheckpointError(
                f"The checkpoint's rows for {place} of epoch {self._epoch} are others'.",
                "Restore the checkpoint folder from a copy, or start over with an empty checkpoint and an empty target.",
            )
        keys = [self._reading.texts(schema, row)[0].as_py() for row in mended]
        reading = PointReading(
            schema.table,
            wal_position(report.high),
            tuple(keys),
            tuple(version for version, _ in places),
            tuple(seq for _, seq in places),
        )
        self._readings.append(reading)
        self._merged.pop(schema.table, None)
        self._mended |= dict(zip(places, mended, strict=True))
        return reading

    def _publish(self, schema: TableSchema, rows: pa.RecordBatch, changes: KeyChanges, moves: Int64s) -> Published:
        self._check_count(schema.table, len(moves))
        wanted = rows.take(pa.array(moves))
        read = self._reading.read_again(schema, wanted)
        self._own_high = wal_position(read.report.high)
        _check_snapshot(schema.table, self._own_high, changes.xids[moves])
        found = pc.index_in(changes.keys.take(pa.array(moves)), value_set=self._reading.texts(schema, read.rows))
        projected, output = self._project.split(read)
        mended = changes_of(output, wanted, found, projected.rows)
        report = replace(read.report, row_count=len(mended))
        return publish_points(self._store, self._epoch, changes.place(int(moves[0])), report, mended, output)

    def _check_count(self, table: TableId, more: int) -> None:
        if sum(len(reading.keys) for reading in self._readings) + more > MAX_POINTS:
            raise SourceNotUsableError(
                f"The keys of more than {MAX_POINTS} rows (the last ones of {table}) changed while the first snapshot was read "
                "or caught up with, and the log leaves values out of these changes.",
                f"Let the source's log repeat such values (ALTER TABLE {table} REPLICA IDENTITY FULL), and begin anew: a new "
                "checkpoint, and the copies deleted.",
            )

    def _in_place(
        self, emitted: pa.RecordBatch, before: Int64s, places: list[tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        """`before`: how many of `emitted` come before each of the half moves at `places`."""
        start = 0
        for count, place in zip(before.tolist(), places, strict=True):
            yield emitted.slice(start, count - start)
            mended = self._mended.pop(place)
            if mended.column("_change_type")[0].as_py() == ChangeType.INSERT:
                yield mended
            start = count
        yield emitted.slice(start)


def _joined(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As batches of about MAX_BATCH_BYTES. No piece is cut: a DELETE and the INSERT of its move stay in one batch."""
    together: list[pa.RecordBatch] = []
    byte_count = 0
    for piece in pieces:
        if piece.num_rows:
            together.append(piece)
            byte_count += piece.nbytes
        if byte_count >= MAX_BATCH_BYTES:
            yield _one(together)
            together, byte_count = [], 0
    if together:
        yield _one(together)


def _one(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    (batch,) = pa.Table.from_batches(pieces).unify_dictionaries().combine_chunks().to_batches()
    return batch


def _check_snapshot(table: TableId, high: WalPosition, xids: Int64s) -> None:
    """An earlier snapshot contains these transactions, so this one does."""
    snapshot = SnapshotWatermarks.of([high.snapshot or ""])
    if not snapshot.covered(np.zeros(len(xids), np.int64), xids).all():
        raise SourceNotUsableError(
            f"The server's snapshot {high.snapshot} lacks transactions that an earlier one of {table} had.",
            "Check that the server was not restored or failed over; else start over with an empty checkpoint and an empty "
            "target.",
        )
