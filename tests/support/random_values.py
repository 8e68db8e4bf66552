"""Columns of random tables: their types, random literals for them, and one text for each value, wherever it comes from."""

import datetime
import decimal
import json
import random
from dataclasses import dataclass
from typing import Any

TEXTS = ("", " ", "a", "a ", "A", "é", "\U0001f600", "it's", "NULL", "%s", "tab\t", "{}")
TYPES = {
    "mysql": (
        "INT", "TINYINT UNSIGNED", "BIGINT UNSIGNED", "DECIMAL(12, 2)", "VARCHAR(20)", "VARCHAR(40)", "TEXT", "LONGTEXT",
        "CHAR(5)", "VARBINARY(9)", "BLOB", "DATETIME", "DATETIME(3)", "TIMESTAMP NULL", "DATE", "TIME(2)", "YEAR", "DOUBLE",
        "FLOAT", "ENUM('x', 'y')", "ENUM('x', 'y', 'z')", "SET('p', 'q')", "JSON", "BIT(9)", "VARCHAR(20) CHARACTER SET latin1",
        "INT NOT NULL DEFAULT 7", "VARCHAR(20) NOT NULL DEFAULT 'd'", "BIGINT DEFAULT 5", "MEDIUMINT UNSIGNED",
    ),
    "postgres": (
        "int", "bigint", "smallint", "numeric(12, 2)", "numeric", "varchar(20)", "varchar(40)", "text", "char(5)", "bytea",
        "timestamp", "timestamptz", "date", "time", "interval", "bool", "uuid", "json", "jsonb", "int[]", "text[]", "float8",
        "real", "mood", "int NOT NULL DEFAULT 7", "varchar(20) NOT NULL DEFAULT 'd'", "bigint DEFAULT 5",
    ),
}  # fmt: skip
PLAIN_TYPES = {
    "mysql": (
        "INT", "BIGINT", "DECIMAL(12, 2)", "VARCHAR(20)", "VARCHAR(40)", "TEXT", "VARBINARY(9)", "DATETIME(3)", "DATE",
        "ENUM('x', 'y')", "ENUM('x', 'y', 'z')", "INT NOT NULL DEFAULT 7", "VARCHAR(20) NOT NULL DEFAULT 'd'", "DOUBLE",
    ),
    "postgres": (
        "int", "bigint", "numeric(12, 2)", "varchar(20)", "varchar(40)", "text", "bytea", "timestamp", "date", "float8", "bool",
        "int NOT NULL DEFAULT 7", "varchar(20) NOT NULL DEFAULT 'd'",
    ),
}  # fmt: skip
"""Those whose values each mirror holds as they are."""
KEY_TYPES = {
    "mysql": (
        "INT", "BIGINT UNSIGNED", "VARCHAR(20)", "VARCHAR(20) COLLATE utf8mb4_bin", "DECIMAL(12, 2)", "VARBINARY(9)", "DATE",
    ),
    "postgres": ("int", "bigint", 'varchar(20) COLLATE "C"', "numeric(12, 2)", "date"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RandomColumn:
    """`type`: its name without its length. `length`: of texts. `labels`: those of an ENUM or SET."""

    name: str
    type: str
    is_computed: bool
    length: int | None
    labels: tuple[str, ...] = ()


def literal(column: RandomColumn, generator: random.Random, *, few: bool = False) -> str:
    """`few`: one of few values, and never NULL, so that keys meet."""
    number = generator.randrange(25) if few else generator.choice((0, 1, generator.randrange(100)))
    if not few and generator.random() < 0.1:
        return "NULL"
    is_long = not few and generator.random() < 0.1
    match column.type:
        case "int" | "bigint" | "smallint" | "tinyint" | "mediumint" | "int4" | "int8" | "int2" | "bit":
            return str(number)
        case "decimal" | "numeric" | "double" | "float" | "float8" | "float4":
            return str(number / 4)
        case "text" if is_long and column.length is None:  # PostgreSQL keeps it out of the row, and so out of updates
            return f"(SELECT string_agg(md5((i * {number})::text), '') FROM generate_series(1, 120) i)"
        case "bytea" if is_long:
            return f"(SELECT string_agg(decode(md5((i * {number})::text), 'hex'), '') FROM generate_series(1, 200) i)"
        case "text" | "longtext" if is_long:
            return f"repeat('{number}', {generator.choice((3000, 9000))})"
        case "varchar" | "char" | "text" | "longtext" | "mediumtext" | "bpchar":
            text = f"{generator.choice(TEXTS)}{number if generator.random() < 0.7 else ''}"
            return "'" + text[: column.length or 20].replace("'", "''") + "'"
        case "varbinary" | "blob" | "longblob":
            return f"x'{number:02x}{generator.choice(('', '00', 'ff20'))}'"
        case "bytea":
            return f"'\\x{number:02x}{generator.choice(('', '00', 'ff20'))}'"
        case "datetime" | "timestamp" | "timestamptz":
            return f"'2024-02-{number % 28 + 1:02} 0{number % 10}:02:03.{number:03}'"
        case "date":
            return f"'20{number:02}-02-{number % 28 + 1:02}'"
        case "time":
            return f"'0{number % 10}:02:03.{number:02}'"
        case "interval":
            return f"'{number} days 01:02:03'"
        case "year":
            return str(2000 + number)
        case "bool":
            return generator.choice(("true", "false"))
        case "uuid":
            return f"'a0eebc99-9c0b-4ef8-bb6d-6bb9bd38{number:04}'"
        case "json" | "jsonb":
            return f"""'{{"a": [{number}, null, "x"], "b": {{"c": {number / 4}}}}}'"""
        case "_int4":
            return f"'{{{number}, NULL, 3}}'"
        case "_text":
            return f"""'{{"a {number}", NULL, ""}}'"""
        case "enum" | "set":
            return f"'{generator.choice(column.labels)}'"
        case "mood":
            return f"'{generator.choice('xy')}'"
    raise AssertionError(column)


def as_text(value: Any, kind: str) -> str:
    """Returns the same text for the same value of a column of this type of the source."""
    if value is None:
        return "NULL"
    if kind in ("json", "jsonb"):
        return json.dumps(json.loads(value) if isinstance(value, str) else value, sort_keys=True)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if kind == "bool":
        return str(bool(value))
    if isinstance(value, int | float | decimal.Decimal) or kind in ("numeric", "decimal"):
        return str(decimal.Decimal(str(value)).normalize() + 0)
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat()
    return f"'{value}'"
