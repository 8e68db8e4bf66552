"""Finds equal rows of a copy that orders its keys in another way than the source, by hashes of their keys.

Nothing tells which rows of such a copy belong to a range of the source. So the copy's rows are read once, as the source's are,
and kept as hashes of keys and values (`tidemark.sinks.folded.rows_by_key`). An expected row that the copy has bit by bit is
done, and the copy's row is marked. All others go to the copy's server, which judges them by its own rules and keeps their
keys: to the server, `a` and `A` may be one key.

At the end, rows without a mark may be such that only the copy has. Their keys are read, and the server is asked which of them
are still there and not kept. The copy never has two rows whose keys are equal to its server. So a row without a mark can only
equal an expected row without one, and the key of that was kept.

Where suspects are looked at again, the server is asked by their keys. The copy is not read as a whole again.
"""

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.conf.sink import Sink
from tidemark.jobs.reconcile.copy_hashing import CopyHashing, Flags, Keys, among, in_order
from tidemark.jobs.reconcile.copy_reading import CopyReading
from tidemark.jobs.reconcile.key_ranges import has_exact_keys
from tidemark.sinks.comparing import ComparesTable, Pair
from tidemark.sinks.folded.rows_by_key import RowsByKey, SeenKeys, places_of
from tidemark.state.errors import SinkError, SinkUnavailableError, TidemarkError
from tidemark.state.table import TableSchema

KEYS_AT_ONCE = 100_000
"""The server is asked for so many keys in one statement."""
MAX_NOTED = 10_000
"""If more rows of a range may differ, all of its rows are given to the server again."""
MAX_NOTED_OF_ALL = 4 << 20
"""If more rows of all ranges may differ, so are those of further ranges. 64 MiB hold their hashes."""


