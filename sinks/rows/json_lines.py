"""Rows as JSON Lines: one object per row, columns in the table's order.

- Booleans are true and false. Integers and floats are numbers; NaN and infinities are the strings "NaN", "Infinity" and
  "-Infinity".
- Decimals are strings ("12.30"), because most readers parse a number as a double.
- Binary is base64.
- Dates are "2024-02-29", timestamps "2024-02-29T12:00:00.000000". Timestamps with a zone are in UTC and end with Z.
- Marks (`tidemark.state.marks`) of dates, timestamps and decimals are their words, such as "infinity".
- Lists are arrays of the elements' forms.
"""

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.rows.fields import Fields, Frame, Rows, interleave, validity, variable
from tidemark.sinks.rows.text import JSON_ESCAPES, base64, cast_text, decimal_text, escaped
from tidemark.state.change_batch import CHANGE_TYPE_NAMES
from tidemark.state.marks import Mask, words
from tidemark.state.table import TableSchema

_ROWS_AT_ONCE = 16384
_AFTER_DATE = len(" 12:00:00.000000")


def json_rows(batch: pa.RecordBatch, lead: Sequence[tuple[Fields, Frame]] = ()) -> Rows:
    """Returns a line per row of `batch`, which has canonical columns and `meta_fields`, at least one. `lead` goes before each
    line's object."""
    columns: list[tuple[Fields, Frame]] = list(lead)
    last = batch.num_columns - 1
    for i, (field, array) in enumerate(zip(batch.schema, batch.columns, strict=True)):
        fields, opening, closing = _json_fields(field.name, array)
        before = ("{" if i == 0 else ",") + json.dumps(field.name, ensure_ascii=False) + ":"
        after = "}\n" if i == last else ""
        frame = Frame((before + opening).encode(), (closing + after).encode(), f"{before}null{after}".encode())
        columns.append((fields, frame))
    return interleave(columns)


def _json_fields(name: str, array: pa.Array) -> tuple[Fields, str, str]:
    """Returns the fields, and the text before and after each field that is not null."""
    kind = array.type
    if name == "_change_type":
        return variable(pc.take(pa.array(CHANGE_TYPE_NAMES), array)), '"', '"'
    if pa.types.is_dictionary(kind):
        return _json_fields(name, pc.cast(array, kind.value_type))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return cast_text(array), "", ""
    if pa.types.is_floating(kind):
        return variable(_float_texts(array)), "", ""
    if _may_have_marks(kind) and (marked := words(array)) is not None:
        return _with_words(array, *marked), '"', '"'
    if pa.types.is_decimal(kind):
        return decimal_text(array), '"', '"'
    if pa.types.is_string(kind):
        return escaped(variable(array), JSON_ESCAPES), '"', '"'
    if pa.types.is_binary(kind):
        return base64(variable(array)), '"', '"'
    if pa.types.is_date(kind):
        return cast_text(array), '"', '"'
    if pa.types.is_timestamp(kind):
        return _timestamp_texts(array), '"', '"' if kind.tz is None else 'Z"'
    if pa.types.is_list(kind):
        return variable(_list_texts(array)), "", ""
    raise ValueError(f"column {name}: {kind} is not a canonical type")


def _may_have_marks(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _with_words(array: pa.Array, marked: Mask, found: pa.Array) -> Fields:
    """Returns the texts of an array with marks. A timestamp with a zone has its Z already."""
    is_marked = pa.array(marked)
    rest, _, closing = _json_fields("", pc.if_else(is_marked, pa.scalar(None, array.type), array))
    texts = pa.array(
        [text if valid else None for text, valid in zip(_texts(rest), rest.valid, strict=True)], pa.string()
    )
    whole = pc.binary_join_element_wise(texts, closing.removesuffix('"'), "")
    return variable(pc.if_else(is_marked, found, whole))


def _texts(fields: Fields) -> list[str]:
    data = fields.data.tobytes()
    return [data[start:end].decode() for start, end in itertools.pairwise(fields.offsets.tolist())]


def float_text(value: float, kind: pa.DataType) -> str:
    """Returns the form in which `json_rows` writes a value of a column of floats."""
    return str(_float_texts(pa.array([value], kind))[0])


def _float_texts(array: pa.Array) -> pa.Array:
    text = pc.cast(array, pa.string())
    text = pc.if_else(pc.equal(text, "-0"), "-0.0", text)  # many readers parse -0 as an integer, which is 0
    finite = pc.is_finite(array)
    if pc.all(finite, min_count=0).as_py() is not False:
        return text
    words = pc.if_else(pc.is_nan(array), '"NaN"', pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"'))
    return pc.if_else(finite, text, words)


def _timestamp_texts(array: pa.Array) -> Fields:
    """Returns timestamps with a T between date and time."""
    fields = cast_text(pc.cast(array, pa.timestamp("us")))
    data = fields.data.copy()
    data[fields.offsets[1:][fields.valid] - _AFTER_DATE] = ord("T")
    return Fields(fields.offsets, data, fields.valid)


def _element_texts(array: pa.Array) -> pa.Array:
    """Returns the JSON of each element."""
    fields, opening, closing = _json_fields("", array)
    assert fields.width is None, "these fields have offsets"
    buffers = [None, pa.py_buffer(fields.offsets.astype(np.int32)), pa.py_buffer(fields.data)]
    texts = pa.Array.from_buffers(pa.string(), len(array), buffers)
    whole = pc.binary_join_element_wise(opening, texts, closing, "") if opening or closing else texts
    return pc.if_else(pa.array(fields.valid), whole, "null")


def _list_texts(array: pa.Array) -> pa.Array:
    texts = _element_texts(array.flatten())
    lengths = np.where(validity(array), pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False), 0)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    joined = pc.binary_join_element_wise("[", pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ","), "]", "")
    return pc.if_else(pc.is_valid(array), joined, pa.scalar(None, pa.string()))


class JsonLinesFile:
    """A `TableFile` of JSON Lines."""

    def __init__(self, path: Path, schema: TableSchema) -> None:
        self._file: Any = path.open("xb")

    def write(self, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                self._file.write(json_rows(batch.slice(start, _ROWS_AT_ONCE)).data)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        self._file.close()
