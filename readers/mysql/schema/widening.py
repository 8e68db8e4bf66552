"""Finds the changes of a column's type that keep each of its values, and its form in a copy."""

from dataclasses import replace

from tidemark.readers.mysql.schema.types import SourceType, parse_source_type
from tidemark.state.table import Column

INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXTS = ("tinytext", "text", "mediumtext", "longtext")
_BLOBS = ("tinyblob", "blob", "mediumblob", "longblob")
_MAX_PRECISION = 38


def widens(before: Column, now: Column) -> bool:
    """Returns True if a column that was altered from `before` to `now`, at once, has the values that it had, and `now` only
    allows more. A column that becomes NOT NULL is not one of these: without strict mode NULL becomes another value."""
    if not before.captured or (before.nullable and not now.nullable) or now.generated:
        return False
    if replace(now, source_type=before.source_type, arrow_type=before.arrow_type, nullable=before.nullable) != before:
        return False
    try:
        return is_wider(parse_source_type(before.source_type), parse_source_type(now.source_type))
    except ValueError:
        return False


def is_wider(before: SourceType, now: SourceType) -> bool:
    """Returns True if `now` is the same type, or holds each value of `before` unchanged. Not so for BINARY, which pads values,
    for TIMESTAMP, and for types with other options such as ZEROFILL."""
    if before == now:
        return True
    if before.attributes != now.attributes or "zerofill" in now.attributes or "mariadb" in now.attributes:
        return False
    if before.base in INTEGERS and now.base in INTEGERS:
        return INTEGERS.index(before.base) <= INTEGERS.index(now.base)
    if now.base in _TEXTS and before.base in _TEXTS:
        return _TEXTS.index(before.base) <= _TEXTS.index(now.base)
    if now.base in _BLOBS and before.base in _BLOBS:
        return _BLOBS.index(before.base) <= _BLOBS.index(now.base)
    if (
        before.base in {"varchar", "varbinary"}
        and now.base in {"varchar": _TEXTS[1:], "varbinary": _BLOBS[1:]}[before.base]
    ):
        return True
    if before.base != now.base:
        return False
    match now.base:
        case "varchar" | "varbinary" | "char":
            return before.numbers <= now.numbers
        case "datetime":
            return (before.numbers or (0,)) <= (now.numbers or (0,))
        case "decimal":
            (precision, scale), (precision_now, scale_now) = _digits(before), _digits(now)
            is_deeper = scale <= scale_now and precision - scale <= precision_now - scale_now
            return is_deeper and precision_now <= _MAX_PRECISION
        case "enum" | "set":
            is_known = not any("?" in label for label in now.labels)  # the catalog may show it for another character
            return is_known and now.labels[: len(before.labels)] == before.labels
    return False


def same_values(one: SourceType, other: SourceType) -> bool:
    """Returns True if the types differ at most in an integer's display width."""
    if one.base in INTEGERS and "zerofill" not in one.attributes:
        return (one.base, one.attributes) == (other.base, other.attributes)
    if one.base == "decimal":
        return (one.base, _digits(one), one.attributes) == (other.base, _digits(other), other.attributes)
    return one == other


def _digits(kind: SourceType) -> tuple[int, int]:
    precision, scale = (*kind.numbers, 0)[:2] if kind.numbers else (10, 0)
    return precision, scale
