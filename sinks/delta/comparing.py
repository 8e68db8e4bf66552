"""Compares expected rows with a Delta table.

Executors compute keys and hashes of the table's rows (`hashing.py`). The driver takes them into a state on its disk, which is
compared with the hashes of the expected rows. Spark reads the table, so deletion vectors, column mapping, catalogs and object
stores are Spark's own matter. One query reads one version of the table.

A table of `style: changelog` is folded as files are; later only changes after the last known one are read. A table of
`style: mirror` has no history. It is read again as a whole now and then while the ranges are compared for the first time, and
at each later look for the rows that differ.
"""

import contextlib
import itertools
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tidemark.sinks.comparing import Comparisons, Key
from tidemark.sinks.delta.errors import spark_errors
from tidemark.sinks.delta.hashing import HASHED, WANTED, Hashing, hashed_names, load_keys, read
from tidemark.sinks.delta.locations import Location, current_version, quoted
from tidemark.sinks.delta.tables import Style
from tidemark.sinks.folded.comparing import FoldedComparison
from tidemark.sinks.folded.hashing import key_kinds, probe
from tidemark.sinks.folded.state import FoldedState
from tidemark.state.integer_range import IntegerRange
from tidemark.state.table import TableSchema

FRESH_ROWS = 10_000_000
"""The number of changes that are folded together, where their order does not matter."""
READING_SHARE = 10
"""While ranges are compared for the first time, reading the copy again takes at most about this part of the time."""
_SETTINGS = {
    # The driver has two partitions of the hashed rows at a time.
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "32m",
    # Rows may have large values: an executor has one batch of them at a time.
    "spark.sql.execution.arrow.maxBytesPerBatch": "32m",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """How a copy is read. `partitioned`: the table's partition columns. `deleted`: its column that is true in rows which the
    source has deleted."""

    style: Style
    partitioned: tuple[str, ...] = ()
    deleted: str | None = None

    @property
    def is_there(self) -> str:
        return "TRUE" if self.deleted is None else f"{quoted(self.deleted)} IS NOT TRUE"


@contextlib.contextmanager
def comparable_table(
    session: SparkSession, location: Location, schema: TableSchema, how: Reading
) -> Iterator[Comparisons]:
    """See `ComparableSink.comparable`."""
    if how.style == "mirror":  # the table has all values
        schema = replace(schema, columns=tuple(replace(column, toastable=False) for column in schema.columns))
    beside = session.newSession()
    for name, value in _SETTINGS.items():
        beside.conf.set(name, value)
    with FoldedState.opened(schema, str(location)) as state:
        reading = DeltaReading(state, beside, location, how)
        numbers = itertools.count()

        def compared(keys: Collection[Key] | None = None) -> contextlib.AbstractContextManager[FoldedComparison]:
            if keys is None:
                return contextlib.closing(FoldedComparison(state, next(numbers), reading.stage, reading.refresh))
            reading.look_at(keys)
            return contextlib.closing(FoldedComparison(state, next(numbers), reading.stage, _nothing, WANTED))

        yield compared


def keys_in_table(
    session: SparkSession, location: Location, schema: TableSchema, how: Reading, within: IntegerRange, limit: int
) -> list[Key]:
    """Returns the keys that the copy has in a range, at most `limit`. Raises SinkError."""
    keys, condition = ", ".join(map(quoted, schema.key)), f"({within.condition(quoted)}) AND {how.is_there}"
    texts = ", ".join(f"CAST({quoted(name)} AS STRING)" for name in schema.key)
    held = f"SELECT DISTINCT {keys} FROM {location.relation} WHERE {condition}"
    if how.style == "changelog":
        place = "struct(_commit_version, _seq)"
        folded = (
            f"SELECT {keys}, max_by(_change_type, {place}) AS kind, max({place}) AS place FROM {location.relation} "
            f"WHERE _change_type <> 'truncate' AND {condition} GROUP BY {keys}"
        )
        truncated = f"(SELECT max({place}) FROM {location.relation} WHERE _change_type = 'truncate')"
        held = f"SELECT {keys} FROM ({folded}) WHERE kind <> 'delete' AND (place > {truncated} OR {truncated} IS NULL)"
    with spark_errors(location):
        return [tuple(row) for row in session.sql(f"SELECT {texts} FROM ({held}) LIMIT {limit}").collect()]


def _nothing() -> None:
    """The copy was read when the look began: rows of the source are read after it."""


@dataclass(slots=True)
class DeltaReading:
    """Reads a table's copy into its state."""

    state: FoldedState
    session: SparkSession
    location: Location
    how: Reading
    _version: int = field(default=-1, init=False)
    """The state has all rows as of this version of the table or a later one."""
    _due: float = field(default=0.0, init=False)
    """When the copy may be read again, by time.monotonic()."""

    def stage(self, table: str, batches: Iterable[pa.RecordBatch]) -> int:
        """See `folded.comparing.Staging`."""
        count = 0
        self.state.create(table)
        for hashed in self._hashing(hashed_names(self.state.schema, is_changelog=False)).hashed(batches):
            self.state.insert(table, hashed)
            count += hashed.num_rows
        return count

    def refresh(self) -> None:
        """Takes in what the copy got since, unless that would take too much of the time."""
        began = time.monotonic()
        if began < self._due:
            return
        self._read_all()
        ended = time.monotonic()
        self._due = ended + READING_SHARE * (ended - began)

    def look_at(self, keys: Collection[Key]) -> None:
        """Has the state have at least the rows of these keys as they are now, and makes the table WANTED of the keys."""
        wanted = tuple(sorted(keys))
        load_keys(self.state.engine, self.state.schema, wanted)
        if self.how.style == "changelog":
            self._read_all()
        elif self._version != current_version(self.session, self.location):
            self.state.create("fresh")
            for hashed in self._hashed(self._restricted(wanted), wanted):
                self.state.insert("fresh", hashed)
            self.state.take_rows(WANTED)

    def _read_all(self) -> None:
        version = current_version(self.session, self.location)
        if version == self._version:
            return
        if self.how.style == "changelog":
            self._read_changes()
        else:
            self.state.create("fresh")
            for hashed in self._hashed("TRUE"):
                self.state.insert("fresh", hashed)
            self.state.take_rows()
        self._version = version

    def _read_changes(self) -> None:
        """Takes in the changes after the last known one of the log. An epoch's changes of a table are one commit."""
        in_order = bool(self.state.schema.toastable)
        version, seq = divmod(self.state.log_place, 1 << 32)
        since = f"_commit_version >= {version} AND (_commit_version > {version} OR _seq > {seq})"
        self.state.create("fresh")
        count = 0
        for hashed in self._hashed(since if self.state.log_place >= 0 else "TRUE"):
            self.state.insert("fresh", hashed)
            count += hashed.num_rows
            if count >= FRESH_ROWS and not in_order:
                self.state.take_changes()
                self.state.create("fresh")
                count = 0
        self.state.take_changes()

    def _restricted(self, keys: tuple[Key, ...]) -> str:
        """Returns a condition that these keys meet, by which Delta leaves out files."""
        conditions = ["TRUE"]
        for i, (name, kind) in enumerate(zip(self.state.schema.key, key_kinds(self.state.schema), strict=True)):
            if kind != "VARCHAR" and keys:
                values = [int(key[i]) for key in keys]
                conditions.append(f"{quoted(name)} BETWEEN {min(values)} AND {max(values)}")
        return " AND ".join(conditions)

    def _hashed(self, condition: str, wanted: tuple[Key, ...] | None = None) -> Iterator[pa.Table]:
        """Yields keys and hashes of the table's rows, all of one version. Holds two partitions of them in memory."""
        names = hashed_names(self.state.schema, is_changelog=self.how.style == "changelog")
        condition = f"({condition}) AND {self.how.is_there}"
        with spark_errors(self.location):
            rows = self.session.table(self.location.relation).where(condition).select(*map(quoted, names))
            for row in self._rebalanced(rows, self._hashing(names, wanted)):
                yield read(row)

    def _hashing(self, names: tuple[str, ...], wanted: tuple[Key, ...] | None = None) -> Hashing:
        return Hashing(self.state.hashing, names, self.how.partitioned, probe(self.state.seed), wanted)

    def _rebalanced(self, rows: DataFrame, hashing: Hashing) -> Iterator[bytes]:
        # All tasks compute hashes at once, and the driver fetches them piece by piece.
        hashed = rows.mapInArrow(hashing, from_arrow_schema(HASHED)).hint("rebalance")
        for row in hashed.toLocalIterator(prefetchPartitions=True):
            yield bytes(row["hashed"])
