"""Normalising: the rows that a SELECT saw + the changes between its low and its high = the rows at high.

A SELECT may have seen any part of the changes that the log holds between low and high. So the last change of a key decides
the key's row at high, whatever the SELECT saw. Rows are told apart by their keys: a table without a key can't be
normalised and must be read at an exact watermark.

Keys are equal here if their Arrow values are equal. Where the server takes two of them as equal ('a' and 'A'), the log
shows how one became the other: a DELETE of the old key and an INSERT of the new one (state/change_batch.py).
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.state.change_batch import META_FIELDS, ChangeType

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PENDING_ROWS = 1 << 18
"""If so many changes are pending, only the last one of each key is kept."""

_MAX_CODE = 1 << 62


class Replay:
    """Collects changes in the log's order. Memory is bounded by the number of changed keys of the split.

    `key`: the names of the key's columns, not (). `in_range`: which rows of a table (its captured columns) belong to the
    split. Changes of other splits may be added; they are left out.
    """

    def __init__(self, key: Sequence[str], in_range: Callable[[pa.Table], Mask]) -> None:
        if not key:
            raise ValueError("rows without a key can't be normalised")
        self._key = tuple(key)
        self._in_range = in_range
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0

    def add(self, changes: pa.RecordBatch) -> None:
        """Adds the next changes. They have `batch_schema` of the table."""
        if changes.num_rows:
            self._pending.append(changes)
            self._pending_rows += changes.num_rows
        if self._pending_rows >= PENDING_ROWS:
            last = self._last_changes()
            last = last.filter(pa.array(self._in_range(last.select(range(last.num_columns - len(META_FIELDS))))))
            self._pending = last.to_batches()
            self._pending_rows = last.num_rows

    def apply(self, rows: pa.Table) -> tuple[pa.Table, int]:
        """Returns the rows at high, in any order, and the number of keys whose row the log decided. `rows`: the SELECT's
        result, with the captured columns and one row per key."""
        if not self._pending:
            return rows, 0
        changes = pa.Table.from_batches(self._pending)
        if changes.schema.names[: -len(META_FIELDS)] != rows.schema.names:
            raise ValueError(f"changes of columns {changes.schema.names} for rows of {rows.schema.names}")
        row_codes, change_codes = _codes(rows.select(self._key), changes.select(self._key))
        keys, last = _last_of_each(change_codes)
        changes = changes.take(last)
        indices, replaced = _search(row_codes, keys)
        was_selected = np.zeros(len(keys), np.bool_)
        was_selected[indices[replaced]] = True
        exists = _types(changes) != ChangeType.DELETE
        replayed = int(np.count_nonzero(was_selected))
        after = changes.select(rows.schema.names)
        inserted = np.flatnonzero(exists & ~was_selected)
        if len(inserted):
            inside = self._in_range(after.take(inserted))
            exists[inserted] = inside
            replayed += int(np.count_nonzero(inside))
        kept = rows.filter(pa.array(~replaced)) if replayed else rows
        return pa.concat_tables([kept, after.filter(pa.array(exists)).cast(rows.schema)]), replayed

    def _last_changes(self) -> pa.Table:
        changes = pa.Table.from_batches(self._pending)
        _, codes = _codes(changes.select(self._key).slice(0, 0), changes.select(self._key))
        return changes.take(np.sort(_last_of_each(codes)[1]))


def _types(changes: pa.Table) -> npt.NDArray[np.int8]:
    types: npt.NDArray[np.int8] = changes["_change_type"].to_numpy()
    if np.any(types == ChangeType.UPDATE_PREIMAGE):
        raise ValueError("a preimage can't be replayed")
    return types


def _last_of_each(codes: Int64s) -> tuple[Int64s, Int64s]:
    """Returns the distinct codes, ascending, and the last index of each."""
    distinct, first_reversed = np.unique(codes[::-1], return_index=True)
    return distinct, len(codes) - 1 - first_reversed


def _search(codes: Int64s, sorted_codes: Int64s) -> tuple[Int64s, Mask]:
    """Returns the index in `sorted_codes` at which each code would be, and whether it is there."""
    indices = np.minimum(np.searchsorted(sorted_codes, codes), len(sorted_codes) - 1)
    return indices, sorted_codes[indices] == codes


def _codes(rows: pa.Table, changes: pa.Table) -> tuple[Int64s, Int64s]:
    """Returns a number for each row's key. Numbers are equal iff the keys are, across both tables. Raises ValueError for a
    null in a key."""
    for table in (rows, changes):
        if any(column.null_count for column in table.columns):
            raise ValueError(f"a column of a key ({', '.join(table.column_names)}) is null")
    if rows.num_columns == 1 and pa.types.is_integer(rows.schema.types[0]):
        return rows.column(0).to_numpy().astype(np.int64), changes.column(0).to_numpy().astype(np.int64)
    combined = np.zeros(rows.num_rows + changes.num_rows, np.int64)
    count = 1
    for name in rows.column_names:
        codes, distinct = _column_codes(rows[name], changes[name])
        if count * distinct > _MAX_CODE:
            found, combined = np.unique(combined, return_inverse=True)
            count = len(found)
        combined = combined * distinct + codes
        count *= distinct
    return combined[: rows.num_rows], combined[rows.num_rows :]


def _column_codes(rows: pa.ChunkedArray, changes: pa.ChunkedArray) -> tuple[Int64s, int]:
    both = pa.chunked_array([*rows.chunks, *changes.chunks], rows.type).combine_chunks()
    encoded = (both.chunk(0) if isinstance(both, pa.ChunkedArray) else both).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), max(len(encoded.dictionary), 1)
