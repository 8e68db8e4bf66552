"""Tables in MySQL and MariaDB: the source's own types if the target has them, else types that hold the same values."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from tidemark.conf.endpoint import DatabaseKind
from tidemark.sinks.mirror.mysql.bad_values import LAST_TIMESTAMP, LAST_TIMESTAMP_64
from tidemark.sinks.mirror.target import TargetColumn, TargetName, TargetTable
from tidemark.sinks.mirror.value_ranges import (
    MAX_POSTGRES_VALUE,
    Citext,
    EnumOfPostgres,
    FormattedText,
    Labels,
    MySqlType,
    PostgresType,
    Text,
    Timestamps,
    ValueRange,
    canonical_value_range,
    has_mysql_type,
    longest_label,
    mysql_value_range,
    parse_mysql_type,
)
from tidemark.state.table import Column, TableSchema, arrow_type_of

Flavour = Literal["mysql", "mariadb"]

MAX_NAME_LENGTH = 64
_LONG_TYPES = ("tinytext", "text", "mediumtext", "longtext", "json")
_KEY_CHARACTERS = 768
"""InnoDB's index entries have at most 3072 bytes."""
_VECTOR_SINCE: dict[Flavour, tuple[int, ...]] = {"mysql": (9, 0), "mariadb": (11, 7)}
_UUID_SINCE: dict[Flavour, tuple[int, ...]] = {"mysql": (1000,), "mariadb": (10, 7)}
_INET4_SINCE: dict[Flavour, tuple[int, ...]] = {"mysql": (1000,), "mariadb": (10, 10)}
_WIDTHS = re.compile(r"\b(smallint|mediumint|int|bigint|year)\s*\(\d+\)", re.IGNORECASE)

_SYSTEM_COLUMNS = frozenset({"DB_ROW_ID", "DB_TRX_ID", "DB_ROLL_PTR"})
_DIGITS = re.compile(r"\b(float|double)\s*\(\d+,\d+\)", re.IGNORECASE)
"""FLOAT(10,2) refuses its own greatest value, 99999999.99: as a float it is 100000000."""


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def full_name(target: TargetName) -> str:
    return f"{quoted(target.schema)}.{quoted(target.table)}"


