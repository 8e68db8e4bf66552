"""The rows of a table in an epoch, as Spark reads them: from the epoch's tasks, or from files that these have staged."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- Spark's convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidemark.sinks.delta.buckets import spread
from tidemark.sinks.delta.errors import TRY_AGAIN
from tidemark.sinks.delta.locations import quoted
from tidemark.sinks.delta.rows import Shape, Unpacking, schema_of, unfit, unfit_columns
from tidemark.sinks.staging import StagedFile
from tidemark.state.errors import SinkError
from tidemark.state.integer_range import IntegerRange
from tidemark.state.table import TableId, TableSchema

_NO_GLOBS = ("__globPaths__", "false")
"""Spark's own catalogs set it. Hadoop does not find an escaped path that also has a colon."""
_DISCOVERY = "spark.sql.sources.parallelPartitionDiscovery"
LOOKS_AT_ONCE = 16
_Found = TypeVar("_Found")
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
    """Rows of files that tasks have staged for the table, and that no one changes."""

    files: Sequence[StagedFile]
    found: EpochTable
    are_stored: ClassVar[bool] = True
    _SETTINGS: ClassVar[Mapping[str, str]] = {
        # The files stay as they are, so Delta need not copy the rows before it reads them twice.
        "spark.databricks.delta.merge.materializeSource": "none",
        # Arrow writes days and instants before 1582 in the calendar that Spark has since 3.0.
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        # No setting of the user's lets Spark leave out rows.
        "spark.sql.files.ignoreMissingFiles": "false",
        "spark.sql.files.ignoreCorruptFiles": "false",
    }

    @property
    def settings(self) -> Mapping[str, str]:
        if any(_is_object(file.path) for file in self.files):  # looking for one takes some requests
            return {**self._SETTINGS, f"{_DISCOVERY}.threshold": "32", f"{_DISCOVERY}.parallelism": "64"}
        # A Spark job that looks for many files takes longer than the driver does.
        return {**self._SETTINGS, f"{_DISCOVERY}.threshold": "100000"}

    def read(self, session: SparkSession, schema: TableSchema, shape: Shape) -> DataFrame:
        self._require_whole()
        self._require_fit(schema, shape)
        staged: Shape = "rows" if shape == "kept rows" else shape
        if others := {file.shape for file in self.files} - {staged}:
            raise ValueError(f"{schema.table}: the tasks have staged {others}, not {staged}")
        columns = _columns(schema, staged)
        paths = [file.path if _is_object(file.path) else f"file://{file.path}" for file in self.files]
        # Splits that replace ranges may have no rows.
        reader = session.read.schema(columns).option(*_NO_GLOBS)
        rows = reader.parquet(*paths) if paths else session.createDataFrame([], columns)
        return replacing(rows, schema) if shape == "kept rows" else rows

    def _require_whole(self) -> None:
        """Raises SinkError for a file that does not have the rows that were written. Spark passes over an empty file."""
        for file, found in zip(self.files, _of_each(self.files, _row_count), strict=True):
            if found != file.row_count:
                raise SinkError(f"{file.path} has {found} rows, but {file.row_count} were written.", TRY_AGAIN)

    def _require_fit(self, schema: TableSchema, shape: Shape) -> None:
        """Raises SinkError for a value that is another one in a column that partitions the table. See `unfit_columns`."""
        partitions = self.found.partitioned_by
        for file in self.files:
            for _, why in (found for found in file.unfit if found[0] in partitions):
                raise unfit(schema, why)
        names = [
            column.name
            for column in schema.captured
            if column.name in partitions and column.arrow_type in {"timestamptz", "string"}
        ]
        if names:
            published = [file for file in self.files if file.is_published]
            _of_each(published, lambda file: _require_fit(file.path, schema, names, shape))


def _row_count(file: StagedFile) -> int:
    try:
        with _opened(file.path) as content:
            return int(pq.read_metadata(content).num_rows)
    except (OSError, pa.ArrowException) as error:
        raise SinkError(f"{file.path} is damaged: {error}.", TRY_AGAIN) from error


def _require_fit(path: str, schema: TableSchema, names: Sequence[str], shape: Shape) -> None:
    with _opened(path) as content:
        for rows in pq.ParquetFile(content).iter_batches(columns=names):
            for _, why in unfit_columns(schema, rows, names, shape):
                raise unfit(schema, why)


def _is_object(path: str) -> bool:
    return path.startswith("s3a://")


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    if not _is_object(path):
        yield path
        return
    from tidemark.state.checkpoint.object_store import S3Store

    folder, _, name = path.rpartition("/")
    with S3Store(folder).opened(name) as file:
        yield file


def _of_each(files: Sequence[StagedFile], look: Callable[[StagedFile], _Found]) -> list[_Found]:
    """Looks at each file, at several at a time: those of a bucket take some requests each."""
    with ThreadPoolExecutor(LOOKS_AT_ONCE) as looks:
        return list(looks.map(look, files))


def replacing(rows: DataFrame, schema: TableSchema) -> DataFrame:
    """Returns rows of `kept_schema` that put rows of the table in place of all rows that the target has of their keys. See
    `replacing_rows`."""
    kinds = {field.name: field.dataType for field in _columns(schema, "kept rows").fields}
    nothing = {name: F.lit(None).cast(kind).alias(name) for name, kind in kinds.items()}
    at = F.struct(*(F.col(quoted(name)) for name in schema.key)).cast(kinds["at"]).alias("at")
    new = F.struct(*(F.col(quoted(column.name)) for column in schema.captured)).cast(kinds["new"]).alias("new")

    def those(stays: bool, at: Column, new: Column) -> DataFrame:
        stay, deleted = F.lit(stays).alias("stays"), F.lit(False).alias("deleted")
        return rows.select(at, stay, nothing["missing"], new, deleted, nothing["origin"])

    return those(False, at, nothing["new"]).unionAll(those(True, nothing["at"], new))


def _columns(schema: TableSchema, shape: Shape) -> StructType:
    columns = from_arrow_schema(schema_of(schema, shape))
    for column in columns.fields:
        column.nullable = True
    return columns
