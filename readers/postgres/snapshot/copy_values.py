"""Converts COPY's binary values to Arrow arrays, equal to those that the log's texts give (text_values.py)."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.readers.bad_values import STOP, BadColumn, BadValueRule
from tidemark.readers.gather import copy, measure
from tidemark.readers.postgres.array_texts import ArrayTexts, lists
from tidemark.readers.postgres.bad_values import settled_times, with_marked_texts
from tidemark.readers.postgres.snapshot.copy_walker import NOT_A_NUMBER, read_integers, read_numerics
from tidemark.state import marks
from tidemark.state.errors import DamagedLogError, SourceNotUsableError
from tidemark.state.kernel import Bytes, Int32s, Int64s
from tidemark.state.remedies import START_OVER
from tidemark.state.table import Column, TableSchema, arrow_type_of

EPOCH_DAYS = 10_957
"""The server's epoch, 2000-01-01, in days since 1970."""

EPOCH_US = EPOCH_DAYS * 86_400_000_000
_SIGN_AT = 4
_NAN = 0xC000
"""Where a numeric's sign is in its bytes, and NUMERIC_NAN of numeric.c."""


@dataclass(frozen=True, slots=True)
class CopiedColumn:
    """A column's values in `buf`. `start`, `size`, `valid`: its column buffers, one entry per row."""

    schema: TableSchema
    column: Column
    buf: Bytes
    start: Int64s
    size: Int64s
    valid: Bytes
    bad_values: BadValueRule = STOP

    def array(self) -> pa.Array:
        """Returns the values, copied out of the buffer. Raises DamagedLogError; SourceNotUsableError for a value that the type
        can't hold, unless `bad_values` says otherwise."""
        kind = arrow_type_of(self.column.arrow_type)
        if pa.types.is_list(kind):
            return lists(self.schema, self.column, ArrayTexts(*self._content(), self.valid), self.bad_values)
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return self._bytes(kind)
        if pa.types.is_decimal(kind):
            return self._decimals(kind)
        if pa.types.is_boolean(kind):
            flags = self._integers(1).astype(np.uint8)
            return self._made(kind, np.packbits(flags, bitorder="little"))
        if pa.types.is_date(kind):
            return settled_times(self.schema, self.column, self._made(kind, self._dates()), self.bad_values)
        if pa.types.is_timestamp(kind):
            return settled_times(self.schema, self.column, self._made(kind, self._timestamps()), self.bad_values)
        width = kind.bit_width // 8
        values = self._integers(width).astype(f"i{width}")
        return self._made(kind, _with_one_nan(values) if pa.types.is_floating(kind) else values)

    def _made(self, kind: pa.DataType, *buffers: npt.NDArray[np.generic]) -> pa.Array:
        nulls = len(self.valid) - int(np.count_nonzero(self.valid))
        mask = pa.py_buffer(np.packbits(self.valid, bitorder="little")) if nulls else None
        return pa.Array.from_buffers(kind, len(self.valid), [mask, *map(pa.py_buffer, buffers)], nulls)

    def _integers(self, width: int) -> Int64s:
        out = np.empty(len(self.valid), np.int64)
        if read_integers(self.buf, self.start, self.size, self.valid, width, out):
            raise self._damaged()
        return out

    def _content(self) -> tuple[Int32s, Bytes]:
        """Returns the offsets and the bytes of values of variable length."""
        rows = np.arange(len(self.valid), dtype=np.int64)
        offsets = np.empty(len(rows) + 1, np.int32)
        total = measure(self.size, rows, offsets)
        if total < 0:
            raise SourceNotUsableError(
                f"{self._where} has more than 2 GiB in one batch.",
                f"Exclude the column (source.columns), then {START_OVER}.",
            )
        data = np.empty(total, np.uint8)
        copy(self.buf, self.start, rows, offsets, data)
        return offsets, data

    def _bytes(self, kind: pa.DataType) -> pa.Array:
        array = self._made(kind, *self._content())
        if pa.types.is_string(kind):
            try:
                array.validate(full=True)
            except pa.ArrowInvalid:
                return with_marked_texts(self.schema, self.column, array, self.bad_values)
        return array

    def _decimals(self, kind: pa.Decimal128Type) -> pa.Array:
        out = np.empty((len(self.valid), 2), np.int64)
        match read_numerics(self.buf, self.start, self.size, self.valid, kind.scale, out):
            case 0:
                return self._checked_decimals(self._made(kind, out))
            case error_code if error_code == NOT_A_NUMBER:
                return self._with_nans(kind)
            case _:
                raise self._damaged()

    def _with_nans(self, kind: pa.Decimal128Type) -> pa.Array:
        signs = np.zeros(len(self.valid), np.int64)
        at = self.start[has_sign := (self.valid > 0) & (self.size > _SIGN_AT + 1)] + _SIGN_AT
        signs[has_sign] = self.buf[at].astype(np.int64) << 8 | self.buf[at + 1]
        are_nan = signs == _NAN
        numbers = replace(self, valid=np.where(are_nan, 0, self.valid).astype(np.uint8))._decimals(kind)
        marked = marks.with_nan_marks(numbers, are_nan)
        return self.bad_values.settled(BadColumn.of(self.schema, self.column.name), marked, are_nan, "holds NaN")

    def _checked_decimals(self, array: pa.Array) -> pa.Array:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as exc:
            raise self._damaged() from exc
        return array

    def _dates(self) -> npt.NDArray[np.int32]:
        """The server's infinities are the marks' numbers. Its greatest date fits."""
        days = self._integers(4)
        infinite = (days == marks.MINUS_INFINITE_DATE) | (days == marks.INFINITE_DATE)
        return np.where(infinite, days, days + EPOCH_DAYS).astype(np.int32)

    def _timestamps(self) -> Int64s:
        """Converts as `_dates` does, but the last years do not fit."""
        micros = self._integers(8)
        infinite = (micros == marks.MINUS_INFINITE_TIME) | (micros == marks.INFINITE_TIME)
        return np.where(infinite, micros, np.minimum(micros, marks.TOO_LATE - EPOCH_US) + EPOCH_US)

    @property
    def _where(self) -> str:
        return f"{self.schema.table}.{self.column.name}"

    def _damaged(self) -> DamagedLogError:
        return DamagedLogError(
            f"{self._where}: the server sent a value that its type can't have.",
            "Check proxies and poolers between the job and the source.",
        )


def _with_one_nan(bits: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.floating]:
    """Replaces every NaN by the same one. The server takes all NaNs as equal, and its texts do not show their bits."""
    values = bits.view(f"f{bits.itemsize}")
    values[np.isnan(values)] = np.nan
    return values
