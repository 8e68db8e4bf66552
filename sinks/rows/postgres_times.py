"""PostgreSQL's dates and timestamps in binary, with infinities (`tidemark.state.marks`), whose numbers are the server's own."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.sinks.rows.fields import Fields, fixed, validity, values
from tidemark.state import marks

_EPOCH_DAYS = 10957
_EPOCH_MICROSECONDS = _EPOCH_DAYS * 86_400_000_000
"""PostgreSQL counts from 2000-01-01, Arrow from 1970-01-01."""


def dates(array: pa.Array) -> Fields:
    return fixed(_moved(array, "<i4", _EPOCH_DAYS).astype(">i4"), validity(array))


def timestamps(array: pa.Array) -> Fields:
    """Returns microseconds since 2000, for timestamps with and without a zone."""
    return fixed(_moved(array, "<i8", _EPOCH_MICROSECONDS).astype(">i8"), validity(array))


def _moved(array: pa.Array, dtype: str, by: int) -> npt.NDArray[Any]:
    numbers = values(array, dtype)
    infinite = marks.infinite(array)
    return numbers - by if infinite is None else np.where(infinite, numbers, numbers - by)
