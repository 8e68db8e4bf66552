"""A copy's rows by hashes of their keys, for keys that are not integers.

Nothing tells which files have the rows of a range of such keys: databases order texts in many ways. So the changes of all files
are read once, as hashes of keys and values, and sorted by the first hash. The rows of a range are looked up there. A range that
a comparison has seen is marked, so at the end it is known which rows only the copy has. A key is known again by 128 bits.

More than MAX_ROWS changes are not sorted in memory: they are written into files by the first bits of their keys, each of these
is sorted, and the arrays are read from disk where rows are looked up.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.comparing import Key
from tidemark.sinks.folded.hashed_rows import HashedRows, gone, hashes_of_keys, together
from tidemark.sinks.folded.hashing import with_key
from tidemark.sinks.folded.temporary_folder import no_room, temporary_folder
from tidemark.state.change_batch import ChangeType
from tidemark.state.table import TableId, TableSchema

MAX_ROWS = 4 << 20
CHUNK_ROWS = 1 << 20
PIECE_ROWS = 1 << 18
KEY_COLUMNS = 2
_BUCKET_BITS = 8
_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]
_Keys = tuple[npt.NDArray[np.uint64], ...]


class ValuesLeftOutError(Exception):
    """A row got another key, and the log left values out: they are in a row of the key before, so only `FoldedState` can tell
    them."""


def hashed_changes(
    changes: pa.Table, schema: TableSchema, seed: int, known: _Keys | None = None
) -> tuple[int, HashedRows]:
    """Returns the place of the last TRUNCATE, -1 for none, and the other changes that have a key. `changes`: as
    `RowHashing.changes` returns them. `known`: only changes of these keys, which are in their order. Raises
    ValuesLeftOutError."""
    truncated = -1
    are_truncates = pc.equal(changes.column("kind"), int(ChangeType.TRUNCATE))
    if pc.any(are_truncates).as_py():
        truncated = int(pc.max(changes.column("o").filter(are_truncates)).as_py())
        changes = changes.filter(pc.fill_null(pc.invert(are_truncates), True))
    changes = with_key(changes, schema)
    if known is not None:
        changes = changes.filter(pa.array(places_of(hashes_of_keys(changes, schema, seed), known) >= 0))
    for i in range(len(schema.toastable)):
        if pc.any(pc.and_(changes.column(f"u{i}"), pc.equal(changes.column("kind"), int(ChangeType.INSERT)))).as_py():
            raise ValuesLeftOutError
    return truncated, HashedRows.by_hashes(changes, schema, seed)


@dataclass(frozen=True, slots=True)
class Cuts:
    """Up to which `_commit_version` the changes of a key count. `keys`: each once, in their order, and the `versions` of these.
    `others`: that of all other keys, not after any of `versions`."""

    keys: _Keys
    versions: _Numbers
    others: int

    @classmethod
    def of(cls, expected: HashedRows, others: int) -> "Cuts":
        """`expected`: rows whose `version` is that of their key's cut."""
        rows = expected.newest()
        return cls(rows.keys, np.maximum(rows.version, others), others)

    def before(self, rows: HashedRows) -> HashedRows:
        """Returns for each key that has later changes its last change that counts, in the order of the keys. A key that has
        none is one whose row is gone. So is one of the other keys whose row was gone at any time since. `rows`: all changes of
        their keys."""
        is_later = rows.version > self.others
        numbers = np.flatnonzero(is_later)
        if len(numbers):
            places = places_of(tuple(column[numbers] for column in rows.keys), self.keys)
            wanted = places >= 0
            is_later[numbers[wanted]] = rows.version[numbers[wanted]] > self.versions[places[wanted]]
        later = rows.taken(is_later)
        if not len(later):
            return later
        of_later = places_of(rows.keys, later.newest().keys) >= 0
        found = together([gone(later.keys, later), rows.taken(of_later & ~is_later)]).newest()
        left = later.taken(later.gone & (places_of(later.keys, self.keys) < 0)).keys
        is_gone = found.gone.copy()
        is_gone[places_of(left, found.keys)] = True
        return replace(found, gone=is_gone)


