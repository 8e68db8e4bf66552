"""The value that a new column has in the rows that its table had: its literal default, or what NOT NULL gives without one.

Only forms are accepted that every version of the servers stores unchanged: no rounding, no conversion of character sets.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from tidemark.readers.mysql.connect import Connection, flavour_of
from tidemark.readers.mysql.schema.types import SourceType, parse_source_type
from tidemark.state.table import Column, TableId, canonical_constant


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal of a DEFAULT clause. `is_text`: it is quoted. `text`: without its quotes; it has no quotes or backslashes."""

    text: str
    is_text: bool


_DEFAULTS = (
    "SELECT column_name, column_default, extra FROM information_schema.columns "
    "WHERE table_schema = %s AND table_name = %s"
)
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_FLOATS = frozenset({"float", "double"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_ASCII_CHARSETS = frozenset({"ascii", "latin1", "utf8", "utf8mb3", "utf8mb4"})
_MAX_TEXT = 255
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
_DATE = re.compile(r"[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}( [0-9]{2}:[0-9]{2}:[0-9]{2}(\.(?P<fraction>[0-9]{1,6}))?)?")


def literal_constant(column: Column, literal: Literal) -> str | None:
    """Returns `Column.constant` of a column that was added with this default. None if that is not certain."""
    try:
        kind = parse_source_type(column.source_type)
    except ValueError:
        return None
    if kind.base in _INTEGERS or kind.base in _FLOATS or kind.base == "decimal":
        text = None if column.arrow_type == "string" else _number(kind, literal.text)
    else:
        text = _text(kind, column, literal.text) if literal.is_text else None
    return None if text is None else canonical_constant(text, column.arrow_type)


def implicit_constant(column: Column) -> str | None:
    """Returns `Column.constant` of a column that was added NOT NULL without a default. None if that is not certain.
    https://dev.mysql.com/doc/refman/8.4/en/data-type-defaults.html"""
    try:
        kind = parse_source_type(column.source_type)
    except ValueError:
        return None
    if kind.base == "enum":
        return literal_constant(column, Literal(kind.labels[0], is_text=True)) if kind.labels else None
    return literal_constant(column, Literal("" if kind.base in _TEXTS else "0", is_text=True))


def read_constants(connection: Connection, table: TableId, columns: Iterable[Column]) -> dict[str, str] | None:
    """Returns `Column.constant` of new columns, as their defaults are now, by name; without those that are NULL. None if that
    of a column is not certain. The log tells whether they were added with these defaults."""
    with connection.cursor() as cursor:
        cursor.execute(_DEFAULTS, (table.database, table.name))
        found = {name: (default, str(extra).upper()) for name, default, extra in cursor.fetchall()}
    is_mariadb = flavour_of(connection) == "mariadb"
    constants = {}
    for column in columns:
        default, extra = found.get(column.name, (None, ""))
        if default is None or (is_mariadb and default == "NULL"):
            if column.nullable:
                continue
            constant = None if "AUTO_INCREMENT" in extra else implicit_constant(column)
        else:
            literal = None if "DEFAULT_GENERATED" in extra else _catalog_literal(str(default), is_mariadb=is_mariadb)
            constant = None if literal is None else literal_constant(column, literal)
        if constant is None:
            return None
        constants[column.name] = constant
    return constants


def _catalog_literal(text: str, *, is_mariadb: bool) -> Literal | None:
    """MariaDB's catalog has the default as SQL, MySQL's the value alone."""
    if not is_mariadb:
        return Literal(text, is_text=True)
    inner = text[1:-1]
    if len(text) > 1 and text[0] == text[-1] == "'" and not re.search(r"['\\]", inner):
        return Literal(inner, is_text=True)
    return Literal(text, is_text=False) if _NUMBER.fullmatch(text) else None


def _number(kind: SourceType, text: str) -> str | None:
    if not _NUMBER.fullmatch(text):
        return None
    number = Decimal(text)
    if number < 0 and kind.unsigned:
        return None
    if kind.base in _FLOATS:
        stored = np.float32(text) if kind.base == "float" else np.float64(text)
        if kind.numbers or Decimal(float(stored)) != number or (number == 0 and number.is_signed()):
            return None
    return "0" if number == 0 else text.removeprefix("+")


def _text(kind: SourceType, column: Column, text: str) -> str | None:
    if not (text.isascii() and (text.isprintable() or not text)):
        return None
    if kind.base in _TEXTS or kind.base == "enum":
        longest = kind.numbers[0] if kind.numbers else _MAX_TEXT if kind.base != "char" else 1
        is_label = text in kind.labels and "?" not in text  # the catalog may show it for another character
        fits = is_label if kind.base == "enum" else len(text) <= longest
        is_kept = column.charset in _ASCII_CHARSETS and not (kind.base == "char" and text.endswith(" "))
        return text if fits and is_kept else None
    if kind.base == "date":
        return text if _DATE.fullmatch(text) else None
    match = _TIME.fullmatch(text) if kind.base == "datetime" else None
    if match is None or len(match["fraction"] or "") > (kind.numbers[0] if kind.numbers else 0):
        return None
    return text if " " in text else f"{text} 00:00:00"
