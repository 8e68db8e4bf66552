"""From planes to Arrow arrays: one canonical value a type, whichever way it came."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from readers.kernel import Bytes, Int64s
from readers.mysql import fixed_arrays, text_arrays
from readers.mysql.column_codes import Fault, fault_of
from readers.mysql.columns import ColumnPlan
from readers.mysql.decode import Planes
from readers.mysql.layouts import Conversion
from readers.mysql.values import Values, damaged_column
from state.errors import TidemarkError, UnknownLogEventError

_CONVERT: dict[Conversion, Callable[[Values], pa.Array]] = {
    Conversion.INTEGER: fixed_arrays.integers,
    Conversion.UNSIGNED: fixed_arrays.unsigned,
    Conversion.DECIMAL: fixed_arrays.decimals,
    Conversion.FLOAT: fixed_arrays.floats,
    Conversion.DOUBLE: fixed_arrays.doubles,
    Conversion.DATE: fixed_arrays.dates,
    Conversion.DATETIME: fixed_arrays.datetimes,
    Conversion.TIME: text_arrays.times,
    Conversion.BYTES: text_arrays.byte_strings,
    Conversion.PADDED_BYTES: text_arrays.padded_bytes,
    Conversion.TEXT: text_arrays.texts,
    Conversion.PACKED_DECIMAL: text_arrays.packed_decimals,
    Conversion.ASCII: text_arrays.ascii_texts,
    Conversion.ENUM: text_arrays.enum_labels,
    Conversion.SET: text_arrays.set_labels,
    Conversion.BINARY_JSON: text_arrays.json_texts,
    Conversion.VECTOR: text_arrays.vectors,
    Conversion.UUID: text_arrays.uuids,
    Conversion.INET6: text_arrays.inet6_texts,
    Conversion.INET4: text_arrays.inet4_texts,
}


def to_arrow(
    plan: ColumnPlan, buf: Bytes, planes: Planes, rows: int | Int64s, *, zero_dates_null: bool
) -> list[pa.Array]:
    """The captured columns' arrays, in order, of the first `rows` rows, or of the rows with these indices.

    `buf` is what the planes point into; the arrays share nothing with it. Raises DamagedLogError for bytes that the type
    does not have, SourceNotUsableError for values that Arrow or text can't hold.
    """
    wanted = np.arange(rows, dtype=np.int64) if isinstance(rows, int) else np.ascontiguousarray(rows, np.int64)
    arrays = []
    for output in plan.outputs:
        lo, hi, valid = planes.lo[output.plane], planes.hi[output.plane], planes.valid[output.plane]
        arrays.append(
            _CONVERT[output.conversion](Values(plan.table, output, buf, lo, hi, valid, wanted, zero_dates_null))
        )
    return arrays


def decode_error(plan: ColumnPlan, answer: int, where: str) -> TidemarkError:
    """What to raise for a decoder's negative answer. `where`: `binlog.000002:1234`, `SELECT of shop.orders`."""
    fault, plane = fault_of(answer)
    match fault:
        case Fault.PARTIAL_IMAGE:
            return UnknownLogEventError(
                f"{where}: a row of {plan.table} does not have all columns.",
                "SET GLOBAL binlog_row_image=FULL on the source, and let no session set another.",
            )
        case Fault.DAMAGED:
            return damaged_column(f"{where}: {plan.table}.{plan.column_name(plane)}")
        case Fault.UNKNOWN_CODE | Fault.NO_ROOM | Fault.WIDE_PACKET:
            raise AssertionError(f"{where}: {fault.name} in {plan.table}.{plan.column_name(plane)}")
