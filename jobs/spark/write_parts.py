"""Writes parts from the transport's rows: by the sink's writer on executors, or by the sink on the driver."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from tidemark.conf.redaction import redact_exception
from tidemark.sinks.sink import EpochSink, JobIdentity, PartSink, Schemas
from tidemark.state.change_batch import LOG_PART, PartEnd, PartItem, from_transport
from tidemark.state.failpoints import failpoint

RESULT = pa.schema(
    [
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("part", pa.string(), nullable=False),
        pa.field("row_count", pa.int64(), nullable=False),
        pa.field("is_snapshot", pa.bool_(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Writing:
    """Writes epochs. `schemas`: those of the tables as the sink receives them."""

    sink: PartSink | EpochSink
    job: JobIdentity
    schemas: Schemas

    def write(self, batch: DataFrame) -> Iterator[tuple[int, int, bool]]:
        """Writes an epoch, given as rows of TRANSPORT. Yields (epoch, row count, is it a split) of each part when all are
        durable."""
        if isinstance(self.sink, EpochSink):
            for end in self.sink.write_epoch(batch, self.job, self.schemas):
                yield end.epoch, end.row_count, end.part != LOG_PART
            return
        written = batch.mapInArrow(PartWriting(self.sink, self.job, self.schemas), from_arrow_schema(RESULT)).collect()
        for row in written:
            yield row["epoch"], row["row_count"], row["is_snapshot"]


@dataclass(frozen=True, slots=True)
class PartWriting:
    """The function for mapInArrow: takes TRANSPORT batches of one partition, yields RESULT rows. Pickled with each task."""

    sink: PartSink
    job: JobIdentity
    schemas: Schemas

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = self.sink.writer(self.job)
        try:
            for result in writer.write(_items(batches), self.schemas):
                failpoint("sink.after_commit")
                row = {
                    "epoch": result.epoch,
                    "part": result.part,
                    "row_count": result.row_count,
                    "is_snapshot": result.part != LOG_PART,
                }
                yield pa.RecordBatch.from_pylist([row], schema=RESULT)
        except BaseException as error:
            redact_exception(error)  # Spark writes a worker's exception into its event log and its web pages
            raise


def _items(batches: Iterable[pa.RecordBatch]) -> Iterator[PartItem]:
    for batch in batches:
        for item in from_transport(batch):
            if isinstance(item, PartEnd):
                failpoint("sink.before_commit")
            yield item
