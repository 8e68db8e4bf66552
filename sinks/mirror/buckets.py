"""The buckets of a table's rows, by which several transactions may write the changes of one large table (ADR 54).

A key has the same bucket in each attempt at an epoch, whatever writes it and by how many connections: the ledger names buckets.
So neither their number nor the function may change while an epoch is written in part. Keys that are neighbours mostly have one
bucket: two transactions seldom write the same page of the target.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.sinks.parts import Part, check_repeated_table
from tidemark.state.change_batch import UNCHANGED_FIELD, ChangeType, is_truncation, table_part
from tidemark.state.errors import SinkError
from tidemark.state.remedies import START_OVER
from tidemark.state.table import TableId, TableSchema, arrow_type_of

Buckets = frozenset[int]

COUNT = 8
ALL: Buckets = frozenset(range(COUNT))
_BITS = COUNT.bit_length() - 1
_NEIGHBOURS = 8
"""Keys that differ in this many low bits of their last column only are in one bucket."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def bucket_part(table: TableId, bucket: int) -> str:
    """Returns the name of a ledger entry for one bucket of the changes of a table in an epoch's range of the log."""
    return f"{table_part(table)}_{bucket}/{COUNT}"


def has_buckets(schema: TableSchema) -> bool:
    """True if the key is made of integers of the source. Integers that are equal in one database are equal in all."""
    columns = [schema.column(name) for name in schema.key]
    kinds = [arrow_type_of(column.arrow_type) for column in columns]
    are_integers = all(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0) for kind in kinds)
    return bool(columns) and are_integers and not any(column.made for column in columns)


def buckets_of(schema: TableSchema, rows: pa.RecordBatch) -> npt.NDArray[np.uint8]:
    """Returns the bucket of each row. The table has buckets, and the rows have keys."""
    mixed = np.zeros(rows.num_rows, np.uint64)
    for name in schema.key:
        numbers = _lowest_bits(rows.column(name))
        if name == schema.key[-1]:
            numbers = numbers >> np.uint64(_NEIGHBOURS)
        mixed = (mixed ^ numbers) * _FACTOR
        mixed ^= mixed >> np.uint64(32)
    found: npt.NDArray[np.uint8] = (mixed >> np.uint64(64 - _BITS)).astype(np.uint8)
    return found


def _lowest_bits(array: pa.Array) -> npt.NDArray[np.uint64]:
    """The same for one number in integers and decimals of any width."""
    if not pa.types.is_decimal(array.type):
        bits: npt.NDArray[np.uint64] = array.to_numpy().astype(np.int64).view(np.uint64)
        return bits
    words = np.frombuffer(array.buffers()[1], np.uint64)[2 * array.offset :]
    return words[: 2 * len(array) : 2]


def obstacle(schema: TableSchema, batches: Iterable[pa.RecordBatch]) -> str | None:
    """Returns what forbids to write the changes of different keys independently, None if nothing does."""
    for batch in batches:
        if is_truncation(batch):
            return "it was truncated"
        if any(batch.column(name).null_count for name in schema.key):
            return "a key is null"
        if UNCHANGED_FIELD.name in batch.schema.names:
            moved = batch.column("_change_type").to_numpy() == ChangeType.INSERT
            if np.any(moved & batch.column(UNCHANGED_FIELD.name).is_valid().to_numpy(zero_copy_only=False)):
                return "the log leaves values out of a row whose key changed"
    return None


@dataclass(slots=True)
class Portion:
    """The buckets of a table that one transaction writes: `left`. `done`: those that another one has committed, with their
    numbers of changes; they are left out."""

    table: TableId
    key: tuple[str, ...]
    left: Buckets
    done: Mapping[int, int]
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(COUNT, np.int64))
    """The changes that were counted, by bucket."""

    def _require(self, schema: TableSchema, batches: Iterable[pa.RecordBatch]) -> None:
        why = "its key changed" if schema.key != self.key or not has_buckets(schema) else obstacle(schema, batches)
        if why is not None:
            raise SinkError(
                f"{self.table}: its changes can't be written in several transactions, since {why}.",
                f"If this happens with log.apply_parallelism: 1, too, please report it, and {START_OVER}.",
            )

    def count(self, schema: TableSchema, batches: Iterable[pa.RecordBatch]) -> None:
        """Counts changes. Raises as `rows_left`."""
        self._require(schema, batches)
        for batch in batches:
            self.counts += np.bincount(buckets_of(schema, batch), minlength=COUNT)

    def rows_left(self, schema: TableSchema, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Returns the changes that this transaction is to write. Raises SinkError if rows have no buckets, or depend on each
        other."""
        self._require(schema, batches)
        is_left = np.isin(np.arange(COUNT), list(self.left))
        kept = [batch.filter(pa.array(is_left[buckets_of(schema, batch)])) for batch in batches]
        return [batch for batch in kept if batch.num_rows]

    def check(self, part: Part) -> None:
        """Raises SinkError if the buckets that are done do not have the recorded numbers of changes now."""
        for bucket, recorded in self.done.items():
            check_repeated_table(part, self.table, int(self.counts[bucket]), recorded)
