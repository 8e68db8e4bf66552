"""PostgreSQL's numeric from texts and decimals, with NaN and infinities."""

from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.rows.fields import Fields, variable
from tidemark.sinks.rows.postgres_binary import numerics
from tidemark.sinks.rows.text import decimal_text
from tidemark.state.marks import not_numbers

_SIGN_AT = 4
SIGNS = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}
"""Signs that have no digits: NUMERIC_NAN, NUMERIC_PINF and NUMERIC_NINF in numeric.c."""


def numeric_texts(array: pa.Array) -> Fields:
    """Returns numeric fields of texts as the server writes them. Raises BadTextError."""
    special = pc.is_in(array, pa.array(list(SIGNS)))
    if pc.any(special).as_py() is not True:
        return numerics(variable(array))
    fields = numerics(variable(pc.if_else(special, "0", array)))  # which takes as many bytes
    for text, sign in SIGNS.items():
        _set_sign(fields, np.asarray(pc.fill_null(pc.equal(array, text), False)), sign)
    return fields


def decimals(array: pa.Array) -> Fields:
    """Returns numeric fields of decimals, some of which may be marks of NaN (`tidemark.state.marks`)."""
    nans = not_numbers(array)
    if nans is None:
        return numerics(decimal_text(array))
    fields = numerics(decimal_text(pc.if_else(pa.array(nans), pa.scalar(Decimal(0), array.type), array)))
    _set_sign(fields, nans, SIGNS["NaN"])
    return fields


def _set_sign(fields: Fields, rows: npt.NDArray[np.bool_], sign: int) -> None:
    """Sets the sign of fields whose value is 0."""
    at = fields.offsets[:-1][rows] + _SIGN_AT
    fields.data[at], fields.data[at + 1] = sign >> 8, sign & 255
