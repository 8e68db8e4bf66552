"""Finds the values that the log left out of updates.

A row's history goes from one change of its key to the next. An update that changes the key is a DELETE and an INSERT; the
history goes from that INSERT back to that DELETE, and so to the row under its old key. A value that was left out is the last
one in the history before, or else the value that the target has under the key with which the history begins.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.conf.tables import TableName
from tidemark.state.change_batch import UNCHANGED_FIELD, ChangeType
from tidemark.state.errors import SinkError
from tidemark.state.remedies import log_whole_rows, read_again
from tidemark.state.table import TableSchema

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RowHistories:
    """The histories of changes that are in the order of the log.

    `before[i]`: the change whose state change i takes left-out values from; -1 if the target has them, under the key of change
    `origin[i]`. `left_out`: per column, a mask of the changes that lack its value.
    """

    before: Int64s
    origin: Int64s
    left_out: dict[str, Mask]

    @classmethod
    def of(cls, schema: TableSchema, changes: pa.RecordBatch, codes: Int64s, rows: Int64s) -> "RowHistories":
        """`codes`: equal for equal keys. `rows`: the changes without preimages. Raises SinkError for a value of no row."""
        kinds = changes.column("_change_type").to_numpy()
        column = changes.column(UNCHANGED_FIELD.name)
        marked = column.is_valid().to_numpy(zero_copy_only=False)
        origin = np.arange(len(kinds))
        moved = marked & (kinds == ChangeType.INSERT)
        places = np.flatnonzero(moved[rows[1:]])
        origin[rows[places + 1]] = rows[places]
        before = _previous(codes, rows)[origin]
        wrong = moved & ~_are_moves(changes, kinds, origin)
        wrong |= marked & (before >= 0) & (kinds[before] == ChangeType.DELETE)
        if np.any(wrong):
            raise _no_row(schema, changes.slice(int(np.argmax(wrong)), 1))
        names, owners = pc.list_flatten(column), pc.list_parent_indices(column).to_numpy()
        left_out = {}
        for name in pc.unique(names).to_pylist():
            left_out[name] = np.zeros(len(kinds), np.bool_)
            left_out[name][owners[pc.equal(names, name).to_numpy(zero_copy_only=False)]] = True
        return cls(before, origin, left_out)

    def source(self, name: str, rows: Int64s) -> Int64s:
        """Returns the changes that hold the column's values after the changes `rows`. If one of those lacks the value too, only
        the target has it."""
        if name not in self.left_out:
            return rows
        up = np.where(self.left_out[name] & (self.before >= 0), self.before, np.arange(len(self.before)))
        while not np.array_equal(further := up[up], up):
            up = further
        found: Int64s = up[rows]
        return found


def _previous(codes: Int64s, rows: Int64s) -> Int64s:
    """Returns for each change the one of `rows` before it with the same key, or -1."""
    order = rows[np.argsort(codes[rows], kind="stable")]
    previous = np.full(len(codes), -1, np.int64)
    same = codes[order[1:]] == codes[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _are_moves(changes: pa.RecordBatch, kinds: npt.NDArray[np.int8], deletes: Int64s) -> Mask:
    """Returns a mask: whether the change `deletes[i]` is the DELETE that was logged just before change i."""
    versions, numbers = (changes.column(name).to_numpy() for name in ("_commit_version", "_seq"))
    found: Mask = (
        (kinds[deletes] == ChangeType.DELETE) & (versions[deletes] == versions) & (numbers[deletes] + 1 == numbers)
    )
    return found


def _no_row(schema: TableSchema, change: pa.RecordBatch) -> SinkError:
    transaction = change.column("_txn_id")[0].as_py()
    names = ", ".join(change.column(UNCHANGED_FIELD.name)[0].as_py())
    return missing_value_error(
        schema,
        f"The log leaves {names} out of a change in transaction {transaction}, and the row's previous values are not known",
    )


def missing_value_error(schema: TableSchema, what: str) -> SinkError:
    """Returns the error for values that neither the log nor the target has. It concerns the table alone."""
    again = read_again(TableName(schema.table.database, schema.table.name))
    otherwise = "If snapshot.where leaves rows out, or in other modes than full+incremental:"
    return SinkError(f"{schema.table}: {what}.", f"{again} {otherwise} {log_whole_rows(schema.table)}", schema.table)
