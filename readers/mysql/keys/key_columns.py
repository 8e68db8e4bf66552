"""Split-key columns: which columns a table can be split by, and how their values are selected and written as SQL.

A column can be a split key if the server's order and equality of its values are known exactly. Excluded are:
- ENUM, SET: those with more than MAX_ORDINALS values, or with two values of one text (`_ordinal_texts`);
- FLOAT, DOUBLE with a number of decimals: the server rounds what it compares them with;
- MariaDB's UUID, if the server orders the column's values in another way than uuid_order.py;
- TEXT, BLOB: their indexes hold prefixes only;
- the collations of INEXACT_COLLATIONS, and character sets in which two byte strings are the same text;
- CHAR of MariaDB by a collation that does not ignore trailing spaces (`can_split_by`).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tidemark.readers.mysql.connect import Flavour, quote_identifier
from tidemark.readers.mysql.decoding.charsets import MAX_CHARACTER_BYTES
from tidemark.readers.mysql.keys import uuid_order
from tidemark.readers.mysql.keys.key_text import encoder
from tidemark.readers.mysql.schema.types import MAX_ARROW_PRECISION, SourceType, parse_source_type
from tidemark.state.errors import CheckpointError, SchemaChangedError, SourceNotUsableError
from tidemark.state.remedies import NO_KEY, RESTORE_CHECKPOINT, START_OVER_NOW
from tidemark.state.split import Bound, KeyRange
from tidemark.state.table import Column, TableId, TableSchema

INEXACT_COLLATIONS = re.compile(r"big5_chinese_.*|.*_czech_cs|gb18030_chinese_ci|tis620_thai_.*|.*_nopad_ai_cs")
"""Collations whose WEIGHT_STRING does not order like the server itself. Found by trying all collations of MySQL 9.7, MariaDB
10.11 and 11.4 with strings of letters, accents, spaces, control and ignorable characters."""


class KeyKind(Enum):
    INTEGER = auto()  # and BIT
    YEAR = auto()
    DECIMAL = auto()
    DATE = auto()
    TEMPORAL = auto()  # DATETIME, TIMESTAMP
    TIME = auto()
    TEXT = auto()
    BYTES = auto()
    INET4 = auto()
    INET6 = auto()
    ORDINAL = auto()  # ENUM: a label's number; SET: the sum of the labels' bits
    FLOAT = auto()  # and DOUBLE
    UUID = auto()


_KINDS = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "bit"), KeyKind.INTEGER),
    "year": KeyKind.YEAR,
    "decimal": KeyKind.DECIMAL,
    "date": KeyKind.DATE,
    "datetime": KeyKind.TEMPORAL,
    "timestamp": KeyKind.TEMPORAL,
    "time": KeyKind.TIME,
    "char": KeyKind.TEXT,
    "varchar": KeyKind.TEXT,
    "binary": KeyKind.BYTES,
    "varbinary": KeyKind.BYTES,
    "inet4": KeyKind.INET4,
    "inet6": KeyKind.INET6,
    "enum": KeyKind.ORDINAL,
    "set": KeyKind.ORDINAL,
    "float": KeyKind.FLOAT,
    "double": KeyKind.FLOAT,
    "uuid": KeyKind.UUID,
}

MAX_ORDINALS = 256
"""The most values of an ENUM or SET that is a split key. No server reads `k > 3` by a range of the index, but each reads
`k IN (4, 5)` so (docs/adr/0066)."""


_HEXADECIMAL = re.compile(r"x'(?:[0-9A-F]{2})*'")
_LITERALS = {
    KeyKind.INTEGER: re.compile(r"-?[0-9]+"),
    KeyKind.YEAR: re.compile(r"'[0-9]{4}'"),
    KeyKind.DECIMAL: re.compile(r"-?[0-9]+(?:\.[0-9]+)?"),
    KeyKind.DATE: re.compile(r"'[0-9]{4}-[0-9]{2}-[0-9]{2}'"),
    KeyKind.TEMPORAL: re.compile(r"'[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?'"),
    KeyKind.TIME: re.compile(r"'-?[0-9]{2,3}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?'"),
    KeyKind.BYTES: _HEXADECIMAL,
    KeyKind.INET4: re.compile(r"'[0-9.]+'"),
    KeyKind.INET6: re.compile(r"'[0-9a-f:.]+'"),
    KeyKind.ORDINAL: re.compile(r"0|[1-9][0-9]{0,2}"),
    KeyKind.UUID: re.compile(r"'[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}'"),
    KeyKind.FLOAT: re.compile(r"-?[0-9]+(?:\.[0-9]+)?e[-+]?[0-9]+"),
}


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """`precision`, `scale`: for DECIMAL, else 0. `charset`, `collation`: for TEXT, else "". `texts`: for ORDINAL, what the
    numbers 0, 1, … are shown as, else ()."""

    name: str
    kind: KeyKind
    unsigned: bool = False
    precision: int = 0
    scale: int = 0
    charset: str = ""
    collation: str = ""
    texts: tuple[str, ...] = ()

    @property
    def wide(self) -> bool:
        """True for a DECIMAL whose Arrow type is string."""
        return self.precision > MAX_ARROW_PRECISION

    @property
    def sql(self) -> str:
        """The expression to select for `literal`: a number or ASCII text under any session settings."""
        name = quote_identifier(self.name)
        match self.kind:
            case KeyKind.INTEGER:
                return f"CAST({name} AS {'UNSIGNED' if self.unsigned else 'SIGNED'})"
            case KeyKind.YEAR | KeyKind.ORDINAL:
                return f"CAST({name} AS UNSIGNED)"
            case KeyKind.FLOAT:  # a FLOAT itself is printed with six digits; the sum is a DOUBLE, printed with all
                return f"{name} + 0e0"
            case KeyKind.TEXT | KeyKind.BYTES:
                return f"HEX({name})"
            case _:
                return f"CAST({name} AS CHAR)"

    def is_literal(self, sql: str) -> bool:
        """True for what `literal` returns, and nothing else: it can't do more than name a value."""
        if self.kind is KeyKind.TEXT:
            prefix = f"_{self.charset} "
            return sql.startswith(prefix) and _HEXADECIMAL.fullmatch(sql.removeprefix(prefix)) is not None
        if _LITERALS[self.kind].fullmatch(sql) is None:
            return False
        return self.kind is not KeyKind.ORDINAL or int(sql) < len(self.texts)

    def literal(self, selected: int | float | str) -> str:
        """The value as an SQL literal that the server compares with the column exactly and by the index."""
        match self.kind:
            case KeyKind.INTEGER | KeyKind.DECIMAL | KeyKind.ORDINAL:
                return str(selected)
            case KeyKind.FLOAT:
                text = repr(float(selected) + 0.0)  # -0.0 equals 0.0
                return text if "e" in text else f"{text}e0"  # without an exponent it would be a DECIMAL
            case KeyKind.YEAR:
                return f"'{selected:04d}'"  # a number below 100 would be read as a year of two digits
            case KeyKind.TEXT:
                return text_literal(self.charset, str(selected))
            case KeyKind.BYTES:
                return f"x'{selected}'"
            case _:
                return f"'{selected}'"