@dataclass(slots=True)
class RowsByKey:
    """The last change of each key, also deletions. `seed`: of all hashes. `temporary`: a folder for what does not fit into the
    memory; None: one that is made when it is needed, and removed by `close`. `only_known`: later changes and expected rows
    count only if their keys are among those that `settle` found first."""

    schema: TableSchema
    seed: int
    temporary: Path | None = None
    only_known: bool = False
    truncated: int = field(default=-1, init=False)
    """The place of the table's last TRUNCATE: rows before it are ignored."""
    texts: dict[Key, Key] = field(default_factory=dict, init=False)
    """The keys that differed at some look, by their hashes."""
    _before: HashedRows | None = field(default=None, init=False)
    _base: HashedRows | None = field(default=None, init=False)
    """The rows that the first `settle` found. They stay, because comparisons mark them."""
    _recent: HashedRows | None = field(default=None, init=False)
    """Later changes."""
    _added: list[HashedRows] = field(default_factory=list, init=False)
    _spilled: "_Buckets | None" = field(default=None, init=False)
    _folders: ExitStack = field(default_factory=ExitStack, init=False)

    def close(self) -> None:
        """Frees the space on disk. Then there are no rows any more."""
        self._base = self._before = self._recent = self._spilled = None
        self._folders.close()

    @property
    def base(self) -> HashedRows:
        return self.nothing() if self._base is None else self._base

    @property
    def before(self) -> HashedRows:
        """The rows that `Cuts.before` found in the changes that the first `settle` took in."""
        return self.nothing() if self._before is None else self._before

    def add(self, changes: pa.Table) -> None:
        """Adds changes as `RowHashing.changes` returns them. Raises ValuesLeftOutError."""
        known = self.base.keys if self.only_known else None
        truncated, rows = hashed_changes(changes, self.schema, self.seed, known)
        self.truncated = max(self.truncated, truncated)
        self.add_rows(rows)

    def add_rows(self, rows: HashedRows) -> None:
        self._added.append(rows)
        if self._base is None and sum(map(len, self._added)) > MAX_ROWS:
            if self._spilled is None:
                self._spilled = _Buckets(self._folder(), self.schema.table)
            self._spilled.add(together(self._added))
            self._added = []

    def settle(self, cuts: Cuts | None = None) -> None:
        """Takes in what was added. `cuts`: for `before`. If the table was truncated after them, it finds nothing."""
        if cuts is not None and self.truncated >> 32 > cuts.others:
            cuts = None
        added = together(self._added or [self.nothing()])
        self._added = []
        if self._spilled is not None:
            if len(added):
                self._spilled.add(added)
            (self._base, self._before), self._spilled = self._spilled.sorted(self.truncated, cuts), None
        elif self._base is None:
            base, before = list[HashedRows](), list[HashedRows]()
            for piece in _by_keys(added):
                rows = piece.after(self.truncated)
                base.append(rows.newest())
                if cuts is not None:
                    before.append(cuts.before(rows))
            self._base, self._before = together(base), together(before) if before else None
        elif len(added):
            recent = together([added] if self._recent is None else [self._recent, added])
            recent = recent.after(self.truncated).newest()
            self._recent = recent.taken(self._is_later(recent))

    def hashed(self, changes: pa.Table) -> HashedRows:
        """Returns the changes that have a key."""
        return HashedRows.by_hashes(with_key(changes, self.schema), self.schema, self.seed)

    def expected(self, hashed: Sequence[pa.Table]) -> HashedRows:
        """Returns expected rows, each key once."""
        rows = together([*map(self.hashed, hashed), self.nothing()]).last()
        return rows.taken(places_of(rows.keys, self.base.keys) >= 0) if self.only_known else rows

    def among(self, wanted: HashedRows) -> HashedRows:
        """Returns the rows that the copy has of these keys."""
        parts = [self.nothing()]
        for rows in self._both():
            places = places_of(wanted.keys, rows.keys)
            parts.append(rows.taken(places[places >= 0]))
        return together(parts).after(self.truncated).last()

    def others(self, seen: "SeenKeys", limit: int) -> HashedRows:
        """Returns rows that the copy has of other keys, at most `limit`."""
        parts, count = [self.nothing()], 0
        for rows in self._unseen(seen):
            found = rows.after(self.truncated)
            found = found.taken(np.flatnonzero(~found.gone)[: limit - count])
            parts.append(found)
            count += len(found)
            if count >= limit:
                break
        return together(parts)

    def _unseen(self, seen: "SeenKeys") -> Iterator[HashedRows]:
        recent = self._recent
        for start in range(0, len(self.base), CHUNK_ROWS):
            rows = self.base.taken(start + np.flatnonzero(~seen.marks[start : start + CHUNK_ROWS]))
            if recent is not None:
                rows = rows.taken(places_of(rows.keys, recent.keys) < 0)
            yield rows
        if recent is not None:
            yield recent.taken(~seen.among(recent.keys))

    def _folder(self) -> Path:
        if self.temporary is not None:
            return self.temporary
        return self._folders.enter_context(temporary_folder(self.schema.table))

    def _is_later(self, rows: HashedRows) -> _Flags:
        """Returns which rows are later than those of their keys in `base`."""
        places = places_of(rows.keys, self.base.keys)
        found, before = places >= 0, self.base.taken(places[places >= 0])
        later = ~found
        version, seq = rows.version[found], rows.seq[found]
        later[found] = (version > before.version) | ((version == before.version) & (seq > before.seq))
        return later

    def _both(self) -> Iterator[HashedRows]:
        yield self.base
        if self._recent is not None:
            yield self._recent

    def nothing(self) -> HashedRows:
        none, number = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        hashes = (none,) * (1 + len(self.schema.toastable))
        return HashedRows((none,) * KEY_COLUMNS, number, number, np.zeros(0, np.bool_), hashes)


