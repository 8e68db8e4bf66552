"""An independent reading of a table in canonical values, by the text protocol, and the differences from it.

reference_rows(connection, schema)
differences(rows, expected)
"""

import math
import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from tidemark.state.table import Column, TableSchema


def reference_rows(connection: Any, schema: TableSchema, *, order_by: str | None = "id") -> list[dict[str, Any]]:
    """The captured columns in the order of a column, zero dates as None: PyMySQL's text protocol, converted to utf8mb4 by the
    server, read by simple means. Changes the connection's decoders and session."""
    selected = [_reference_expression(column) for column in schema.captured]
    connection.decoders = {}
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION time_zone = '+00:00', sql_mode = '', character_set_results = utf8mb4")
        order = "" if order_by is None else f" ORDER BY {_quoted(order_by)}"
        table = f"{_quoted(schema.table.database)}.{_quoted(schema.table.name)}"
        cursor.execute(f"SELECT {', '.join(selected)} FROM {table}{order}")
        rows = cursor.fetchall()
    readers = [_reference_reader(column) for column in schema.captured]
    names = [column.name for column in schema.captured]
    return [
        {name: None if value is None else read(value) for name, read, value in zip(names, readers, row, strict=True)}
        for row in rows
    ]


def differences(rows: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """(id, column, value, expected value) wherever a row has not the same value of the same Python type; the sign of zero
    counts. Rows without a counterpart fail at once."""
    assert [row["id"] for row in rows] == [row["id"] for row in expected]
    return [
        (row["id"], name, row[name], value)
        for row, wanted in zip(rows, expected, strict=True)
        for name, value in wanted.items()
        if not _identical(row[name], value)
    ]


def _identical(value: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        return isinstance(value, float) and value == expected and math.copysign(1, value) == math.copysign(1, expected)
    return type(value) is type(expected) and value == expected


def _reference_expression(column: Column) -> str:
    base = column.source_type.partition("(")[0].split()[0]
    if base in {"float", "double"}:  # shown with six digits only, or as many as declared
        return f"{_quoted(column.name)} * 1e0"
    if base == "vector":
        return f"HEX({_quoted(column.name)})"
    return _quoted(column.name)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _reference_reader(column: Column) -> Callable[[Any], Any]:
    base = column.source_type.partition("(")[0].split()[0]
    match column.arrow_type:
        case "int8" | "int16" | "int32" | "int64":
            return (lambda value: int.from_bytes(value, "big")) if base == "bit" else int
        case "float32" | "float64":
            return float
        case "date32":
            return _reference_date
        case "timestamp" | "timestamptz":
            zone = timezone.utc if column.arrow_type == "timestamptz" else None
            return lambda text: _reference_moment(text, zone)
        case "list<float32>":
            return lambda text: list(struct.unpack(f"<{len(text) // 8}f", bytes.fromhex(text)))
        case "binary":
            return bytes
        case text if text.startswith("decimal"):
            return (lambda value: Decimal(int.from_bytes(value, "big"))) if base == "bit" else Decimal
        case _:
            return _reference_text


def _reference_text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _reference_date(text: str) -> date | None:
    return None if text.startswith("0000") or "00" in text.split("-")[1:] else date.fromisoformat(text)


def _reference_moment(text: str, zone: timezone | None) -> datetime | None:
    if _reference_date(text[:10]) is None:
        return None
    return datetime.fromisoformat(text.partition(".")[0]).replace(
        microsecond=int(text.partition(".")[2].ljust(6, "0") or 0), tzinfo=zone
    )
