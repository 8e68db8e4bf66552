"""Marks of values that Arrow's types have no place for: infinite dates, NaN, bytes that are not UTF-8."""

import numpy as np
import pyarrow as pa

from tidemark.readers.bad_values import BadColumn, BadValueRule
from tidemark.state import marks
from tidemark.state.table import Column, TableSchema


def settled_times(schema: TableSchema, column: Column, values: pa.Array, rule: BadValueRule) -> pa.Array:
    """Returns dates or timestamps, some of them with marks, as the rule says. Raises SourceNotUsableError."""
    infinite = marks.infinite(values)
    if infinite is not None:
        values = rule.settled(BadColumn.of(schema, column.name), values, infinite, "holds infinity or -infinity")
    too_late = marks.too_late(values) if pa.types.is_timestamp(values.type) else None
    if too_late is not None:
        what = "holds a time that does not fit 64-bit microseconds since 1970"
        values = rule.settled(BadColumn.of(schema, column.name), values, too_late, what, exact=False)
    return values


def with_marked_texts(schema: TableSchema, column: Column, texts: pa.StringArray, rule: BadValueRule) -> pa.Array:
    """Returns the texts with marks instead of bytes that are not UTF-8, as the rule says. A key can't have marks: it could not
    be sent back to the server. Raises SourceNotUsableError."""
    found, is_bad = [], np.zeros(len(texts), np.bool_)
    for row, text in enumerate(texts.cast(pa.binary()).to_pylist()):
        try:
            found.append(None if text is None else text.decode())
        except UnicodeDecodeError:
            found.append(marks.marked_text(text))
            is_bad[row] = True
    values = pa.array(found, pa.string())
    return rule.settled(
        BadColumn.of(schema, column.name), values, is_bad, "holds bytes that are not UTF-8", exact=False
    )
