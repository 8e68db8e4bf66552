"""From column buffers to Arrow arrays: log and SELECT give the same canonical value for each type."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tidemark.conf.tables import TableName, setting_of
from tidemark.readers.bad_values import STOP, BadValueRule
from tidemark.readers.mysql.decoding import fixed_arrays, text_arrays
from tidemark.readers.mysql.decoding.column_codes import ErrorCode, error_code_of
from tidemark.readers.mysql.decoding.columns import ColumnPlan
from tidemark.readers.mysql.decoding.decode import ColumnBuffers
from tidemark.readers.mysql.decoding.type_layouts import Conversion
from tidemark.readers.mysql.decoding.values import Values, damaged_column
from tidemark.state.errors import IncompleteRowsError, TidemarkError, UnknownLogEventError
from tidemark.state.kernel import Bytes, Int64s
from tidemark.state.remedies import START_OVER, read_again

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
    plan: ColumnPlan,
    buf: Bytes,
    buffers: ColumnBuffers,
    rows: int | Int64s,
    *,
    zero_dates_null: bool,
    rule: BadValueRule = STOP,
) -> list[pa.Array]:
    """The captured columns' arrays, in order. `rows`: a count of first rows, or row indices.

    `buffers` point into `buf`; the arrays share no memory with it. Raises DamagedLogError for bytes that are invalid for
    the type, SourceNotUsableError for values that the Arrow type can't hold, unless `rule` says otherwise.
    """
    wanted = np.arange(rows, dtype=np.int64) if isinstance(rows, int) else np.ascontiguousarray(rows, np.int64)
    arrays = []
    for output in plan.outputs:
        lo, hi, valid = buffers.lo[output.index], buffers.hi[output.index], buffers.valid[output.index]
        array = _CONVERT[output.conversion](
            Values(plan.table, output, buf, lo, hi, valid, wanted, zero_dates_null, rule)
        )
        arrays.append(array if output.wider is None else array.cast(output.wider))
    return arrays


def decode_error(plan: ColumnPlan, answer: int, where: str, *, lacks_generated: bool = False) -> TidemarkError:
    """The error for a decoder's negative answer. `where`: `binlog.000002:1234` or `SELECT of shop.orders`. `lacks_generated`:
    the catalog's schemas have no generated columns, so a table that is read again has none."""
    error_code, index = error_code_of(answer)
    match error_code:
        case ErrorCode.PARTIAL_IMAGE if plan.is_generated(index):
            table, names = plan.table, plan.generated_names()
            again = read_again(TableName(table.database, table.name))
            text = (
                f"{where}: the log lacks generated columns of {table}: {', '.join(names)}. Some versions of MariaDB leave them "
                "out of updates and deletes."
            )
            remedy = f"Leave them out: {setting_of('source.columns', table, {'exclude': names})}. {again}"
            if lacks_generated:
                return IncompleteRowsError(text, remedy, table)
            return UnknownLogEventError(text, remedy, table)
        case ErrorCode.PARTIAL_IMAGE:
            return IncompleteRowsError(
                f"{where}: a row of {plan.table} does not have all columns: binlog_row_image was not FULL in the session that "
                "wrote it.",
                f"SET GLOBAL binlog_row_image=FULL on the source and let no session set another value, then {START_OVER}.",
                plan.table,
            )
        case ErrorCode.DAMAGED:
            return damaged_column(plan.table, f"{where}: {plan.table}.{plan.column_name(index)}")
        case ErrorCode.UNKNOWN_CODE | ErrorCode.NO_ROOM | ErrorCode.WIDE_PACKET:
            raise AssertionError(f"{where}: {error_code.name} in {plan.table}.{plan.column_name(index)}")
