"""Keys of integers: the ranges of a table are the same ranges in its copy."""

import pyarrow as pa

from tidemark.conf.model import JobFile
from tidemark.state.table import Column, TableSchema, arrow_type_of


def same_integers(job: JobFile, schema: TableSchema, output: TableSchema, columns: tuple[str, ...]) -> bool:
    """True if the split key is part of the copy's key and holds the same integers there: all databases order them alike."""
    if not columns or job.transform(schema.table.database, schema.table.name) is not None:
        return False
    if not set(columns) <= set(output.key):
        return False
    return all(_holds_integers(output.column(name)) for name in columns)


def _holds_integers(column: Column) -> bool:
    """PostgreSQL's numeric may be NaN: its bound would be one of a range that the copy is not known to have. MySQL reads a
    number of one or two digits as another year, so the bounds of a year are texts."""
    if column.made or column.source_type.startswith(("numeric", "year")):
        return False
    kind = arrow_type_of(column.arrow_type)
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0))
