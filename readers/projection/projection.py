"""A table's projection: masks, then the transform, compiled to one statement for DuckDB.

Columns that are passed on unchanged never reach DuckDB: their arrays go from source to sink as they are, whatever their
type. The statement computes the other columns, row by row.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemark.conf.redaction import Secret
from tidemark.conf.tables import TableName
from tidemark.conf.transform import INPUT, Output, parse_transform
from tidemark.readers.findings import SettingError
from tidemark.state.table import Column, TableId, TableSchema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

BATCH = "batch"
REDACTED = "***"

_HASHABLE = ("bool", "int", "decimal", "string", "binary", "date32", "timestamp")
_BLOCK_BYTES = 64

_CANONICAL = {
    "BOOLEAN": ("bool", "boolean"),
    "TINYINT": ("int8", "smallint"),
    "SMALLINT": ("int16", "smallint"),
    "INTEGER": ("int32", "integer"),
    "BIGINT": ("int64", "bigint"),
    "FLOAT": ("float32", "real"),
    "DOUBLE": ("float64", "double precision"),
    "VARCHAR": ("string", "text"),
    "BLOB": ("binary", "bytea"),
    "DATE": ("date32", "date"),
    "TIMESTAMP": ("timestamp", "timestamp without time zone"),
    "TIMESTAMP WITH TIME ZONE": ("timestamptz", "timestamp with time zone"),
    "FLOAT[]": ("list<float32>", "real[]"),
}
"""DuckDB type → the canonical type of its values (state/table.py), and PostgreSQL's name for it."""


@dataclass(frozen=True, slots=True)
class ProjectionSettings:
    """A table's masks and transform in the job file."""

    masks: Mapping[str, str] = field(default_factory=dict)
    mask_key: Secret | None = None
    transform: str | None = None


@dataclass(frozen=True, slots=True)
class Projection:
    """Maps rows of `schema` to rows of `output`.

    `passed` and `carried` have one entry per output column, in order. `passed`: the index of the captured column that is
    passed on; None if `sql` computes it (`sql` returns exactly these columns, in this order). `carried`: the name of the
    column whose value it holds or masks; None if it is computed. `reads`: the columns that expressions compute from.
    """

    schema: TableSchema
    output: TableSchema
    passed: tuple[int | None, ...]
    carried: tuple[str | None, ...]
    sql: str
    parameters: dict[str, bytes]
    reads: frozenset[str]


def compile_projection(engine: "DuckDBPyConnection", schema: TableSchema, settings: ProjectionSettings) -> Projection:
    """Compiles the settings and tries the statement on zero rows. Raises SettingError if a setting does not fit the table."""
    names = [column.name for column in schema.captured]
    _check_names(schema, names, settings)
    outputs = _outputs(schema, names, settings)
    made = [output for output in outputs if output.column is None or output.column in settings.masks]
    inner = ", ".join(
        f"{_mask(schema.column(name), settings)} AS {_quoted(name)}" if name in settings.masks else _quoted(name)
        for name in names
    )
    source = INPUT if settings.transform is None else f"({parse_transform(settings.transform).sql}) AS output"
    wanted = ", ".join(_quoted(output.name) for output in made)
    sql = f"WITH {INPUT} AS NOT MATERIALIZED (SELECT {inner} FROM {BATCH}) SELECT {wanted} FROM {source}"
    key = None if settings.mask_key is None else settings.mask_key.get_secret_value().encode()
    parameters = {} if key is None or "$inner" not in sql else _hmac_parameters(key)
    types = iter(_types(engine, schema, sql, parameters) if made else ())
    columns = tuple(_column(schema, settings, output, next(types) if output in made else "") for output in outputs)
    return Projection(
        schema=schema,
        output=TableSchema(schema.table, schema.version, columns, schema.key),
        passed=tuple(None if o in made else names.index(str(o.column)) for o in outputs),
        carried=tuple(output.column for output in outputs),
        sql=sql if made else "",
        parameters=parameters,
        reads=frozenset().union(*(output.reads for output in outputs)),
    )


def setting_of(table: TableId, *, mask: bool) -> tuple[str, ...]:
    """Returns the setting's path in the job file, for messages."""
    name = str(TableName(table.database, table.name))
    return ("source", "columns", name, "mask") if mask else ("transforms", name)


def mask_key_id(key: Secret) -> str:
    """Returns an id that differs between keys. The key can't be recovered from it, except by trying keys."""
    return hmac.new(key.get_secret_value().encode(), b"tidemark mask key", hashlib.sha256).hexdigest()[:16]


