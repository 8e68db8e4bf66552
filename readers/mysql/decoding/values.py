"""One column's buffers and the wanted rows: the input of every conversion to Arrow."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.readers.bad_values import STOP, BadColumn, BadValueRule
from tidemark.readers.gather import MAX_OFFSET, copy, measure
from tidemark.readers.mysql.decoding.charsets import decode_text, escaped_text
from tidemark.readers.mysql.decoding.columns import Output
from tidemark.readers.mysql.decoding.usual_codes import has_unusual_code
from tidemark.state import marks
from tidemark.state.errors import DamagedLogError, SourceNotUsableError
from tidemark.state.kernel import Bytes, Int32s, Int64s
from tidemark.state.remedies import DAMAGED_SOURCE, START_OVER
from tidemark.state.table import TableId


@dataclass(frozen=True, slots=True)
class Values:
    """`lo`, `hi`, `valid`: this column of the `ColumnBuffers`. `rows`: indices into them."""

    table: TableId
    output: Output
    buf: Bytes
    lo: Int64s
    hi: Int64s
    valid: Bytes
    rows: Int64s
    zero_dates_null: bool
    rule: BadValueRule = STOP

    def present(self) -> Bytes:
        return self.valid[self.rows]

    def array(
        self, *buffers: npt.NDArray[np.generic], present: Bytes | None = None, children: list[pa.Array] | None = None
    ) -> pa.Array:
        """An array of the output's type from its Arrow buffers. `present`: 1 = not null; by default from `valid`."""
        if present is None:
            present = self.present()
        nulls = len(present) - int(np.count_nonzero(present))
        mask = pa.py_buffer(np.packbits(present, bitorder="little")) if nulls else None
        parts = [mask, *(pa.py_buffer(buffer) for buffer in buffers)]
        return pa.Array.from_buffers(self.output.type, len(present), parts, nulls, children=children)

    def gathered(self) -> tuple[Int32s, Bytes]:
        """Offsets and bytes of values of variable length."""
        offsets = np.empty(len(self.rows) + 1, np.int32)
        total = measure(self.hi, self.rows, offsets)
        if total < 0:
            raise self.too_large()
        data = np.empty(total, np.uint8)
        copy(self.buf, self.lo, self.rows, offsets, data)
        return offsets, data

    def fixed_offsets(self, size: int) -> Int32s:
        """Offsets of values that all have `size` bytes; a null has none."""
        sizes = self.present().astype(np.int64) * size
        if int(sizes.sum()) > MAX_OFFSET:
            raise self.too_large()
        offsets = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        return offsets

    def texts(self, convert: Callable[[bytes], str]) -> pa.Array:
        """Converts values one by one in Python. `convert` raises ValueError for invalid bytes."""
        try:
            return pa.array([None if value is None else convert(value) for value in self._bytes()], self.output.type)
        except ValueError as exc:
            raise self.damaged() from exc

    def decoded(self) -> pa.Array:
        """Decodes texts one by one in Python, with marks for those that are not in the column's charset, as the rule says. In a
        key also those with unusual codes are bad: another key may have the same text."""
        charset, texts = str(self.output.charset), list[str | None]()
        is_bad, is_unusual = np.zeros(len(self.rows), np.bool_), np.zeros(len(self.rows), np.bool_)
        for row, value in enumerate(self._bytes()):
            try:
                texts.append(None if value is None else decode_text(charset, value))
            except UnicodeDecodeError:
                texts.append(marks.UNDECODABLE + escaped_text(charset, value or b""))
                is_bad[row] = True
            else:
                is_unusual[row] = self.output.is_key and has_unusual_code(charset, value or b"", texts[-1] or "")
        array = pa.array(texts, self.output.type)
        column = BadColumn(self.table, self.output.name, self.output.is_key)
        if is_unusual.any():
            what = f"has characters that {charset} has twice, by the code that the server does not write"
            advice = " Two keys of the source could be one text."
            self.rule.settled(column, array, is_unusual, what, exact=False, advice=advice)
        if is_bad.any():
            array = self.rule.settled(column, array, is_bad, f"has bytes that are not valid {charset}", exact=False)
        return array

    def _bytes(self) -> Iterator[bytes | None]:
        starts, sizes = self.lo[self.rows].tolist(), self.hi[self.rows].tolist()
        for start, size, present in zip(starts, sizes, self.present().tolist(), strict=True):
            yield self.buf[start : start + size].tobytes() if present else None

    def unusable(self, what: str, remedy: str) -> SourceNotUsableError:
        return SourceNotUsableError(f"{self.table}.{self.output.name} {what}.", remedy, self.table)

    def too_large(self) -> SourceNotUsableError:
        return self.unusable(
            "has more than 2 GiB in one batch", f"Exclude the column (source.columns), then {START_OVER}."
        )

    def damaged(self) -> DamagedLogError:
        return damaged_column(self.table, f"{self.table}.{self.output.name}")


def damaged_column(table: TableId, where: str) -> DamagedLogError:
    """The error for a value that can't be decoded. It concerns its table alone: the rows of others are whole."""
    return DamagedLogError(f"{where}: the bytes are invalid for the column's type.", DAMAGED_SOURCE, table)
