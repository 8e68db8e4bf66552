"""Maps a column's PostgreSQL type to the one Arrow type of its values.

| PostgreSQL | in Arrow |
|---|---|
| boolean | bool |
| smallint, integer, bigint; oid | int16, int32, int64; int64 |
| real, double precision | float32, float64; NaN, infinities and -0 included |
| numeric(p,s) with 0 ≤ s ≤ p ≤ 38 | decimal(p,s). NaN does not fit: `sink.on_bad_value` decides |
| numeric without precision, wider, or with another scale | text: `NaN`, `-Infinity`, `12.300` |
| bytea | binary |
| date; timestamp; timestamp with time zone | date32; timestamp (µs); timestamp (µs, UTC). BC and years beyond 9999 are kept; ±infinity does not fit: `sink.on_bad_value` decides |
| text, varchar, name | text |
| char(n) | text, padded with spaces to n |
| json, jsonb, uuid, xml, enums, arrays, ranges, composite types, time, interval, inet, money, bit, tsvector, … and types of extensions (citext, hstore, PostGIS as hex EWKB) | text: the server's output form under the settings of `connect.SESSION` |
| regclass, regtype, … and aclitem, also inside of other types | refused: their text is a name, which can change without a change of the row |
| a domain | as its base type |
| arrays of these types, of char, json, jsonb, uuid, time, interval and network addresses, outside a key, for sinks that take lists | list of what an element is. Several dimensions and other first indices than 1 do not fit: `sink.on_bad_value` decides |

The text of an enum, a composite type or a range depends on the type: `ALTER TYPE … RENAME VALUE` (or ADD, RENAME, DROP
ATTRIBUTE) changes the text of rows without changing a row. The planner notices it, and the table is read again or parked
(partitions/checks.py).

SELECT and log give the same text because both take it from the type's output function. `column::text` differs: it appends
/32 to an inet, strips a char(n), keeps an XML declaration, and uses any user-defined cast to text.
"""  # noqa: E501  # a table

from dataclasses import dataclass

from tidemark.conf.tables import setting_of
from tidemark.readers.postgres.connect import quote_identifier
from tidemark.state.errors import UnsupportedTypeError
from tidemark.state.table import Column, TableId, is_list

MAX_PRECISION = 38
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
NAMES_OF_OTHERS = frozenset(
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
INNER_TYPES = """
        SELECT p.typbasetype UNION ALL SELECT p.typelem
        UNION ALL SELECT r.rngsubtype FROM pg_range AS r WHERE p.oid IN (r.rngtypid, r.rngmultitypid)
        UNION ALL SELECT a.atttypid FROM pg_attribute AS a
        WHERE a.attrelid = p.typrelid AND a.attnum > 0 AND NOT a.attisdropped"""
"""The types that the text of a value of the type p, a row of pg_type, depends on, as SQL: of domains, arrays, ranges, and
attributes of composite types. 0 is none."""
_LISTED_TEXTS = frozenset(
    {
        "bpchar",
        "cidr",
        "inet",
        "interval",
        "json",
        "jsonb",
        "macaddr",
        "macaddr8",
        "name",
        "text",
        "time",
        "timetz",
        "uuid",
        "varchar",
    }
)
"""Types whose arrays are lists of texts."""
_TEXT_IN_BINARY = frozenset({"text", "name", "json", "bpchar", "character", "character varying"})
"""Types whose binary form is their text, as format_type() names them."""


@dataclass(frozen=True, slots=True)
class BaseType:
    """A column's type without its domains: pg_type.typname, "" outside pg_catalog, and the modifier
    (pg_attribute.atttypmod, or the domain's pg_type.typtypmod). If one of NAMES_OF_OTHERS is inside the type, such as in a
    composite type, it has that name."""

    name: str
    modifier: int


def canonical_type(table: TableId, column: str, source_type: str, base: BaseType) -> str:
    """Returns a canonical type name (state/table.py). Raises UnsupportedTypeError."""
    if base.name.removeprefix("_") in NAMES_OF_OTHERS:
        raise UnsupportedTypeError(
            f"Column {column} of {table} has type {source_type}, whose text has the name of an object. Renaming the object "
            "changes the text without a change in the log.",
            f"Leave the column out: {setting_of('source.columns', table, {'exclude': [column]})}. Or change its type to oid.",
        )
    if base.name == "numeric":
        return _numeric_type(base.modifier)
    return _PLAIN.get(base.name, "string")


def is_toastable(arrow_type: str) -> bool:
    """True if values of the canonical type may be stored outside their row (TOAST): all types of variable length."""
    return arrow_type in ("string", "binary") or arrow_type.startswith("decimal") or is_list(arrow_type)


def list_type(base: BaseType) -> str | None:
    """Returns the canonical name of a list for arrays of simple types, None for other types. An array's modifier is that of its
    elements."""
    if not base.name.startswith("_"):
        return None
    element = BaseType(base.name[1:], base.modifier)
    if element.name == "numeric":
        return f"list<{_numeric_type(element.modifier)}>"
    if element.name in _LISTED_TEXTS:
        return "list<string>"
    return f"list<{_PLAIN[element.name]}>" if element.name in _PLAIN else None


def _numeric_type(modifier: int) -> str:
    """Decodes the modifier as `numerictypmodin` of src/backend/utils/adt/numeric.c packs it: the scale has 11 bits and, since
    15, a sign."""
    if modifier == _NO_MODIFIER:
        return "string"
    packed = modifier - _MODIFIER_HEADER
    precision, scale = packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400
    return f"decimal({precision},{scale})" if 0 <= scale <= precision <= MAX_PRECISION else "string"


def select_expression(column: Column) -> str:
    """Returns SQL whose binary form is the column's canonical value: that of int2, int4, int8, float4, float8, bool, numeric,
    bytea, date, timestamp or timestamptz as `arrow_type` says, and UTF-8 text for `string` and lists."""
    name = quote_identifier(column.name)
    if column.arrow_type == "int64":
        return f"{name}::int8"  # oid has four bytes
    if is_list(column.arrow_type):
        return _text_of(name)
    if column.arrow_type != "string" or _is_text_in_binary(column.source_type):
        return name
    return _text_of(name)


def _text_of(name: str) -> str:
    return f"CASE num_nulls({name}) WHEN 0 THEN concat({name}) END"  # concat calls the type's output function


def _is_text_in_binary(source_type: str) -> bool:
    return not source_type.endswith("[]") and source_type.partition("(")[0] in _TEXT_IN_BINARY
