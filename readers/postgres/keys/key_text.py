"""Converts key values from Arrow back to the server's text, without a Python object per value."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.readers.postgres.connect import quote_literal
from tidemark.state import marks

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
    if pa.types.is_decimal(kind) and (found := marks.words(values)) is not None:
        return pc.if_else(pa.array(found[0]), found[1].cast(_TEXT), values.cast(_TEXT))
    if pa.types.is_binary(kind):
        return pc.binary_join_element_wise(pa.scalar("\\x", _TEXT), _hexadecimal(values), pa.scalar("", _TEXT))
    return values.cast(_TEXT)


def whole_key_text(columns: Sequence[pa.Array]) -> pa.LargeStringArray:
    """Returns one text per key of one or more columns. Equal keys have equal texts, byte for byte. The separator is NUL, which
    no text contains."""
    return pc.binary_join_element_wise(*map(key_text, columns), pa.scalar("\0", _TEXT))


def key_expression(kind: pa.DataType, text: str, sql_type: str) -> str:
    """Returns SQL that converts the text back to the value. Arrow's text has a smaller range of dates than the server, so
    dates are numbers of days or microseconds since 1970, infinities the marks of `tidemark.state.marks`. Days and microseconds
    of one day are exact as intervals; microseconds of many years are not."""
    if pa.types.is_date32(kind):
        finite = f"(date '1970-01-01' + {text}::integer)::{sql_type}"
        return _or_infinite(text, finite, (marks.MINUS_INFINITE_DATE, marks.INFINITE_DATE), sql_type)
    if pa.types.is_timestamp(kind):
        origin = "timestamp '1970-01-01'" if kind.tz is None else "timestamptz '1970-01-01 00:00:00+00'"
        day = f"({text}::bigint / {_DAY_US}) * interval '1 day'"
        finite = f"({origin} + {day} + ({text}::bigint % {_DAY_US}) * interval '1 microsecond')::{sql_type}"
        return _or_infinite(text, finite, (marks.MINUS_INFINITE_TIME, marks.INFINITE_TIME), sql_type)
    return f"{text}::{sql_type}"


def _or_infinite(text: str, finite: str, infinities: tuple[int, int], sql_type: str) -> str:
    """The server computes only the branch that it takes: the others would overflow."""
    least, greatest = infinities
    return (
        f"CASE {text} WHEN '{least}' THEN '-infinity'::{sql_type} WHEN '{greatest}' THEN 'infinity'::{sql_type} "
        f"ELSE {finite} END"
    )


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
