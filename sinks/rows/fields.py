"""Columns of byte fields, and how they are woven into rows.

A `Fields` is one column as bytes, one field per row. `weave` writes the fields of several columns row by row into one
buffer, with constant bytes around them. All row formats of the sinks are made this way; they differ in the fields.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

NO_BYTES = np.zeros(0, np.uint8)
_NO_PLACES = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Fields:
    """One column: row r's field is `data[offsets[r]:offsets[r + 1]]` where `valid[r]`, else it is null.

    With a `width` all fields have it, `offsets` is empty and row r's field starts at r × width.
    """

    offsets: Places
    data: Bytes
    valid: npt.NDArray[np.bool_]
    width: int | None = None

    @property
    def lengths(self) -> Places:
        if self.width is not None:
            return np.full(len(self.valid), self.width, np.int64)
        return np.diff(self.offsets)


@dataclass(frozen=True, slots=True)
class Frame:
    """The constant bytes of a column's place in the row: `before field after`, or `null` for a null."""

    before: bytes
    after: bytes
    null: bytes
    sized: bool = False
    """Four bytes, big-endian, with the field's length stand between `before` and a field that is not null."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Row r is `data[ends[r - 1]:ends[r]]`, the first starts at 0."""

    data: memoryview
    ends: Places


def weave(columns: list[tuple[Fields, Frame]]) -> Rows:
    """At least one column; all have the same number of rows."""
    lengths = np.zeros(len(columns[0][0].valid), np.int64)
    for fields, frame in columns:
        around = len(frame.before) + len(frame.after) + (4 if frame.sized else 0)
        lengths += np.where(fields.valid, fields.lengths + around, len(frame.null))
    ends = np.cumsum(lengths)
    out = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    places = ends - lengths
    for fields, frame in columns:
        offsets = fields.offsets if fields.width is None else _NO_PLACES
        _place(
            offsets,
            fields.width or 0,
            fields.data,
            fields.valid,
            _constant(frame.before),
            _constant(frame.after),
            _constant(frame.null),
            frame.sized,
            out,
            places,
        )
    return Rows(out.data, ends)


def _constant(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8) if text else NO_BYTES


@njit(cache=True, nogil=True)
def copy_bytes(source: Any, start: Any, target: Any, at: Any, length: Any) -> None:
    """Indices are uint64: signed ones may be negative, and checking that keeps LLVM from vectorising (3 × slower)."""
    i = np.uint64(0)
    while i < length:
        target[at + i] = source[start + i]
        i += np.uint64(1)


@njit(cache=True, nogil=True)
def _place(
    offsets: Any,
    width: int,
    data: Any,
    valid: Any,
    before: Any,
    after: Any,
    null: Any,
    sized: bool,
    out: Any,
    places: Any,
) -> None:
    """Writes one column's fields at `places` (one per row) of `out`, and moves the places behind them."""
    varying = len(offsets) > 0
    zero = np.uint64(0)
    before_length = np.uint64(len(before))
    after_length = np.uint64(len(after))
    null_length = np.uint64(len(null))
    for row in range(len(valid)):
        at = np.uint64(places[row])
        if not valid[row]:
            copy_bytes(null, zero, out, at, null_length)
            places[row] = np.int64(at + null_length)
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
        places[row] = np.int64(at + after_length)


def validity(array: pa.Array) -> npt.NDArray[np.bool_]:
    """One truth value per row: not null."""
    bitmap = array.buffers()[0]
    if bitmap is None or array.null_count == 0:
        return np.ones(len(array), np.bool_)
    bits = np.frombuffer(bitmap, np.uint8)
    return np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :].view(np.bool_)


def variable(array: pa.Array) -> Fields:
    """Of a string or binary array, without copying its bytes."""
    _, offsets, data = array.buffers()
    if len(array) == 0 or offsets is None:
        return Fields(np.zeros(len(array) + 1, np.int64), NO_BYTES, validity(array))
    places = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return Fields(places, NO_BYTES if data is None else np.frombuffer(data, np.uint8), validity(array))


def values(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The values of a fixed-width array, as `dtype` has that width; nulls hold anything. No copy."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(data, dtype)[array.offset : array.offset + len(array)]


def fixed(numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> Fields:
    """The bytes of a one-dimensional array as they stand in memory, or of the rows of a two-dimensional one."""
    contiguous = np.ascontiguousarray(numbers)
    width = contiguous.itemsize * (contiguous.shape[1] if contiguous.ndim == 2 else 1)
    return Fields(_NO_PLACES, contiguous.view(np.uint8).reshape(-1), valid, width)
