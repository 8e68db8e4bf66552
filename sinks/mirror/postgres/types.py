"""Tables in PostgreSQL: for each column the narrowest type that holds every value of the source's column."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidemark.conf.endpoint import DatabaseKind
from tidemark.sinks.mirror.target import TargetColumn, TargetName, TargetTable
from tidemark.sinks.mirror.value_ranges import (
    Binary,
    Booleans,
    Citext,
    Dates,
    Decimals,
    Duration,
    EnumOfPostgres,
    Floats,
    FormattedText,
    Integers,
    PostgresType,
    Text,
    Timestamps,
    ValueRange,
    Vectors,
    canonical_value_range,
    declared_numeric,
    has_mysql_type,
    mysql_value_range,
)
from tidemark.state.table import Column, NamedType, TableSchema, arrow_type_of

MAX_NAME_BYTES = 63
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_NO_LENGTH = -1
_TYPMOD_HEADER = 4
_ALL_INTERVAL_FIELDS = 0x7FFF


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def full_name(target: TargetName) -> str:
    return f"{quoted(target.schema)}.{quoted(target.table)}"


def text_literal(text: str) -> str:
    """Means the same with each value of standard_conforming_strings."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


def enum_name(named: NamedType, schema: str) -> str:
    """Returns the name of an enum's copy in a schema of the target: two schemas of the source may have enums of one name."""
    return named.name if named.schema == schema else f"{named.schema}_{named.name}"


@dataclass(frozen=True, slots=True)
class PostgresDialect:
    """`types`: the target's enums and citext, as SQL, by schema and name of the source's, for columns that are created. Columns
    of other such types are text."""

    source_kind: DatabaseKind
    types: Mapping[tuple[str, str], str] = field(default_factory=dict)
    name_limit: str = f"{MAX_NAME_BYTES} bytes"
    max_key_columns: int = 32

    def name_fits(self, name: str) -> bool:
        return 0 < len(name.encode()) <= MAX_NAME_BYTES and "\0" not in name

    def is_reserved_schema(self, name: str) -> bool:
        return name.startswith("pg_")

    def same_name(self, name: str) -> str:
        return name

    def same_column(self, name: str) -> str:
        return name

    def value_range(self, column: Column) -> ValueRange:
        if has_mysql_type(column, self.source_kind):
            return mysql_value_range(column.source_type)
        return canonical_value_range(column)

    def create_table(self, target: TargetName, schema: TableSchema) -> str:
        lines = [self.column_definition(column, key=column.name in schema.key) for column in schema.captured]
        if schema.key:
            lines.append(f"PRIMARY KEY ({', '.join(quoted(name) for name in schema.key)})")
        body = ",\n  ".join(lines)
        return f"CREATE TABLE {full_name(target)} (\n  {body}\n)"

    def column_definition(self, column: Column, *, key: bool) -> str:
        return f"{quoted(column.name)} {self.column_type(column, key=key)}{' NOT NULL' if key else ''}"

    def constant(self, column: Column) -> str:
        return text_literal(str(column.constant))

    def differs(self, column: Column, existing: TargetColumn) -> str:
        if column.constant is None:
            return f"{quoted(column.name)} IS NOT NULL"
        is_text = arrow_type_of(column.arrow_type) == pa.string()
        value = f'{quoted(column.name)}::text COLLATE "C"' if is_text else quoted(column.name)
        return f"{value} IS DISTINCT FROM {self.constant(column)}"

    def drop_default(self, column: Column) -> str:
        return f"ALTER COLUMN {quoted(column.name)} SET DEFAULT NULL"

    def widen_column(self, column: Column, *, key: bool) -> str:
        return f"ALTER COLUMN {quoted(column.name)} TYPE {self.column_type(column, key=key)}"

    def retype_empty(self, column: Column, existing: TargetColumn, *, key: bool, fits: bool) -> list[str]:
        definition = self.column_definition(column, key=key)
        if not fits:
            return [self.drop_column(existing.name), f"ADD COLUMN {definition}"]
        if key or existing.nullable:
            return []  # the key makes it NOT NULL
        name = quoted(existing.name)  # a column that numbers its rows must be NOT NULL
        return [f"ALTER COLUMN {name} DROP IDENTITY IF EXISTS", f"ALTER COLUMN {name} DROP NOT NULL"]

    def drop_column(self, name: str) -> str:
        return f"DROP COLUMN {quoted(name)}"

    def drop_key(self, existing: TargetTable) -> list[str]:
        return [] if existing.key_name is None else [f"DROP CONSTRAINT {quoted(existing.key_name)}"]

    def drop_indexes(self, existing: TargetTable, columns: Collection[str]) -> list[str]:
        return []

    def add_key(self, columns: Sequence[str]) -> str:
        return f"ADD PRIMARY KEY ({', '.join(map(quoted, columns))})"

    def alter_table(self, target: TargetName, clauses: Sequence[str]) -> str:
        return f"ALTER TABLE {full_name(target)} {', '.join(clauses)}"

    def column_type(self, column: Column, *, key: bool) -> str:
        if column.name in _SYSTEM_COLUMNS:
            raise ValueError(f"PostgreSQL reserves the name {column.name}")
        kind = arrow_type_of(column.arrow_type)
        if pa.types.is_boolean(kind):
            return "boolean"
        if pa.types.is_integer(kind):
            return {8: "smallint", 16: "smallint", 32: "integer", 64: "bigint"}[kind.bit_width]
        match self.value_range(column):
            case Decimals(precision, scale) if precision is not None:
                return f"numeric({precision},{scale})"
            case FormattedText("json"):
                return "json"  # jsonb would reorder keys and refuse \u0000
            case FormattedText("uuid"):
                return "uuid"
            case Duration():
                return "interval"
            case EnumOfPostgres() | Citext():
                return self._named_type(column, key=key)
            case PostgresType(name):
                return name if declared_numeric(name) != Decimals(None, None) else "numeric"
        if pa.types.is_decimal(kind):
            return f"numeric({kind.precision},{kind.scale})"
        if pa.types.is_floating(kind):
            return "real" if kind.bit_width == 32 else "double precision"
        if pa.types.is_string(kind):
            return "text"
        if pa.types.is_binary(kind):
            return "bytea"
        if pa.types.is_date(kind):
            return "date"
        if pa.types.is_timestamp(kind):
            return "timestamp" if kind.tz is None else "timestamp with time zone"
        return "real[]"

    def _named_type(self, column: Column, *, key: bool) -> str:
        named = column.named_type
        assert named is not None, "its value range says so"
        found = self.types.get((named.schema, named.name))
        if found is None or (
            key and named.labels is None
        ):  # two keys that differ in case only are two rows for a while
            return "text"
        return f"{found}[]" if named.in_array else found

    def key_problem(self, column: Column, existing: TargetColumn) -> str | None:
        if isinstance(existing.value_range, Citext):
            return f"is {existing.type_name}, which takes keys for one that differ only in case"
        if existing.collation is None:
            return None
        return f"its collation {existing.collation} is nondeterministic: it treats texts as equal that differ"

    def charset_problem(self, column: Column, existing: TargetColumn) -> str | None:
        """A database has one character set for all columns."""
        return None


