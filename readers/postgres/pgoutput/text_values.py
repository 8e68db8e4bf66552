"""Converts the server's text of values to Arrow arrays, equal to those that a SELECT gives.

The text is the server's output form under the settings of connect.SESSION. Arrow's parsers read it. What they do not accept
(years beyond four digits, BC) is parsed here, slower and exactly. `BadValueRule` decides what becomes of a value that the
type can't hold.
"""

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.readers.bad_values import STOP, BadColumn, BadValueRule
from tidemark.readers.postgres.bad_values import settled_times, with_marked_texts
from tidemark.readers.postgres.pgoutput.messages import damaged
from tidemark.state import marks
from tidemark.state.errors import TidemarkError
from tidemark.state.table import Column, TableSchema, arrow_type_of, canonical_constant

_INFINITE_DAYS = {"-infinity": marks.MINUS_INFINITE_DATE, "infinity": marks.INFINITE_DATE}
_INFINITE_TIMES = {"-infinity": marks.MINUS_INFINITE_TIME, "infinity": marks.INFINITE_TIME}
_DAY_MICROSECONDS = 86_400_000_000
_TEMPORAL = re.compile(
    r"(?P<year>\d{4,})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?: (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d{1,6}))?(?:\+00)?)?(?P<bc> BC)?"
)
_CONSTANT_TYPES = frozenset(
    {
        "bool", "date", "enum", "float4", "float8", "int2", "int4", "int8", "json", "jsonb", "numeric", "text", "timestamp",
        "timestamptz", "uuid", "varchar",
    }
)  # fmt: skip
_PLAIN = r"^\d{4}-[^B]*$"
"""Matches texts that Arrow can parse: years of four digits, not BC, not infinite."""


def text_array(schema: TableSchema, column: Column, texts: pa.StringArray, rule: BadValueRule = STOP) -> pa.Array:
    """Returns an array of the column's canonical type. bytea is decoded elsewhere (`hex_bytes`). `texts` may hold bytes that
    are not UTF-8. Raises SourceNotUsableError, DamagedLogError."""
    kind = arrow_type_of(column.arrow_type)
    where = f"{schema.table}.{column.name}"
    if pa.types.is_string(kind):
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            return with_marked_texts(schema, column, texts, rule)
        return texts
    if pa.types.is_boolean(kind):
        return _booleans(where, texts)
    try:
        return pc.cast(texts, kind)
    except pa.ArrowInvalid as exc:
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            return settled_times(schema, column, _timestamps(where, texts, kind), rule)
        are_nan = np.asarray(pc.fill_null(pc.equal(texts, "NaN"), False))
        if not pa.types.is_decimal(kind) or not are_nan.any():
            raise _unreadable(where) from exc
    try:
        numbers = pc.cast(pc.if_else(pa.array(are_nan), pa.scalar(None, pa.string()), texts), kind)
    except pa.ArrowInvalid as exc:
        raise _unreadable(where) from exc
    return rule.settled(BadColumn.of(schema, column.name), marks.with_nan_marks(numbers, are_nan), are_nan, "holds NaN")


def constant_of(schema: TableSchema, column: Column, type_name: str, text: str) -> str | None:
    """Returns `Column.constant` for a value's text. None for types whose texts a target may change, and for values without a
    place in the canonical type. `type_name`: as in pg_type, "enum" for an enum."""
    if type_name not in _CONSTANT_TYPES:
        return None
    try:
        value = text_array(schema, column, pa.array([text]))
        return canonical_constant(str(pc.cast(value, pa.string())[0].as_py()), column.arrow_type)
    except (TidemarkError, pa.ArrowInvalid):
        return None


def _booleans(where: str, texts: pa.StringArray) -> pa.BooleanArray:
    known = pc.is_in(texts, pa.array(["t", "f"]))
    if pc.sum(known).as_py() not in (len(texts) - texts.null_count, None):
        raise _unreadable(where)
    return pc.equal(texts, "t")


def _timestamps(where: str, texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    plain = pc.fill_null(pc.match_substring_regex(texts, _PLAIN), True)
    try:
        common = pc.cast(pc.if_else(plain, texts, pa.scalar(None, pa.string())), kind)
    except pa.ArrowInvalid as exc:
        raise _unreadable(where) from exc
    odd = np.flatnonzero(~plain.to_numpy(zero_copy_only=False))
    read: Callable[[str, str], int] = _days if pa.types.is_date(kind) else _microseconds
    numbers = [read(where, text) for text in texts.take(pa.array(odd)).to_pylist()]
    width = pa.int32() if pa.types.is_date(kind) else pa.int64()
    return pc.replace_with_mask(common, pc.invert(plain), pa.array(numbers, width).cast(kind))


def _days(where: str, text: str) -> int:
    """Returns days since 1970-01-01, in the proleptic Gregorian calendar."""
    if text in _INFINITE_DAYS:
        return _INFINITE_DAYS[text]
    match = _TEMPORAL.fullmatch(text)
    if match is None:
        raise damaged(f"{where} holds a text that is no date or timestamp")
    year, month, day = int(match["year"]), int(match["month"]), int(match["day"])
    if match["bc"]:
        year = 1 - year
    # Howard Hinnant, chrono-compatible low-level date algorithms: days_from_civil
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def _microseconds(where: str, text: str) -> int:
    if text in _INFINITE_TIMES:
        return _INFINITE_TIMES[text]
    days = _days(where, text)
    match = _TEMPORAL.fullmatch(text)
    if match is None or match["hour"] is None:
        raise damaged(f"{where} holds a text that is no date or timestamp")
    seconds = int(match["hour"]) * 3600 + int(match["minute"]) * 60 + int(match["second"])
    found = days * _DAY_MICROSECONDS + seconds * 1_000_000 + int((match["fraction"] or "0").ljust(6, "0"))
    if found <= marks.MINUS_INFINITE_TIME:
        raise damaged(f"{where} holds a text that is no date or timestamp")
    return min(found, marks.TOO_LATE)


def _unreadable(where: str) -> TidemarkError:
    """Returns the error for texts that Arrow refused."""
    return damaged(f"{where} holds a text that its type can't have")
