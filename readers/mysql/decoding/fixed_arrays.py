"""Converts numbers, dates and times to Arrow arrays of fixed width."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.readers.mysql.decoding.column_codes import IMPOSSIBLE_DATE
from tidemark.readers.mysql.decoding.values import Values
from tidemark.state.kernel import Bytes, Int64s


def integers(values: Values) -> pa.Array:
    kind: npt.DTypeLike = values.output.type.to_pandas_dtype()
    wide = values.lo[values.rows]
    narrow = wide.astype(kind)
    if (narrow != wide).any():  # a MEDIUMINT or YEAR is stored in more bytes than it needs
        raise values.damaged()
    return values.array(narrow)


def unsigned(values: Values) -> pa.Array:
    """Converts unsigned 64-bit integers to decimal(20,0)."""
    wide = np.zeros((len(values.rows), 2), np.int64)
    wide[:, 0] = values.lo[values.rows]
    return values.array(wide)


def decimals(values: Values) -> pa.Array:
    wide = np.empty((len(values.rows), 2), np.int64)
    wide[:, 0] = values.lo[values.rows]
    wide[:, 1] = values.hi[values.rows]
    return values.array(wide)


def floats(values: Values) -> pa.Array:
    return values.array(values.lo[values.rows].astype(np.uint32))


def doubles(values: Values) -> pa.Array:
    return values.array(values.lo[values.rows])


def dates(values: Values) -> pa.Array:
    days, present = _without_invalid_dates(values)
    return values.array(days.astype(np.int32), present=present)


def datetimes(values: Values) -> pa.Array:
    micros, present = _without_invalid_dates(values)
    return values.array(micros, present=present)


def _without_invalid_dates(values: Values) -> tuple[Int64s, Bytes]:
    temporal, present = values.lo[values.rows], values.present()
    special = temporal <= IMPOSSIBLE_DATE
    if not special.any():
        return temporal, present
    if not values.zero_dates_null:
        raise values.unusable(
            "holds a date whose year, month or day is zero, or a day that its month does not have",
            "Set source.zero_dates: null, then start the job again: such dates are NULL in the copy.",
        )
    temporal[special] = 0
    present[special] = 0
    return temporal, present
