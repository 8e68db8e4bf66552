"""Publishing: a split's rows and its report become durable together, in one file that exactly one attempt creates.

Whoever comes second finds `published/e{epoch}-s{split}` there and emits it instead of what it has read itself: a SELECT
can't be repeated, a published split can. A split by pages is published as `collected/g{generation}-{first page}`, and
emitted from there by a later epoch.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from readers import published_file
from readers.gathered_rows import SPILL_BYTES
from readers.published_file import PublishedFormat, batches_of, check_file, damaged, format_of, write_file
from readers.split_read import SplitRead
from state.change_batch import ChangeType, batch_schema
from state.errors import CheckpointError
from state.failpoints import failpoint
from state.split import Emit, Report, Split
from state.store import CheckpointStore
from state.table import TableSchema

MAX_BATCH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class PublishedSplit:
    """What everybody emits for this split: `batches`, which have `batch_schema` of the table and at most about
    MAX_BATCH_BYTES each, () for a split without rows; or, published as Parquet, the file `name` as it stands."""

    report: Report
    name: str
    batches: tuple[pa.RecordBatch, ...]


def published_name(epoch: int, split: Split) -> str:
    if split.pages is None:
        return f"published/e{epoch}-s{split.id}"
    first = 0 if split.range.start is None else int(split.range.start.rank, 16)
    return f"collected/g{split.pages.generation}-{first}"


def publish(
    store: CheckpointStore,
    epoch: int,
    split: Split,
    read: SplitRead,
    schema: TableSchema,
    form: PublishedFormat = "arrow",
) -> PublishedSplit:
    """Makes the rows (of the table's `schema`, exact at the report's high) the split's content in this epoch, unless it
    has one; gives the content that counts."""
    report = read.report
    if read.rows.num_rows != report.row_count:
        raise ValueError(f"{read.rows.num_rows} rows, but {report.row_count} in the report")
    name = published_name(epoch, split)
    batches = _change_batches(read, batch_schema(schema))
    data = write_file(form, report, batches, schema, in_memory=read.rows.nbytes < SPILL_BYTES)
    failpoint("publish.before")
    created = store.create(name, data)
    failpoint("publish.after")
    if created:
        return PublishedSplit(report, name, batches_of(data))
    winner = read_published(store, epoch, split, form)
    if winner is None:
        raise CheckpointError(
            f"{name} was published by another attempt and removed since: its epoch is committed.",
            "Nothing is lost; if the job fails with this, start it again.",
        )
    return winner


def read_published(
    store: CheckpointStore, epoch: int, split: Split, form: PublishedFormat = "arrow"
) -> PublishedSplit | None:
    """None if nobody has published it yet. Raises CheckpointError for a damaged file, one of an unknown version, or one that
    was published for another kind of sink."""
    name = published_name(epoch, split)
    data = store.read(name)
    if data is None:
        return None
    report, batches = check_file(data, name)
    report = _of_split(report, split, name)
    if format_of(data) != form:
        raise CheckpointError(
            f"The splits of epoch {epoch} were read for another kind of sink than the job file has now.",
            "Run the job once more with the sink that it had; or start over with an empty checkpoint.",
        )
    return PublishedSplit(report, name, batches)


def is_published(store: CheckpointStore, epoch: int, split: Split) -> bool:
    return store.read(published_name(epoch, split)) is not None


def read_report(store: CheckpointStore, epoch: int, split: Split) -> Report:
    """The report alone. Raises CheckpointError where the split is not published."""
    name = published_name(epoch, split)
    data = store.read(name)
    if data is None:
        raise is_lost(name)
    return _of_split(published_file.read_report(data, name), split, name)


def is_lost(name: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint has lost its file {name}, which the job still needs.",
        "Restore the checkpoint folder from a copy, or start over with an empty checkpoint and an empty target.",
    )


def _of_split(report: Report, split: Split, name: str) -> Report:
    """One that was collected becomes the report of the split that emits it."""
    if report.table != split.table or (report.split_id != split.id and not isinstance(split.pages, Emit)):
        raise damaged(name, "it is another split's")
    if not isinstance(split.pages, Emit):
        return report
    if report.kind != "collected":
        raise damaged(name, "it was not collected")
    return replace(report, split_id=split.id, kind="emitted")


def forget_published(store: CheckpointStore, epoch: int) -> None:
    """Removes what was published for an epoch, once it is committed and its reports are kept elsewhere."""
    for name in store.list("published"):
        if name.startswith(f"published/e{epoch}-"):
            store.delete(name)


def forget_collected(store: CheckpointStore, kept: Collection[int]) -> None:
    """Removes what was collected for other generations than `kept`."""
    for name in store.list("collected"):
        generation = name.removeprefix("collected/g").partition("-")[0]
        if int(generation) not in kept:
            store.delete(name)


def _change_batches(read: SplitRead, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    rows = read.rows.combine_chunks() if read.rows.nbytes <= MAX_BATCH_BYTES else read.rows
    no_transaction = pa.array([], pa.string())
    version = read.report.high.version if read.commit_version is None else read.commit_version
    first = 0
    for batch in rows.to_batches():
        for piece in _cut(batch):
            count = piece.num_rows
            meta = [
                pa.array(np.full(count, ChangeType.INSERT, np.int8)),
                pa.array(np.full(count, version, np.int64)),
                pa.array(np.full(count, read.taken_at_us, np.int64)).cast(pa.timestamp("us", tz="UTC")),
                pa.array(np.arange(first, first + count, dtype=np.int32)),
                pa.DictionaryArray.from_arrays(pa.nulls(count, pa.int32()), no_transaction),
                pa.array(np.ones(count, np.bool_)),
            ]
            first += count
            columns = [*piece.columns, *meta]
            unchanged = [pa.nulls(count, field.type) for field in list(schema)[len(columns) :]]
            yield pa.RecordBatch.from_arrays([*columns, *unchanged], schema=schema)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """In pieces of at most MAX_BATCH_BYTES, and of one row at least; none for an empty batch."""
    if batch.num_rows > 1 and batch.nbytes > MAX_BATCH_BYTES:
        half = batch.num_rows // 2
        yield from _cut(batch.slice(0, half))
        yield from _cut(batch.slice(half))
    elif batch.num_rows:
        yield batch
