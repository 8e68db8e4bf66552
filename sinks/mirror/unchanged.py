"""Where the values stand that the log left out of updates.

The states of a row form a line through the changes: from one change of its key to the next, and over an update of the key
from its INSERT to the DELETE just before it, which removed the row's state before. A value that was left out is the next
one up that line, else what the target holds at the key where the line begins.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state.change_batch import UNCHANGED_FIELD, ChangeType
from state.errors import SinkError
from state.table import TableSchema

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Lines:
    """Of changes in the order they happened. Left-out values alone have a line: the others stand where they are.

    `before[i]`: the change that left the state from which change i takes its values, -1: the target has it, at the key
    of change `origin[i]`. `left_out`: by column, in which changes it is.
    """

    before: Int64s
    origin: Int64s
    left_out: dict[str, Mask]

    @classmethod
    def of(cls, schema: TableSchema, changes: pa.RecordBatch, codes: Int64s, rows: Int64s) -> "Lines":
        """`codes`: equal for equal keys; `rows`: the changes that count. Raises SinkError for a value of no row."""
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
        """The changes with the values that the column has after the changes `rows`. Where it is left out there too, only
        the target has the value."""
        if name not in self.left_out:
            return rows
        up = np.where(self.left_out[name] & (self.before >= 0), self.before, np.arange(len(self.before)))
        while not np.array_equal(further := up[up], up):
            up = further
        found: Int64s = up[rows]
        return found


def _previous(codes: Int64s, rows: Int64s) -> Int64s:
    """For each change the one of `rows` before it with the same key, or -1."""
    order = rows[np.argsort(codes[rows], kind="stable")]
    previous = np.full(len(codes), -1, np.int64)
    same = codes[order[1:]] == codes[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _are_moves(changes: pa.RecordBatch, kinds: npt.NDArray[np.int8], deletes: Int64s) -> Mask:
    """Is the change `deletes[i]` the DELETE that was logged just before change i?"""
    versions, numbers = (changes.column(name).to_numpy() for name in ("_commit_version", "_seq"))
    found: Mask = (
        (kinds[deletes] == ChangeType.DELETE) & (versions[deletes] == versions) & (numbers[deletes] + 1 == numbers)
    )
    return found


def _no_row(schema: TableSchema, change: pa.RecordBatch) -> SinkError:
    key = ", ".join(f"{name}={change.column(name)[0].as_py()!r}" for name in schema.key)
    names = ", ".join(change.column(UNCHANGED_FIELD.name)[0].as_py())
    return lacking(
        schema, f"The log leaves {names} out of a change to the row {key}, and what it was before is not known"
    )


def lacking(schema: TableSchema, what: str) -> SinkError:
    """Values that are nowhere to be had."""
    table = schema.table
    return SinkError(
        f"{table}: {what}.",
        f"Let the source's log repeat such values (ALTER TABLE {table} REPLICA IDENTITY FULL), and begin anew: a new "
        "checkpoint, the copies dropped, this job's rows in tidemark_tables deleted.",
    )