def text_literal(charset: str, hexadecimal: str) -> str:
    """A literal of these bytes. In a comparison with a column the column's collation is used."""
    return f"_{charset} x'{hexadecimal}'"


def key_column(column: Column) -> KeyColumn | None:
    """The key column of a table's column; None if the table can't be split by it."""
    parsed = parse_source_type(column.source_type)
    kind = _KINDS.get(parsed.base)
    if kind is None:
        return None
    if kind is KeyKind.ORDINAL:
        texts = _ordinal_texts(parsed)
        return None if texts is None else KeyColumn(column.name, kind, texts=texts)
    if kind is KeyKind.FLOAT and parsed.numbers:
        return None
    if kind is not KeyKind.TEXT:
        unsigned = parsed.unsigned or parsed.base == "bit"
        precision, scale = (*parsed.numbers, 0)[:2] if kind is KeyKind.DECIMAL else (0, 0)
        return KeyColumn(column.name, kind, unsigned, precision, scale)
    charset, collation = column.charset, column.collation
    if charset is None or collation is None or charset not in MAX_CHARACTER_BYTES:
        return None
    if INEXACT_COLLATIONS.fullmatch(collation) or encoder(charset) is None:
        return None
    return KeyColumn(column.name, kind, charset=charset, collation=collation)


def _ordinal_texts(parsed: SourceType) -> tuple[str, ...] | None:
    """Returns the texts that the server shows for the numbers of an ENUM or SET; None if there are too many, or if a text
    does not tell the number. The catalog shows any character beyond the BMP as `?`; an empty label reads as the invalid
    value 0 does; a server without strict mode allows a label twice."""
    labels = parsed.labels
    if "" in labels or len(set(labels)) < len(labels) or any("?" in label for label in labels):
        return None
    if parsed.base == "enum":
        return ("", *labels) if len(labels) < MAX_ORDINALS else None
    if 1 << len(labels) > MAX_ORDINALS:
        return None
    return tuple(
        ",".join(label for i, label in enumerate(labels) if number >> i & 1) for number in range(1 << len(labels))
    )


