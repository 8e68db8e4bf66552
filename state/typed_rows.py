"""Change batches as typed rows: a table's own columns, then the changelog columns, with the change type as text."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from tidemark.state.change_batch import CHANGE_TYPE_NAMES, PartEnd, PartItem, PublishedFile, ReplacedRange, batch_schema
from tidemark.state.table import TableSchema

_TEXTS = frozenset({"_change_type", "_txn_id"})


def typed_schema(schema: TableSchema) -> pa.Schema:
    """Returns the schema of `typed_batches`."""
    return _typed(batch_schema(schema))


def typed_batches(items: Iterable[PartItem]) -> Iterator[pa.RecordBatch]:
    """Yields the rows, in the same batches."""
    names = pa.array(CHANGE_TYPE_NAMES)
    for item in items:
        if isinstance(item, PartEnd):
            continue
        if isinstance(item, PublishedFile | ReplacedRange):
            raise TypeError(f"{item.part} has more than rows: {item}")
        rows = item.rows
        columns = []
        for field, column in zip(rows.schema, rows.columns, strict=True):
            if field.name == "_change_type":
                column = names.take(column)
            elif pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            columns.append(column)
        yield pa.RecordBatch.from_arrays(columns, schema=_typed(rows.schema))


def _typed(batch: pa.Schema) -> pa.Schema:
    return pa.schema(field.with_type(pa.string()) if field.name in _TEXTS else field for field in batch)
