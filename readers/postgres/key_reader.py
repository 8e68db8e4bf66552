"""Reads the rows of some keys again, as a split's are read: exactly as one transaction's own snapshot has them."""

from collections.abc import Sequence

import pyarrow as pa

from readers.postgres.connect import quote_literal
from readers.postgres.key_columns import KeyColumn, TableKey
from readers.postgres.key_text import key_expression, key_text, whole_key_text
from readers.postgres.snapshot import SnapshotSource, SplitReader
from readers.published_points import NO_SPLIT
from readers.split_read import SplitRead
from state.split import KeyRange, Split
from state.table import TableSchema


class KeyReader(SplitReader):
    """snapshot.where has no say: it never limits changes."""

    def __init__(self, source: SnapshotSource) -> None:
        super().__init__(source)
        self._wanted = pa.RecordBatch.from_pydict({})

    def texts(self, schema: TableSchema, rows: pa.RecordBatch | pa.Table) -> pa.LargeStringArray:
        """Of the rows' keys: equal for equal ones, byte for byte. A collation may take others for equal, too."""
        columns = [rows.column(name) for name in schema.key]
        return whole_key_text([c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns])

    def read_again(self, schema: TableSchema, rows: pa.RecordBatch) -> SplitRead:
        """What is there now under the keys of `rows`, in any order; under equal ones of a collation, too. Errors as `read`."""
        self._wanted = rows.select(list(schema.key))
        whole = Split(NO_SPLIT, schema.table, schema.version, schema.key, KeyRange(None, None))
        return self.read(whole, schema, self._source.start)

    def _condition(self, split: Split, key: TableKey) -> str:
        return one_of(key.columns, self._wanted.columns)


def one_of(keys: Sequence[KeyColumn], values: Sequence[pa.Array]) -> str:
    """SQL that is true for the rows with these keys: of each its index is searched."""
    equal = [
        [
            f"{key.sql} OPERATOR({key.operators}.=) {key_expression(array.type, quote_literal(text), key.type)}"
            for text in key_text(array).to_pylist()
        ]
        for key, array in zip(keys, values, strict=True)
    ]
    return " OR ".join(f"({' AND '.join(parts)})" for parts in zip(*equal, strict=True))
