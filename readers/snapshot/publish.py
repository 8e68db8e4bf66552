"""Publishing: makes a split's rows and its report durable together, in one file that exactly one attempt creates.

A later attempt finds `published/e{epoch}-s{split}` and emits it instead of its own rows: a SELECT is not repeatable, a
published split is. A chunk is published as `staged/g{attempt}-{first page}`; a later epoch emits it from there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidemark.readers.snapshot import published_file
from tidemark.readers.snapshot.gathered_rows import SPILL_BYTES
from tidemark.readers.snapshot.published_file import (
    PublishedFormat,
    batches_of,
    check_file,
    damaged,
    format_of,
    rows_of_parquet,
    write_file,
)
from tidemark.readers.snapshot.split_read import SplitRead, rows_seq
from tidemark.state.change_batch import ChangeType, batch_schema
from tidemark.state.checkpoint.layout import published_split_file, staged_chunk_file
from tidemark.state.checkpoint.store import CheckpointStore
from tidemark.state.errors import CheckpointError
from tidemark.state.failpoints import failpoint
from tidemark.state.remedies import LATE, RESTORE_CHECKPOINT, START_OVER
from tidemark.state.split import ReleaseChunk, Report, Split
from tidemark.state.table import TableSchema

MAX_BATCH_BYTES = 8 << 20
FOOTER_BYTES = 64 << 10
"""Read first of a file of which only the report is wanted."""


@dataclass(frozen=True, slots=True)
class PublishedSplit:
    """The content that every attempt emits for a split. `batches` have `batch_schema` of the table and at most about
    MAX_BATCH_BYTES each; () for a split without rows. A split published as Parquet is the file `name` itself, with the bytes
    `parquet`."""

    report: Report
    name: str
    batches: tuple[pa.RecordBatch, ...]
    parquet: pa.Buffer | None = None

    def rows(self, schema: TableSchema) -> Iterator[pa.RecordBatch]:
        """Yields `batches`, or those of the Parquet file."""
        if self.parquet is None:
            yield from self.batches
            return
        for batch in rows_of_parquet(self.parquet, schema):
            yield from divided(batch)


def _published(report: Report, name: str, data: pa.Buffer) -> PublishedSplit:
    if format_of(data) == "parquet":
        return PublishedSplit(report, name, (), data)
    return PublishedSplit(report, name, batches_of(data))


def published_name(epoch: int, split: Split) -> str:
    if split.pages is None:
        return published_split_file(epoch, split.id)
    first = 0 if split.range.start is None else int(split.range.start.encoded_key, 16)
    reader = split.pages.reader if isinstance(split.pages, ReleaseChunk) else ""
    return staged_chunk_file(split.pages.attempt, first, reader)


def publish(
    store: CheckpointStore,
    epoch: int,
    split: Split,
    read: SplitRead,
    schema: TableSchema,
    form: PublishedFormat = "arrow",
) -> PublishedSplit:
    """Publishes the rows (of the table's `schema`, exact at the report's high) unless the split has been published in this
    epoch. Returns the published content."""
    report = read.report
    if read.rows.num_rows != report.row_count:
        raise ValueError(f"{read.rows.num_rows} rows, but {report.row_count} in the report")
    name = published_name(epoch, split)
    batches = change_batches(read, batch_schema(schema))
    data = write_file(form, report, batches, schema, in_memory=read.rows.nbytes < SPILL_BYTES)
    failpoint("publish.before")
    created = store.create(name, data)
    failpoint("publish.after")
    if created:
        return _published(report, name, data)
    winner = read_published(store, epoch, split, form)
    if winner is None:
        raise CheckpointError(
            f"{name} was published by another attempt and then removed: its epoch is committed.",
            LATE,
        )
    return winner


def read_published(
    store: CheckpointStore, epoch: int, split: Split, form: PublishedFormat | None = "arrow"
) -> PublishedSplit | None:
    """Returns None if the split is not published. `form`: None if its format does not matter. Raises CheckpointError for a
    damaged file, an unknown version, or a file that was published for another kind of sink."""
    name = published_name(epoch, split)
    data = store.read(name)
    if data is None:
        return None
    report, _ = check_file(data, name)
    report = _of_split(report, split, name)
    if form is not None and format_of(data) != form:
        raise CheckpointError(
            f"The splits of epoch {epoch} were read for another kind of sink than the job file has now.",
            f"Run the job once more with the sink that it had, or {START_OVER}.",
        )
    return _published(report, name, data)


def is_published(store: CheckpointStore, epoch: int, split: Split) -> bool:
    return store.exists(published_name(epoch, split))


def read_report(store: CheckpointStore, epoch: int, split: Split) -> Report:
    """Returns the report only; the rows are not fetched. Raises CheckpointError if the split is not published."""
    name = published_name(epoch, split)
    end = store.read_end(name, FOOTER_BYTES)
    if end is not None and (byte_count := published_file.footer_size(end)) > end.size:
        end = store.read_end(name, byte_count)
    if end is None:
        raise lost_file(name)
    return _of_split(published_file.read_report(end, name), split, name)


def lost_file(name: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint has lost its file {name}, which the job still needs.",
        RESTORE_CHECKPOINT,
    )


def _of_split(report: Report, split: Split, name: str) -> Report:
    """Checks that the report is the split's. The report of a staged chunk becomes that of the split that releases it."""
    if report.table != split.table or (report.split_id != split.id and not isinstance(split.pages, ReleaseChunk)):
        raise damaged(name, "it belongs to another split")
    if not isinstance(split.pages, ReleaseChunk):
        return report
    if report.kind != "staged":
        raise damaged(name, "it is not a staged chunk")
    return replace(report, split_id=split.id, kind="released")


def change_batches(read: SplitRead, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the rows as changes of `schema` (a `batch_schema`)."""
    rows = read.rows.combine_chunks() if read.rows.nbytes <= MAX_BATCH_BYTES else read.rows
    no_transaction = pa.array([], pa.string())
    version = read.report.high.version if read.commit_version is None else read.commit_version
    seq = rows_seq(read.report.schema_version) if read.seq is None else read.seq
    for batch in rows.to_batches():
        for part in divided(batch):
            count = part.num_rows
            meta = [
                pa.array(np.full(count, ChangeType.INSERT, np.int8)),
                pa.array(np.full(count, version, np.int64)),
                pa.array(np.full(count, read.taken_at_us, np.int64)).cast(pa.timestamp("us", tz="UTC")),
                pa.array(np.full(count, seq, np.int32)),
                pa.DictionaryArray.from_arrays(pa.nulls(count, pa.int32()), no_transaction),
                pa.array(np.ones(count, np.bool_)),
            ]
            columns = [*part.columns, *meta]
            unchanged = [pa.nulls(count, field.type) for field in list(schema)[len(columns) :]]
            yield pa.RecordBatch.from_arrays([*columns, *unchanged], schema=schema)


def divided(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divides into batches of at most MAX_BATCH_BYTES, or of one row. Yields nothing for an empty batch."""
    if batch.num_rows > 1 and batch.nbytes > MAX_BATCH_BYTES:
        half = batch.num_rows // 2
        yield from divided(batch.slice(0, half))
        yield from divided(batch.slice(half))
    elif batch.num_rows:
        yield batch
