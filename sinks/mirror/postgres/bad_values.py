"""The values that columns of PostgreSQL can't hold."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.mirror.bad_values import BadValueMask, Mask
from tidemark.sinks.rows.fields import Fields, variable

NUL_SYMBOL = "\u2400"
"""Written for the character NUL by `on_bad_value: text`."""
TEXTS = frozenset({"text", "varchar", "bpchar"})
_CHECKED = TEXTS | {"json", "jsonb"}
_ESCAPED_NUL = r"(?:^|[^\\])(?:\\\\)*\\u0000"


def bad_values(array: pa.Array, type_name: str) -> BadValueMask | None:
    """Returns the values that a column of this type (pg_type.typname) can't hold; None if it can hold all."""
    if not pa.types.is_string(array.type) or type_name not in _CHECKED:
        return None
    fields = variable(array)
    rows = _with_nul(fields)
    if rows is not None:
        return BadValueMask(rows, "has a NUL character")
    if type_name == "jsonb":
        escaped = np.asarray(pc.fill_null(pc.match_substring_regex(array, _ESCAPED_NUL), False))
        return BadValueMask(escaped, "has a NUL character") if escaped.any() else None
    return None


def _with_nul(fields: Fields) -> Mask | None:
    """Returns which fields have a zero byte; None for none."""
    if not len(fields.valid):
        return None
    first = fields.offsets[0]
    places = np.flatnonzero(fields.data[first : fields.offsets[-1]] == 0)
    if not len(places):
        return None
    rows: Mask = np.zeros(len(fields.valid), bool)
    rows[np.searchsorted(fields.offsets, places + first, side="right") - 1] = True
    rows &= fields.valid
    return rows if rows.any() else None


def without_nul(array: pa.Array) -> pa.Array:
    return pc.replace_substring(array, "\0", NUL_SYMBOL)
