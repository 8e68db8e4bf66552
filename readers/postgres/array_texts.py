"""Makes lists of arrays, which snapshot and log both have as the server's text: `{1,NULL,"a,b"}`.

The elements' texts are converted as a column's texts are (pgoutput/text_values.py). PostgreSQL does not enforce a column's
declared dimensions: any array may have several, or a first index other than 1, as in `[0:1]={1,2}`. No list says so: such an
array is a bad value, and so is one with an element that the list's type can't hold.
"""

from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.conf.tables import setting_of
from tidemark.readers.bad_values import BadColumn, BadValueRule, Mask
from tidemark.readers.postgres.pgoutput.hex_bytes import copy_hex, measure_hex
from tidemark.readers.postgres.pgoutput.messages import damaged
from tidemark.readers.postgres.pgoutput.text_values import text_array
from tidemark.state.kernel import Bytes, Int, Int32s, kernel
from tidemark.state.table import Column, TableSchema, element_of


class Form(IntEnum):
    """The form of an array's text."""

    LIST = 0
    SHAPED = 1  # several dimensions, or another first index than 1
    DAMAGED = 2


@dataclass(frozen=True, slots=True)
class ArrayTexts:
    """Texts of arrays, with the offsets of an Arrow array. `valid` is 1 where there is one."""

    offsets: Int32s
    data: Bytes
    valid: Bytes


@dataclass(frozen=True, slots=True)
class _Elements(BadValueRule):
    """Replaces elements that their type can't hold by NULL, and remembers them."""

    found: list[tuple[Mask, str]] = field(default_factory=list)

    def settled(
        self, column: BadColumn, values: pa.Array, bad: Mask, what: str, *, exact: bool = True, advice: str = ""
    ) -> pa.Array:
        self.found.append((bad, what))
        return pc.if_else(pa.array(bad), pa.scalar(None, values.type), values)


def lists(schema: TableSchema, column: Column, texts: ArrayTexts, rule: BadValueRule) -> pa.ListArray:
    """Returns the arrays as lists of the column's canonical type. Raises DamagedLogError; SourceNotUsableError for an array
    that is no such list, unless `rule` says otherwise."""
    count = len(texts.valid)
    capacity = count + int(np.count_nonzero(texts.data == ord(",")))
    starts, forms = np.zeros(count + 1, np.int32), np.zeros(count, np.uint8)
    ends, present = np.zeros(capacity + 1, np.int32), np.zeros(capacity, np.uint8)
    out = np.empty(len(texts.data), np.uint8)
    total = int(read_arrays(texts.offsets, texts.data, texts.valid, starts, forms, ends, present, out))
    if (forms == Form.DAMAGED).any():
        raise damaged(f"{schema.table}.{column.name} holds a text that is no array")
    element = replace(column, arrow_type=element_of(column.arrow_type))
    found = _Elements()
    values = _values(schema, element, ArrayTexts(ends[: total + 1], out, present[:total]), found)
    made = pa.Array.from_buffers(
        pa.list_(values.type),
        count,
        [_bitmap(texts.valid), pa.py_buffer(starts)],
        count - int(np.count_nonzero(texts.valid)),
        children=[values],
    )
    return _settled(schema, column, made, forms == Form.SHAPED, rule, found)


def _settled(
    schema: TableSchema, column: Column, made: pa.ListArray, shaped: Mask, rule: BadValueRule, elements: _Elements
) -> pa.ListArray:
    bad_column = BadColumn.of(schema, column.name)
    if shaped.any():
        made = rule.settled(
            bad_column,
            made,
            shaped,
            "holds an array of several dimensions, or one whose first index is not 1",
            advice=" It can hold the column's arrays as text: "
            f"{setting_of('source.columns', schema.table, {'as_text': [column.name]})}.",
        )
    for bad_elements, what in elements.found:
        rows = np.repeat(np.arange(len(made)), np.diff(made.offsets.to_numpy()))[bad_elements]
        bad = np.zeros(len(made), np.bool_)
        bad[rows] = True
        made = rule.settled(bad_column, made, bad, f"has an element that {what}")
    return made


