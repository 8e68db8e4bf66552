"""Keys, places and hashes of rows as numbers, and how two sets of them differ. Pure.

A key of integers has a number for each column. Any other key has two: hashes of it, 128 bits together (`key_hashes`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.comparing import Key, Pair
from tidemark.sinks.folded.hashing import key_names, toast_names
from tidemark.sinks.folded.row_hashes import hashes_of
from tidemark.state.change_batch import ChangeType
from tidemark.state.integer_range import IntegerRange
from tidemark.state.table import TableSchema, arrow_type_of

_SIGN = np.uint64(1 << 63)
GREATEST = (1 << 64) - 1
Ordinals: TypeAlias = npt.NDArray[np.uint64]
_Numbers: TypeAlias = npt.NDArray[np.int64]
_Places: TypeAlias = npt.NDArray[np.signedinteger[Any]]
_Flags: TypeAlias = npt.NDArray[np.bool_]
_PRESENT = [int(ChangeType.INSERT), int(ChangeType.UPDATE_POSTIMAGE)]
LEFT_OUT = np.uint64(0)
"""No value has this hash, but one of 2**64."""
_FIRST_KEY, _SECOND_KEY = 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9


class NoOrdinalError(Exception):
    """A decimal of a key that is no unsigned integer of 64 bits."""


def ordinals(column: pa.Array) -> Ordinals:
    """Returns numbers in the order of a key's column, which has integers or decimals without digits after the point. Raises
    NoOrdinalError."""
    if pa.types.is_integer(column.type):
        found: Ordinals = np.asarray(column).astype(np.int64).view(np.uint64) ^ _SIGN
        return found
    halves = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, 2)[column.offset : column.offset + len(column)]
    if halves[:, 1].any():
        raise NoOrdinalError
    return np.ascontiguousarray(halves[:, 0])


@dataclass(frozen=True, slots=True)
class HashedRows:
    """`keys`: an array for each column of the key. `hashes`: of the values, and of each column that a change may leave out;
    if a change has left the value out, its hash is LEFT_OUT, and the change before has the value."""

    keys: tuple[Ordinals, ...]
    version: _Places
    seq: _Places
    gone: _Flags
    hashes: tuple[Ordinals, ...]

    @classmethod
    def of(cls, changes: pa.Table, schema: TableSchema) -> "HashedRows":
        """`changes`: as `RowHashing.changes` returns them, or with `gone` instead of `kind`. Raises NoOrdinalError."""
        columns = {name: _whole(changes.column(name)) for name in changes.column_names}
        gone = np.asarray(columns["gone"]) if "gone" in columns else np.zeros(changes.num_rows, np.bool_)
        return cls._of(columns, tuple(ordinals(columns[name]) for name in key_names(schema)), gone, schema)

    @classmethod
    def by_hashes(cls, changes: pa.Table, schema: TableSchema, seed: int) -> "HashedRows":
        """Returns the rows by hashes of their keys. `changes`: as `RowHashing.changes` returns them."""
        columns = {name: _whole(changes.column(name)) for name in changes.column_names}
        kinds = np.asarray(pc.fill_null(columns["kind"], int(ChangeType.DELETE)))
        keys = key_hashes([columns[name] for name in key_names(schema)], seed)
        rows = cls._of(columns, keys, ~np.isin(kinds, _PRESENT), schema)
        return rows._without_left_out([np.asarray(columns[f"u{i}"]) for i in range(len(schema.toastable))])

    @classmethod
    def of_values(cls, rows: pa.RecordBatch, key: Sequence[str], seed: int) -> "HashedRows":
        """Returns rows of a table by hashes of their keys. They have no places. `rows`: of canonical types."""
        none = np.zeros(rows.num_rows, np.int8)
        keys = key_hashes([rows.column(name) for name in key], seed)
        return cls(keys, none, none, none.astype(np.bool_), (hashes_of(rows.columns, rows.num_rows, seed),))

    @classmethod
    def _of(
        cls, columns: dict[str, pa.Array], keys: tuple[Ordinals, ...], gone: _Flags, schema: TableSchema
    ) -> "HashedRows":
        halves = _halves(columns["o"])
        return cls(
            keys,
            (halves[:, 1] << 32) | ((halves[:, 0] >> 32) & 0xFFFFFFFF),
            halves[:, 0] & 0xFFFFFFFF,
            gone,
            tuple(np.asarray(columns[name]) for name in ("d", *toast_names(schema))),
        )

    @classmethod
    def of_arrays(cls, arrays: Sequence[Any], key_columns: int) -> "HashedRows":
        """`arrays`: as the property of this name has them."""
        keys, (version, seq, gone, *hashes) = arrays[:key_columns], arrays[key_columns:]
        return cls(tuple(keys), version, seq, gone, tuple(hashes))

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return (*self.keys, self.version, self.seq, self.gone, *self.hashes)

    @classmethod
    def loaded(cls, path: Path, schema: TableSchema) -> "HashedRows":
        """Returns what `save` has kept."""
        with path.open("rb") as file:
            arrays = [np.load(file) for _ in range(len(schema.key) + 3 + 1 + len(schema.toastable))]
        return cls.of_arrays(arrays, len(schema.key))

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            for array in self.arrays:
                np.save(file, array)

    def __len__(self) -> int:
        return len(self.version)

    def taken(self, rows: _Flags | _Numbers) -> "HashedRows":
        return HashedRows(
            tuple(column[rows] for column in self.keys),
            self.version[rows],
            self.seq[rows],
            self.gone[rows],
            tuple(column[rows] for column in self.hashes),
        )

    def without_places(self) -> "HashedRows":
        """Returns the rows in fewer bytes."""
        none = np.zeros(len(self), np.int8)
        return replace(self, version=none, seq=none)

    def part(self, start: int, end: int) -> "HashedRows":
        """Returns rows by their numbers, without copying them."""
        return HashedRows(
            tuple(column[start:end] for column in self.keys),
            self.version[start:end],
            self.seq[start:end],
            self.gone[start:end],
            tuple(column[start:end] for column in self.hashes),
        )

    def _without_left_out(self, left_out: Sequence[_Flags]) -> "HashedRows":
        """`left_out`: rows without a value, for each column that may be left out. A deletion has none."""
        whole, *others = self.hashes
        found = [np.where(rows | self.gone, LEFT_OUT, column) for rows, column in zip(left_out, others, strict=True)]
        return replace(self, hashes=(whole, *found))

    def between(self, least: int, greatest: int) -> "HashedRows":
        """Returns the rows whose leading column of the key is in this range."""
        leading = self.keys[0]
        return self._kept((leading >= np.uint64(least)) & (leading <= np.uint64(greatest)))

    def within(self, keys: IntegerRange, schema: TableSchema) -> "HashedRows":
        inside = np.ones(len(self), np.bool_)
        columns = [self.keys[schema.key.index(name)] for name in keys.columns]
        kinds = [arrow_type_of(schema.column(name).arrow_type) for name in keys.columns]
        if keys.start is not None:
            inside &= ~_before(columns, kinds, keys.start)
        if keys.end is not None:
            inside &= _before(columns, kinds, keys.end)
        return self._kept(inside)

    def after(self, place: int) -> "HashedRows":
        """Returns the rows whose place is after `place`, which is -1 for none."""
        if place < 0:
            return self
        version, seq = divmod(place, 1 << 32)
        return self._kept((self.version > version) | ((self.version == version) & (self.seq > seq)))

    def last(self) -> "HashedRows":
        """Returns the last row of each key that is not gone, in the order of the keys."""
        rows = self.newest()
        return rows._kept(~rows.gone)

    def newest(self) -> "HashedRows":
        """Returns the last row of each key, in the order of the keys."""
        if _ascend(self.keys):
            return self
        order = np.argsort(self.keys[0])
        leading = self.keys[0][order]
        if (leading[1:] != leading[:-1]).all():  # half as expensive
            return self.taken(order)
        rows = self.taken(np.lexsort((self.seq, self.version, *reversed(self.keys))))
        is_last = np.ones(len(rows), np.bool_)
        is_last[:-1] = np.logical_or.reduce([column[1:] != column[:-1] for column in rows.keys])
        whole, *others = rows.hashes
        filled = [_filled(column, is_last) for column in others]
        return replace(rows, hashes=(whole, *filled))._kept(is_last)

    def _kept(self, rows: _Flags) -> "HashedRows":
        return self if rows.all() else self.taken(rows)


KeyOf: TypeAlias = Callable[[HashedRows, int], Key]
"""Returns the key of a row."""


def together(parts: Sequence[HashedRows]) -> HashedRows:
    """`parts`: at least one."""
    if len(parts) == 1:
        return parts[0]
    return HashedRows(
        tuple(np.concatenate(columns) for columns in zip(*(part.keys for part in parts), strict=True)),
        np.concatenate([part.version for part in parts]),
        np.concatenate([part.seq for part in parts]),
        np.concatenate([part.gone for part in parts]),
        tuple(np.concatenate(columns) for columns in zip(*(part.hashes for part in parts), strict=True)),
    )


def gone(keys: tuple[Ordinals, ...], like: HashedRows) -> HashedRows:
    """Returns rows that say of these keys that their rows are gone, since ever. `like`: rows of the same table."""
    count = len(keys[0])
    places = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    return HashedRows(keys, *places, np.ones(count, np.bool_), tuple(np.zeros(count, np.uint64) for _ in like.hashes))


def differing(expected: HashedRows, held: HashedRows, key_of: KeyOf) -> list[Pair]:
    """Returns the expected rows that `held` lacks or has differently. Both have each key once, in their order."""
    if len(expected) == len(held) and _same(expected, held):
        return []
    places = _places_of(expected, held)
    found = places >= 0
    rows = np.maximum(places, 0)
    equal = found.copy()
    if len(held):
        for one, other in zip(expected.hashes, held.hashes, strict=True):
            equal &= one == other[rows]
    pairs = []
    for row in np.flatnonzero(~equal):
        of_copy = _digest(held, int(rows[row])) if found[row] else None
        pairs.append(Pair(key_of(expected, int(row)), _digest(expected, int(row)), of_copy))
    return pairs


def surplus(expected: HashedRows, held: HashedRows, key_of: KeyOf, limit: int) -> list[Pair]:
    """Returns the rows of `held` whose keys are not expected, at most `limit`. Both have each key once, in their order."""
    rows = np.flatnonzero(_places_of(held, expected) < 0)[:limit]
    return unexpected(held, rows, key_of)


def unexpected(held: HashedRows, rows: _Numbers, key_of: KeyOf) -> list[Pair]:
    """Returns the pairs of these rows, which the source lacks."""
    return [Pair(key_of(held, int(row)), None, _digest(held, int(row))) for row in rows]


def _filled(column: Ordinals, is_last: _Flags) -> Ordinals:
    """Returns hashes with those before of the same key in place of LEFT_OUT. `is_last`: the last rows of each key."""
    if (column != LEFT_OUT).all():
        return column
    numbers = np.arange(len(column))
    starts = np.zeros(len(column), np.int64)
    starts[1:] = np.where(is_last[:-1], numbers[1:], 0)
    found = np.maximum.accumulate(np.where(column != LEFT_OUT, numbers, -1))
    return np.where(found >= np.maximum.accumulate(starts), column[np.maximum(found, 0)], LEFT_OUT)


def _same(expected: HashedRows, held: HashedRows) -> bool:
    pairs = zip((*expected.keys, *expected.hashes), (*held.keys, *held.hashes), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


def _places_of(wanted: HashedRows, among: HashedRows) -> _Numbers:
    """Returns for each row the number of the row with its key in `among`, -1 for none."""
    if len(wanted) == len(among) and all(map(np.array_equal, wanted.keys, among.keys)):
        return np.arange(len(wanted))
    ranks = _ranks(wanted.keys, among.keys)
    one, other = ranks[: len(wanted)], ranks[len(wanted) :]
    if len(other) == 0:
        return np.full(len(one), -1)
    places = np.minimum(np.searchsorted(other, one), len(other) - 1)
    return np.where(other[places] == one, places, -1)


def _ranks(keys: Sequence[Ordinals], others: Sequence[Ordinals]) -> _Numbers:
    """Returns a number for each row of both, in the order of the keys, the same for equal ones."""
    columns = [np.concatenate(pair) for pair in zip(keys, others, strict=True)]
    if len(columns) == 1:
        numbers: _Numbers = (columns[0] ^ _SIGN).view(np.int64)
        return numbers
    order = np.lexsort(columns[::-1])
    changes = np.logical_or.reduce([column[order][1:] != column[order][:-1] for column in columns])
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.concatenate(([0], np.cumsum(changes)))
    return ranks


def _ascend(keys: Sequence[Ordinals]) -> bool:
    """Returns whether each key is greater than the one before."""
    greater, equal = np.zeros(max(len(keys[0]) - 1, 0), np.bool_), np.True_
    for column in keys:
        greater = greater | (equal & (column[1:] > column[:-1]))
        equal = equal & (column[1:] == column[:-1])
    return bool(greater.all())


def _before(columns: Sequence[Ordinals], kinds: Sequence[pa.DataType], bound: Sequence[int]) -> _Flags:
    """Returns which keys are less than a bound, compared one column after the other."""
    less, equal = np.zeros(len(columns[0]), np.bool_), np.ones(len(columns[0]), np.bool_)
    for column, kind, value in zip(columns, kinds, bound, strict=True):
        place = ordinal(value, kind)
        if place < 0:  # all are greater
            return less
        if place >= 1 << 64:
            return less | equal
        less |= equal & (column < np.uint64(place))
        equal &= column == np.uint64(place)
    return less


def ordinal(value: int, kind: pa.DataType) -> int:
    """Returns the number of `ordinals` for a bound, below 0 or from 2**64 on for one outside of them."""
    return value + (1 << 63) if pa.types.is_integer(kind) else value


def integer_keys(schema: TableSchema) -> KeyOf:
    """Returns the function that gives a row's key, which is of integers."""
    kinds = [arrow_type_of(schema.column(name).arrow_type) for name in schema.key]
    firsts = [1 << 63 if pa.types.is_integer(kind) else 0 for kind in kinds]
    return lambda rows, row: tuple(
        str(int(column[row]) - first) for column, first in zip(rows.keys, firsts, strict=True)
    )


def hashes_of_keys(changes: pa.Table, schema: TableSchema, seed: int) -> tuple[Ordinals, Ordinals]:
    """Returns two hashes of the key of each change. `changes`: as `RowHashing.changes` returns them; all have a key."""
    return key_hashes([_whole(changes.column(name)) for name in key_names(schema)], seed)


def key_hashes(keys: list[pa.Array], seed: int) -> tuple[Ordinals, Ordinals]:
    """Returns two hashes of each key. `keys`: its columns."""
    count = len(keys[0])
    return hashes_of(keys, count, seed ^ _FIRST_KEY), hashes_of(keys, count, seed ^ _SECOND_KEY)


def hashed_key(rows: HashedRows, row: int) -> Key:
    return tuple(str(column[row]) for column in rows.keys)


def _digest(rows: HashedRows, row: int) -> str:
    return ",".join(str(column[row]) for column in rows.hashes)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _halves(decimals: pa.Array) -> npt.NDArray[np.int64]:
    halves = np.frombuffer(decimals.buffers()[1], np.int64).reshape(-1, 2)
    return halves[decimals.offset : decimals.offset + len(decimals)]
