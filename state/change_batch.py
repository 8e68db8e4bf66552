"""Change batches: the rows and changes on their way from the readers through Spark to the sinks.

One Spark row (TRANSPORT) contains one Arrow record batch of one table, as an IPC stream in `payload`, or the name of a
checkpoint file with the rows of a whole split, or the range of keys that a split replaces. The rows of one `part` (a split, or
the epoch's log) arrive in order of `seq` in one Spark partition. The last row of a part has none of these, and its `row_count`
is the sum over the part. A sink commits a part only when it has seen that row, never because its input ended.
"""

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import pyarrow as pa

from tidemark.state.copied_range import CopiedRange
from tidemark.state.integer_range import IntegerRange
from tidemark.state.reached import Reached
from tidemark.state.table import TableId, TableSchema

LOG_PART = "log"


def split_part(split_id: int) -> str:
    return f"s{split_id}"


def table_part(table: TableId) -> str:
    """Returns the name of a ledger entry for the changes of one table in an epoch's range of the log."""
    digest = hashlib.sha256(f"{table.database}\0{table.name}".encode()).hexdigest()
    return f"{LOG_PART}{digest[:32]}"


class ChangeType(IntEnum):
    """The codes in a batch's `_change_type`. The names are those of Spark's changelogs."""

    INSERT = 0
    UPDATE_PREIMAGE = 1
    UPDATE_POSTIMAGE = 2
    DELETE = 3
    TRUNCATE = 4
    """All rows of the table were removed. The table's own columns are null."""


CHANGE_TYPE_NAMES = tuple(t.name.lower() for t in ChangeType)

