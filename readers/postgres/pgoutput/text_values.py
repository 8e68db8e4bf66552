"""Converts the server's text of values to Arrow arrays, equal to those that a SELECT gives.

The text is the server's output form under the settings of connect.SESSION. Arrow's parsers read it. What they do not accept
(years beyond four digits, BC) is parsed here, slower and exactly. A value that its type can't hold stops the job.
"""

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.readers.postgres.pgoutput.messages import damaged
from tidemark.state.errors import SourceNotUsableError, TidemarkError
from tidemark.state.table import Column, TableId, arrow_type_of

_MIN, _MAX = -(1 << 63), (1 << 63) - 1
_DAY_MICROSECONDS = 86_400_000_000
_TEMPORAL = re.compile(
    r"(?P<year>\d{4,})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?: (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d{1,6}))?(?:\+00)?)?(?P<bc> BC)?"
)
_PLAIN = r"^\d{4}-[^B]*$"
"""Matches texts that Arrow can parse: years of four digits, not BC, not infinite."""


def text_array(table: TableId, column: Column, texts: pa.StringArray) -> pa.Array:
    """Returns an array of the column's canonical type. bytea is decoded elsewhere (`hex_bytes`). `texts` may hold bytes that
    are not UTF-8. Raises SourceNotUsableError, DamagedLogError."""
    kind = arrow_type_of(column.arrow_type)
    where = f"{table}.{column.name}"
    if pa.types.is_string(kind):
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid as exc:
            raise _does_not_fit(where, "holds bytes that are not UTF-8", "Correct these rows") from exc
        return texts
    if pa.types.is_boolean(kind):
        return _booleans(where, texts)
    try:
        return pc.cast(texts, kind)
    except pa.ArrowInvalid as exc:
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            return _timestamps(where, texts, kind)
        raise _unreadable(where, texts) from exc


def _booleans(where: str, texts: pa.StringArray) -> pa.BooleanArray:
    known = pc.is_in(texts, pa.array(["t", "f"]))
    if pc.sum(known).as_py() not in (len(texts) - texts.null_count, None):
        raise _unreadable(where, texts)
    return pc.equal(texts, "t")


def _timestamps(where: str, texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
    plain = pc.fill_null(pc.match_substring_regex(texts, _PLAIN), True)
    try:
        common = pc.cast(pc.if_else(plain, texts, pa.scalar(None, pa.string())), kind)
    except pa.ArrowInvalid as exc:
        raise _unreadable(where, texts) from exc
    odd = np.flatnonzero(~plain.to_numpy(zero_copy_only=False))
    read: Callable[[str, str], int] = _days if pa.types.is_date(kind) else _microseconds
    numbers = [read(where, text) for text in texts.take(pa.array(odd)).to_pylist()]
    width = pa.int32() if pa.types.is_date(kind) else pa.int64()
    return pc.replace_with_mask(common, pc.invert(plain), pa.array(numbers, width).cast(kind))


def _days(where: str, text: str) -> int:
    """Returns days since 1970-01-01, in the proleptic Gregorian calendar."""
    if "infinity" in text:
        raise _infinite(where, text)
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
    days = _days(where, text)
    match = _TEMPORAL.fullmatch(text)
    if match is None or match["hour"] is None:
        raise damaged(f"{where} holds a text that is no date or timestamp")
    seconds = int(match["hour"]) * 3600 + int(match["minute"]) * 60 + int(match["second"])
    found = days * _DAY_MICROSECONDS + seconds * 1_000_000 + int((match["fraction"] or "0").ljust(6, "0"))
    if not _MIN <= found <= _MAX:
        raise _does_not_fit(
            where, "holds a timestamp which does not fit 64-bit microseconds since 1970", "Correct these rows"
        )
    return found


def _infinite(where: str, text: str) -> SourceNotUsableError:
    return _does_not_fit(where, f"holds {text}, which a date or timestamp of the copy can't hold", "Correct these rows")


def _unreadable(where: str, texts: pa.StringArray) -> TidemarkError:
    """Returns the error for texts that Arrow refused."""
    for special in ("NaN", "Infinity", "-Infinity"):
        if pc.any(pc.equal(texts, special)).as_py():
            return _does_not_fit(
                where,
                f"holds {special}, which a decimal can't hold",
                "Declare the column numeric without precision",
            )
    return damaged(f"{where} holds a text that its type can't have")


def _does_not_fit(where: str, what: str, remedy: str) -> SourceNotUsableError:
    return SourceNotUsableError(f"{where} {what}.", f"{remedy}, or exclude the column: source.columns.")
