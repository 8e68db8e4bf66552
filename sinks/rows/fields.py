"""Columns as byte fields, and rows made of them.

A `Fields` is one column as bytes, one field per row. `interleave` writes the fields of several columns row by row into one
buffer, with constant bytes around them. All row formats of the sinks are made this way. They differ in the fields.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.state.kernel import kernel

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

NO_BYTES = np.zeros(0, np.uint8)
_NO_OFFSETS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Fields:
    """One column. Row r's field is `data[offsets[r]:offsets[r + 1]]` if `valid[r]`, else null.

    With a `width`, all fields have that width, `offsets` is empty, and row r's field starts at r × width.
    """

    offsets: Offsets
    data: Bytes
    valid: npt.NDArray[np.bool_]
    width: int | None = None

    @property
    def lengths(self) -> Offsets:
        if self.width is not None:
            return np.full(len(self.valid), self.width, np.int64)
        return np.diff(self.offsets)


@dataclass(frozen=True, slots=True)
class Frame:
    """The constant bytes around a column's field: `before field after`, or `null` for a null."""

    before: bytes
    after: bytes
    null: bytes
    sized: bool = False
    """True if the field's length, four bytes big-endian, is written between `before` and a field that is not null."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Row r is `data[ends[r - 1]:ends[r]]`. The first row starts at 0."""

    data: memoryview
    ends: Offsets


def interleave(columns: list[tuple[Fields, Frame]]) -> Rows:
    """Returns rows made of `columns`: at least one, all with the same number of rows."""
    lengths = np.zeros(len(columns[0][0].valid), np.int64)
    for fields, frame in columns:
        around = len(frame.before) + len(frame.after) + (4 if frame.sized else 0)
        lengths += np.where(fields.valid, fields.lengths + around, len(frame.null))
    ends = np.cumsum(lengths)
    out = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    starts = ends - lengths
    for fields, frame in columns:
        offsets = fields.offsets if fields.width is None else _NO_OFFSETS
        _write_fields(
            offsets,
            fields.width or 0,
            fields.data,
            fields.valid,
            _constant(frame.before),
            _constant(frame.after),
            _constant(frame.null),
            frame.sized,
            out,
            starts,
        )
    return Rows(out.data, ends)


def _constant(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8) if text else NO_BYTES


@kernel
def copy_bytes(source: Any, start: Any, target: Any, at: Any, length: Any) -> None:
    """Copies `length` bytes. Indices are uint64: a check for negative ones keeps LLVM from vectorising (3 × slower)."""
    i = np.uint64(0)
    while i < length:
        target[at + i] = source[start + i]
        i += np.uint64(1)


@kernel
def _write_fields(
    offsets: Any,
    width: int,
    data: Any,
    valid: Any,
    before: Any,
    after: Any,
    null: Any,
    sized: bool,
    out: Any,
    starts: Any,
) -> None:
    """Writes one column's fields into `out`, row r's at `starts[r]`, and moves `starts` to the end of what was written."""
    varying = len(offsets) > 0
    zero = np.uint64(0)
    before_length = np.uint64(len(before))
    after_length = np.uint64(len(after))
    null_length = np.uint64(len(null))
    for row in range(len(valid)):
        at = np.uint64(starts[row])
        if not valid[row]:
            copy_bytes(null, zero, out, at, null_length)
            starts[row] = np.int64(at + null_length)
            continue
        copy_bytes(before, zero, out, at, before_length)
        at += before_length
        start = np.uint64(offsets[row] if varying else row * width)
        length = np.uint64(offsets[row + 1] - offsets[row] if varying else width)
        if sized:
            for k in range(4):
                out[at + np.uint64(k)] = (length >> np.uint64(24 - 8 * k)) & np.uint64(255)
            at += np.uint64(4)
        copy_bytes(data, start, out, at, length)
        at += length
        copy_bytes(after, zero, out, at, after_length)
        starts[row] = np.int64(at + after_length)


def validity(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Returns a boolean per row: True if it is not null."""
    bitmap = array.buffers()[0]
    if bitmap is None or array.null_count == 0:
        return np.ones(len(array), np.bool_)
    bits = np.frombuffer(bitmap, np.uint8)
    return np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :].view(np.bool_)


def variable(array: pa.Array) -> Fields:
    """Returns the fields of a string or binary array without copying its bytes."""
    _, offsets, data = array.buffers()
    if len(array) == 0 or offsets is None:
        return Fields(np.zeros(len(array) + 1, np.int64), NO_BYTES, validity(array))
    starts = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return Fields(starts, NO_BYTES if data is None else np.frombuffer(data, np.uint8), validity(array))


def values(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns a view of a fixed-width array's values as `dtype`, which must have the same width. Nulls have any value."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(data, dtype)[array.offset : array.offset + len(array)]


def fixed(numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> Fields:
    """Returns the bytes in memory of each element of a one-dimensional array, or of each row of a two-dimensional one."""
    contiguous = np.ascontiguousarray(numbers)
    width = contiguous.itemsize * (contiguous.shape[1] if contiguous.ndim == 2 else 1)
    return Fields(_NO_OFFSETS, contiguous.view(np.uint8).reshape(-1), valid, width)
