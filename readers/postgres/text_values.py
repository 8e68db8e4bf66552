"""From the server's text of values to Arrow arrays: the same that the SELECT side has.

The text is the server's output form under the settings of connect.SESSION. Arrow's own parsers read it; what they don't
know (years beyond four digits, BC) goes a slower, exact way. What has no place in the type stops the job.
"""

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from readers.postgres.log_messages import damaged
from state.errors import SourceNotUsableError, TidemarkError
from state.table import Column, TableId, arrow_type_of

_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1
_DAY_MICROSECONDS = 86_400_000_000
_MOMENT = re.compile(
    r"(?P<year>\d{4,})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?: (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d{1,6}))?(?:\+00)?)?(?P<bc> BC)?"
)
_PLAIN = r"^\d{4}-[^B]*$"
"""Of what Arrow reads: no year beyond four digits, not BC, not infinite."""


def text_array(table: TableId, column: Column, texts: pa.StringArray) -> pa.Array:
    """The array of the column's canonical type; bytea has one of its own (`hex_bytes`). `texts` may hold bytes that are
    no UTF-8. Raises SourceNotUsableError, DamagedLogError."""
    kind = arrow_type_of(column.arrow_type)
    where = f"{table}.{column.name}"
    if pa.types.is_string(kind):
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid as exc:
            raise _no_place(where, "holds bytes that are no text of UTF-8", "Correct these rows") from exc
        return texts
    if pa.types.is_boolean(kind):
        return _booleans(where, texts)
    try:
        return pc.cast(texts, kind)
    except pa.ArrowInvalid as exc:
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            return _moments(where, texts, kind)
        raise _unreadable(where, texts) from exc


def _booleans(where: str, texts: pa.StringArray) -> pa.BooleanArray:
    known = pc.is_in(texts, pa.array(["t", "f"]))
    if pc.sum(known).as_py() not in (len(texts) - texts.null_count, None):
        raise _unreadable(where, texts)
    return pc.equal(texts, "t")


def _moments(where: str, texts: pa.StringArray, kind: pa.DataType) -> pa.Array:
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
    """Since 1970-01-01, in the proleptic Gregorian calendar."""
    if "infinity" in text:
        raise _infinite(where, text)
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise damaged(f"{where} holds {text!r}")
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
    match = _MOMENT.fullmatch(text)
    if match is None or match["hour"] is None:
        raise damaged(f"{where} holds {text!r}")
    seconds = int(match["hour"]) * 3600 + int(match["minute"]) * 60 + int(match["second"])
    found = days * _DAY_MICROSECONDS + seconds * 1_000_000 + int((match["fraction"] or "0").ljust(6, "0"))
    if not _LEAST <= found <= _GREATEST:
        raise _no_place(
            where, f"holds {text}, beyond what 64-bit microseconds since 1970 can say", "Correct these rows"
        )
    return found


def _infinite(where: str, text: str) -> SourceNotUsableError:
    return _no_place(where, f"holds {text}, which has no place in a date or timestamp", "Correct these rows")


def _unreadable(where: str, texts: pa.StringArray) -> TidemarkError:
    """Why Arrow refused them."""
    for special in ("NaN", "Infinity", "-Infinity"):
        if pc.any(pc.equal(texts, special)).as_py():
            return _no_place(
                where,
                f"holds {special}, which has no place in a decimal",
                "Declare the column numeric without precision",
            )
    return damaged(f"{where} holds what its type can't be")


def _no_place(where: str, what: str, remedy: str) -> SourceNotUsableError:
    return SourceNotUsableError(f"{where} {what}.", f"{remedy}, or exclude the column: source.columns.")