@dataclass(slots=True)
class SeenKeys:
    """The keys that a comparison has seen: `marks` of the rows that `RowsByKey` began with, and the others."""

    rows: RowsByKey
    marks: _Flags = field(init=False)
    _others: list[_Keys] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.marks = np.zeros(len(self.rows.base), np.bool_)

    def add(self, keys: _Keys) -> None:
        places = places_of(keys, self.rows.base.keys)
        self.marks[places[places >= 0]] = True
        self._others.append(tuple(column[places < 0] for column in keys))

    def add_others(self, keys: _Keys) -> None:
        """Adds all keys that `RowsByKey` began with but these."""
        places = places_of(keys, self.rows.base.keys)
        others = np.ones(len(self.marks), np.bool_)
        others[places[places >= 0]] = False
        self.marks |= others

    def of(self, changes: pa.Table) -> pa.Table:
        """Returns the changes whose keys were seen."""
        changes = with_key(changes, self.rows.schema)
        keys = self.rows.hashed(changes).keys
        order = np.lexsort(keys[::-1])
        return changes.take(order[self.among(tuple(column[order] for column in keys))])

    def among(self, keys: _Keys) -> _Flags:
        """Returns which of the keys were seen. `keys`: in their order."""
        places = places_of(keys, self.rows.base.keys)
        found = np.zeros(len(places), np.bool_)
        found[places >= 0] = self.marks[places[places >= 0]]
        for others in self._others:
            places = places_of(others, keys)
            found[places[places >= 0]] = True
        return found