META_FIELDS = (
    pa.field("_change_type", pa.int8(), nullable=False),
    pa.field("_commit_version", pa.int64(), nullable=False),
    pa.field("_commit_timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("_seq", pa.int32(), nullable=False),
    pa.field("_txn_id", pa.dictionary(pa.int32(), pa.string())),
    pa.field("_is_snapshot", pa.bool_(), nullable=False),
)
"""They follow the table's own columns. `_commit_version` never decreases for a key; `_seq` orders changes in a transaction."""

UNCHANGED_FIELD = pa.field("_unchanged", pa.list_(pa.string()))
"""The columns of the row that are null here because the update did not change them and the log does not repeat their
values; null if there are none. In an UPDATE_POSTIMAGE their values are those that the key's row had before. In an INSERT
(the second half of an update that changed the key) they are those of the row that the preceding DELETE removed, which has
the preceding `_seq`. Other changes have no such columns."""

TRANSPORT = pa.schema(
    [
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("part", pa.string(), nullable=False),
        pa.field("seq", pa.int32(), nullable=False),
        pa.field("database", pa.string()),
        pa.field("table", pa.string()),
        pa.field("schema_version", pa.int32()),
        pa.field("row_count", pa.int64(), nullable=False),
        pa.field("payload", pa.binary()),
        pa.field("file", pa.string()),
        pa.field("truncates", pa.bool_(), nullable=False),
        pa.field("after_log_epoch", pa.int64()),
        pa.field("after_splits", pa.int64()),
        pa.field("range", pa.string()),
    ]
)


def meta_fields(schema: TableSchema) -> tuple[pa.Field, ...]:
    """Returns META_FIELDS, and UNCHANGED_FIELD for a table with toastable columns."""
    return (*META_FIELDS, UNCHANGED_FIELD) if schema.toastable else META_FIELDS


def is_truncation(rows: pa.RecordBatch) -> bool:
    return bool(rows.num_rows == 1 and rows.column("_change_type")[0].as_py() == ChangeType.TRUNCATE)


def batch_schema(schema: TableSchema) -> pa.Schema:
    """Returns the Arrow schema of a table's change batches: its captured columns, then its `meta_fields`."""
    return pa.schema([*schema.arrow_schema(), *meta_fields(schema)])


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Rows of one part and table. `rows` has the `batch_schema` of the table's schema version.

    An update is one UPDATE_POSTIMAGE if its key stayed the same. Otherwise, and in a table without a key, it is a DELETE of
    the old row and an INSERT of the new one, in this order, with one `_commit_version`. A DELETE contains the old row. A
    TRUNCATE is the only row of its batch.
    """

    epoch: int
    part: str
    seq: int
    table: TableId
    schema_version: int
    rows: pa.RecordBatch

    @property
    def truncates(self) -> bool:
        return is_truncation(self.rows)


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A split's rows in the Parquet file `name` of the checkpoint. The file never changes, and is kept until the epoch is
    committed."""

    epoch: int
    part: str
    seq: int
    table: TableId
    schema_version: int
    row_count: int
    name: str


@dataclass(frozen=True, slots=True)
class ReplacedRange:
    """The first item of a split whose rows replace those of the copy: what the copy has in the range goes, then the rows of the
    part come. Only for sinks that replace ranges. `after_epoch`: the last epoch that was planned
    before this load of the table."""

    epoch: int
    part: str
    seq: int
    table: TableId
    schema_version: int
    range: CopiedRange
    after_epoch: int = 0


@dataclass(frozen=True, slots=True)
class PartEnd:
    """The part is complete: `row_count` rows in `seq` items before it. `after`: of a log part, what the target must have
    before the part, None if the plan does not say. `has_left`: a table has left the job. The part has none of its rows, even
    if it was written with them before."""

    epoch: int
    part: str
    seq: int
    row_count: int
    after: Reached | None = None
    has_left: bool = False


PartItem: TypeAlias = ChangeBatch | PublishedFile | ReplacedRange | PartEnd


def to_transport(item: PartItem) -> pa.RecordBatch:
    """Returns a batch of TRANSPORT with one row."""
    match item:
        case ChangeBatch(epoch, part, seq, table, version, rows):
            buffer = pa.BufferOutputStream()
            with pa.ipc.new_stream(buffer, rows.schema) as writer:
                writer.write_batch(rows)
            head = [epoch, part, seq, table.database, table.name, version, rows.num_rows]
            values = [*head, buffer.getvalue(), None, is_truncation(rows), None, None, None]
        case PublishedFile(epoch, part, seq, table, version, row_count, name):
            values = [epoch, part, seq, table.database, table.name, version, row_count, None, name, False]
            values += [None, None, None]
        case ReplacedRange(epoch, part, seq, table, version, keys):
            if (integers := keys.integers) is None:
                raise ValueError(f"{part} replaces a range of keys that are no integers, which Spark does not write")
            head = [epoch, part, seq, table.database, table.name, version, 0]
            values = [*head, None, None, False, None, None, integers.text]
        case PartEnd(epoch, part, seq, row_count, after):
            values = [epoch, part, seq, None, None, None, row_count, None, None, False]
            values += [None, None, None] if after is None else [after.log_epoch, after.splits, None]
    arrays = []
    for value, field in zip(values, TRANSPORT, strict=True):
        if isinstance(value, pa.Buffer):
            offsets = pa.array([0, value.size], pa.int32()).buffers()[1]
            arrays.append(pa.Array.from_buffers(pa.binary(), 1, [None, offsets, value]))
        else:
            arrays.append(pa.array([value], field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=TRANSPORT)


def from_transport(batch: pa.RecordBatch) -> list[PartItem]:
    """Returns the items of a TRANSPORT batch. Payloads are not copied."""
    items: list[PartItem] = []
    epochs, parts, seqs, databases, tables, versions, counts = (batch.column(i).to_pylist() for i in range(7))
    payloads, files, *after, ranges = batch.column(7), *(batch.column(i).to_pylist() for i in (8, 10, 11, 12))
    for i in range(batch.num_rows):
        if files[i] is not None:
            table = TableId(databases[i], tables[i])
            items.append(PublishedFile(epochs[i], parts[i], seqs[i], table, versions[i], counts[i], files[i]))
            continue
        if ranges[i] is not None:
            table, keys = TableId(databases[i], tables[i]), CopiedRange.of_integers(IntegerRange.from_text(ranges[i]))
            items.append(ReplacedRange(epochs[i], parts[i], seqs[i], table, versions[i], keys))
            continue
        payload = payloads[i].as_buffer()
        if payload is None:
            reached = None if after[0][i] is None else Reached(after[0][i], after[1][i])
            items.append(PartEnd(epochs[i], parts[i], seqs[i], counts[i], reached))
            continue
        rows = pa.ipc.open_stream(payload).read_next_batch()
        if rows.num_rows != counts[i]:
            raise ValueError(
                f"batch {seqs[i]} of {parts[i]} in epoch {epochs[i]}: {rows.num_rows} rows, {counts[i]} expected"
            )
        items.append(ChangeBatch(epochs[i], parts[i], seqs[i], TableId(databases[i], tables[i]), versions[i], rows))
    return items