@dataclass(frozen=True, slots=True)
class MySqlDialect:
    """`charset_of_collation` has every collation of the server. `fold_names`: lower_case_table_names is not 0."""

    flavour: Flavour
    version: tuple[int, ...]
    charset_of_collation: Mapping[str, str]
    fold_names: bool
    source_kind: DatabaseKind
    name_limit: str = f"{MAX_NAME_LENGTH} characters of at most three bytes (no emoji), and no space at its end"

    @property
    def has_row_alias(self) -> bool:
        """True if ON DUPLICATE KEY UPDATE names new values by an alias. MySQL warns of `VALUES(…)` since 8.0.20."""
        return self.flavour == "mysql" and self.version >= (8, 0, 19)

    @property
    def max_key_columns(self) -> int:
        """MariaDB 10.11 and 11.4 end with signal 11 when they look for a range of a key of 32 columns, which they allow."""
        return 16 if self.flavour == "mysql" else 31

    @property
    def timestamps(self) -> tuple[int, int]:
        """The first and the last TIMESTAMP, in microseconds since 1970."""
        if self.flavour == "mysql":
            return 1_000_000, LAST_TIMESTAMP
        return 1, LAST_TIMESTAMP_64 if self.version >= (11, 5) else LAST_TIMESTAMP

    def name_fits(self, name: str) -> bool:
        is_allowed = 0 < len(name) <= MAX_NAME_LENGTH and not name.endswith(" ") and "\0" not in name
        return is_allowed and max(name) <= "\uffff"  # names are utf8mb3

    def is_reserved_schema(self, name: str) -> bool:
        return False

    def same_name(self, name: str) -> str:
        return name.lower() if self.fold_names else name

    def same_column(self, name: str) -> str:
        return name.lower()

    def value_range(self, column: Column) -> ValueRange:
        if has_mysql_type(column, self.source_kind):
            return mysql_value_range(column.source_type)
        match canonical_value_range(column):
            case Timestamps(digits):
                return Timestamps(digits, zoned=False)
            case EnumOfPostgres(labels, in_array=False):
                return Text(longest_label(labels))
            case PostgresType() | EnumOfPostgres() | Citext():
                return Text(None, MAX_POSTGRES_VALUE)
            case value_range:
                return value_range

    def create_table(self, target: TargetName, schema: TableSchema) -> str:
        lines = [self.column_definition(column, key=column.name in schema.key) for column in schema.captured]
        if schema.key:
            lines.append(f"PRIMARY KEY ({', '.join(quoted(name) for name in schema.key)})")
        body = ",\n  ".join(lines)
        return (
            f"CREATE TABLE {full_name(target)} (\n  {body}\n) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 ROW_FORMAT=DYNAMIC"
        )

    def column_definition(self, column: Column, *, key: bool) -> str:
        return f"{quoted(column.name)} {self.column_type(column, key=key)} {'NOT NULL' if key else 'NULL'}"

    def constant(self, column: Column) -> str:
        kind, text = arrow_type_of(column.arrow_type), str(column.constant)
        if pa.types.is_boolean(kind):
            return str(int(text == "true"))
        if pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_floating(kind):
            return text
        if pa.types.is_temporal(kind):
            return f"'{text.removesuffix('Z')}'"
        literal = "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
        return f"({literal})" if self._has_expressions_only(column) else literal

    def _has_expressions_only(self, column: Column) -> bool:
        """True if a default of the column must be an expression."""
        return self.flavour == "mysql" and self.column_type(column, key=False).lower().startswith(_LONG_TYPES)

    def differs(self, column: Column, existing: TargetColumn) -> str:
        if column.constant is None:
            return f"{quoted(existing.name)} IS NOT NULL"
        if arrow_type_of(column.arrow_type) != pa.string():
            return f"NOT ({quoted(existing.name)} <=> {self.constant(column)})"
        value = f"CAST(CONVERT({quoted(existing.name)} USING utf8mb4) AS BINARY)"
        return f"NOT ({value} <=> CAST({self.constant(column)} AS BINARY))"

    def drop_default(self, column: Column) -> str:
        if self._has_expressions_only(column):  # the server refuses SET DEFAULT for such columns, also NULL
            return self.widen_column(column, key=False)
        return f"ALTER COLUMN {quoted(column.name)} SET DEFAULT NULL"

    def widen_column(self, column: Column, *, key: bool) -> str:
        return f"MODIFY COLUMN {self.column_definition(column, key=key)}"

    def retype_empty(self, column: Column, existing: TargetColumn, *, key: bool, fits: bool) -> list[str]:
        """Changes the column instead of dropping it: if a statement of a driver that was away comes late, rows keep their
        values."""
        return [f"MODIFY COLUMN {self.column_definition(column, key=key)}"]

    def drop_column(self, name: str) -> str:
        return f"DROP COLUMN {quoted(name)}"

    def drop_key(self, existing: TargetTable) -> list[str]:
        return ["DROP PRIMARY KEY"] if existing.key else []

    def drop_indexes(self, existing: TargetTable, columns: Collection[str]) -> list[str]:
        """MySQL would leave the index with the other columns. MariaDB refuses to drop the column."""
        names = dict.fromkeys(index for index, column in existing.indexed if column in columns)
        return [f"DROP INDEX {quoted(name)}" for name in names]

    def add_key(self, columns: Sequence[str]) -> str:
        return f"ADD PRIMARY KEY ({', '.join(map(quoted, columns))})"

    def alter_table(self, target: TargetName, clauses: Sequence[str]) -> str:
        return f"ALTER TABLE {full_name(target)} {', '.join(clauses)}"

    def column_type(self, column: Column, *, key: bool) -> str:
        if column.name.upper() in _SYSTEM_COLUMNS:
            raise ValueError(f"InnoDB reserves the name {column.name}")
        if column.name.upper() == "FTS_DOC_ID" and not (key and column.source_type == "bigint unsigned"):
            raise ValueError("InnoDB keeps this name for the numbers of its full-text indexes")
        if not has_mysql_type(column, self.source_kind):
            return self._canonical_type(column, key=key)
        value_range = self.value_range(column)
        kind = parse_mysql_type(column.source_type)
        if key and kind.base.endswith(("text", "blob")):
            raise ValueError(f"a key of type {kind.base} would need a prefix, and a prefix doesn't tell rows apart")
        match kind.base:
            case "json" if self.flavour == "mariadb":
                return "longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"  # MariaDB's JSON is the same, with a check
            case "uuid" if not self._has(_UUID_SINCE):
                return "varchar(36) CHARACTER SET ascii COLLATE ascii_bin"
            case "inet4" if not self._has(_INET4_SINCE):
                return "varchar(15) CHARACTER SET ascii COLLATE ascii_bin"
            case "inet6" if self.flavour == "mysql":
                return "varchar(45) CHARACTER SET ascii COLLATE ascii_bin"
            case "vector" if not self._has(_VECTOR_SINCE) or self._may_not_fit_into_vector():
                return f"varbinary({4 * kind.numbers[0]})" if kind.numbers and kind.numbers[0] < 4096 else "mediumblob"
            case "geomcollection":
                return "geometrycollection"  # MariaDB's name for it; MySQL accepts it too
            case "enum" | "set" if "?" in kind.arguments or _labels_meet(value_range, column):
                return f"{_label_text(value_range)}{self._collation_clause(column, key=key)}"
        text = re.sub(r"/\*.*?\*/", "", column.source_type, flags=re.DOTALL).strip()
        if not isinstance(value_range, Text | Labels):
            return _DIGITS.sub(r"\1", _WIDTHS.sub(r"\1", text)).replace(" zerofill", "")
        if key and self._is_unsteady(column):
            text = f"var{text}"
        clause = self._collation_clause(column, key=key)
        if not key and _may_be_too_long(kind, column, clause):
            return f"mediumtext{clause}"
        return f"{text}{clause}"

    def _has(self, since: Mapping[Flavour, tuple[int, ...]]) -> bool:
        return self.version >= since[self.flavour]

    def _may_not_fit_into_vector(self) -> bool:
        """MySQL's VECTOR(n) has up to n numbers, each any float. MariaDB's has n, and their squares must add up to a float."""
        return self.flavour == "mariadb" and self.source_kind != "mariadb"

    def _collation_clause(self, column: Column, *, key: bool) -> str:
        if column.collation is None:
            return self._binary_collation("utf8mb4", padded=False)
        charset = column.charset or "utf8mb4"
        if charset not in self.charset_of_collation.values():
            charset = "utf8mb4"
        known = self.charset_of_collation.get(column.collation) == charset
        if known and (not key or self._same_equality(column)):
            return f" CHARACTER SET {charset} COLLATE {column.collation}"
        if key:
            return self._binary_collation(charset, padded=_is_padded(column.collation))
        similar = self._similar_collation(column.collation)
        return f" CHARACTER SET utf8mb4 COLLATE {similar}" if similar else self._binary_collation(charset, padded=True)

    def _same_equality(self, column: Column) -> bool:
        """True if a key column with the source's collation distinguishes the same texts here and in the source. MySQL and
        MariaDB differ in collation keys, and MariaDB's index and SQL differ in CHAR without padding (docs/adr/0063)."""
        collation = str(column.collation)
        return collation.endswith("_bin") or (self.source_kind == self.flavour and not self._is_unsteady(column))

    def _is_unsteady(self, column: Column) -> bool:
        is_char = parse_mysql_type(column.source_type).base == "char"
        return (
            self.flavour == "mariadb" and is_char and column.collation is not None and not _is_padded(column.collation)
        )

    def _binary_collation(self, charset: str, *, padded: bool) -> str:
        """Returns a binary collation that tells apart all texts that a collation with this padding does."""
        candidates = [f"{charset}_nopad_bin", f"{charset}_0900_bin", *([f"{charset}_bin"] if padded else [])]
        for name in [*candidates, "utf8mb4_nopad_bin", "utf8mb4_0900_bin"]:
            if name in self.charset_of_collation:
                return f" CHARACTER SET {self.charset_of_collation[name]} COLLATE {name}"
        raise ValueError("the target has no binary collation that compares trailing spaces")

    def _similar_collation(self, collation: str) -> str | None:
        """Returns a collation for a column outside the key. There it only decides how queries sort and compare."""
        if not collation.endswith(("_ai_ci", "_ci")):
            return None
        names = ("utf8mb4_0900_ai_ci", "utf8mb4_uca1400_nopad_ai_ci", "utf8mb4_unicode_nopad_ci", "utf8mb4_unicode_ci")
        return next((name for name in names if name in self.charset_of_collation), None)

    def key_problem(self, column: Column, existing: TargetColumn) -> str | None:
        if existing.collation is None:
            return None
        is_text = isinstance(self.value_range(column), Text | Labels) or self.source_kind == "postgresql"
        if not is_text or existing.collation == "binary":
            return None
        if existing.collation.endswith(("_nopad_bin", "_0900_bin")):
            return None
        if column.collation is not None and _is_padded(column.collation) and existing.collation.endswith("_bin"):
            return None
        if existing.collation == column.collation and self._same_equality(column):
            return None
        return f"its collation {existing.collation} treats texts as equal that the source tells apart"

    def charset_problem(self, column: Column, existing: TargetColumn) -> str | None:
        charset = self.charset_of_collation.get(existing.collation or "")
        needed = None if isinstance(existing.value_range, Labels) else self._charset_needed(column)
        if charset is None or needed is None or _has_characters(charset, needed):
            return None
        return f"is in the character set {charset}, which lacks characters that the source's column can have"

    def _charset_needed(self, column: Column) -> str | None:
        """Returns the character set whose characters the source's column can have, None if it has no text of its own."""
        is_of_mysql = has_mysql_type(column, self.source_kind)
        match mysql_value_range(column.source_type) if is_of_mysql else canonical_value_range(column):
            case Labels(labels) if all(map(str.isascii, labels)):
                return "ascii"
            case Text() | Labels():
                return column.charset or ("ascii" if _is_mask(column) else "utf8mb4")
            case FormattedText("json") | EnumOfPostgres() | Citext():
                return "utf8mb4"
            case PostgresType(name) if any(part in name for part in ("json", "text", "char", "tsvector", "tsquery")):
                return "utf8mb4"
            case _:
                return None

    def _canonical_type(self, column: Column, *, key: bool) -> str:
        kind = arrow_type_of(column.arrow_type)
        if pa.types.is_boolean(kind):
            return "tinyint(1)"
        if pa.types.is_integer(kind):
            return {8: "tinyint", 16: "smallint", 32: "int", 64: "bigint"}[kind.bit_width]
        if pa.types.is_decimal(kind):
            return f"decimal({kind.precision},{kind.scale})"
        if pa.types.is_floating(kind):
            return "float" if kind.bit_width == 32 else "double"
        if pa.types.is_string(kind):
            text = f"varchar({self._key_characters(column)})" if key or _is_mask(column) else "longtext"
            return text + self._binary_collation("utf8mb4", padded=False)
        if pa.types.is_binary(kind):
            if key:
                raise ValueError(
                    "a key of bytes of any length would need a prefix, and a prefix doesn't tell rows apart"
                )
            return "longblob"
        if pa.types.is_date(kind):
            return "date"
        if pa.types.is_timestamp(kind):
            return "datetime(6)"  # in UTC; a TIMESTAMP ends in 2038
        return "mediumblob"

    def _key_characters(self, column: Column) -> int:
        match self.value_range(column):
            case Text(int(characters)) if characters <= _KEY_CHARACTERS:
                return characters
            case FormattedText("uuid"):
                return 36
            case _:
                raise ValueError(
                    f"a key of text that may be longer than {_KEY_CHARACTERS} characters would need a prefix, and "
                    "a prefix doesn't tell rows apart"
                )


