"""Normalising: the rows that a SELECT saw + the changes between its low and its high = the rows at high.

A SELECT may have seen any part of the changes that stand in the log between low and high. So the last change of a key
decides what the key's row is at high, not the difference that it makes. Only keys tell rows apart: a table without a
key can't be normalised, it has to be read at an exact watermark.

Keys are equal here if their Arrow values are. Where the server calls two of them equal ('a' and 'A'), the log
says how one became the other: a DELETE of the old and an INSERT of the new one (state/change_batch.py).
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.change_batch import META_FIELDS, ChangeType

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PENDING_ROWS = 1 << 18
"""So many changes are kept before all but the last one of each key are dropped."""

_GREATEST_CODE = 1 << 62


class Replay:
    """Takes changes as they come from the log, in order; memory is bounded by how many keys of the split changed.

    `key`: the names of the key's columns, not (). `in_range` says of each row of a table (its captured columns) whether
    its key belongs to the split; rows of other splits may be added, they are left out.
    """

    def __init__(self, key: Sequence[str], in_range: Callable[[pa.Table], Mask]) -> None:
        if not key:
            raise ValueError("rows without a key can't be normalised")
        self._key = tuple(key)
        self._in_range = in_range
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0

    def add(self, changes: pa.RecordBatch) -> None:
        """`changes` has `batch_schema` of the table."""
        if changes.num_rows:
            self._pending.append(changes)
            self._pending_rows += changes.num_rows
        if self._pending_rows >= PENDING_ROWS:
            last = self._last_changes()
            last = last.filter(pa.array(self._in_range(last.select(range(last.num_columns - len(META_FIELDS))))))
            self._pending = last.to_batches()
            self._pending_rows = last.num_rows

    def apply(self, rows: pa.Table) -> tuple[pa.Table, int]:
        """The rows at high, in any order, and how many keys have their state from the log. `rows` are what the SELECT
        saw: the table's captured columns, one row a key."""
        if not self._pending:
            return rows, 0
        changes = pa.Table.from_batches(self._pending)
        if changes.schema.names[: -len(META_FIELDS)] != rows.schema.names:
            raise ValueError(f"changes of columns {changes.schema.names} for rows of {rows.schema.names}")
        row_codes, change_codes = _codes(rows.select(self._key), changes.select(self._key))
        keys, last = _last_of_each(change_codes)
        changes = changes.take(last)
        places, replaced = _places(row_codes, keys)
        was_there = np.zeros(len(keys), np.bool_)
        was_there[places[replaced]] = True
        there = _types(changes) != ChangeType.DELETE
        settled = int(np.count_nonzero(was_there))
        after = changes.select(rows.schema.names)
        entered = np.flatnonzero(there & ~was_there)
        if len(entered):
            inside = self._in_range(after.take(entered))
            there[entered] = inside
            settled += int(np.count_nonzero(inside))
        kept = rows.filter(pa.array(~replaced)) if settled else rows
        return pa.concat_tables([kept, after.filter(pa.array(there)).cast(rows.schema)]), settled

    def _last_changes(self) -> pa.Table:
        changes = pa.Table.from_batches(self._pending)
        _, codes = _codes(changes.select(self._key).slice(0, 0), changes.select(self._key))
        return changes.take(np.sort(_last_of_each(codes)[1]))


def _types(changes: pa.Table) -> npt.NDArray[np.int8]:
    types: npt.NDArray[np.int8] = changes["_change_type"].to_numpy()
    if np.any(types == ChangeType.UPDATE_PREIMAGE):
        raise ValueError("preimages are no states")
    return types


def _last_of_each(codes: Int64s) -> tuple[Int64s, Int64s]:
    """The distinct codes, rising, and where each stands last."""
    distinct, first_from_behind = np.unique(codes[::-1], return_index=True)
    return distinct, len(codes) - 1 - first_from_behind


def _places(codes: Int64s, sorted_codes: Int64s) -> tuple[Int64s, Mask]:
    """Where in `sorted_codes` each code would stand, and whether it stands there."""
    places = np.minimum(np.searchsorted(sorted_codes, codes), len(sorted_codes) - 1)
    return places, sorted_codes[places] == codes


def _codes(rows: pa.Table, changes: pa.Table) -> tuple[Int64s, Int64s]:
    """A number for each row's key: equal iff the keys are, in either table. Raises ValueError for a null in a key."""
    for table in (rows, changes):
        if any(column.null_count for column in table.columns):
            raise ValueError(f"a part of a key ({', '.join(table.column_names)}) is null")
    if rows.num_columns == 1 and pa.types.is_integer(rows.schema.types[0]):
        return rows.column(0).to_numpy().astype(np.int64), changes.column(0).to_numpy().astype(np.int64)
    combined = np.zeros(rows.num_rows + changes.num_rows, np.int64)
    count = 1
    for name in rows.column_names:
        codes, distinct = _column_codes(rows[name], changes[name])
        if count * distinct > _GREATEST_CODE:
            found, combined = np.unique(combined, return_inverse=True)
            count = len(found)
        combined = combined * distinct + codes
        count *= distinct
    return combined[: rows.num_rows], combined[rows.num_rows :]


def _column_codes(rows: pa.ChunkedArray, changes: pa.ChunkedArray) -> tuple[Int64s, int]:
    both = pa.chunked_array([*rows.chunks, *changes.chunks], rows.type).combine_chunks()
    encoded = (both.chunk(0) if isinstance(both, pa.ChunkedArray) else both).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), max(len(encoded.dictionary), 1)
