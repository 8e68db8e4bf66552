"""PostgreSQL's numeric from texts, with NaN and infinities."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.rows.fields import Fields, variable
from tidemark.sinks.rows.postgres_binary import numerics

_SIGN_AT = 4
SIGNS = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}
"""Signs that have no digits: NUMERIC_NAN, NUMERIC_PINF and NUMERIC_NINF in numeric.c."""


def numeric_texts(array: pa.Array) -> Fields:
    """Returns numeric fields of texts as the server writes them. Raises BadTextError."""
    special = pc.is_in(array, pa.array(list(SIGNS)))
    if pc.any(special).as_py() is not True:
        return numerics(variable(array))
    fields = numerics(variable(pc.if_else(special, "0", array)))  # which takes as many bytes
    starts = fields.offsets[:-1]
    for text, sign in SIGNS.items():
        at = starts[np.asarray(pc.fill_null(pc.equal(array, text), False))] + _SIGN_AT
        fields.data[at], fields.data[at + 1] = sign >> 8, sign & 255
    return fields