@dataclass(slots=True)
class HashedCopy:
    """The copy of one table, for as long as it is compared. `output`: the table as it is there. `least_rows`: so many are
    compared before it is decided whether this is of use; the server compares them, too. `is_useful`: None until then; False if
    the server is to compare all rows."""

    output: TableSchema
    least_rows: int = 1
    is_useful: bool | None = field(default=None, init=False)
    hashing: CopyHashing = field(init=False)
    """Set when the copy was read."""
    _seen: SeenKeys | None = field(default=None, init=False)
    _compared: int = field(default=0, init=False)
    _others: int = field(default=0, init=False)
    """How many rows may differ of those that were compared before it was decided."""
    _noted: dict[int, Keys | None] = field(default_factory=dict, init=False)
    """The keys of rows that may differ, by their range. None: any of it."""
    _surplus: list[pa.RecordBatch] = field(default_factory=list, init=False)
    """Keys of the copy, some of which only the copy has."""
    _surplus_hashes: list[Keys] = field(default_factory=list, init=False)
    """Their hashes, in their order."""

    def __post_init__(self) -> None:
        self.hashing = CopyHashing(pa.schema([]), self.output.key, secrets.randbits(64))

    def begin(self) -> None:
        """Forgets the copy, before all ranges are looked at."""
        if self.is_useful is not False:
            self.close()
            self._compared, self._others, self.is_useful = 0, 0, None

    def close(self) -> None:
        """Forgets the copy, and frees its space on disk."""
        if self._seen is not None:
            self._seen.rows.close()
        self._seen, self._noted, self._surplus, self._surplus_hashes = None, {}, [], []

    def others(self, expected: pa.Table, reading: CopyReading | None) -> Flags | None:
        """Returns which of the expected rows may differ in the copy. None: all. Reads the copy at the first call. Raises
        SinkError if there is no space for the hashes."""
        if self.is_useful is False:
            return None
        if not expected.num_rows:
            return np.zeros(0, np.bool_)
        if self._seen is None and reading is not None:
            self._seen = self._read(reading)
        hashed = None if self._seen is None else self.hashing.hashed(expected)
        if hashed is None:
            if not self.is_useful:
                self._give_up()
            return None
        others = self.others_of(hashed.keys, hashed.hashes[0])
        if self.is_useful is None:
            self._compared += len(others)
            self._others += np.count_nonzero(others)
            if self._compared < self.least_rows:
                return None
            self.is_useful = 2 * self._others <= self._compared
        if not self.is_useful:
            self._give_up()
            return None
        return others

    def others_of(self, keys: Keys, hashes: npt.NDArray[np.uint64]) -> Flags:
        """Returns which of the expected rows may differ in the copy, by hashes of their keys and values. The copy was read."""
        assert self._seen is not None, "it was not read"
        base = self._seen.rows.base
        places = places_of(keys, base.keys)
        found = np.flatnonzero(places >= 0)
        same = np.zeros(len(places), np.bool_)
        same[found] = base.hashes[0][places[found]] == hashes[found]
        self._seen.marks[places[same]] = True
        return ~same

    def note(self, number: int, rows: pa.Table, pairs: Sequence[Pair]) -> None:
        """Takes what the server told of a range. `rows`: those that it was given."""
        if pairs and self._seen is not None:
            noted = sum(len(keys[0]) for keys in self._noted.values() if keys)
            is_much = rows.num_rows > MAX_NOTED or noted + rows.num_rows > MAX_NOTED_OF_ALL
            hashed = None if is_much else self.hashing.hashed(rows)
            self._noted[number] = None if hashed is None else in_order(hashed.keys)

    def forget_noted(self) -> None:
        """Forgets what was noted of ranges: all that may differ there is judged."""
        self._noted = {}

    def noted(self, number: int, expected: pa.Table, *, with_surplus: bool) -> Flags | None:
        """Returns which of a range's rows to look at again. None: all. `with_surplus`: also those whose keys only the copy had,
        and those whose keys it did not have."""
        hashed = None if self.noted_keys(number) is None else self.hashing.hashed(expected)
        return None if hashed is None else self.noted_of(number, hashed.keys, with_surplus=with_surplus)

    def noted_of(self, number: int, hashes: Keys, *, with_surplus: bool) -> Flags | None:
        """Returns the same by hashes of the rows' keys."""
        keys = self.noted_keys(number)
        if self._seen is None or keys is None:
            return None
        wanted = among(hashes, keys) if keys else np.zeros(len(hashes[0]), np.bool_)
        if with_surplus:
            wanted |= places_of(hashes, self._seen.rows.base.keys) < 0
            for surplus in self._surplus_hashes:
                wanted |= among(hashes, surplus)
        return wanted

    def noted_keys(self, number: int) -> Keys | None:
        """Returns hashes of the keys of a range's rows that may differ, in their order; () for none. None: any may."""
        return self._noted.get(number, ()) if self.is_useful else None

    def surplus(self, reading: CopyReading, limit: int) -> list[Pair] | None:
        """Returns rows that only the copy has, at most `limit`, after all ranges were looked at. None if that can't be told:
        then the server is to compare all rows."""
        assert self._seen is not None, "it is of no use"
        if self._seen.marks.all():
            return []
        asking = _Asking(self, reading.copy, limit)
        if not _passed_on(reading, self.output.key, asking.take):
            asking = self._asked_again(reading, limit)
        return self._told(asking)

    def _asked_again(self, reading: CopyReading, limit: int) -> "_Asking":
        """Reads the copy's keys by another connection: the first one was idle while the source was read."""
        asking = _Asking(self, reading.copy, limit)
        try:
            with reading.connect() as rows:
                asking.is_told = (
                    _passed_on(replace(reading, rows=rows), self.output.key, asking.take) and asking.is_told
                )
        except (SinkError, SinkUnavailableError):
            raise
        except TidemarkError:  # if it matters, the server meets it again
            asking.is_told = False
        return asking

    def has_exact_keys(self, sink: Sink) -> bool:
        """True if the sink writes each key of the source that the copy can hold unchanged. False if the copy was not read."""
        if not set(self.output.key) <= set(self.hashing.held.names):
            return False
        return has_exact_keys(self.output, self.hashing.held, sink)

    def surplus_again(self, copy: ComparesTable) -> list[Pair] | None:
        """Returns those of the rows found by `surplus` that only the copy has now, and those beside them that `limit` left out:
        that is all."""
        asking = _Asking(self, copy, sum(keys.num_rows for keys in self._surplus))
        for keys in self._surplus:
            asking.ask(keys)
        return self._told(asking)

    def unmarked(self, keys: pa.RecordBatch) -> Flags:
        """Returns which of these keys of the copy have rows without a mark."""
        assert self._seen is not None, "it is of no use"
        places = places_of(self.hashing.keys_of(keys), self._seen.rows.base.keys)
        return (places >= 0) & ~self._seen.marks[places]

    def _told(self, asking: "_Asking") -> list[Pair] | None:
        asking.ask_waiting()
        if not asking.is_told:
            self._give_up()
            return None
        self._surplus = asking.differing
        self._surplus_hashes = [in_order(self.hashing.keys_of(keys)) for keys in asking.differing]
        return asking.found

    def _give_up(self) -> None:
        self.close()
        self.is_useful = False

    def _read(self, reading: CopyReading) -> SeenKeys | None:
        """Returns the copy's rows. None if they can't be compared here."""
        names, held = list(reading.names), reading.rows.schema.arrow_schema()
        self.hashing = replace(self.hashing, held=pa.schema([held.field(name) for name in names]))
        columns = tuple(replace(column, toastable=False) for column in self.output.columns)
        rows, count = RowsByKey(replace(self.output, columns=columns), self.hashing.seed), 0

        def take(batch: pa.RecordBatch) -> None:
            nonlocal count
            count += batch.num_rows
            rows.add_rows(self.hashing.of_copy(batch.select(names)))

        with ExitStack() as stack:
            stack.callback(rows.close)
            if not _passed_on(reading, names, take):
                return None
            rows.settle()
            if len(rows.base) != count:
                return None
            stack.pop_all()
        return SeenKeys(rows)