def _values(schema: TableSchema, element: Column, texts: ArrayTexts, rule: BadValueRule) -> pa.Array:
    nulls = len(texts.valid) - int(np.count_nonzero(texts.valid))
    offsets, data, kind = texts.offsets, texts.data, pa.string()
    if element.arrow_type == "binary":
        rows, sizes = np.arange(len(texts.valid), dtype=np.int64), np.diff(offsets).astype(np.int64)
        starts, kind = offsets[:-1].astype(np.int64), pa.binary()
        offsets = np.empty(len(offsets), np.int32)
        total = measure_hex(sizes, texts.valid, rows, offsets)
        data = np.empty(max(total, 0), np.uint8)
        if total < 0 or copy_hex(texts.data, starts, texts.valid, rows, offsets, data) < 0:
            raise damaged(f"{schema.table}.{element.name} has a value that is not bytea")
    buffers = [_bitmap(texts.valid) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(data)]
    values = pa.Array.from_buffers(kind, len(texts.valid), buffers, nulls)
    return values if pa.types.is_binary(kind) else text_array(schema, element, values, rule)


def _bitmap(valid: npt.NDArray[np.uint8]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


_OPENS, _CLOSES, _COMMA, _QUOTE, _BACKSLASH, _BRACKET = (ord(c) for c in '{},"\\[')
_N, _U, _L = (ord(c) for c in "NUL")


@kernel
def read_arrays(
    offsets: Int32s,
    data: Bytes,
    valid: Bytes,
    starts: Int32s,
    forms: Bytes,
    ends: Int32s,
    present: Bytes,
    out: Bytes,
) -> Int:
    """Writes the elements' texts to `out`, where element i ends at `ends[i + 1]`; it is null if not `present[i]`. Row r's
    elements are `starts[r]` to `starts[r + 1]`; it has none if its form is not a list. Returns the number of elements.

    array_out quotes an element that is empty, is the word NULL, or has a brace, comma, quote, backslash or space. In quotes a
    backslash is before each quote and backslash.
    """
    count, at = np.int64(0), np.int64(0)
    for row in range(valid.shape[0]):
        if valid[row]:
            first_count, first_at = count, at
            i, last = np.int64(offsets[row]), np.int64(offsets[row + 1]) - 1
            form = Form.LIST
            if i <= last and data[i] == _BRACKET:
                form = Form.SHAPED
            elif last <= i or data[i] != _OPENS or data[last] != _CLOSES:
                form = Form.DAMAGED
            i += 1
            while i < last or (i == last and count > first_count):
                if form != Form.LIST:
                    break
                if data[i] == _QUOTE:
                    i += 1
                    while i < last and data[i] != _QUOTE:
                        if data[i] == _BACKSLASH:
                            i += 1
                        out[at] = data[i]
                        at += 1
                        i += 1
                    if i >= last:
                        form = Form.DAMAGED
                    i += 1
                    present[count] = 1
                else:
                    begin = i
                    while i < last and data[i] != _COMMA:
                        byte = data[i]
                        if byte == _OPENS:
                            form = Form.SHAPED
                            break
                        if byte in (_CLOSES, _QUOTE, _BACKSLASH):
                            form = Form.DAMAGED
                            break
                        i += 1
                    if i == begin and form == Form.LIST:
                        form = Form.DAMAGED
                    is_null = i - begin == 4 and data[begin] == _N and data[begin + 1] == _U
                    is_null = is_null and data[begin + 2] == _L and data[begin + 3] == _L
                    present[count] = 0 if is_null else 1
                    if not is_null:
                        for j in range(begin, i):
                            out[at] = data[j]
                            at += 1
                if form != Form.LIST:
                    break
                count += 1
                ends[count] = at
                if i == last:
                    break
                if data[i] != _COMMA:
                    form = Form.DAMAGED
                i += 1
            if form != Form.LIST:
                count, at = first_count, first_at
            forms[row] = form
        starts[row + 1] = count
    return count
