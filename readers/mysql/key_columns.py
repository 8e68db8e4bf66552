"""Split-key columns: which columns a table can be cut by, and how their values are asked for and written as SQL.

A column can be a split key if the server's order and equality of its values are known exactly. Not so:
- ENUM, SET: both servers compare them in SQL by their text or number, never by a range of the index (seen: type ALL);
- FLOAT, DOUBLE: a literal of their shown text is another number;
- MariaDB's UUID: it compares two values by another rule than its index orders them (by version, with fields swapped);
- TEXT, BLOB: their indexes hold prefixes only;
- the collations of INEXACT_COLLATIONS, and character sets in which two byte strings are the same text.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from readers.mysql.charsets import GREATEST_CHARACTER_BYTES
from readers.mysql.connect import quote_identifier
from readers.mysql.key_text import encoder
from readers.mysql.types import GREATEST_ARROW_PRECISION, parse_source_type
from state.errors import SourceNotUsableError
from state.split import Bound, KeyRange
from state.table import Column, TableId, TableSchema

INEXACT_COLLATIONS = re.compile(r"big5_chinese_.*|.*_czech_cs|gb18030_chinese_ci|tis620_thai_.*|.*_nopad_ai_cs")
"""Whose WEIGHT_STRING does not order as the server itself does; found by trying all collations of MySQL 9.7, MariaDB
10.11 and 11.4 with strings of letters, accents, spaces, control and ignorable characters."""


class KeyKind(Enum):
    INTEGER = auto()  # and BIT
    YEAR = auto()
    DECIMAL = auto()
    DATE = auto()
    MOMENT = auto()  # DATETIME, TIMESTAMP
    TIME = auto()
    TEXT = auto()
    BYTES = auto()
    INET4 = auto()
    INET6 = auto()


_KINDS = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "bit"), KeyKind.INTEGER),
    "year": KeyKind.YEAR,
    "decimal": KeyKind.DECIMAL,
    "date": KeyKind.DATE,
    "datetime": KeyKind.MOMENT,
    "timestamp": KeyKind.MOMENT,
    "time": KeyKind.TIME,
    "char": KeyKind.TEXT,
    "varchar": KeyKind.TEXT,
    "binary": KeyKind.BYTES,
    "varbinary": KeyKind.BYTES,
    "inet4": KeyKind.INET4,
    "inet6": KeyKind.INET6,
}


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """`precision`, `scale`: of a DECIMAL, 0 else. `charset` and `collation`: of TEXT, "" else."""

    name: str
    kind: KeyKind
    unsigned: bool = False
    precision: int = 0
    scale: int = 0
    charset: str = ""
    collation: str = ""

    @property
    def wide(self) -> bool:
        """Does a DECIMAL travel as text?"""
        return self.precision > GREATEST_ARROW_PRECISION

    @property
    def sql(self) -> str:
        """What to select so that `literal` can be made of it: an int or ASCII text, whatever the session's settings."""
        name = quote_identifier(self.name)
        match self.kind:
            case KeyKind.INTEGER:
                return f"CAST({name} AS {'UNSIGNED' if self.unsigned else 'SIGNED'})"
            case KeyKind.YEAR:
                return f"CAST({name} AS UNSIGNED)"
            case KeyKind.TEXT | KeyKind.BYTES:
                return f"HEX({name})"
            case _:
                return f"CAST({name} AS CHAR)"

    def literal(self, selected: int | str) -> str:
        """The value as the server compares it with the column without loss, by the index."""
        match self.kind:
            case KeyKind.INTEGER | KeyKind.DECIMAL:
                return str(selected)
            case KeyKind.YEAR:
                return f"'{selected:04d}'"  # a number below 100 would be taken for a year with two digits
            case KeyKind.TEXT:
                return text_literal(self.charset, str(selected))
            case KeyKind.BYTES:
                return f"x'{selected}'"
            case _:
                return f"'{selected}'"


def text_literal(charset: str, hexadecimal: str) -> str:
    """A string of these bytes; compared with a column, the column's collation wins."""
    return f"_{charset} x'{hexadecimal}'"


def key_column(column: Column) -> KeyColumn | None:
    """None: the table can't be cut by it."""
    parsed = parse_source_type(column.source_type)
    kind = _KINDS.get(parsed.base)
    if kind is None:
        return None
    if kind is not KeyKind.TEXT:
        unsigned = parsed.unsigned or parsed.base == "bit"
        precision, scale = (*parsed.numbers, 0)[:2] if kind is KeyKind.DECIMAL else (0, 0)
        return KeyColumn(column.name, kind, unsigned, precision, scale)
    charset, collation = column.charset, column.collation
    if charset is None or collation is None or charset not in GREATEST_CHARACTER_BYTES:
        return None
    if INEXACT_COLLATIONS.fullmatch(collation) or encoder(charset) is None:
        return None
    return KeyColumn(column.name, kind, charset=charset, collation=collation)


def can_cut_by(column: Column) -> bool:
    """For `catalog.split_key`."""
    return column.captured and key_column(column) is not None


def key_columns(schema: TableSchema, columns: Sequence[str]) -> tuple[KeyColumn, ...]:
    """Raises SourceNotUsableError for one that a table can't be cut by."""
    found = []
    for name in columns:
        known = key_column(schema.column(name))
        if known is None:
            column = schema.column(name)
            raise SourceNotUsableError(
                f"{schema.table} can't be cut by {name} ({column.source_type}, {column.collation}).",
                "Start the job with an empty checkpoint: this column became part of the split key with another type.",
            )
        found.append(known)
    return tuple(found)


def range_condition(columns: Sequence[str], key_range: KeyRange) -> str:
    """SQL that is true for the rows of [start, end), by the server's own comparison; TRUE for an unbounded range.

    Written as nested ORs: both servers read ranges of the index for them; for (a, b) >= (x, y) they read it all.
    """
    parts = []
    if key_range.start is not None:
        parts.append(from_condition(columns, key_range.start))
    if key_range.end is not None:
        parts.append(_compared(columns, key_range.end.literals, "<", "<"))
    return " AND ".join(parts) or "TRUE"


def from_condition(columns: Sequence[str], bound: Bound) -> str:
    """At `bound` or right of it."""
    return _compared(columns, bound.literals, ">", ">=")


def after_condition(columns: Sequence[str], bound: Bound) -> str:
    """Right of `bound`."""
    return _compared(columns, bound.literals, ">", ">")


def _compared(columns: Sequence[str], literals: Sequence[str], outer: str, last: str) -> str:
    if len(columns) != len(literals):
        raise ValueError(f"a bound of {len(literals)} values for {len(columns)} columns")
    name, literal = quote_identifier(columns[0]), literals[0]
    if len(columns) == 1:
        return f"{name} {last} {literal}"
    inner = _compared(columns[1:], literals[1:], outer, last)
    return f"({name} {outer} {literal} OR ({name} = {literal} AND {inner}))"


def column_list(columns: Iterable[str], suffix: str = "") -> str:
    return ", ".join(quote_identifier(name) + suffix for name in columns)


def null_key(table: TableId, name: str) -> SourceNotUsableError:
    """A NOT NULL key column may still be null in the copy: a date that is none."""
    return SourceNotUsableError(
        f"{table} has a key with a date that is none (0000-00-00) in {name}; the copy can't hold it.",
        "Correct the row, name another key in source.keys, or leave the table out.",
    )