@dataclass(slots=True)
class _Asking:
    """Asks a copy's server which rows only the copy has. `is_told`: False if the server can't be given a key."""

    hashed: HashedCopy
    copy: ComparesTable
    limit: int
    is_told: bool = True
    found: list[Pair] = field(default_factory=list)
    differing: list[pa.RecordBatch] = field(default_factory=list)
    """The keys with which such rows were found."""
    _waiting: list[pa.RecordBatch] = field(default_factory=list)

    def take(self, rows: pa.RecordBatch) -> None:
        """Takes keys of the copy."""
        keys = rows.select(list(self.hashed.output.key))
        self._waiting.append(keys.filter(pa.array(self.hashed.unmarked(keys))))
        if sum(keys.num_rows for keys in self._waiting) >= KEYS_AT_ONCE:
            self.ask_waiting()

    def ask_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for keys in pa.Table.from_batches(waiting).combine_chunks().to_batches() if waiting else ():
            self.ask(keys)

    def ask(self, keys: pa.RecordBatch) -> None:
        if not self.is_told or len(self.found) >= self.limit or not keys.num_rows:
            return
        expected = self.hashed.output.arrow_schema()
        try:
            named = keys.cast(pa.schema([expected.field(name) for name in keys.schema.names]))
            self.is_told = named.cast(keys.schema) == keys  # a truth is any number but 0
        except pa.ArrowInvalid:
            self.is_told = False
        if not self.is_told:
            return
        pairs = self.copy.surplus_among(named, self.limit - len(self.found))
        self.is_told = pairs is not None
        if pairs:
            self.found += pairs
            self.differing.append(keys)


def _passed_on(reading: CopyReading, names: Sequence[str], take: Callable[[pa.RecordBatch], None]) -> bool:
    """Gives the copy's rows to `take`. False if they can't be read so. Raises what `take` raises, which reads nothing."""
    try:
        reading.rows.pass_on(reading.copy.condition(None), names, take)
    except (SinkError, SinkUnavailableError):
        raise
    except TidemarkError:  # if it matters, the server meets it again
        return False
    return True
