"""Rows that were read again, placed among the changes of the log: for copies that keep all changes of a row.

The rows contain all that comes before a range of the log, and some of the range, which is written with them (docs/adr/0060).

- The range has no change of the key: its row is the same everywhere in the range. It is placed before the range.
- It has one: the row may be of a later state than the changes to come, so it is left out. The changes tell the key's state.
- The changes leave values out, as PostgreSQL's log does: the row as it is after the last of them follows that change. Its
  values are the last ones of the changes, or else those that were read. If the key is removed, that row comes before the
  transaction of the DELETE: a row that gets another key takes values from it.
- The key belonged to several rows in the range, and which of them was read is not known: its row is left out.
- The range has a TRUNCATE of the table: all its rows are left out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.readers.snapshot.publish import divided
from tidemark.state.change_batch import UNCHANGED_FIELD, ChangeType, is_truncation
from tidemark.state.table import TableId, TableSchema

KEPT_BYTES = 32 << 20
"""Changes are kept until they have so many bytes, and looked at together."""

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class PlacedRereads:
    """The rows that go with a range. `rows`: for each table's schema, as change batches, the rows that the source has and a
    DELETE for each key that it lacks. A key may be there several times, in the order in which it was read."""

    def __init__(self, rows: Mapping[TableId, tuple[TableSchema, Sequence[pa.RecordBatch]]]) -> None:
        self._tables = {
            table: _TableRereads(schema, batches) for table, (schema, batches) in rows.items() if any(map(len, batches))
        }

    def take(self, table: TableId, changes: pa.RecordBatch) -> None:
        """Takes changes of the range that the copy gets, in their order."""
        if changes.num_rows and table in self._tables:
            self._tables[table].take(changes)

    def placed(self) -> Iterator[tuple[TableId, pa.RecordBatch]]:
        """Yields the rows to write once all changes of the range were taken. A row's `_commit_version` and `_seq` tell its
        place."""
        for table, rereads in self._tables.items():
            for batch in rereads.placed():
                yield table, batch


class _TableRereads:
    def __init__(self, schema: TableSchema, batches: Sequence[pa.RecordBatch]) -> None:
        self._schema = schema
        self._batches = [batch for batch in batches if batch.num_rows]
        self._names = [column.name for column in schema.captured]
        self._state = pa.Table.from_batches([batch.select(self._names) for batch in self._batches])
        """The rows as they are after the changes that were looked at."""
        count = self._state.num_rows
        self._changed, self._open = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        """Which rows have changes, and which of those lack values or are removed."""
        self._owners = np.zeros(count, np.int64)
        """How many rows had the key of each row that has changes."""
        self._versions = np.concatenate([batch.column("_commit_version").to_numpy() for batch in self._batches])
        """Commit versions: of the last change that was taken into each row, else of the row itself."""
        self._keys = _keys(self._state, schema.key, "row")
        self._has_unchanged = bool(schema.toastable)
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0
        self._is_truncated = False

    def take(self, changes: pa.RecordBatch) -> None:
        if is_truncation(changes):
            self._is_truncated = True
        if self._is_truncated:
            self._kept.clear()
            return
        wanted = self._names if self._has_unchanged else self._schema.key
        meta = ("_change_type", "_commit_version", *([UNCHANGED_FIELD.name] if self._has_unchanged else ()))
        kept = changes.select([*wanted, *meta])
        self._kept.append(kept)
        self._kept_bytes += kept.nbytes
        if self._kept_bytes >= KEPT_BYTES:
            self._look()

    def placed(self) -> Iterator[pa.RecordBatch]:
        if self._is_truncated:
            return
        self._look(is_last=True)
        start = 0
        for batch in self._batches:
            here = slice(start, start + batch.num_rows)
            start += batch.num_rows
            yield from _some(batch, ~self._changed[here])
        start = 0
        for batch in self._batches:
            here = slice(start, start + batch.num_rows)
            start += batch.num_rows
            is_row = batch.column("_change_type").to_numpy() == ChangeType.INSERT
            chosen = self._open[here] & (self._owners[here] == 1) & is_row
            if chosen.any():
                for rows in _some(self._whole(batch, here), chosen):
                    yield from divided(rows)

    def _whole(self, batch: pa.RecordBatch, here: slice) -> pa.RecordBatch:
        """Returns the rows of a batch as they are after the last of their changes."""
        own = self._state.slice(here.start, batch.num_rows)
        held = {name: _one(own.column(name)) for name in self._names}
        held["_commit_version"] = pa.array(self._versions[here])
        columns = [held.get(name, batch.column(name)) for name in batch.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def _look(self, *, is_last: bool = False) -> None:
        """Looks at the kept changes and drops them. `is_last`: no more come."""
        if not self._kept:
            return
        changes = pa.Table.from_batches(self._kept)
        self._kept, self._kept_bytes = [], 0
        names = [f"k{i}" for i in range(len(self._schema.key))]
        found = _keys(changes, self._schema.key, "change").join(self._keys, names, join_type="inner", use_threads=False)
        numbers, rows = (found.column(name).to_numpy().astype(np.int64) for name in ("change", "row"))
        if not self._has_unchanged:
            self._changed[rows] = True
            return
        order = np.argsort(numbers, kind="stable")
        numbers, rows = numbers[order], rows[order]
        versions = changes.column("_commit_version").to_numpy()
        if not is_last:  # a DELETE of the same transaction may follow
            is_whole = versions[numbers] < versions[-1]
            self._kept = changes.take(pa.array(np.unique(numbers[~is_whole]))).to_batches()
            numbers, rows = numbers[is_whole], rows[is_whole]
        if len(rows):
            self._complete(changes, numbers, rows)

    def _complete(self, changes: pa.Table, numbers: Int64s, rows: Int64s) -> None:
        """Takes changes of whole transactions into the rows. `numbers`: of the changes, ascending. `rows`: which row each of
        them is of."""
        kinds = changes.column("_change_type").to_numpy()[numbers]
        versions = changes.column("_commit_version").to_numpy()[numbers]
        inserts, deletes = kinds == ChangeType.INSERT, kinds == ChangeType.DELETE
        firsts = np.full(len(self._changed), -1)
        firsts[rows[::-1]] = kinds[::-1]  # NumPy keeps the last of several values for one row
        self._owners += ~self._changed & (firsts >= 0) & (firsts != ChangeType.INSERT)
        np.add.at(self._owners, rows[inserts], 1)
        self._changed[rows] = True
        unchanged = _one(changes.column(UNCHANGED_FIELD.name))
        self._open[rows[deletes | unchanged.is_valid().to_numpy(zero_copy_only=False)[numbers]]] = True
        ends = np.full(len(self._changed), np.iinfo(np.int64).max)
        ends[rows[deletes]] = versions[deletes]
        taken = versions < ends[rows]
        numbers, rows = numbers[taken], rows[taken]
        self._versions[rows] = versions[taken]
        left_out = _left_out(unchanged)
        both = pa.concat_tables([self._state, changes.select(self._names)])
        columns = []
        for name in self._names:
            given = ~left_out[name][numbers] if name in left_out else np.ones(len(numbers), np.bool_)
            sources = np.arange(self._state.num_rows)
            sources[rows[given]] = self._state.num_rows + numbers[given]
            columns.append(both.column(name).take(pa.array(sources)))
        self._state = pa.Table.from_arrays(columns, names=self._names)


def _keys(rows: pa.Table, key: Iterable[str], number: str) -> pa.Table:
    columns = [rows.column(name) for name in key]
    names = [f"k{i}" for i in range(len(columns))]
    return pa.table([*columns, pa.array(np.arange(rows.num_rows))], names=[*names, number])


def _left_out(unchanged: pa.ListArray) -> dict[str, Mask]:
    """Returns for each column that is left out a mask of the changes that lack it."""
    names, owners = pc.list_flatten(unchanged), pc.list_parent_indices(unchanged).to_numpy()
    found: dict[str, Mask] = {}
    for name in pc.unique(names).to_pylist():
        found[name] = np.zeros(len(unchanged), np.bool_)
        found[name][owners[pc.equal(names, name).to_numpy(zero_copy_only=False)]] = True
    return found


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _some_row(batch: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    return batch if mask.all() else batch.filter(pa.array(mask))


def _some(batch: pa.RecordBatch, mask: Mask) -> Iterator[pa.RecordBatch]:
    if mask.any():
        yield _some_row(batch, mask)
