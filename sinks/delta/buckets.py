"""Changes too many for one worker, spread by their key: what happens to a key stays in one Spark partition, in order."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from conf.redaction import redact_exception
from state.change_batch import TRANSPORT, ChangeBatch, from_transport, to_transport
from state.table import TableSchema

WORKER_BYTES = 128 << 20
"""Changes of one table in Arrow, whose net effect one worker finds in memory."""
_BUCKET = "bucket"
_BUCKETED = TRANSPORT.append(pa.field(_BUCKET, pa.int32()))


def spread(rows: DataFrame, schema: TableSchema, byte_count: int) -> DataFrame:
    """`rows`, of TRANSPORT and of one log part and table, so that no partition has many more than WORKER_BYTES.

    Where values that the log left out may have to be taken from another key's row, they stay together.
    """
    if byte_count <= WORKER_BYTES or schema.toastable:
        return rows
    buckets = math.ceil(byte_count / WORKER_BYTES) * 2
    cut = rows.mapInArrow(Cutting(schema, buckets), from_arrow_schema(_BUCKETED))
    return cut.repartition(buckets, _BUCKET).sortWithinPartitions("seq").drop(_BUCKET)


@dataclass(frozen=True, slots=True)
class Cutting:
    """The function given to mapInArrow: TRANSPORT rows of one table in, the same cut by bucket out."""

    schema: TableSchema
    buckets: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                for change in from_transport(batch):
                    if isinstance(change, ChangeBatch):
                        yield from self._cut(change)
        except BaseException as error:
            redact_exception(error)  # Spark writes a worker's exception into its event log and its web pages
            raise

    def _cut(self, change: ChangeBatch) -> Iterator[pa.RecordBatch]:
        if change.truncates:  # it is of all keys
            for bucket in range(self.buckets):
                yield _in_bucket(change, bucket)
            return
        keys = change.rows.select(list(self.schema.key)).to_pandas(date_as_object=False)
        places = pd.util.hash_pandas_object(keys, index=False).to_numpy() % np.uint64(self.buckets)
        for bucket in np.unique(places):
            yield _in_bucket(replace(change, rows=change.rows.filter(pa.array(places == bucket))), int(bucket))


def _in_bucket(change: ChangeBatch, bucket: int) -> pa.RecordBatch:
    columns = to_transport(change).columns
    return pa.RecordBatch.from_arrays([*columns, pa.array([bucket], pa.int32())], schema=_BUCKETED)