def _check_names(schema: TableSchema, names: list[str], settings: ProjectionSettings) -> None:
    table = schema.table
    masking = setting_of(table, mask=True)
    for name, kind in settings.masks.items():
        if name not in names:
            raise SettingError(
                f"masks {name} of {table}, which has no such column.", f"Its columns are {', '.join(names)}.", masking
            )
        if name in schema.key:
            raise SettingError(
                f"masks {name} of {table}, which is in its key: the checkpoint stores keys as split boundaries.",
                "Mask other columns; or name another unique key in source.keys, or leave the table out.",
                masking,
            )
        if kind == "sha256" and not schema.column(name).arrow_type.startswith(_HASHABLE):
            raise SettingError(
                f"masks {name} of {table} by sha256, but {schema.column(name).source_type} has no text to hash.",
                "Mask it by null or redact, or exclude it.",
                masking,
            )
    lower = [name.lower() for name in names]
    alike = [name for name in names if lower.count(name.lower()) > 1]
    if alike:
        raise SettingError(
            f"can't be used for {table}, whose columns {', '.join(alike)} differ only in case: DuckDB takes them as one.",
            "Exclude all but one of them.",
            setting_of(table, mask=settings.transform is None),
        )


def _outputs(schema: TableSchema, names: list[str], settings: ProjectionSettings) -> tuple[Output, ...]:
    if settings.transform is None:
        return tuple(Output(name, name) for name in names)
    setting = setting_of(schema.table, mask=False)
    try:
        outputs = parse_transform(settings.transform).outputs(names)
    except ValueError as error:
        raise SettingError(f"{error}.", f"Correct the transform of {schema.table}.", setting) from error
    for name in schema.key:
        if not any(output.name == name and output.column == name for output in outputs):
            raise SettingError(
                f"drops or changes {name}, which is in the key of {schema.table}.",
                f"Pass it on as it is: SELECT {_quoted(name)}, … FROM {INPUT}.",
                setting,
            )
    return outputs


def _mask(column: Column, settings: ProjectionSettings) -> str:
    name = _quoted(column.name)
    match settings.masks[column.name]:
        case "null":
            return f"CASE WHEN FALSE THEN {name} END"
        case "redact":
            return f"CASE WHEN {name} IS NOT NULL THEN '{REDACTED}' END"
        case _ if settings.mask_key is not None:
            content = name if column.arrow_type == "binary" else f"encode(CAST({name} AS VARCHAR))"
            return f"sha256($outer || unhex(sha256($inner || {content})))"
        case _:
            return f"sha256({name})" if column.arrow_type == "binary" else f"sha256(CAST({name} AS VARCHAR))"


def _hmac_parameters(key: bytes) -> dict[str, bytes]:
    """Returns the HMAC's inner and outer padded keys (RFC 2104)."""
    block = (hashlib.sha256(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    return {"inner": bytes(byte ^ 0x36 for byte in block), "outer": bytes(byte ^ 0x5C for byte in block)}


def _types(engine: "DuckDBPyConnection", schema: TableSchema, sql: str, parameters: dict[str, bytes]) -> list[str]:
    import duckdb

    engine.register(BATCH, schema.arrow_schema().empty_table())
    try:
        return [str(kind) for kind in engine.sql(sql, params=parameters).types]
    except duckdb.Error as error:
        text = str(error).partition("\n")[0]
        raise SettingError(
            f"does not fit {schema.table}: {text}.",
            "Correct the transform. It is SQL of DuckDB.",
            setting_of(schema.table, mask=False),
        ) from error
    finally:
        engine.unregister(BATCH)


def _column(schema: TableSchema, settings: ProjectionSettings, output: Output, made: str) -> Column:
    if output.column is None:
        arrow_type, name = _canonical(schema.table, output.name, made)
        return Column(output.name, name, arrow_type, nullable=True, made=True)
    source = replace(schema.column(output.column), name=output.name)
    match settings.masks.get(output.column):
        case None:
            return source
        case "null":
            return replace(source, nullable=True)
        case kind:
            text = "character varying(64)" if kind == "sha256" else f"character varying({len(REDACTED)})"
            return Column(output.name, text, "string", nullable=source.nullable, toastable=source.toastable, made=True)


def _canonical(table: TableId, name: str, made: str) -> tuple[str, str]:
    if made.startswith("DECIMAL("):
        digits = made.removeprefix("DECIMAL").replace(" ", "")
        return f"decimal{digits}", f"numeric{digits}"
    if made in _CANONICAL:
        return _CANONICAL[made]
    raise SettingError(
        f"gives {name} the type {made}, which a copy of {table} can't hold.",
        f"Cast it: BIGINT or DECIMAL(38,0) for large integers, VARCHAR for the rest: CAST(… AS VARCHAR) AS {name}.",
        setting_of(table, mask=False),
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def engine_schema(projection: Projection) -> pa.Schema:
    """The schema of the statement's result."""
    fields = projection.output.arrow_schema()
    return pa.schema([fields.field(i) for i, passed in enumerate(projection.passed) if passed is None])
