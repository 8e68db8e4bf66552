"""Spreads changes that are too many for one worker by key. A key's changes stay in one Spark partition, in order."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from tidemark.conf.redaction import redact_exception
from tidemark.state.change_batch import TRANSPORT, ChangeBatch, from_transport, to_transport
from tidemark.state.table import TableSchema

WORKER_BYTES = 128 << 20
"""The size in Arrow of changes of one table whose net effect one worker computes in memory."""
MAX_BUCKETS = 256
"""A process has that many files open, for the changes of one transaction of some 16 GiB or more."""
_BUCKET = "bucket"
_BUCKETED = TRANSPORT.append(pa.field(_BUCKET, pa.int32()))


def spread(rows: DataFrame, schema: TableSchema, byte_count: int) -> DataFrame:
    """Returns `rows` with at most about WORKER_BYTES per partition. They are TRANSPORT rows of one table and one log part.

    Tables with toastable columns are not spread: a value that the log left out may be in the row of another key.
    """
    buckets = buckets_for(byte_count, schema)
    if buckets == 1:
        return rows
    cut = rows.mapInArrow(SplittingByBucket(schema, buckets), from_arrow_schema(_BUCKETED))
    return cut.repartition(buckets, _BUCKET).sortWithinPartitions("seq").drop(_BUCKET)


def buckets_for(byte_count: int, schema: TableSchema) -> int:
    """Returns into how many buckets changes of a table with `byte_count` in Arrow are divided."""
    if byte_count <= WORKER_BYTES or schema.toastable:
        return 1
    return min(math.ceil(byte_count / WORKER_BYTES) * 2, MAX_BUCKETS)


def divided(change: ChangeBatch, schema: TableSchema, buckets: int) -> Iterator[tuple[int, ChangeBatch]]:
    """Yields the changes by the bucket of their key. A TRUNCATE concerns all keys, so each bucket gets it."""
    if change.truncates:
        yield from ((bucket, change) for bucket in range(buckets))
        return
    keys = change.rows.select(list(schema.key)).to_pandas(date_as_object=False)
    # Categories would be one for texts that are equal up to a NUL character, with the hash of the one that comes first.
    hashes = pd.util.hash_pandas_object(keys, index=False, categorize=False)
    bucket_of_row = hashes.to_numpy() % np.uint64(buckets)
    for bucket in np.unique(bucket_of_row):
        yield int(bucket), replace(change, rows=change.rows.filter(pa.array(bucket_of_row == bucket)))


@dataclass(frozen=True, slots=True)
class SplittingByBucket:
    """The function for mapInArrow: takes TRANSPORT rows of one table, yields them split by bucket."""

    schema: TableSchema
    buckets: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                for change in from_transport(batch):
                    if isinstance(change, ChangeBatch):
                        yield from (_in_bucket(*share) for share in divided(change, self.schema, self.buckets))
        except BaseException as error:
            redact_exception(error)  # Spark writes a worker's exception into its event log and its web pages
            raise


def _in_bucket(bucket: int, change: ChangeBatch) -> pa.RecordBatch:
    columns = to_transport(change).columns
    return pa.RecordBatch.from_arrays([*columns, pa.array([bucket], pa.int32())], schema=_BUCKETED)
