"""The executors' side of the sinks: from the transport's rows to parts that are durable."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from conf.redaction import redact_exception
from sinks.sink import JobIdentity, Schemas, Sink
from state.change_batch import LOG_PART, ChangeBatch, PartEnd, from_transport
from state.failpoints import failpoint

RESULT = pa.schema(
    [
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("part", pa.string(), nullable=False),
        pa.field("row_count", pa.int64(), nullable=False),
        pa.field("is_snapshot", pa.bool_(), nullable=False),
        pa.field("skipped", pa.bool_(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Writing:
    """What every task needs to write; pickled with each."""

    sink: Sink
    job: JobIdentity
    schemas: Schemas


@dataclass(frozen=True, slots=True)
class PartWriting:
    """The function given to mapInArrow: TRANSPORT batches of one partition in, RESULT rows out."""

    writing: Writing

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = self.writing.sink.writer(self.writing.job)
        try:
            for result in writer.write(_items(batches), self.writing.schemas):
                failpoint("sink.after_commit")
                row = {
                    "epoch": result.epoch,
                    "part": result.part,
                    "row_count": result.row_count,
                    "is_snapshot": result.part != LOG_PART,
                    "skipped": result.skipped,
                }
                yield pa.RecordBatch.from_pylist([row], schema=RESULT)
        except BaseException as error:
            redact_exception(error)  # Spark writes a worker's exception into its event log and its web pages
            raise


def _items(batches: Iterable[pa.RecordBatch]) -> Iterator[ChangeBatch | PartEnd]:
    for batch in batches:
        for item in from_transport(batch):
            if isinstance(item, PartEnd):
                failpoint("sink.before_commit")
            yield item
