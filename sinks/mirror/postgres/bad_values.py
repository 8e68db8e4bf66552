"""The values that columns of PostgreSQL can't hold."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.mirror.bad_values import BadValueMask, Mask
from tidemark.sinks.rows.fields import Fields, variable
from tidemark.state import marks

NUL_SYMBOL = "\u2400"
"""Written for the character NUL by `on_bad_value: text`."""
TEXTS = frozenset({"text", "varchar", "bpchar"})
_CHECKED = TEXTS | {"json", "jsonb"}
_ESCAPED_NUL = r"(?:^|[^\\])(?:\\\\)*\\u0000"


def bad_values(array: pa.Array, type_name: str, *, marked: bool) -> BadValueMask | None:
    """Returns the values that a column of this type (pg_type.typname) can't hold; None if it can hold all. `marked`: the values
    come from PostgreSQL, with marks."""
    if marked and pa.types.is_timestamp(array.type):
        late = marks.too_late(array)
        return None if late is None else BadValueMask(late, "is after the year 294246")
    if not pa.types.is_string(array.type) or type_name not in _CHECKED:
        return None
    fields = variable(array)
    rows = _with_nul(fields)
    if rows is not None:
        return BadValueMask(rows, "has bytes that are not UTF-8" if marked else _why(array))
    if type_name == "jsonb":
        escaped = np.asarray(pc.fill_null(pc.match_substring_regex(array, _ESCAPED_NUL), False))
        return BadValueMask(escaped, "has a NUL character") if escaped.any() else None
    return None


def _why(array: pa.Array) -> str:
    return "has a NUL character" if marks.undecodable(array) is None else marks.NOT_IN_CHARSET


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


def without_nul(array: pa.Array, *, marked: bool) -> pa.Array:
    """Returns the texts with another character instead of NUL. Of a mark only the text with its escapes remains."""
    array = marks.unmarked_texts(array) if marked else marks.decoded_texts(array)
    return pc.replace_substring(array, "\0", NUL_SYMBOL)
