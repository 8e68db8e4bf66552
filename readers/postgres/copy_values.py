"""From COPY's binary values to Arrow arrays: the same that the log's texts become (text_values.py)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from readers.gather import copy, measure
from readers.kernel import Bytes, Int64s
from readers.postgres.copy_walker import INFINITE, NOT_A_NUMBER, read_integers, read_numerics
from state.errors import DamagedLogError, SourceNotUsableError
from state.table import Column, TableId, arrow_type_of

EPOCH_DAYS = 10_957
"""The server counts from 2000-01-01."""

EPOCH_US = EPOCH_DAYS * 86_400_000_000
_INT32, _INT64 = np.iinfo(np.int32), np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class CopiedColumn:
    """A column's values in `buf`: planes of as many rows as there are."""

    table: TableId
    column: Column
    buf: Bytes
    start: Int64s
    size: Int64s
    valid: Bytes

    def array(self) -> pa.Array:
        """Shares nothing with the buffer. Raises DamagedLogError, SourceNotUsableError for a value that the type has no
        place for."""
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
            return self._made(kind, self._moments())
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
            raise self._no_place("has more than 2 GiB in one batch")
        data = np.empty(total, np.uint8)
        copy(self.buf, self.start, rows, offsets, data)
        array = self._made(kind, offsets, data)
        if pa.types.is_string(kind):
            try:
                array.validate(full=True)
            except pa.ArrowInvalid as exc:
                raise self._no_place("holds bytes that are no text of UTF-8") from exc
        return array

    def _decimals(self, kind: pa.Decimal128Type) -> pa.Array:
        out = np.empty((len(self.valid), 2), np.int64)
        match read_numerics(self.buf, self.start, self.size, self.valid, kind.scale, out):
            case 0:
                return self._checked_decimals(self._made(kind, out))
            case fault if fault in {NOT_A_NUMBER, INFINITE}:
                special = "NaN" if fault == NOT_A_NUMBER else "Infinity"
                remedy = "Declare the column numeric without precision"
                raise self._no_place(f"holds {special}, which has no place in a decimal", remedy)
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
        return (days + EPOCH_DAYS).astype(np.int32)  # the last day that the server knows fits

    def _moments(self) -> Int64s:
        micros = self._integers(8)
        self._refuse_infinite(micros, (_INT64.min, _INT64.max))
        if (micros > _INT64.max - EPOCH_US).any():
            raise self._no_place("holds a time beyond what 64-bit microseconds since 1970 can say")
        return micros + EPOCH_US

    def _refuse_infinite(self, numbers: Int64s, infinities: tuple[int, int]) -> None:
        for sign, number in zip(("-", ""), infinities, strict=True):
            if (numbers == number).any():
                raise self._no_place(f"holds {sign}infinity, which has no place in a date or timestamp")

    def _no_place(self, what: str, remedy: str = "Correct these rows") -> SourceNotUsableError:
        return SourceNotUsableError(
            f"{self.table}.{self.column.name} {what}.", f"{remedy}, or exclude the column: source.columns."
        )

    def _damaged(self) -> DamagedLogError:
        return DamagedLogError(
            f"{self.table}.{self.column.name}: the server sent what its type can't be.",
            "Check what stands between job and source.",
        )


def _with_one_nan(bits: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.floating]:
    """The server tells no NaN from another, and writes none of their bits into its texts."""
    values = bits.view(f"f{bits.itemsize}")
    values[np.isnan(values)] = np.nan
    return values
