"""Publishes re-read rows: one file per re-read, named by the epoch and its first split key move.

The file stays until the epoch is committed. Every attempt at the epoch's log range uses it, as with splits
(readers/snapshot/publish.py).
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemark.readers.log.split_key_moves import ChangeId
from tidemark.readers.snapshot.gathered_rows import SPILL_BYTES
from tidemark.readers.snapshot.published_file import check_file, write_file
from tidemark.state.change_batch import ChangeType, batch_schema
from tidemark.state.checkpoint.layout import published_reread_file
from tidemark.state.checkpoint.store import CheckpointStore
from tidemark.state.errors import CheckpointError
from tidemark.state.failpoints import failpoint
from tidemark.state.remedies import LATE
from tidemark.state.split import Report
from tidemark.state.table import TableSchema

NO_SPLIT = -1
"""The split id in the report of a re-read."""

Published = tuple[Report, tuple[pa.RecordBatch, ...]]
"""The report, and the changes of `replacements`, each alone in its batch."""


def read_published_rereads(store: CheckpointStore, epoch: int, move: ChangeId, attempt: int = 0) -> Published | None:
    """`move`: the re-read's first split key move. `attempt`: as in `published_reread_file`. None if nobody has published it
    yet. Raises CheckpointError for a damaged file or one of an unknown version."""
    name = published_reread_file(epoch, *move, attempt)
    data = store.read(name)
    return None if data is None else check_file(data, name)


def publish_rereads(
    store: CheckpointStore,
    epoch: int,
    move: ChangeId,
    report: Report,
    changes: Sequence[pa.RecordBatch],
    schema: TableSchema,
    attempt: int = 0,
) -> Published:
    """Publishes `changes` (of the output's `schema`) unless the move has been published. Returns the published content."""
    in_memory = sum(change.nbytes for change in changes) < SPILL_BYTES
    data = write_file("arrow", report, changes, schema, in_memory=in_memory)
    failpoint("rereads.before_publish")
    name = published_reread_file(epoch, *move, attempt)
    store.create(name, data)
    failpoint("rereads.after_publish")
    published = read_published_rereads(store, epoch, move, attempt)
    if published is None:
        raise CheckpointError(
            f"{name} was published and then removed: its epoch is committed.",
            LATE,
        )
    return published


def replacements(schema: TableSchema, moves: pa.RecordBatch, found: pa.Array, rows: pa.Table) -> list[pa.RecordBatch]:
    """Returns the changes that replace `moves`: an INSERT of the row as it was read, or, if there was no row, a DELETE, which
    is not emitted.

    `moves`: the split key moves, as in the source's log. `found`: the index in `rows` of each move's row, or null. `rows`
    have `schema`.
    """
    is_found = found.is_valid().to_numpy(zero_copy_only=False)
    count = moves.num_rows
    meta = {
        "_change_type": pa.array(np.where(is_found, ChangeType.INSERT, ChangeType.DELETE).astype(np.int8)),
        "_is_snapshot": pa.array(np.ones(count, np.bool_)),
    }
    fields = batch_schema(schema)
    changes = []
    for i, index in enumerate(found.to_pylist()):
        columns = []
        for field in fields:
            if field.name in meta:
                column = meta[field.name].slice(i, 1)
            elif field.name in _FROM_MOVE or (index is None and field.name in schema.key):
                column = moves.column(field.name).slice(i, 1)
            elif index is None or field.name not in rows.schema.names:
                column = pa.nulls(1, field.type)
            else:
                column = rows.column(field.name).slice(index, 1).combine_chunks()
            columns.append(column)
        changes.append(pa.RecordBatch.from_arrays(columns, schema=fields))
    return changes


_FROM_MOVE = frozenset({"_commit_version", "_commit_timestamp", "_seq", "_txn_id"})
