"""Finds the changes of a column's type that keep each of its values, and its text."""

import re
from dataclasses import replace

from tidemark.state.table import Column

_TYPE = re.compile(r"(?P<name>[a-z ]+?)(?:\((?P<numbers>[0-9,]+)\))?(?P<zone> with(?:out)? time zone)?")
_MAX_PRECISION = 38
_SECONDS = 6


def widens(before: Column, now: Column) -> bool:
    """Returns True if `now` holds each value of `before`, and shows it in the same form, if ALTER TABLE wrote no row."""
    as_before = replace(now, source_type=before.source_type, arrow_type=before.arrow_type, nullable=before.nullable)
    return before.captured and as_before == before and is_wider(before.source_type, now.source_type)


def is_wider(before: str, now: str) -> bool:
    """Compares two types as format_type() names them."""
    if before == now:
        return True
    old, new = _TYPE.fullmatch(before), _TYPE.fullmatch(now)
    if old is None or new is None or old["zone"] != new["zone"]:
        return False
    name, numbers = old["name"], _numbers(old["numbers"])
    name_now, numbers_now = new["name"], _numbers(new["numbers"])
    match name, name_now:
        case "character varying", "text":
            return True
        case "character varying", "character varying":
            return not numbers_now or (bool(numbers) and numbers <= numbers_now)
        case "numeric", "numeric" if numbers and numbers_now:
            return numbers[0] <= numbers_now[0] <= _MAX_PRECISION and numbers[1] == numbers_now[1]
        case "timestamp", "timestamp":
            return (numbers or (_SECONDS,)) <= (numbers_now or (_SECONDS,))
    return False


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",")) if text else ()
