"""Stages the rows of an epoch's tasks as Parquet files that Spark reads itself.

A split that was published as a Parquet file needs no other: Spark reads the checkpoint's file. Changes of the log become the
rows that the table's statement takes. Their net effect is computed where they were read, in memory that does not grow with
the number of changes: more than MEMORY_BYTES are kept in temporary files.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.sinks.delta.buckets import buckets_for, divided
from tidemark.sinks.delta.rows import Shape, Unpacking, schema_of, unfit_columns
from tidemark.sinks.delta.staging_places import StagingPlace
from tidemark.sinks.delta.tables import Style
from tidemark.sinks.sink import Schemas
from tidemark.sinks.staging import ItemHead, StagedFile, StagedTask
from tidemark.state.change_batch import LOG_PART, ChangeBatch, PartItem, PublishedFile, to_transport
from tidemark.state.checkpoint.store import needing_room
from tidemark.state.failpoints import failpoint
from tidemark.state.table import TableId, TableSchema

MEMORY_BYTES = 128 << 20
"""The size in Arrow of the changes of one task that are kept in memory."""
ROW_GROUP_BYTES = 32 << 20
_Head: TypeAlias = tuple[int, str, int, TableId, int]


@dataclass(frozen=True, slots=True)
class DeltaStager:
    """A `tidemark.sinks.staging.PartStager`."""

    place: StagingPlace
    style: Style
    keeps_deleted: bool

    @property
    def takes_files(self) -> bool:
        return self.place.takes_files

    def stage(self, items: Iterable[PartItem], schemas: Schemas) -> StagedTask:
        heads, files = list[ItemHead](), list[StagedFile]()
        scratch = self.place.scratch
        with needing_room(scratch or tempfile.gettempdir()), ExitStack() as stack:
            staged: dict[TableId, _Rows] = {}
            changes = _Changes(scratch, stack)
            for item in items:
                heads.append(head_of(item))
                if isinstance(item, PublishedFile):
                    path = self.place.published(item.name)
                    files.append(StagedFile(item.table, path, item.row_count, self._shape_of_splits, is_published=True))
                elif isinstance(item, ChangeBatch):
                    schema = schemas[item.table, item.schema_version]
                    if item.part == LOG_PART and self.style == "mirror":
                        changes.add(schema, item)
                        continue
                    if item.table not in staged:
                        staged[item.table] = _Rows(self.place, schema, self._shape_of_splits)
                    staged[item.table].write([item])
            for rows in staged.values():
                files += rows.close()
            for table in changes.tables():
                shape = shape_of_log(truncates=table.truncates, keeps_deleted=self.keeps_deleted)
                rows = _Rows(self.place, table.schema, shape)
                for share in table.shares():
                    rows.write(share)
                files += rows.close()
        failpoint("delta.staged")
        return StagedTask(tuple(heads), tuple(files))

    @property
    def _shape_of_splits(self) -> Shape:
        return "changes" if self.style == "changelog" else "rows"


def shape_of_log(*, truncates: bool, keeps_deleted: bool) -> Shape:
    """Returns what a mirror's statement takes of changes."""
    if keeps_deleted:
        return "kept effect"
    return "rest" if truncates else "effect"


def head_of(item: PartItem) -> ItemHead:
    if isinstance(item, ChangeBatch):
        return {
            "epoch": item.epoch,
            "part": item.part,
            "seq": item.seq,
            "database": item.table.database,
            "table": item.table.name,
            "schema_version": item.schema_version,
            "row_count": item.rows.num_rows,
            "truncates": item.truncates,
            "range": None,
            "byte_count": item.rows.nbytes,
        }
    transport = to_transport(item)
    (row,) = transport.select([name for name in transport.schema.names if name != "payload"]).to_pylist()
    return {**row, "byte_count": 0}


