"""The rows of a table in an epoch, as Spark reads them: from the epoch's tasks, or from files that the driver has staged."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- Spark's convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidemark.sinks.delta.buckets import spread
from tidemark.sinks.delta.rows import Shape, Unpacking, schema_of
from tidemark.state.change_batch import ChangeBatch, PartItem
from tidemark.state.integer_range import IntegerRange
from tidemark.state.table import TableId, TableSchema

_OF_CHANGES = ("effect", "kept effect", "rest")


@dataclass(frozen=True, slots=True)
class EpochTable:
    """A table's share of an epoch: rows of splits, or changes of the log. `ranges`: those that the rows of splits replace.
    `partitioned_by`: the columns by which the Delta table has partitions."""

    table: TableId
    schema_version: int
    epoch: int
    is_log: bool
    byte_count: int
    truncates: bool
    ranges: tuple[IntegerRange, ...]
    partitioned_by: tuple[str, ...] = ()


class EpochRows(Protocol):
    """Reads a table's share of an epoch. `settings`: what sessions need that read it. `are_stored`: reading again what `read`
    returned computes nothing."""

    @property
    def settings(self) -> Mapping[str, str]: ...
    @property
    def are_stored(self) -> bool: ...

    def read(self, session: SparkSession, schema: TableSchema, shape: Shape) -> DataFrame: ...


@dataclass(frozen=True, slots=True)
class RowsOfTasks:
    """Rows of the view `view`, which are TRANSPORT rows of the whole epoch. Python workers unpack them."""

    view: str
    found: EpochTable
    # A change batch is one row of several MiB: the JVM must hand them on one by one, not 10,000 at a time.
    settings: ClassVar[Mapping[str, str]] = {"spark.sql.execution.arrow.maxRecordsPerBatch": "1"}
    are_stored: ClassVar[bool] = False

    def read(self, session: SparkSession, schema: TableSchema, shape: Shape) -> DataFrame:
        table = self.found.table
        rows = session.table(self.view).where((F.col("database") == table.database) & (F.col("table") == table.name))
        if shape in _OF_CHANGES and self.found.is_log:
            rows = spread(rows, schema, self.found.byte_count)
        return rows.mapInArrow(Unpacking(schema, shape, self.found.partitioned_by), _columns(schema, shape))


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows of `items`, the whole epoch. They are staged as Parquet files in `folder`, which no one changes."""

    items: Sequence[PartItem]
    folder: Path
    found: EpochTable
    settings: ClassVar[Mapping[str, str]] = {
        # The files stay as they are, so Delta need not copy the rows before it reads them twice.
        "spark.databricks.delta.merge.materializeSource": "none",
        # Arrow writes days and instants before 1582 in the calendar that Spark has since 3.0.
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    }
    are_stored: ClassVar[bool] = True

    def read(self, session: SparkSession, schema: TableSchema, shape: Shape) -> DataFrame:
        table = self.found.table
        changes = (item for item in self.items if isinstance(item, ChangeBatch) and item.table == table)
        unpacked = Unpacking(schema, shape, self.found.partitioned_by).unpacked(changes)
        rows = pa.Table.from_batches(unpacked, schema=schema_of(schema, shape))
        file = self.folder / f"{uuid.uuid4().hex}.parquet"
        pq.write_table(rows, file)
        return session.read.schema(_columns(schema, shape)).parquet(file.as_uri())


def _columns(schema: TableSchema, shape: Shape) -> StructType:
    columns = from_arrow_schema(schema_of(schema, shape))
    for column in columns.fields:
        column.nullable = True
    return columns
