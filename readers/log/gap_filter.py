"""The gap filter: emits the changes of the log that the finished splits do not contain.

A change of key k is emitted iff k's split is finished and its high does not cover the change. A high covers the changes up to
its commit version; a PostgreSQL high carries a snapshot and covers the transactions in that snapshot. The splits of a table
cover its whole key range without overlap: the end of one is the start of the next. So a table's finished splits are stored as
the ordered split boundaries, and one high for each split between them. Where splits are still left, a range of keys that is not
read yet has no high. Its changes are withheld: the splits that are read there later contain them.

Reports are kept as segments, one Arrow IPC buffer per epoch (or several merged into one), in columns: a job with a million
splits never holds a million objects.
"""

import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.state.errors import CheckpointError
from tidemark.state.kernel import kernel
from tidemark.state.position import WalPosition
from tidemark.state.remedies import RESTORE_CHECKPOINT, START_OVER
from tidemark.state.split import Report, Split, StageChunk
from tidemark.state.table import TableId
from tidemark.state.wal_snapshot import SnapshotWatermarks

SEGMENT = pa.schema(
    [
        pa.field("database", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("table", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("split_id", pa.int64(), nullable=False),
        pa.field("start_key", pa.large_binary()),
        pa.field("end_key", pa.large_binary()),
        pa.field("high_version", pa.int64(), nullable=False),
        pa.field("high_snapshot", pa.dictionary(pa.int32(), pa.string())),
        pa.field("row_count", pa.int64(), nullable=False),
        pa.field("replayed_changes", pa.int64(), nullable=False),
    ]
)
"""`start_key`, `end_key`: encoded keys (state/key_encoding.py), which sort as the keys do; null is unbounded.
`high_snapshot`: PostgreSQL's, else null."""

_MAGIC = b"TMSPLITS"
_VERSION = 2
_HEADER = struct.Struct("<8sII")
"""Precedes the IPC stream: magic, format version, CRC-32 of the stream. 16 bytes keep the stream aligned."""

_ENCODED_INTEGER_BYTES = 8
_NO_TRANSACTIONS = "3:3:"
"""A snapshot of PostgreSQL that contains no transaction."""

EncodedKeys: TypeAlias = npt.NDArray[np.uint64] | pa.BinaryArray | pa.LargeBinaryArray
"""Encoded keys of one table. Keys of a single integer column are numbers (the eight bytes of state/key_encoding.py), others
are bytes."""

Int64s: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


def segment_of(splits: Iterable[Split], reports: Iterable[Report]) -> pa.Buffer:
    """Returns one epoch's segment. Staged chunks are left out: they are not finished. Raises ValueError unless each split has
    its report."""
    by_id = {report.split_id: report for report in reports if report.kind not in {"staged", "expired"}}
    pairs = [(split, by_id.pop(split.id, None)) for split in splits if not isinstance(split.pages, StageChunk)]
    found = [(split, report) for split, report in pairs if report is not None and report.table == split.table]
    if by_id or len(found) != len(pairs):
        raise ValueError("splits and reports do not belong together")
    columns = [
        [split.table.database for split, _ in found],
        [split.table.name for split, _ in found],
        [split.id for split, _ in found],
        [None if split.range.start is None else bytes.fromhex(split.range.start.encoded_key) for split, _ in found],
        [None if split.range.end is None else bytes.fromhex(split.range.end.encoded_key) for split, _ in found],
        [report.high.version for _, report in found],
        [report.high.snapshot if isinstance(report.high, WalPosition) else None for _, report in found],
        [report.row_count for _, report in found],
        [report.replayed_changes for _, report in found],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SEGMENT, strict=True)]
    return _write(pa.Table.from_arrays(arrays, schema=SEGMENT))


def merge_segments(segments: Sequence[pa.Buffer | bytes], name: str) -> pa.Buffer:
    """Returns the rows of all `segments` as one. `name` is for the message of a CheckpointError."""
    return _write(_concatenated(segments, name, SEGMENT.names))


@dataclass(frozen=True, slots=True)
class FinishedSplits:
    """The finished splits of a table. `boundaries` ascend; split i is between boundary i - 1 and boundary i.

    `highs`: the version of each split's high, one more than there are boundaries. `snapshots`: those of the highs, for a
    PostgreSQL source. `integer_boundaries`: the boundaries as numbers; None if they are not eight bytes each. `withheld`: which
    of the ranges have not been read yet and have no high; None if all have been.
    """

    boundaries: pa.LargeBinaryArray
    integer_boundaries: npt.NDArray[np.uint64] | None
    highs: Int64s
    snapshots: SnapshotWatermarks | None = None
    withheld: Mask | None = None

    @classmethod
    def of(
        cls,
        boundaries: pa.LargeBinaryArray,
        highs: Int64s,
        snapshots: SnapshotWatermarks | None,
        withheld: Mask | None = None,
    ) -> "FinishedSplits":
        data, offsets = _flat(boundaries)
        integers = None
        if not np.any(np.diff(offsets) != _ENCODED_INTEGER_BYTES):
            integers = data[offsets[0] : offsets[-1]].view(">u8").astype(np.uint64)
        return cls(boundaries, integers, highs, snapshots, withheld)

    @classmethod
    def none(cls) -> "FinishedSplits":
        """Creates the filter of a table of which nothing has been read yet."""
        return cls.of(pa.array([], pa.large_binary()), np.zeros(1, np.int64), None, np.ones(1, np.bool_))

    @property
    def is_uniform(self) -> bool:
        """True if one high holds for the whole table, so that a change's split does not matter."""
        return len(self.highs) == 1

    def keep(self, owners: Int64s | None, versions: Int64s, xids: Int64s | None = None) -> Mask:
        """A mask of the changes to emit, given the split, commit version and (PostgreSQL) transaction id of each. `owners` may
        be None only if `is_uniform`: raises ValueError otherwise."""
        if owners is None:
            if not self.is_uniform:
                raise ValueError(f"{len(versions)} changes need as many owners")
            owners = np.zeros(len(versions), np.int64)
        if self.snapshots is None:
            kept: Mask = versions > self.highs[owners]
        elif xids is None:
            raise ValueError(f"{len(versions)} changes need as many transaction ids")
        else:
            kept = ~self.snapshots.covered(owners, xids)
        return kept if self.withheld is None else kept & ~self.withheld[owners]

    @property
    def finished(self) -> Int64s:
        """The indices of the splits that have been read."""
        if self.withheld is None:
            return np.arange(len(self.highs))
        found: Int64s = np.flatnonzero(~self.withheld)
        return found

    def owners(self, encoded_keys: EncodedKeys) -> npt.NDArray[np.int64]:
        """Returns the index of each key's split. Raises ValueError if `encoded_keys` are of another kind of key."""
        if not isinstance(encoded_keys, np.ndarray):
            return _owners(*_flat(self.boundaries), *_flat(encoded_keys))
        if self.integer_boundaries is None or encoded_keys.dtype != np.uint64:
            raise ValueError(f"integer keys ({encoded_keys.dtype}) for a split key that is not a single integer column")
        return np.searchsorted(self.integer_boundaries, encoded_keys, side="right").astype(np.int64, copy=False)

    def is_passed(self, version: int) -> bool:
        """True if all changes from commit version `version` on are emitted."""
        return self.withheld is None and int(self.highs.max()) < version


@dataclass(frozen=True, slots=True)
class GapFilter:
    """The finished splits by table. All changes of a table that is not in it are emitted."""

    finished_splits: dict[TableId, FinishedSplits]

    @classmethod
    def empty(cls) -> "GapFilter":
        return cls({})

    @classmethod
    def from_segments(
        cls,
        segments: Sequence[pa.Buffer | bytes],
        tables: Iterable[TableId],
        name: str,
        unfinished: Mapping[TableId, int] = MappingProxyType({}),
        first_splits: Mapping[TableId, int] = MappingProxyType({}),
    ) -> "GapFilter":
        """Reads the finished splits of `tables`. Segments may also hold splits of other tables, even incomplete ones, which
        the log has passed. `unfinished`: those tables of which splits are left, and how many are finished. `first_splits`:
        splits with smaller ids are of an earlier stay of the table in the job, and do not count. Raises CheckpointError if
        the splits of a table overlap, if they leave a part of its key range out or are fewer than finished, or if a segment
        is damaged; `name` is for the message."""
        columns = ["database", "table", "start_key", "end_key", "high_version", "high_snapshot"]
        wanted = set(tables)
        nothing_read = {table: FinishedSplits.none() for table, count in unfinished.items() if not count}
        rows = _concatenated(segments, name, [*columns, "split_id"] if first_splits else columns)
        if first_splits:
            rows = _of_this_stay(rows, first_splits)
        finished_splits = dict(_finished_splits(rows, wanted, unfinished, name))
        finished_splits |= {table: splits for table, splits in nothing_read.items() if table in wanted}
        missing = wanted - set(finished_splits)
        if missing:
            raise _damaged(name, f"the reports of {', '.join(map(str, sorted(missing)))} are missing")
        return cls(finished_splits)

    def of_table(self, table: TableId, version: int) -> FinishedSplits | None:
        """Returns the splits that decide about changes from commit version `version` on; None if all are emitted."""
        finished_splits = self.finished_splits.get(table)
        return None if finished_splits is None or finished_splits.is_passed(version) else finished_splits

    def passed(self, version: int) -> "GapFilter":
        """Drops the tables whose greatest high is not after `version`: all later changes of them are emitted."""
        return GapFilter({t: splits for t, splits in self.finished_splits.items() if not splits.is_passed(version + 1)})


def _write(table: pa.Table) -> pa.Buffer:
    size = pa.MockOutputStream()
    with pa.ipc.new_stream(size, table.schema) as writer:
        writer.write_table(table)
    whole = pa.allocate_buffer(_HEADER.size + size.size())
    file = pa.FixedSizeBufferWriter(whole)
    file.write(bytes(_HEADER.size))
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    _HEADER.pack_into(whole, 0, _MAGIC, _VERSION, zlib.crc32(whole.slice(_HEADER.size)))
    return whole


def _read(segment: pa.Buffer | bytes, name: str) -> pa.Table:
    data = pa.py_buffer(segment)
    if data.size < _HEADER.size:
        raise _damaged(name, "it is cut off")
    magic, version, checksum = _HEADER.unpack(data.slice(0, _HEADER.size))
    body = data.slice(_HEADER.size)
    if magic != _MAGIC:
        raise _damaged(name, "its first bytes are not those of such a file")
    if version != _VERSION:
        raise CheckpointError(
            f"{name} has format version {version}; this Tidemark knows version {_VERSION} only.",
            f"Run the job with the Tidemark version that wrote the checkpoint, or {START_OVER}.",
        )
    if zlib.crc32(body) != checksum:
        raise _damaged(name, "its content does not have the checksum in its header")
    with pa.ipc.open_stream(body) as reader:
        return reader.read_all().cast(SEGMENT)


def _concatenated(segments: Sequence[pa.Buffer | bytes], name: str, columns: list[str]) -> pa.Table:
    tables = [SEGMENT.empty_table(), *(_read(segment, name) for segment in segments)]
    return pa.concat_tables(t.select(columns) for t in tables).unify_dictionaries().combine_chunks()


def _of_this_stay(rows: pa.Table, first_splits: Mapping[TableId, int]) -> pa.Table:
    """Returns the rows without those of tables' earlier stays in the job."""
    earlier = pa.scalar(False)
    for table, first_id in first_splits.items():
        of_table = pc.and_(pc.equal(rows["database"], table.database), pc.equal(rows["table"], table.name))
        earlier = pc.or_(earlier, pc.and_(of_table, pc.less(rows["split_id"], first_id)))
    return rows.filter(pc.invert(earlier)).combine_chunks()


def _finished_splits(
    rows: pa.Table, wanted: Collection[TableId], unfinished: Mapping[TableId, int], name: str
) -> Iterator[tuple[TableId, FinishedSplits]]:
    """Yields the finished splits of each wanted table. `rows` have columns of SEGMENT, each in one chunk."""
    if not rows.num_rows:
        return
    databases, tables = rows["database"].chunk(0), rows["table"].chunk(0)
    table_count = len(tables.dictionary)
    codes = pc.add(pc.multiply(databases.indices.cast(pa.int64()), table_count), tables.indices.cast(pa.int64()))
    starts = pc.fill_null(rows["start_key"].chunk(0), b"")  # sorts first: no encoded key is empty
    order = pc.sort_indices(
        pa.table({"table": codes, "start": starts}), sort_keys=[("table", "ascending"), ("start", "ascending")]
    )
    codes, starts = codes.take(order), rows["start_key"].chunk(0).take(order)
    ends, highs, snapshots = (
        rows[column].chunk(0).take(order) for column in ("end_key", "high_version", "high_snapshot")
    )
    found, firsts = np.unique(codes.to_numpy(), return_index=True)
    for code, first, last in zip(found.tolist(), firsts, [*firsts[1:], len(codes)], strict=True):
        database, index = divmod(code, table_count)
        table = TableId(databases.dictionary[database].as_py(), tables.dictionary[index].as_py())
        if table not in wanted:
            continue
        count = last - first
        if table in unfinished:
            if count != unfinished[table]:
                raise _damaged(name, f"{table} has {count} finished splits instead of {unfinished[table]}")
            of_table = [column.slice(first, count) for column in (starts, ends, highs, snapshots)]
            yield table, _with_gaps(f"{name}, {table}", *of_table)
            continue
        boundaries, last_end = starts.slice(first + 1, count - 1), ends[last - 1]
        is_whole = not starts[first].is_valid and not last_end.is_valid and not boundaries.null_count
        if not is_whole or not boundaries.equals(ends.slice(first, count - 1)):
            raise _damaged(name, f"the splits of {table} leave out a part of its key range, or overlap")
        versions, texts = highs.slice(first, count), snapshots.slice(first, count)
        if len(pc.unique(versions)) == 1 and len(pc.unique(texts)) == 1:  # one high: the boundaries do not matter
            boundaries, versions, texts = boundaries.slice(0, 0), versions.slice(0, 1), texts.slice(0, 1)
        yield table, FinishedSplits.of(boundaries, versions.to_numpy(), _watermarks(texts))


def _with_gaps(
    name: str,
    starts: pa.LargeBinaryArray,
    ends: pa.LargeBinaryArray,
    highs: pa.Int64Array,
    snapshots: pa.DictionaryArray,
) -> FinishedSplits:
    """The finished splits of a table of which splits are left. `starts` ascend, null first."""
    befores = pa.concat_arrays([pa.array([None], ends.type), ends[:-1]])  # where the split before each one ends
    if starts[1:].null_count or ends[:-1].null_count or pc.any(pc.greater(befores, starts)).as_py():
        raise _damaged(name, "the splits overlap")
    is_after_gap = pc.fill_null(pc.not_equal(befores, starts), False).to_numpy(zero_copy_only=False).copy()
    is_after_gap[0] = starts[0].is_valid
    gap_ends = np.flatnonzero(is_after_gap)
    # Ranges: all splits, and before some of them a gap. Behind the last one there may be a gap, too.
    all_starts = pa.concat_arrays([starts, befores.take(pa.array(gap_ends))])
    places = np.concatenate([np.arange(len(starts)) * 2 + 1, gap_ends * 2])
    split_of = np.concatenate([np.arange(len(starts)), np.full(len(gap_ends), -1)])
    if ends[-1].is_valid:
        all_starts = pa.concat_arrays([all_starts, ends[-1:]])
        places, split_of = np.append(places, 2 * len(starts) + 1), np.append(split_of, -1)
    order = np.argsort(places)
    split_of = split_of[order]
    withheld = split_of < 0
    boundaries = all_starts.take(pa.array(order[1:]))
    versions = np.where(withheld, 0, highs.to_numpy()[split_of])
    if snapshots.null_count:
        return FinishedSplits.of(boundaries, versions, None, withheld)
    texts = [*snapshots.to_pylist(), _NO_TRANSACTIONS]
    watermarks = SnapshotWatermarks.of([texts[i] for i in split_of.tolist()])
    return FinishedSplits.of(boundaries, versions, watermarks, withheld)


def _watermarks(snapshots: pa.DictionaryArray) -> SnapshotWatermarks | None:
    if snapshots.null_count == len(snapshots):
        return None
    return SnapshotWatermarks.of(snapshots.to_pylist())


def _damaged(name: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint's split reports ({name}) are damaged: {reason}.",
        RESTORE_CHECKPOINT,
    )


def _flat(values: pa.BinaryArray | pa.LargeBinaryArray) -> tuple[npt.NDArray[np.uint8], Int64s]:
    """Returns the bytes of all values and the offsets of the values in them. Both are read-only, so that `_owners` is compiled
    for one kind of array only."""
    if values.null_count:
        raise ValueError("an encoded key is null")
    offset_type = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    flat = np.empty(0, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
    if offsets is None or not offsets.size:
        ends = np.zeros(1, np.int64)
    else:
        every = np.frombuffer(offsets, offset_type)
        ends = every[values.offset : values.offset + len(values) + 1].astype(np.int64)
    flat.flags.writeable = False
    ends.flags.writeable = False
    return flat, ends


@partial(kernel, makes_arrays=True)
def _owners(
    boundaries: npt.NDArray[np.uint8], boundary_offsets: Int64s, keys: npt.NDArray[np.uint8], key_offsets: Int64s
) -> Int64s:
    """Returns how many boundaries are less than or equal to each key, compared bytewise. Binary search."""
    found = np.empty(len(key_offsets) - 1, np.int64)
    for i in range(len(found)):
        low, high = 0, len(boundary_offsets) - 1
        while low < high:
            middle = (low + high) // 2
            at, end = boundary_offsets[middle], boundary_offsets[middle + 1]
            key_at, key_end = key_offsets[i], key_offsets[i + 1]
            while at < end and key_at < key_end and boundaries[at] == keys[key_at]:
                at += 1
                key_at += 1
            if at == end or (key_at < key_end and boundaries[at] < keys[key_at]):
                low = middle + 1
            else:
                high = middle
        found[i] = low
    return found
