"""The gap filter: of all changes in the log, those that the splits do not contain yet.

A change of key k is emitted iff the high of the split that k belongs to does not cover it: its commit version lies
after the high's, or, where a high carries a PostgreSQL snapshot, that snapshot does not contain its transaction. Splits
of a table tile its key: [start, end) of one ends where the next one starts. So a table's routes are its cuts in order,
and a high for each piece between two cuts.

Reports are kept as segments, one Arrow IPC buffer per epoch (or several merged into one), written as columns:
a job with a million splits never holds a million objects.
"""

import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from readers.kernel import kernel
from state.errors import CheckpointError
from state.position import WalPosition
from state.split import Collect, Report, Split
from state.table import TableId
from state.wal_snapshot import SnapshotWatermarks

SEGMENT = pa.schema(
    [
        pa.field("database", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("table", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("split_id", pa.int64(), nullable=False),
        pa.field("start_rank", pa.large_binary()),
        pa.field("end_rank", pa.large_binary()),
        pa.field("high_version", pa.int64(), nullable=False),
        pa.field("high_snapshot", pa.dictionary(pa.int32(), pa.string())),
        pa.field("row_count", pa.int64(), nullable=False),
        pa.field("replayed_changes", pa.int64(), nullable=False),
    ]
)
"""Ranks rise with the bounds (state/rank.py), null is unbounded. `high_snapshot`: PostgreSQL's, else null."""

_MAGIC = b"TMROUTES"
_VERSION = 1
_HEADER = struct.Struct("<8sII")
"""Before the IPC stream: magic, format version, CRC-32 of the stream. Sixteen bytes, so that it stays aligned."""

_INTEGER_RANK_BYTES = 8

Ranks: TypeAlias = npt.NDArray[np.uint64] | pa.BinaryArray | pa.LargeBinaryArray
"""Ranks of many keys of one table: for a single integer column as numbers (state/rank.py's eight bytes), else as
bytes."""

Int64s: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


def write_segment(splits: Iterable[Split], reports: Iterable[Report]) -> pa.Buffer:
    """One epoch's segment; what was only collected has no part in it. Raises ValueError unless each split has its report."""
    by_id = {report.split_id: report for report in reports if report.kind not in {"collected", "void"}}
    pairs = [(split, by_id.pop(split.id, None)) for split in splits if not isinstance(split.pages, Collect)]
    found = [(split, report) for split, report in pairs if report is not None and report.table == split.table]
    if by_id or len(found) != len(pairs):
        raise ValueError("splits and reports do not belong together")
    columns = [
        [split.table.database for split, _ in found],
        [split.table.name for split, _ in found],
        [split.id for split, _ in found],
        [None if split.range.start is None else bytes.fromhex(split.range.start.rank) for split, _ in found],
        [None if split.range.end is None else bytes.fromhex(split.range.end.rank) for split, _ in found],
        [report.high.version for _, report in found],
        [report.high.snapshot if isinstance(report.high, WalPosition) else None for _, report in found],
        [report.row_count for _, report in found],
        [report.replayed_changes for _, report in found],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SEGMENT, strict=True)]
    return _write(pa.Table.from_arrays(arrays, schema=SEGMENT))


def merge_segments(segments: Sequence[pa.Buffer | bytes], name: str) -> pa.Buffer:
    """All their rows as one segment. `name` is for the message of a CheckpointError."""
    return _write(_concatenated(segments, name, SEGMENT.names))


@dataclass(frozen=True, slots=True)
class TableRoutes:
    """A table's splits, all of them finished: `cuts` rise, and piece i lies between cut i - 1 and cut i.

    `highs`: the version of each piece's high, one more than there are cuts; `snapshots`: likewise, of a PostgreSQL
    source. `integer_cuts`: the same cuts as numbers, None where they are not eight bytes each.
    """

    cuts: pa.LargeBinaryArray
    integer_cuts: npt.NDArray[np.uint64] | None
    highs: Int64s
    snapshots: SnapshotWatermarks | None = None

    @classmethod
    def of(cls, cuts: pa.LargeBinaryArray, highs: Int64s, snapshots: SnapshotWatermarks | None) -> "TableRoutes":
        data, offsets = _flat(cuts)
        if np.any(np.diff(offsets) != _INTEGER_RANK_BYTES):
            return cls(cuts, None, highs, snapshots)
        return cls(cuts, data[offsets[0] : offsets[-1]].view(">u8").astype(np.uint64), highs, snapshots)

    @property
    def is_uniform(self) -> bool:
        """Is there one piece alone, so that a change's owner does not matter?"""
        return len(self.highs) == 1

    def keep(self, owners: Int64s | None, versions: Int64s, xids: Int64s | None = None) -> Mask:
        """Which changes to emit, by the piece, commit version and (PostgreSQL) transaction of each. `owners` may be None
        where the routes are uniform: raises ValueError otherwise."""
        if owners is None:
            if not self.is_uniform:
                raise ValueError(f"{len(versions)} changes need as many owners")
            owners = np.zeros(len(versions), np.int64)
        if self.snapshots is None:
            return versions > self.highs[owners]
        if xids is None:
            raise ValueError(f"{len(versions)} changes need as many transaction ids")
        return ~self.snapshots.covered(owners, xids)

    def owners(self, ranks: Ranks) -> npt.NDArray[np.int64]:
        """The piece of each key. Raises ValueError if the ranks are not of this table's kind of key."""
        if not isinstance(ranks, np.ndarray):
            return _owners(*_flat(self.cuts), *_flat(ranks))
        if self.integer_cuts is None or ranks.dtype != np.uint64:
            raise ValueError(f"integer ranks ({ranks.dtype}) for a split key that is not a single integer column")
        return np.searchsorted(self.integer_cuts, ranks, side="right").astype(np.int64, copy=False)

    @property
    def least_high(self) -> int:
        return int(self.highs.min())

    @property
    def greatest_high(self) -> int:
        return int(self.highs.max())


@dataclass(frozen=True, slots=True)
class GapFilter:
    """Tables without routes have none to wait for: all their changes are emitted."""

    routes: dict[TableId, TableRoutes]

    @classmethod
    def empty(cls) -> "GapFilter":
        return cls({})

    @classmethod
    def from_segments(cls, segments: Sequence[pa.Buffer | bytes], tables: Iterable[TableId], name: str) -> "GapFilter":
        """The routes of these tables; others', which the log has passed, may be there or partly gone. Raises
        CheckpointError if one's splits do not tile its key, or if a segment is damaged; `name` is for the message."""
        columns = ["database", "table", "start_rank", "end_rank", "high_version", "high_snapshot"]
        wanted = set(tables)
        routes = dict(_routes(_concatenated(segments, name, columns), wanted, name))
        missing = wanted - set(routes)
        if missing:
            raise _damaged(name, f"the reports of {', '.join(map(str, sorted(missing)))} are missing")
        return cls(routes)

    def of_table(self, table: TableId, version: int) -> TableRoutes | None:
        """What decides about changes from commit version `version` on; None where all of them are emitted."""
        routes = self.routes.get(table)
        return None if routes is None or routes.greatest_high < version else routes

    def passed(self, version: int) -> "GapFilter":
        """Without the tables whose greatest high is not after `version`: what follows is emitted anyway."""
        return GapFilter({t: r for t, r in self.routes.items() if r.greatest_high > version})


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
        raise _damaged(name, "it does not begin as such a file does")
    if version != _VERSION:
        raise CheckpointError(
            f"{name} has format version {version}; this Tidemark knows version {_VERSION} only.",
            "Run the job with the Tidemark version that wrote the checkpoint, or start over with an empty one.",
        )
    if zlib.crc32(body) != checksum:
        raise _damaged(name, "its content does not have the checksum in its header")
    with pa.ipc.open_stream(body) as reader:
        return reader.read_all().cast(SEGMENT)


def _concatenated(segments: Sequence[pa.Buffer | bytes], name: str, columns: list[str]) -> pa.Table:
    tables = [SEGMENT.empty_table(), *(_read(segment, name) for segment in segments)]
    return pa.concat_tables(t.select(columns) for t in tables).unify_dictionaries().combine_chunks()


def _routes(rows: pa.Table, wanted: Collection[TableId], name: str) -> Iterator[tuple[TableId, TableRoutes]]:
    """The tables' routes. `rows` have columns of SEGMENT, each in one chunk."""
    if not rows.num_rows:
        return
    databases, tables = rows["database"].chunk(0), rows["table"].chunk(0)
    table_count = len(tables.dictionary)
    codes = pc.add(pc.multiply(databases.indices.cast(pa.int64()), table_count), tables.indices.cast(pa.int64()))
    starts = pc.fill_null(rows["start_rank"].chunk(0), b"")  # before all others: no rank is empty
    order = pc.sort_indices(
        pa.table({"table": codes, "start": starts}), sort_keys=[("table", "ascending"), ("start", "ascending")]
    )
    codes, starts = codes.take(order), rows["start_rank"].chunk(0).take(order)
    ends, highs, snapshots = (
        rows[column].chunk(0).take(order) for column in ("end_rank", "high_version", "high_snapshot")
    )
    found, firsts = np.unique(codes.to_numpy(), return_index=True)
    for code, first, last in zip(found.tolist(), firsts, [*firsts[1:], len(codes)], strict=True):
        database, index = divmod(code, table_count)
        table = TableId(databases.dictionary[database].as_py(), tables.dictionary[index].as_py())
        if table not in wanted:
            continue
        count = last - first
        cuts, last_end = starts.slice(first + 1, count - 1), ends[last - 1]
        tiled = not starts[first].is_valid and not last_end.is_valid and not cuts.null_count
        if not tiled or not cuts.equals(ends.slice(first, count - 1)):
            raise _damaged(name, f"the splits of {table} leave out a part of its key, or overlap")
        pieces, marks = highs.slice(first, count), snapshots.slice(first, count)
        if len(pc.unique(pieces)) == 1 and len(pc.unique(marks)) == 1:  # one high: where a split begins does not matter
            cuts, pieces, marks = cuts.slice(0, 0), pieces.slice(0, 1), marks.slice(0, 1)
        yield table, TableRoutes.of(cuts, pieces.to_numpy(), _watermarks(marks))


def _watermarks(snapshots: pa.DictionaryArray) -> SnapshotWatermarks | None:
    if snapshots.null_count == len(snapshots):
        return None
    return SnapshotWatermarks.of(snapshots.to_pylist())


def _damaged(name: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint's split reports ({name}) are damaged: {reason}.",
        "Restore the checkpoint folder from a copy, or start over with an empty checkpoint and an empty target.",
    )


def _flat(values: pa.BinaryArray | pa.LargeBinaryArray) -> tuple[npt.NDArray[np.uint8], Int64s]:
    """The bytes of all values, and where each begins and ends in them; both read-only, so that `_owners` is compiled
    for one kind of array."""
    if values.null_count:
        raise ValueError("a rank is null")
    offset_type = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    flat = np.empty(0, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
    if offsets is None or not offsets.size:
        places = np.zeros(1, np.int64)
    else:
        every = np.frombuffer(offsets, offset_type)
        places = every[values.offset : values.offset + len(values) + 1].astype(np.int64)
    flat.flags.writeable = False
    places.flags.writeable = False
    return flat, places


@partial(kernel, makes_arrays=True)
def _owners(cuts: npt.NDArray[np.uint8], cut_places: Int64s, keys: npt.NDArray[np.uint8], key_places: Int64s) -> Int64s:
    """How many cuts are at or before each key, bytewise."""
    found = np.empty(len(key_places) - 1, np.int64)
    for i in range(len(found)):
        low, high = 0, len(cut_places) - 1
        while low < high:
            middle = (low + high) // 2
            at, end = cut_places[middle], cut_places[middle + 1]
            key_at, key_end = key_places[i], key_places[i + 1]
            while at < end and key_at < key_end and cuts[at] == keys[key_at]:
                at += 1
                key_at += 1
            if at == end or (key_at < key_end and cuts[at] < keys[key_at]):
                low = middle + 1
            else:
                high = middle
        found[i] = low
    return found
