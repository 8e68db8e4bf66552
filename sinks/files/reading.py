"""Reads the changes that a file of a copy has."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.conf.tables import TableName
from tidemark.sinks.files.json_values import LineValues, NotALineError, values_in
from tidemark.state.change_batch import UNCHANGED_FIELD
from tidemark.state.errors import SinkError
from tidemark.state.remedies import read_again
from tidemark.state.table import TableSchema

BATCH_ROWS = 1 << 16
_META = ("_change_type", "_commit_version", "_seq", UNCHANGED_FIELD.name)


def changes_in(path: Path, schema: TableSchema, row_groups: Sequence[int] | None = None) -> Iterator[pa.RecordBatch]:
    """Yields the rows with the columns of the table and of the changelog that the file has. `row_groups`: None for all. Raises
    SinkError for a damaged file, FileNotFoundError."""
    wanted = {*schema.arrow_schema().names, *_META}
    try:
        with pq.ParquetFile(path) as file:
            columns = [name for name in file.schema_arrow.names if name in wanted]
            yield from file.iter_batches(BATCH_ROWS, row_groups=row_groups, columns=columns)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise unreadable(path, schema, error) from error


def lines_in(path: Path, schema: TableSchema) -> Iterator[LineValues]:
    """Yields the values of a file of JSON Lines. Raises SinkError for a damaged file, FileNotFoundError."""
    with path.open("rb") as file:
        try:
            yield from values_in(file, schema)
        except NotALineError as error:
            raise unreadable(path, schema, error) from error


def unreadable(path: Path, schema: TableSchema, error: Exception) -> SinkError:
    again = read_again(TableName(schema.table.database, schema.table.name))
    return SinkError(f"{path} can't be read: {error}.", f"Restore it from a copy, or delete it. {again}")
