"""DuckDB's expressions for a row's key, its place among the changes, and hashes of its values.

The rows that are expected and those of a copy go through the same expressions, so equal values have equal hashes.
"""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from tidemark.state.table import TableSchema, arrow_type_of

SqlColumn = tuple[str, str]
"""A column's expression and DuckDB's name of its type."""


def key_names(schema: TableSchema) -> list[str]:
    """Returns the names of the key's columns in the state's tables."""
    return [f"k{i}" for i in range(len(schema.key))]


def key_kinds(schema: TableSchema) -> list[str]:
    return [_key_kind(schema.column(name).arrow_type) for name in schema.key]


def hash_names(schema: TableSchema) -> list[str]:
    """Returns the names of the columns with hashes: `d` of all values that no change leaves out, and one for each other
    column."""
    return ["d", *toast_names(schema)]


def toast_names(schema: TableSchema) -> list[str]:
    return [f"t{i}" for i in range(len(schema.toastable))]


def change_kinds(schema: TableSchema) -> dict[str, str]:
    """Returns the columns of `change_expressions` with DuckDB's types."""
    kinds = dict(zip(key_names(schema), key_kinds(schema), strict=True))
    kinds |= {"o": "HUGEINT", "is_logged": "BOOLEAN", "kind": "VARCHAR"}
    kinds |= dict.fromkeys(hash_names(schema), "UHUGEINT")
    return kinds | {f"u{i}": "BOOLEAN" for i in range(len(schema.toastable))}


def change_expressions(schema: TableSchema, columns: Mapping[str, SqlColumn], is_logged: str) -> dict[str, str]:
    """Returns the expressions of a change: its key (`k0` …), `o` (its order), `is_logged`, `kind`, hashes as in `hash_names`,
    and for each column that may be left out whether it is (`u0` …). `columns`: those that the rows have. Rows without the
    changelog columns are those of a table that holds each key once."""
    toastable = schema.toastable
    whole = [column.name for column in schema.captured if column.name not in toastable]
    found = {}
    for name, key, kind in zip(key_names(schema), schema.key, key_kinds(schema), strict=True):
        is_binary = schema.column(key).arrow_type == "binary"
        text = _key_text(*columns[key], is_binary=is_binary) if key in columns else "NULL"
        found[name] = f"TRY_CAST({text} AS {kind})"
    if "_change_type" in columns:
        found["o"] = f"CAST({columns['_commit_version'][0]} AS HUGEINT) * {1 << 32} + {columns['_seq'][0]}"
        found["kind"] = columns["_change_type"][0]
    else:
        found["o"], found["kind"] = "CAST(0 AS HUGEINT)", "'insert'"
    found["is_logged"] = is_logged
    found["d"] = _hash(columns.get(name) for name in whole)
    for i, name in enumerate(toastable):
        found[f"t{i}"] = _hash([columns.get(name)])
        listed = (
            f"coalesce(list_contains({columns['_unchanged'][0]}, {literal(name)}), false)"
            if "_unchanged" in columns
            else ""
        )
        found[f"u{i}"] = listed or "false"
    return {name: found[name] for name in change_kinds(schema)}


def _key_kind(arrow_type: str) -> str:
    """Returns DuckDB's type for a key's column. Integers are compared as such, all else as text."""
    kind = arrow_type_of(arrow_type)
    if pa.types.is_decimal(kind) and kind.scale == 0:
        return f"DECIMAL({kind.precision}, 0)"
    return "BIGINT" if pa.types.is_integer(kind) else "VARCHAR"


def _key_text(expression: str, kind: str, *, is_binary: bool) -> str:
    if kind == "JSON":
        text = f"({expression}->>'$')"
        return f"'0x' || lower(hex(from_base64({text})))" if is_binary else text
    return f"'0x' || lower(hex({expression}))" if kind == "BLOB" else _value_text(expression, kind)


def _value_text(expression: str, kind: str) -> str:
    """Returns an expression: a text that only this value of the column's type has; NULL for NULL."""
    if kind.endswith("[]"):
        element = _value_text("e", kind.removesuffix("[]"))
        sized = f"coalesce(strlen({element}) || ':' || {element}, 'N')"
        return f"'[' || array_to_string([{sized} for e in {expression}], ',')"
    match kind:
        case "JSON":
            return f"nullif(CAST({expression} AS VARCHAR), 'null')"
        case "BLOB":
            return f"hex({expression})"
        case "TIMESTAMP WITH TIME ZONE":
            return f"CAST(make_timestamp(epoch_us({expression})) AS VARCHAR) || 'Z'"
        case _:
            return f"CAST({expression} AS VARCHAR)"


def _hash(columns: Iterable[SqlColumn | None]) -> str:
    """Returns an expression: a hash of the columns' values. None for a column that the rows do not have: it is NULL."""
    parts = ["'N'" if column is None else f"coalesce({_short_text(*column)}, 'N')" for column in columns]
    return f"md5_number(concat_ws(',', {', '.join(parts)}))" if parts else "md5_number('')"


def _short_text(expression: str, kind: str) -> str:
    """Returns an expression: a text without commas that only this value has, not N; NULL for NULL. Copies no long value."""
    if kind == "BLOB":
        return f"md5({expression})"
    text = _value_text(expression, kind)
    return f"md5({text})" if kind in {"VARCHAR", "JSON"} or kind.endswith("[]") else text


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
