"""Converts COPY's binary values to Arrow arrays, equal to those that the log's texts give (text_values.py)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.readers.gather import copy, measure
from tidemark.readers.postgres.snapshot.copy_walker import INFINITE, NOT_A_NUMBER, read_integers, read_numerics
from tidemark.state.errors import DamagedLogError, SourceNotUsableError
from tidemark.state.kernel import Bytes, Int64s
from tidemark.state.table import Column, TableId, arrow_type_of

EPOCH_DAYS = 10_957
"""The server's epoch, 2000-01-01, in days since 1970."""

EPOCH_US = EPOCH_DAYS * 86_400_000_000
_INT32, _INT64 = np.iinfo(np.int32), np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class CopiedColumn:
    """A column's values in `buf`. `start`, `size`, `valid`: its column buffers, one entry per row."""

    table: TableId
    column: Column
    buf: Bytes
    start: Int64s
    size: Int64s
    valid: Bytes

    def array(self) -> pa.Array:
        """Returns the values, copied out of the buffer. Raises DamagedLogError; SourceNotUsableError for a value that the type
        can't hold."""
        kind = arrow_type_of(self.column.arrow_type)
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return self._bytes(kind)
        if pa.types.is_decimal(kind):
            return self._decimals(kind)
        if pa.types.is_boolean(kind):
            flags = self._integers(1).astype(np.uint8)
            return self._made(kind, np.packbits(flags, bitorder="little"))
        if pa.types.is_date(kind):
            return self._made(kind, self._dates())
        if pa.types.is_timestamp(kind):
            return self._made(kind, self._timestamps())
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

    def _bytes(self, kind: pa.DataType) -> pa.Array:
        rows = np.arange(len(self.valid), dtype=np.int64)
        offsets = np.empty(len(rows) + 1, np.int32)
        total = measure(self.size, rows, offsets)
        if total < 0:
            raise self._does_not_fit("has more than 2 GiB in one batch")
        data = np.empty(total, np.uint8)
        copy(self.buf, self.start, rows, offsets, data)
        array = self._made(kind, offsets, data)
        if pa.types.is_string(kind):
            try:
                array.validate(full=True)
            except pa.ArrowInvalid as exc:
                raise self._does_not_fit("holds bytes that are not UTF-8") from exc
        return array

    def _decimals(self, kind: pa.Decimal128Type) -> pa.Array:
        out = np.empty((len(self.valid), 2), np.int64)
        match read_numerics(self.buf, self.start, self.size, self.valid, kind.scale, out):
            case 0:
                return self._checked_decimals(self._made(kind, out))
            case error_code if error_code in {NOT_A_NUMBER, INFINITE}:
                special = "NaN" if error_code == NOT_A_NUMBER else "Infinity"
                remedy = "Declare the column numeric without precision"
                raise self._does_not_fit(f"holds {special}, which a decimal can't hold", remedy)
            case _:
                raise self._damaged()

    def _checked_decimals(self, array: pa.Array) -> pa.Array:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as exc:
            raise self._damaged() from exc
        return array

    def _dates(self) -> npt.NDArray[np.int32]:
        days = self._integers(4)
        self._refuse_infinite(days, (_INT32.min, _INT32.max))
        return (days + EPOCH_DAYS).astype(np.int32)  # the greatest date of the server fits

    def _timestamps(self) -> Int64s:
        micros = self._integers(8)
        self._refuse_infinite(micros, (_INT64.min, _INT64.max))
        if (micros > _INT64.max - EPOCH_US).any():
            raise self._does_not_fit("holds a time that does not fit 64-bit microseconds since 1970")
        return micros + EPOCH_US

    def _refuse_infinite(self, numbers: Int64s, infinities: tuple[int, int]) -> None:
        for sign, number in zip(("-", ""), infinities, strict=True):
            if (numbers == number).any():
                raise self._does_not_fit(f"holds {sign}infinity, which a date or timestamp of the copy can't hold")

    def _does_not_fit(self, what: str, remedy: str = "Correct these rows") -> SourceNotUsableError:
        return SourceNotUsableError(
            f"{self.table}.{self.column.name} {what}.", f"{remedy}, or exclude the column: source.columns."
        )

    def _damaged(self) -> DamagedLogError:
        return DamagedLogError(
            f"{self.table}.{self.column.name}: the server sent a value that its type can't have.",
            "Check proxies and poolers between the job and the source.",
        )


def _with_one_nan(bits: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.floating]:
    """Replaces every NaN by the same one. The server takes all NaNs as equal, and its texts do not show their bits."""
    values = bits.view(f"f{bits.itemsize}")
    values[np.isnan(values)] = np.nan
    return values