def _by_keys(rows: HashedRows) -> Iterator[HashedRows]:
    """Yields the rows in pieces, by the first bits of their keys. To sort a piece takes less memory and time."""
    bits = (len(rows) // PIECE_ROWS).bit_length()
    if not bits:
        yield rows
        return
    pieces = rows.keys[0] >> np.uint64(64 - bits)
    for piece in range(1 << bits):
        yield rows.taken(np.flatnonzero(pieces == np.uint64(piece)))


def places_of(wanted: _Keys, keys: _Keys) -> _Numbers:
    """Returns for each wanted key its place in `keys`, -1 for none. `keys`: each once, in their order."""
    (first, second), (leading, others) = wanted, keys
    found = np.full(len(first), -1, np.int64)
    places = np.searchsorted(leading, first)
    pending = np.arange(len(first))
    while len(pending):  # once more for each two keys with the same first hash
        pending = pending[places[pending] < len(leading)]
        pending = pending[leading[places[pending]] == first[pending]]
        are_same = others[places[pending]] == second[pending]
        found[pending[are_same]] = places[pending[are_same]]
        pending = pending[~are_same]
        places[pending] += 1
    return found


@dataclass(slots=True)
class _Buckets:
    """Files of changes in a folder, each with those of some keys."""

    folder: Path
    table: TableId
    _kinds: list[tuple[str, Any]] = field(default_factory=list, init=False)

    def add(self, rows: HashedRows) -> None:
        self._kinds = [(str(i), array.dtype) for i, array in enumerate(rows.arrays)]
        buckets = (rows.keys[0] >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)
        order = np.argsort(buckets, kind="stable")
        ends = np.searchsorted(buckets[order], np.arange(1 << _BUCKET_BITS), "right").tolist()
        for bucket, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            part = rows.taken(order[start:end])
            records = np.empty(len(part), self._kinds)
            for (name, _), array in zip(self._kinds, part.arrays, strict=True):
                records[name] = array
            with self._with_room(), self._bucket(bucket).open("ab") as file:
                _write(file, records)

    def sorted(self, truncated: int, cuts: Cuts | None) -> tuple[HashedRows, HashedRows | None]:
        """Returns the last change of each key after `truncated`, as arrays on disk, and what `Cuts.before` finds."""
        names = [name for name, _ in self._kinds]
        before = list[HashedRows]()
        with self._with_room(), ExitStack() as stack:
            columns = [stack.enter_context(self._column(name).open("xb")) for name in names]
            for bucket in range(1 << _BUCKET_BITS):
                records = np.fromfile(self._bucket(bucket), np.dtype(self._kinds))
                self._bucket(bucket).unlink()
                rows = HashedRows.of_arrays([np.ascontiguousarray(records[name]) for name in names], KEY_COLUMNS)
                rows = rows.after(truncated)
                if cuts is not None:
                    before.append(cuts.before(rows))
                for column, array in zip(columns, rows.newest().arrays, strict=True):
                    _write(column, array)
        arrays = [_mapped(self._column(name), kind) for name, kind in self._kinds]
        return HashedRows.of_arrays(arrays, KEY_COLUMNS), together(before) if before else None

    @contextmanager
    def _with_room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"Hashes of the table's keys can't be kept: {error.strerror or error}."
            raise no_room(message, self.folder.parent, self.table) from error

    def _bucket(self, number: int) -> Path:
        return self.folder / f"keys-{number}"

    def _column(self, name: str) -> Path:
        return self.folder / f"column-{name}"


def _mapped(path: Path, kind: Any) -> npt.NDArray[Any]:
    """Returns an array on disk. An empty file can't be mapped."""
    return np.memmap(path, kind, "r") if path.stat().st_size else np.zeros(0, kind)


def _write(file: IO[bytes], array: npt.NDArray[Any]) -> None:
    """Writes all bytes, or raises OSError: `ndarray.tofile` passes over those that the file can't take when it is closed."""
    if len(array):
        file.write(np.ascontiguousarray(array).view(np.uint8).data)
