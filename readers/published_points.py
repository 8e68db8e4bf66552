"""Publishing rows that were read again: one file for each reading, named by the epoch and the place of its first half move.

It stays until the epoch is committed, and whoever reads the epoch's log takes what is there, as with splits
(readers/publish.py).
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from readers.gathered_rows import SPILL_BYTES
from readers.published_file import check_file, write_file
from state.change_batch import ChangeType, batch_schema
from state.errors import CheckpointError
from state.failpoints import failpoint
from state.split import Report
from state.store import CheckpointStore
from state.table import TableSchema

NO_SPLIT = -1
"""The split of a reading's report."""

Published = tuple[Report, tuple[pa.RecordBatch, ...]]
"""The rows, each alone in its batch, as `changes_of` makes them."""


def points_name(epoch: int, place: tuple[int, int]) -> str:
    """`place`: commit version and `_seq`; it begins as the names of the epoch's splits do."""
    return f"published/e{epoch}-p{place[0]}-{place[1]}"


def read_published_points(store: CheckpointStore, epoch: int, place: tuple[int, int]) -> Published | None:
    """None if nobody has published it yet. Raises CheckpointError for a damaged file or one of an unknown version."""
    name = points_name(epoch, place)
    data = store.read(name)
    return None if data is None else check_file(data, name)


def publish_points(
    store: CheckpointStore,
    epoch: int,
    place: tuple[int, int],
    report: Report,
    changes: Sequence[pa.RecordBatch],
    schema: TableSchema,
) -> Published:
    """Makes `changes` (of the output's `schema`) what stands at their places, unless something does; gives what counts."""
    in_memory = sum(change.nbytes for change in changes) < SPILL_BYTES
    data = write_file("arrow", report, changes, schema, in_memory=in_memory)
    failpoint("points.before_publish")
    store.create(points_name(epoch, place), data)
    failpoint("points.after_publish")
    published = read_published_points(store, epoch, place)
    if published is None:
        raise CheckpointError(
            f"{points_name(epoch, place)} was published and removed since: its epoch is committed.",
            "Nothing is lost; if the job fails with this, start it again.",
        )
    return published


def changes_of(schema: TableSchema, moves: pa.RecordBatch, found: pa.Array, rows: pa.Table) -> list[pa.RecordBatch]:
    """What stands in the log in place of the half moves: an INSERT of the row as it was read; a DELETE, which is not
    emitted, where there was none.

    `moves`: the half moves, as the source has them; `found`: for each the row among `rows`, which are of `schema`, or null.
    """
    there = found.is_valid().to_numpy(zero_copy_only=False)
    count = moves.num_rows
    meta = {
        "_change_type": pa.array(np.where(there, ChangeType.INSERT, ChangeType.DELETE).astype(np.int8)),
        "_is_snapshot": pa.array(np.ones(count, np.bool_)),
    }
    fields = batch_schema(schema)
    changes = []
    for i, place in enumerate(found.to_pylist()):
        columns = []
        for field in fields:
            if field.name in meta:
                column = meta[field.name].slice(i, 1)
            elif field.name in _MOVES_OWN or field.name in schema.key:
                column = moves.column(field.name).slice(i, 1)
            elif place is None or field.name not in rows.schema.names:
                column = pa.nulls(1, field.type)
            else:
                column = rows.column(field.name).slice(place, 1).combine_chunks()
            columns.append(column)
        changes.append(pa.RecordBatch.from_arrays(columns, schema=fields))
    return changes


_MOVES_OWN = frozenset({"_commit_version", "_commit_timestamp", "_seq", "_txn_id"})
