"""From a column's type in PostgreSQL to the one Arrow type its values travel in.

| PostgreSQL | in Arrow |
|---|---|
| boolean | bool |
| smallint, integer, bigint; oid | int16, int32, int64; int64 |
| real, double precision | float32, float64; NaN, infinities and -0 included |
| numeric(p,s) with 0 ≤ s ≤ p ≤ 38 | decimal(p,s). NaN has no place there: the job stops |
| numeric without precision, wider, or with another scale | text: `NaN`, `-Infinity`, `12.300` |
| bytea | binary |
| date; timestamp; timestamp with time zone | date32; timestamp (µs); timestamp (µs, UTC). BC and years beyond 9999 are carried; ±infinity has no place: the job stops |
| text, varchar, name | text |
| char(n) | text, filled up with spaces to n |
| json, jsonb, uuid, xml, enums, arrays, ranges, composite types, time, interval, inet, money, bit, tsvector, … and what extensions add (citext, hstore, PostGIS as hex EWKB) | text: what the server itself writes, under the settings of `connect.SESSION` |
| regclass, regtype, … and aclitem | refused: their text is a name, which changes without any row being changed |
| a domain | as the type that it is made of |

The text of an enum, a composite type or a range is made of its type: `ALTER TYPE … RENAME VALUE` (or ADD, RENAME, DROP
ATTRIBUTE) changes what rows look like without changing a row, so that rows copied before keep their text.

SELECT and log give the same text because both take it from the type's output function. `column::text` is not that: it
appends /32 to an inet, strips a char(n), keeps an XML declaration, and calls whatever cast to text somebody made.
"""  # noqa: E501  # a table

from dataclasses import dataclass

from readers.postgres.connect import quote_identifier
from state.errors import UnsupportedTypeError
from state.table import Column, TableId

GREATEST_PRECISION = 38
_NO_MODIFIER = -1
_MODIFIER_HEADER = 4

_PLAIN = {
    "bool": "bool",
    "int2": "int16",
    "int4": "int32",
    "int8": "int64",
    "oid": "int64",
    "float4": "float32",
    "float8": "float64",
    "bytea": "binary",
    "date": "date32",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
}
_NAMES_OF_OTHERS = frozenset(
    {
        "aclitem",
        "regclass",
        "regcollation",
        "regconfig",
        "regdatabase",
        "regdictionary",
        "regnamespace",
        "regoper",
        "regoperator",
        "regproc",
        "regprocedure",
        "regrole",
        "regtype",
    }
)
_TEXT_IN_BINARY = frozenset({"text", "name", "json", "bpchar", "character", "character varying"})
"""Types, by the server's words, whose binary form is their text."""


@dataclass(frozen=True, slots=True)
class BaseType:
    """What is left of a column's type when its domains are taken off: pg_type.typname, "" outside of pg_catalog, and
    the modifier (pg_attribute.atttypmod, or the domain's pg_type.typtypmod)."""

    name: str
    modifier: int


def canonical_type(table: TableId, column: str, source_type: str, base: BaseType) -> str:
    """A canonical name of state/table.py. Raises UnsupportedTypeError."""
    if base.name.removeprefix("_") in _NAMES_OF_OTHERS:
        raise UnsupportedTypeError(
            f"Column {column} of {table}, {source_type}, is shown as the name of something else, which can be renamed "
            "without any row being changed.",
            f"Leave the column out: source.columns: {{{table}: {{exclude: [{column}]}}}}. Or change its type to oid.",
        )
    if base.name == "numeric":
        return _numeric_type(base.modifier)
    return _PLAIN.get(base.name, "string")


def is_toastable(arrow_type: str) -> bool:
    """May values of the canonical type be stored outside of their row? Every type of variable length is one of these."""
    return arrow_type in ("string", "binary") or arrow_type.startswith("decimal")


def _numeric_type(modifier: int) -> str:
    """`numerictypmodin` of src/backend/utils/adt/numeric.c: the scale has 11 bits and, since 15, a sign."""
    if modifier == _NO_MODIFIER:
        return "string"
    packed = modifier - _MODIFIER_HEADER
    precision, scale = packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400
    return f"decimal({precision},{scale})" if 0 <= scale <= precision <= GREATEST_PRECISION else "string"


def select_expression(column: Column) -> str:
    """SQL whose binary form is the column's canonical value: that of int2, int4, int8, float4, float8, bool, numeric,
    bytea, date, timestamp or timestamptz as `arrow_type` says, and UTF-8 text for `string`."""
    name = quote_identifier(column.name)
    if column.arrow_type == "int64":
        return f"{name}::int8"  # oid has four bytes
    if column.arrow_type != "string" or _is_text_in_binary(column.source_type):
        return name
    return f"CASE num_nulls({name}) WHEN 0 THEN concat({name}) END"  # concat calls the type's output function


def _is_text_in_binary(source_type: str) -> bool:
    return not source_type.endswith("[]") and source_type.partition("(")[0] in _TEXT_IN_BINARY