def _is_mask(column: Column) -> bool:
    return column.made and column.source_type.startswith("character varying")


_ALL_CHARACTERS = frozenset({"utf8mb4", "utf16", "utf16le", "utf32", "gb18030"})
_CHARACTERS_OF_UTF8MB3 = frozenset({"utf8mb3", "utf8", "ucs2"})
"""Those of Unicode up to U+FFFF. All character sets of MySQL and MariaDB but those above have no others."""


def _has_characters(charset: str, needed: str) -> bool:
    """True if a character set certainly has all characters of the other one."""
    if charset == needed or charset in _ALL_CHARACTERS or needed == "ascii":
        return True
    return charset in _CHARACTERS_OF_UTF8MB3 and needed not in _ALL_CHARACTERS


def _labels_meet(value_range: ValueRange, column: Column) -> bool:
    return isinstance(value_range, Labels) and value_range.meet(column.collation)


def _may_be_too_long(kind: MySqlType, column: Column, clause: str) -> bool:
    """True for a long VARCHAR that gets another character set than in the source, with more bytes per character."""
    is_long = kind.base == "varchar" and kind.numbers[0] > _KEY_CHARACTERS
    return is_long and f" CHARACTER SET {column.charset} " not in clause


def _label_text(value_range: ValueRange) -> str:
    """Returns a text type for an ENUM or SET whose labels meet, or are not exactly known: the catalog shows `?` for characters
    beyond U+FFFF."""
    assert isinstance(value_range, Labels)
    lengths = [len(label) for label in value_range.labels]
    characters = sum(lengths) + len(lengths) if value_range.several else max(lengths)
    return f"varchar({characters})" if characters <= _KEY_CHARACTERS else "mediumtext"


def _is_padded(collation: str) -> bool:
    """True if comparisons ignore trailing spaces. https://dev.mysql.com/doc/refman/8.4/en/charset-binary-collations.html"""
    return collation != "binary" and "_0900_" not in collation and "_nopad_" not in collation