def postgres_value_range(type_name: str, modifier: int) -> ValueRange | None:
    """Returns the value range for a pg_type's name and a column's atttypmod; None for a type that Tidemark does not write.

    Modifiers: `anychar_typmodin`, `numerictypmodin` and `intervaltypmodin` of PostgreSQL's varchar.c, numeric.c and
    timestamp.c.
    """
    length = None if modifier == _NO_LENGTH else modifier - _TYPMOD_HEADER
    match type_name:
        case "bool":
            return Booleans()
        case "int2":
            return Integers(-(1 << 15), (1 << 15) - 1)
        case "int4":
            return Integers(-(1 << 31), (1 << 31) - 1)
        case "int8":
            return Integers(-(1 << 63), (1 << 63) - 1)
        case "numeric":
            if length is None:
                return Decimals(None, None)
            scale = ((length & 0x7FF) ^ 0x400) - 0x400  # 11 bits with a sign
            return Decimals(length >> 16, scale) if scale >= 0 else None
        case "float4":
            return Floats(32)
        case "float8":
            return Floats(64)
        case "text":
            return Text()
        case "varchar":
            return Text(length)
        case "bpchar":
            return Text(length, padded=True)
        case "json" | "jsonb" | "uuid":
            return FormattedText(type_name)
        case "interval":
            if modifier != _NO_LENGTH and modifier >> 16 != _ALL_INTERVAL_FIELDS:
                return None  # `interval hour to minute` cuts seconds off
            digits = modifier & 0xFFFF
            return Duration(6 if modifier == _NO_LENGTH or digits == 0xFFFF else digits)
        case "bytea":
            return Binary()
        case "date":
            return Dates()
        case "timestamp" | "timestamptz":
            return Timestamps(6 if modifier == _NO_LENGTH else modifier, zoned=type_name == "timestamptz")
        case "_float4":
            return Vectors(None)
        case _:
            return None
