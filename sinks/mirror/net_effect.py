"""The net effect of a table's changes: the last state of each key.

Deleting the row of every touched key and then inserting the remaining rows gives the same result as applying the changes one
by one, whatever other unique indexes the target has. So chains (`SET id = id + 1`), swaps of unique values and
delete-then-insert need no special handling. Without other unique indexes, updating the remaining rows by key and deleting only
the others gives the same, and keeps the values of columns that only the target has.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.mirror.unchanged import RowHistories
from tidemark.state.change_batch import UNCHANGED_FIELD, ChangeType
from tidemark.state.errors import SinkError
from tidemark.state.remedies import NO_KEY
from tidemark.state.table import TableSchema

_MAX_CODE = 2**62


@dataclass(frozen=True, slots=True)
class NetEffect:
    """`touched`: all changed keys (the key's columns, in its order). `gone`: those without a row now. `rows`: the captured
    columns of the rows that remain.

    All are sorted by key, so that the target reads its index in order and two writers lock in the same order.
    """

    touched: pa.RecordBatch
    gone: pa.RecordBatch
    rows: pa.RecordBatch
    partial: "PartialRows | None" = None
    deleted: "NetEffect | None" = None
    """The last rows of those keys in `gone` that had a row among the changes, with these keys, in the order of the log. None
    unless asked for. Keys may be equal for the target."""
    new: npt.NDArray[np.bool_] | None = None
    """Which of `rows` the target lacks as far as these changes tell: the first change of the key is an INSERT. A copy may have
    the row all the same, after a rollback or a first load. None with `partial`."""


@dataclass(frozen=True, slots=True)
class PartialRows:
    """Remaining rows that lack values which only the target has. They are not in `NetEffect.rows`.

    `missing[row, column]`: the value is null here. The true value is that of the target's row with the key
    `origins[row]` (the key's columns, in its order) before these changes.
    """

    rows: pa.RecordBatch
    origins: pa.RecordBatch
    missing: npt.NDArray[np.bool_]


def net_effect(schema: TableSchema, changes: pa.RecordBatch, *, with_deleted: bool = False) -> NetEffect:
    """Returns the net effect of `changes`, which are in the order of the log and have `batch_schema`. UNCHANGED_FIELD may be
    absent if all its values are null. `with_deleted`: `NetEffect.deleted` is asked for.

    Raises SinkError for a null in a key, and for an unchanged value of a row that did not exist.
    """
    kinds = changes.column("_change_type").to_numpy()
    after = np.flatnonzero(kinds != ChangeType.UPDATE_PREIMAGE)
    keys = [_key_column(schema, changes, name) for name in schema.key]
    codes = _codes(keys)
    last = _last_of_each(codes, after)
    last = last[_sort_order([key.take(pa.array(last)) for key in keys])]
    staying, going = last[kinds[last] != ChangeType.DELETE], last[kinds[last] == ChangeType.DELETE]
    has_unchanged = UNCHANGED_FIELD.name in changes.schema.names
    histories = RowHistories.of(schema, changes, codes, after) if has_unchanged else None
    rows, partial = _rows(schema, changes, keys, histories, staying)
    deleted = None
    if with_deleted:
        written = _last_of_each(codes, after[kinds[after] != ChangeType.DELETE])
        lost = written[np.isin(codes[written], codes[going])]
        lost_keys = _taken(schema, keys, lost)
        deleted = NetEffect(lost_keys, lost_keys, *_rows(schema, changes, keys, histories, lost))
    new = None if partial is not None else kinds[_first_of_each(codes, after, staying)] == ChangeType.INSERT
    return NetEffect(_taken(schema, keys, last), _taken(schema, keys, going), rows, partial, deleted, new)


def _rows(
    schema: TableSchema,
    changes: pa.RecordBatch,
    keys: list[pa.Array],
    histories: RowHistories | None,
    staying: npt.NDArray[np.int64],
) -> tuple[pa.RecordBatch, "PartialRows | None"]:
    """Returns the rows after the changes `staying`, and those of them that lack values."""
    names = [column.name for column in schema.captured]
    if histories is None:
        return changes.select(names).take(pa.array(staying)), None
    sources = {name: histories.source(name, staying) for name in names}
    rows = pa.RecordBatch.from_arrays(
        [changes.column(name).take(pa.array(sources[name])) for name in names], schema=changes.select(names).schema
    )
    missing = np.zeros((len(staying), len(names)), np.bool_)
    origins = np.zeros(len(staying), np.int64)
    for i, name in enumerate(names):
        if name in histories.left_out:
            missing[:, i] = histories.left_out[name][sources[name]]
            # All missing values of a row have the same origin.
            origins = np.where(missing[:, i], histories.origin[sources[name]], origins)
    partial = missing.any(axis=1)
    if not partial.any():
        return rows, None
    incomplete = PartialRows(rows.filter(pa.array(partial)), _taken(schema, keys, origins[partial]), missing[partial])
    return rows.filter(pa.array(~partial)), incomplete


def _taken(schema: TableSchema, keys: list[pa.Array], rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([key.take(pa.array(rows)) for key in keys], names=list(schema.key))


def _key_column(schema: TableSchema, changes: pa.RecordBatch, name: str) -> pa.Array:
    key = changes.column(name)
    if key.null_count:
        raise SinkError(
            f"{schema.table} has a change whose key column {name} is null (perhaps an invalid date).",
            NO_KEY,
            schema.table,
        )
    return key


def _codes(keys: list[pa.Array]) -> npt.NDArray[np.int64]:
    """Returns one number per row. Equal keys have equal numbers."""
    codes: npt.NDArray[np.int64] | None = None
    for key in keys:
        encoded = key.dictionary_encode()
        column_codes = encoded.indices.to_numpy().astype(np.int64)
        if codes is None:
            codes = column_codes
            continue
        size = max(len(encoded.dictionary), 1)
        if len(codes) and int(codes.max()) >= _MAX_CODE // size:
            codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
        codes = codes * size + column_codes
    if codes is None:
        raise ValueError("a table without a key has no net effect")
    return codes


def _last_of_each(codes: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the last of `rows` for each code, in ascending order. `rows` are ascending indices into `codes`."""
    candidates = codes[rows]
    if len(candidates) and candidates.max() >= 4 * len(codes) + 1024:
        candidates = np.unique(candidates, return_inverse=True)[1].astype(np.int64)
    last = np.full(int(candidates.max(initial=-1)) + 1, -1, np.int64)
    last[candidates] = rows  # NumPy keeps the last of several values for one code
    return np.sort(last[last >= 0])


def _first_of_each(
    codes: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], of: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Returns the first of `rows` that has the code of each row in `of`. `rows` are ascending indices into `codes`."""
    candidates, wanted = codes[rows], codes[of]
    if len(candidates) and candidates.max() >= 4 * len(codes) + 1024:
        known, candidates = np.unique(candidates, return_inverse=True)
        wanted = np.searchsorted(known, wanted)
    first = np.full(int(candidates.max(initial=-1)) + 1, -1, np.int64)
    first[candidates[::-1]] = rows[::-1]  # NumPy keeps the last of several values for one code
    found: npt.NDArray[np.int64] = first[wanted]
    return found


def _sort_order(keys: list[pa.Array]) -> npt.NDArray[np.int64]:
    columns = [f"k{i}" for i in range(len(keys))]
    order = pc.sort_indices(
        pa.RecordBatch.from_arrays(keys, names=columns), sort_keys=[(name, "ascending") for name in columns]
    )
    result: npt.NDArray[np.int64] = order.to_numpy().astype(np.int64)
    return result