def can_split_by(column: Column, flavour: Flavour) -> bool:
    """True if a table can be split by the column; by a UUID, if `uuid_order.orders_as_known`, too. In MariaDB no CHAR by a
    collation that does not ignore trailing spaces: its index compares values with the spaces that they are stored with, and
    SQL without them, so that a range lacks rows (docs/adr/0063)."""
    if (
        flavour == "mariadb"
        and parse_source_type(column.source_type).base == "char"
        and not is_padded(column.collation)
    ):
        return False
    return column.captured and key_column(column) is not None


def is_padded(collation: str | None) -> bool:
    """True if comparisons by the collation ignore trailing spaces."""
    return collation is None or ("_nopad_" not in collation and "_0900_" not in collation)


def key_columns(schema: TableSchema, columns: Sequence[str]) -> tuple[KeyColumn, ...]:
    """The key columns of `columns`. Raises SourceNotUsableError if the table can't be split by one of them."""
    found = []
    for name in columns:
        known = key_column(schema.column(name))
        if known is None:
            column = schema.column(name)
            raise SourceNotUsableError(
                f"{schema.table} can't be split by {name} ({column.source_type}, {column.collation}): it became a split key "
                "with a different type.",
                START_OVER_NOW,
            )
        found.append(known)
    return tuple(found)


def range_condition(keys: Sequence[KeyColumn], key_range: KeyRange) -> str:
    """The SQL condition for the rows of [start, end), by the server's own comparison; TRUE for an unbounded range.

    It uses nested ORs, for which both servers read index ranges. For (a, b) >= (x, y) they read the whole index. Raises
    CheckpointError for a bound that is no value of the key: plans are files, and a bound becomes a part of a statement.
    """
    parts = []
    if key_range.start is not None:
        parts.append(_compared(keys, _values(keys, key_range.start), ">", ">="))
    if key_range.end is not None:
        parts.append(_compared(keys, _values(keys, key_range.end), "<", "<"))
    return " AND ".join(parts) or "TRUE"


def after_condition(keys: Sequence[KeyColumn], bound: Bound) -> str:
    """The condition for keys after `bound`. Raises CheckpointError as `range_condition` does."""
    return _compared(keys, _values(keys, bound), ">", ">")


def _values(keys: Sequence[KeyColumn], bound: Bound) -> Sequence[str]:
    """The bound's literals, each proven to be one of its column."""
    texts = bound.literals
    if len(texts) != len(keys) or not all(key.is_literal(text) for key, text in zip(keys, texts, strict=True)):
        raise CheckpointError(
            f"The checkpoint has a split boundary that is not a value of {', '.join(key.name for key in keys)}.",
            f"Find out who changed the checkpoint's files. {RESTORE_CHECKPOINT}",
        )
    return texts


def _compared(keys: Sequence[KeyColumn], literals: Sequence[str], outer: str, last: str) -> str:
    key, literal = keys[0], literals[0]
    if len(keys) == 1:
        return _comparison(key, last, literal)
    inner = _compared(keys[1:], literals[1:], outer, last)
    return f"({_comparison(key, outer, literal)} OR ({quote_identifier(key.name)} = {literal} AND {inner}))"


def _comparison(key: KeyColumn, operator: str, literal: str) -> str:
    name = quote_identifier(key.name)
    if key.kind is KeyKind.UUID:
        return uuid_order.condition(key.name, operator, literal)
    if key.kind is not KeyKind.ORDINAL:
        return f"{name} {operator} {literal}"
    number = int(literal)
    numbers = {
        ">": range(number + 1, len(key.texts)),
        ">=": range(number, len(key.texts)),
        "<": range(number),
    }[operator]
    return f"{name} IN ({', '.join(map(str, numbers))})" if numbers else "FALSE"


def valid_dates(keys: Sequence[KeyColumn]) -> str:
    """The condition for keys whose dates have no zero in them: only such a key can be a split's boundary."""
    names = [quote_identifier(key.name) for key in keys if key.kind in (KeyKind.DATE, KeyKind.TEMPORAL)]
    return " AND ".join(f"MONTH({name}) > 0 AND DAYOFMONTH({name}) > 0" for name in names) or "TRUE"


def column_list(columns: Iterable[str], suffix: str = "") -> str:
    return ", ".join(quote_identifier(name) + suffix for name in columns)


def null_key(table: TableId, column: Column, *, stops: bool) -> SourceNotUsableError:
    """The error for a null in a decoded key column. In a date: an invalid one, which the server allows in a NOT NULL column.
    It concerns the table alone unless it `stops` the job. Otherwise the table has another key now."""
    if parse_source_type(column.source_type).base not in {"date", "datetime", "timestamp"}:
        return SchemaChangedError(
            f"{table} has rows without a value in {column.name}, a column of its key: the table has another key now.",
            START_OVER_NOW,
            table,
        )
    return SourceNotUsableError(
        f"{table} has an invalid date (such as 0000-00-00) in its key column {column.name}, which this sink can't hold.",
        NO_KEY,
        None if stops else table,
    )
