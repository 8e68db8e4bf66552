"""Rows that get other keys in a range of the log that is written together with rows which were read again (docs/adr/0037).

PostgreSQL's log leaves long values (TOAST) out of a change that gives a row another key. The copy's row under the old key has
them, as it was before the range. But what the copy has there may be wrong: that may be why the row is read again. A row that
was read under its old key has the value. Else nobody has it, and the copy may keep what is wrong.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import pyarrow as pa

from tidemark.readers.snapshot.repairs import KeyValues, key_values
from tidemark.state.change_batch import UNCHANGED_FIELD, ChangeType, is_truncation
from tidemark.state.table import TableSchema

MAX_ROWS = 100_000
"""The most changed rows of a range that are followed. They take some 50 MB of memory."""


@dataclass(slots=True)
class Moved:
    """A row. `keys`: the first one that it had, then others that it had of those that were read. `given`: the columns of which
    the range has a value of the row. `lacking`: those that changes of its key left out, and of which the range has no value up
    to there and none since."""

    keys: list[KeyValues]
    given: frozenset[str] = field(default_factory=frozenset)
    lacking: frozenset[str] = field(default_factory=frozenset)


class MovedRows:
    """The changes of a range of the log, of one table whose log may leave values out. `schema`: of the changes. `keys`: those
    of which rows were read again, or which the source lacked."""

    def __init__(self, schema: TableSchema, keys: Collection[KeyValues]) -> None:
        self._schema = schema
        self._keys = frozenset(keys)
        self._rows: dict[KeyValues, Moved] = {}
        """The changed rows that are there after the changes so far. Empty once there were too many."""
        self._owners: dict[KeyValues, int] = {}
        """How many rows each of `keys` belonged to, if it has changes."""
        self._removed: Moved | None = None
        """The row of the last DELETE."""
        self._has_too_many = False
        self.has_moves = False
        """True if a row gets another key by a change that leaves values out."""
        self.removed: set[KeyValues] = set()
        """Those of `keys` that the range removes."""
        self.inserted: set[KeyValues] = set()
        """Those of `keys` that the range gives to a row."""

    @property
    def is_known(self) -> bool:
        """False if rows moved among so many changed ones that `lacking` can't tell which."""
        return not (self._has_too_many and self.has_moves)

    def take(self, changes: pa.RecordBatch) -> None:
        """Takes changes of the range, in their order."""
        if not changes.num_rows:
            return
        if is_truncation(changes):  # of every row that comes after it, the range has all values
            self._rows.clear()
            return
        self.has_moves = self.has_moves or has_moves(changes)
        kinds = changes.column("_change_type").to_pylist()
        for key, kind in zip(key_values(changes, self._schema.key), kinds, strict=True):
            if key in self._keys:
                self._count(key, kind)
        if not self._has_too_many:
            self._follow(changes)
            if len(self._rows) > MAX_ROWS:
                self._has_too_many = True
                self._rows.clear()

    def lacking(self, read: Collection[KeyValues], *, under_any_key: bool) -> dict[KeyValues, Moved]:
        """Returns the rows of which only the copy has a value, by their keys at the range's end. `read`: those of `keys` under
        which rows were read. A row that was read under its first key has its values if the key belonged to no other row in the
        range. `under_any_key`: so has one that was read under a later key. To be called only if `is_known`."""
        return {
            last: row
            for last, row in self._rows.items()
            if row.lacking
            and not any(key in read and self._owners[key] == 1 for key in (row.keys if under_any_key else row.keys[:1]))
        }

    def _count(self, key: KeyValues, kind: int) -> None:
        if kind == ChangeType.DELETE:
            self.removed.add(key)
        if kind == ChangeType.INSERT:
            self.inserted.add(key)
            self._owners[key] = self._owners.get(key, 0) + 1
        else:
            self._owners.setdefault(key, 1)

    def _follow(self, changes: pa.RecordBatch) -> None:
        toastable = frozenset(self._schema.toastable)
        columns = (changes.column(name).to_pylist() for name in ("_change_type", UNCHANGED_FIELD.name))
        for key, kind, unchanged in zip(key_values(changes, self._schema.key), *columns, strict=True):
            if kind == ChangeType.DELETE:
                self._removed = self._rows.pop(key, None) or Moved([key])
                continue
            left_out = frozenset(unchanged or ())
            if kind == ChangeType.INSERT:  # that of a move has its DELETE just before it
                row = Moved([]) if unchanged is None or self._removed is None else self._removed
                if not row.keys or (key in self._keys and key not in row.keys):
                    row.keys.append(key)
                row.lacking |= left_out - row.given
                self._rows[key] = row
            else:
                row = self._rows.setdefault(key, Moved([key]))
            row.given |= toastable - left_out
            row.lacking -= toastable - left_out


def has_moves(changes: pa.RecordBatch) -> bool:
    """True if a row gets another key by a change that leaves values out. The changes are of a table whose log may do so."""
    kinds = changes.column("_change_type").to_numpy()
    marked = changes.column(UNCHANGED_FIELD.name).is_valid().to_numpy(zero_copy_only=False)
    return bool((marked & (kinds == ChangeType.INSERT)).any())
