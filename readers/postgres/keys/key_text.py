"""Converts key values from Arrow back to the server's text, without a Python object per value."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.readers.postgres.connect import quote_literal

_DAY_US = 86_400_000_000
_HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_TEXT = pa.large_string()


def key_text(values: pa.Array) -> pa.LargeStringArray:
    """Returns texts that `key_expression` reads. `values` has a canonical type (state/table.py) and no nulls."""
    kind = values.type
    if pa.types.is_date32(kind):
        return values.cast(pa.int32()).cast(_TEXT)
    if pa.types.is_timestamp(kind):
        return values.cast(pa.int64()).cast(_TEXT)
    if pa.types.is_binary(kind):
        return pc.binary_join_element_wise(pa.scalar("\\x", _TEXT), _hexadecimal(values), pa.scalar("", _TEXT))
    return values.cast(_TEXT)


def whole_key_text(columns: Sequence[pa.Array]) -> pa.LargeStringArray:
    """Returns one text per key of one or more columns. Equal keys have equal texts, byte for byte. The separator is NUL, which
    no text contains."""
    return pc.binary_join_element_wise(*map(key_text, columns), pa.scalar("\0", _TEXT))


def key_expression(kind: pa.DataType, text: str, sql_type: str) -> str:
    """Returns SQL that converts the text back to the value. Arrow's text has a smaller range of dates than the server, so
    dates are numbers of days or microseconds since 1970. Days and microseconds of one day are exact as intervals;
    microseconds of many years are not."""
    if pa.types.is_date32(kind):
        return f"(date '1970-01-01' + {text}::integer)::{sql_type}"
    if pa.types.is_timestamp(kind):
        origin = "timestamp '1970-01-01'" if kind.tz is None else "timestamptz '1970-01-01 00:00:00+00'"
        day = f"({text}::bigint / {_DAY_US}) * interval '1 day'"
        return f"({origin} + {day} + ({text}::bigint % {_DAY_US}) * interval '1 microsecond')::{sql_type}"
    return f"{text}::{sql_type}"


def array_literal(texts: pa.LargeStringArray) -> str:
    """Returns a text[] as SQL. The texts must not contain NUL."""
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    joined = pc.binary_join(
        pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), escaped), pa.scalar('","', _TEXT)
    )
    return quote_literal('{"' + joined[0].as_py() + '"}' if len(texts) else "{}") + "::text[]"


def _hexadecimal(values: pa.BinaryArray) -> pa.LargeStringArray:
    wide = values.cast(pa.large_binary())
    _, offsets, data = wide.buffers()
    ends = np.frombuffer(offsets, np.int64)[wide.offset : wide.offset + len(wide) + 1]
    whole = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    flat = whole[ends[0] : ends[-1]]
    digits = np.column_stack((_HEX_DIGITS[flat >> 4], _HEX_DIGITS[flat & 15])).ravel()
    return pa.LargeStringArray.from_buffers(len(wide), pa.py_buffer(2 * (ends - ends[0])), pa.py_buffer(digits))
