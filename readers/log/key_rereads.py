"""Re-reads the rows of split key moves (docs/adr/0016) and emits them in place of the moves.

The rows are published by create-if-absent before anything that depends on them is emitted. Moves are handled in the log's
order, and a file is named after its first move. So every attempt finds the files of earlier attempts in the same order,
no matter how the log is divided into batches.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.readers.log.gap_filter import Int64s, Mask
from tidemark.readers.log.published_rereads import Published, publish_rereads, read_published_rereads, replacements
from tidemark.readers.log.split_key_moves import KeyChanges, TableRereads, readable_together, split_key_moves
from tidemark.readers.projection.projector import Projector
from tidemark.readers.snapshot.publish import MAX_BATCH_BYTES
from tidemark.readers.snapshot.split_read import SplitRead
from tidemark.readers.source import KeyReading
from tidemark.state.change_batch import ChangeType
from tidemark.state.checkpoint.store import CheckpointStore
from tidemark.state.errors import CheckpointError, SchemaChangedError, SourceUnavailableError
from tidemark.state.key_rereads import KeyReread
from tidemark.state.position import WalPosition, wal_position
from tidemark.state.remedies import RESTORE_CHECKPOINT, START_OVER, log_whole_rows
from tidemark.state.table import TableId, TableSchema
from tidemark.state.wal_snapshot import SnapshotWatermarks

MAX_KEYS_PER_READ = 100
MAX_WAIT_SECONDS = 60.0
"""How long a re-read waits until snapshots contain the transactions of its moves."""
_POLL_SECONDS = 0.05
MAX_REREAD_KEYS = 100_000
"""Per table, until the log has passed them all."""


class KeyRereads:
    """The key re-reads of one attempt at an epoch's log range. `known`: those of earlier epochs. `attempt`: as in
    `published_reread_file`."""

    def __init__(
        self,
        store: CheckpointStore,
        epoch: int,
        reading: KeyReading,
        project: Projector,
        known: Iterable[KeyReread],
        attempt: int = 0,
    ) -> None:
        self._store, self._epoch, self._reading, self._project = store, epoch, reading, project
        self._attempt = attempt
        self._readings = list(known)
        self._known_count = len(self._readings)
        self._merged: dict[TableId, TableRereads] = {}
        self._reread_rows: dict[tuple[int, int], pa.RecordBatch] = {}
        self._own_high: WalPosition | None = None

    @property
    def found(self) -> tuple[KeyReread, ...]:
        """The re-reads of this epoch. They are the same for every attempt."""
        return tuple(sorted(self._readings[self._known_count :], key=lambda reading: (reading.table, reading.versions)))

    def emitted(self, schema: TableSchema, rows: pa.RecordBatch, kept: Mask, xids: Int64s) -> list[pa.RecordBatch]:
        """Returns what sinks get for `rows`, in the log's order: the changes that neither splits (`kept`) nor re-reads
        contain, with re-read rows in place of split key moves."""
        rereads = self._rereads(schema.table, int(rows.column("_commit_version")[0].as_py()))
        if rereads is None and not len(split_key_moves(rows, kept)):
            return [self._project.changes(schema.table, rows.filter(pa.array(kept)))]
        versions, seqs = (rows.column(name).to_numpy() for name in ("_commit_version", "_seq"))
        changes = KeyChanges(self._reading.texts(schema, rows), versions, seqs.astype(np.int64), xids)
        if rereads is not None:
            kept = kept & ~rereads.covered(changes)
        moves = split_key_moves(rows, kept)
        while not_reread := [i for i in moves.tolist() if changes.change_id(i) not in self._reread_rows]:
            reading = self._read_again(schema, rows, changes, np.array(not_reread))
            kept = kept & ~TableRereads.of([reading]).covered(changes)
            moves = split_key_moves(rows, kept)
        whole = kept.copy()
        whole[moves] = False
        emitted = self._project.changes(schema.table, rows.filter(pa.array(whole)))
        ids = [changes.change_id(i) for i in moves.tolist()]
        return list(_merged(self._with_rereads(emitted, np.cumsum(whole)[moves], ids)))

    def covering(self, table: TableId, version: int, xid: int) -> list[bool]:
        """For each of the table's re-reads: True if it contains the transaction `xid`, committed at `version`."""
        rereads = self._rereads(table, version)
        return [] if rereads is None else rereads.snapshots_covering(xid).tolist()

    def _rereads(self, table: TableId, version: int) -> TableRereads | None:
        """The re-reads that decide about changes from commit version `version` on; None if there are none."""
        readings = [reading for reading in self._readings if reading.table == table]
        if not any(reading.high.version >= version for reading in readings):
            return None
        if table not in self._merged:
            self._merged[table] = TableRereads.of(readings)
        return self._merged[table]

    def _read_again(
        self, schema: TableSchema, rows: pa.RecordBatch, changes: KeyChanges, not_reread: Int64s
    ) -> KeyReread:
        """Re-reads some of the moves, including the first one, or takes what another attempt published."""
        first = changes.change_id(int(not_reread[0]))
        published = read_published_rereads(self._store, self._epoch, first, self._attempt)
        if published is None:
            moves = readable_together(rows, changes.keys, not_reread)[:MAX_KEYS_PER_READ]
            published = self._publish(schema, rows, changes, moves)
        report, reread_rows = published
        if report.high != self._own_high:  # published by another attempt, perhaps under a later snapshot
            self._reading.restart()
        ids = [(row.column("_commit_version")[0].as_py(), row.column("_seq")[0].as_py()) for row in reread_rows]
        if report.table != schema.table or not ids or ids[0] != first:
            raise CheckpointError(
                f"The checkpoint's re-read rows for change {first} of epoch {self._epoch} belong to another change.",
                RESTORE_CHECKPOINT,
            )
        keys = [self._reading.texts(schema, row)[0].as_py() for row in reread_rows]
        reading = KeyReread(
            schema.table,
            wal_position(report.high),
            tuple(keys),
            tuple(version for version, _ in ids),
            tuple(seq for _, seq in ids),
        )
        self._readings.append(reading)
        self._merged.pop(schema.table, None)
        self._reread_rows |= dict(zip(ids, reread_rows, strict=True))
        return reading

    def _publish(self, schema: TableSchema, rows: pa.RecordBatch, changes: KeyChanges, moves: Int64s) -> Published:
        self._check_count(schema.table, int(changes.versions[0]), len(moves))
        wanted = rows.take(pa.array(moves))
        read = self._read_with(schema, wanted, changes.xids[moves])
        self._own_high = wal_position(read.report.high)
        found = pc.index_in(changes.keys.take(pa.array(moves)), value_set=self._reading.texts(schema, read.rows))
        projected, output = self._project.split(read)
        reread_rows = replacements(output, wanted, found, projected.rows)
        report = replace(read.report, row_count=len(reread_rows))
        move = changes.change_id(int(moves[0]))
        return publish_rereads(self._store, self._epoch, move, report, reread_rows, output, self._attempt)

    def _read_with(self, schema: TableSchema, wanted: pa.RecordBatch, xids: Int64s) -> SplitRead:
        """Re-reads the rows under a snapshot that contains these transactions. The log may have them before snapshots do."""
        deadline = time.monotonic() + MAX_WAIT_SECONDS
        while True:
            read = self._reading.read_again(schema, wanted)
            high = wal_position(read.report.high)
            if _contains(high, xids):
                return read
            if time.monotonic() > deadline:
                raise SourceUnavailableError(
                    f"The server's snapshot {high.snapshot} lacks committed transactions that the log of {schema.table} has.",
                    "If their commits wait for a synchronous standby, bring it back (pg_stat_activity shows the wait event "
                    f"SyncRep), and start the job again. If the server was restored or failed over, {START_OVER}.",
                )
            self._reading.restart()
            time.sleep(_POLL_SECONDS)  # the server tells nobody when a commit becomes visible

    def _check_count(self, table: TableId, version: int, more: int) -> None:
        """Raises SchemaChangedError, so that the table is read again. The re-reads that the log has passed do not count."""
        readings = [reading for reading in self._readings if reading.table == table and reading.high.version >= version]
        if sum(len(reading.keys) for reading in readings) + more > MAX_REREAD_KEYS:
            raise SchemaChangedError(
                f"The keys of more than {MAX_REREAD_KEYS} rows of {table} changed during snapshot and catch-up, and the log "
                "leaves values out of these changes.",
                log_whole_rows(table),
                table,
            )

    def _with_rereads(
        self, emitted: pa.RecordBatch, before: Int64s, moves: list[tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        """Inserts re-read rows into `emitted`. `before`: how many of `emitted` precede each of `moves`."""
        start = 0
        for count, move in zip(before.tolist(), moves, strict=True):
            yield emitted.slice(start, count - start)
            reread_rows = self._reread_rows.pop(move)
            if reread_rows.column("_change_type")[0].as_py() == ChangeType.INSERT:
                yield reread_rows
            start = count
        yield emitted.slice(start)


def _merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merges into batches of about MAX_BATCH_BYTES, without dividing any: a move's DELETE and INSERT stay in one batch."""
    pending: list[pa.RecordBatch] = []
    byte_count = 0
    for batch in batches:
        if batch.num_rows:
            pending.append(batch)
            byte_count += batch.nbytes
        if byte_count >= MAX_BATCH_BYTES:
            yield _one_batch(pending)
            pending, byte_count = [], 0
    if pending:
        yield _one_batch(pending)


def _one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    (batch,) = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()
    return batch


def _contains(high: WalPosition, xids: Int64s) -> bool:
    snapshot = SnapshotWatermarks.of([high.snapshot or ""])
    return bool(snapshot.covered(np.zeros(len(xids), np.int64), xids).all())