class _Rows:
    """Writes rows of `shape` to new Parquet files: one, or more if the place has them no larger."""

    def __init__(self, place: StagingPlace, schema: TableSchema, shape: Shape) -> None:
        self._unpacking = Unpacking(schema, shape)
        self._place, self._columns = place, schema_of(schema, shape)
        self._unfit: dict[str, str] = {}
        self._waiting: list[pa.RecordBatch] = []
        self._kept: list[StagedFile] = []
        self._begin()

    def _begin(self) -> None:
        self._file, self._row_count = self._place.new_file(), 0
        self._writer: Any = pq.ParquetWriter(self._file.target, self._columns, use_dictionary=False)

    def write(self, changes: Iterable[ChangeBatch]) -> None:
        for rows in self._unpacking.unpacked(map(self._looked_at, changes)):
            self._waiting.append(rows)
            if sum(batch.nbytes for batch in self._waiting) >= ROW_GROUP_BYTES:
                self._flush()
                if self._file.is_full:
                    self._keep()
                    self._begin()

    def _looked_at(self, change: ChangeBatch) -> ChangeBatch:
        schema = self._unpacking.schema
        for column, why in unfit_columns(schema, change.rows, schema.arrow_schema().names, self._unpacking.shape):
            self._unfit.setdefault(column, why)
        return change

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._columns)
        if table.num_rows:
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._row_count += table.num_rows
        self._waiting = []

    def close(self) -> list[StagedFile]:
        self._flush()
        self._keep()
        return self._kept

    def _keep(self) -> None:
        self._writer.close()
        table, shape = self._unpacking.schema.table, self._unpacking.shape
        path = self._file.keep()
        self._kept.append(StagedFile(table, path, self._row_count, shape, tuple(self._unfit.items())))


class _Changes:
    """The changes of a task's tables: in memory, or, as soon as they have more than MEMORY_BYTES, in temporary files."""

    def __init__(self, scratch: str | None, stack: ExitStack) -> None:
        self._scratch, self._stack = scratch, stack
        self._tables: dict[TableId, _TableChanges] = {}
        self._byte_count = 0

    def add(self, schema: TableSchema, change: ChangeBatch) -> None:
        if change.table not in self._tables:
            self._tables[change.table] = _TableChanges(schema, self._new_spool)
        self._tables[change.table].add(change)
        self._byte_count += change.rows.nbytes
        if self._byte_count > MEMORY_BYTES:
            for table in self._tables.values():
                table.to_spool()
            self._byte_count = 0

    def _new_spool(self) -> "_Spool":
        return _Spool(self._stack.enter_context(tempfile.TemporaryFile(dir=self._scratch)))

    def tables(self) -> Iterator["_TableChanges"]:
        """Yields each table, and frees what the ones before held."""
        while self._tables:
            yield self._tables.pop(next(iter(self._tables)))


class _TableChanges:
    def __init__(self, schema: TableSchema, spool: Callable[[], "_Spool"]) -> None:
        self.schema = schema
        self.truncates = False
        self._new_spool = spool
        self._in_memory: list[ChangeBatch] = []
        self._spool: _Spool | None = None
        self._byte_count = 0

    def add(self, change: ChangeBatch) -> None:
        self.truncates |= change.truncates
        self._byte_count += change.rows.nbytes
        self._in_memory.append(change)

    def to_spool(self) -> None:
        if self._spool is None:
            self._spool = self._new_spool()
        for change in self._in_memory:
            self._spool.add(change)
        self._in_memory = []

    def shares(self) -> Iterator[list[ChangeBatch]]:
        """Yields the changes, those of a key together and in the order of the log, at most about WORKER_BYTES at a time."""
        count = buckets_for(self._byte_count, self.schema)
        if count == 1:
            spooled = [] if self._spool is None else list(self._spool.read())
            yield [*spooled, *self._in_memory]
            return
        self.to_spool()
        assert self._spool is not None, "there are changes"
        buckets = [self._new_spool() for _ in range(count)]
        for change in self._spool.read():
            for number, share in divided(change, self.schema, count):
                buckets[number].add(share)
        self._spool.close()
        for bucket in buckets:
            yield list(bucket.read())
            bucket.close()


class _Spool:
    """A temporary file of changes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._places: list[tuple[_Head, int]] = []

    def add(self, change: ChangeBatch) -> None:
        """Writes each batch as a stream of its own: their dictionaries differ."""
        head = (change.epoch, change.part, change.seq, change.table, change.schema_version)
        self._places.append((head, self._file.tell()))
        with pa.ipc.new_stream(self._file, change.rows.schema) as writer:
            writer.write_batch(change.rows)

    def read(self) -> Iterator[ChangeBatch]:
        self._file.flush()
        for head, place in self._places:
            self._file.seek(place)
            yield ChangeBatch(*head, pa.ipc.open_stream(self._file).read_next_batch())

    def close(self) -> None:
        self._file.close()
