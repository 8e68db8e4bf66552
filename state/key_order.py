"""Orders of keys: names for the rules by which a server compares the values of a column, equality included.

Two columns with one order compare all values alike that both can hold. So a range of a source's key is the same range in a
copy (docs/adr/0055). `source_order` names the order of a source's column, and a mirror's session those that a copy's column
has. An order that is not certain has no name.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa
from typing_extensions import assert_never

from tidemark.state.table import Column, arrow_type_of

INTEGERS = "integers"
DECIMALS = "decimals"
"""Finite decimal numbers, also integers."""
NUMERIC = "numeric of PostgreSQL"
"""Decimal numbers, infinities and NaN."""
BYTES = "bytes"
UUIDS = "UUIDs by their bytes"
"""Their texts have the same order by code points, because all are lowercase and have the same form."""
CODE_POINTS = "texts by code points, with trailing spaces"
_BOOLEANS = "booleans"

TEXTS_BY_COLLATION = frozenset({"text", "varchar"})
"""Types in pg_type. Another text, `bpchar`, ignores trailing spaces, and its copy does not."""
_TEXTS_OF_POSTGRES = re.compile(r"text|character varying(\(\d+\))?")
_KINDS_OF_POSTGRES = (
    (re.compile(r"numeric(\(\d+,-?\d+\))?"), NUMERIC),
    (re.compile("bytea"), BYTES),
    (re.compile("uuid"), UUIDS),
    (re.compile("boolean"), _BOOLEANS),
    (re.compile("date"), "date of PostgreSQL"),
    (re.compile(r"timestamp(\(\d\))? with(out)? time zone"), "timestamp of PostgreSQL"),
)
_ORDERS_OF_POSTGRES = {
    **dict.fromkeys(("int2", "int4", "int8"), frozenset({INTEGERS})),
    "numeric": frozenset({INTEGERS, DECIMALS, NUMERIC}),
    "bytea": frozenset({BYTES}),
    "uuid": frozenset({UUIDS}),
    "bool": frozenset({_BOOLEANS}),
    "date": frozenset({"date of PostgreSQL"}),
    **dict.fromkeys(("timestamp", "timestamptz"), frozenset({"timestamp of PostgreSQL"})),
}
_TIMES_OF_MYSQL = frozenset({"date", "datetime", "timestamp"})
_CODE_POINTS_OF_MYSQL = re.compile("(utf8mb4|utf8mb3|utf8|ascii)_(0900|nopad)_bin")
_UNSTEADY = re.compile(".*_mysql500_ci")
"""Collations whose order was another one in some releases: https://jira.mariadb.org/browse/MDEV-30746. The servers' own check
after an upgrade (`handler::check_collation_compatibility`) knows of no other since MySQL 5.1.24."""
_BUILTIN_CODE_POINTS = frozenset({"C", "C.UTF-8", "PG_UNICODE_FAST"})

SourceKind = Literal["mysql", "mariadb", "postgresql"]


def source_order(column: Column, kind: SourceKind) -> str | None:
    """Returns the order of a source's column, None if it has no name. For texts of PostgreSQL the server must be asked
    (`is_text_of_postgres`)."""
    if column.made:
        return None
    match kind:
        case "mysql" | "mariadb":
            return _mysql_order(column, kind)
        case "postgresql":
            if pa.types.is_integer(arrow_type_of(column.arrow_type)):
                return INTEGERS
            return next((order for names, order in _KINDS_OF_POSTGRES if names.fullmatch(column.source_type)), None)
        case _:
            assert_never(kind)


def is_text_of_postgres(column: Column) -> bool:
    """True for the types of TEXTS_BY_COLLATION."""
    return not column.made and _TEXTS_OF_POSTGRES.fullmatch(column.source_type) is not None


def _mysql_order(column: Column, kind: SourceKind) -> str | None:
    found = re.match("[a-z]+", column.source_type.lower())
    base, arrow_type = "" if found is None else found[0], arrow_type_of(column.arrow_type)
    if base in _TIMES_OF_MYSQL:
        return f"{base} of MySQL"
    if base in {"binary", "varbinary"}:
        return BYTES
    if base in {"char", "varchar"}:
        return mysql_text_order(kind, base, column.collation)
    if base == "year":
        return None  # small numbers are other years: its bounds are texts
    if pa.types.is_integer(arrow_type) or (pa.types.is_decimal(arrow_type) and arrow_type.scale == 0):
        return INTEGERS
    return DECIMALS if base == "decimal" else None


def mysql_text_order(flavour: str, base: str, collation: str | None) -> str | None:
    """`base`: char or varchar. MySQL and MariaDB never change a collation, but give changes another name. Both have collations
    of one name that differ."""
    if collation is None or _UNSTEADY.fullmatch(collation):
        return None
    return f"{base} of {flavour} by {collation}"


def orders_of_mysql(flavour: str, base: str, collation: str | None) -> frozenset[str]:
    """Returns the orders of a column in MySQL or MariaDB. `base`: its type's name without arguments."""
    if base in {"tinyint", "smallint", "mediumint", "int", "integer", "bigint", "decimal", "numeric"}:
        return frozenset({INTEGERS, DECIMALS})
    if base in {"binary", "varbinary"}:
        return frozenset({BYTES})
    if base in _TIMES_OF_MYSQL:
        return frozenset({f"{base} of MySQL"})
    order = mysql_text_order(flavour, base, collation) if base in {"char", "varchar"} else None
    if order is None:
        return frozenset()
    by_code_points = base == "varchar" and _CODE_POINTS_OF_MYSQL.fullmatch(str(collation))
    return frozenset({order, CODE_POINTS, UUIDS} if by_code_points else {order})


def orders_of_postgres(type_name: str, text_order: str | None) -> frozenset[str]:
    """Returns the orders of a column in PostgreSQL. `type_name`: in pg_type. `text_order`: from `text_order`."""
    if type_name in TEXTS_BY_COLLATION and text_order is not None:
        return frozenset({CODE_POINTS, UUIDS} if text_order == CODE_POINTS else {text_order})
    return _ORDERS_OF_POSTGRES.get(type_name, frozenset())


def text_orders_query(server_version: int) -> str:
    """Returns a query for texts of one table of PostgreSQL, given by its quoted name, among columns given by an array of names.
    Its rows are a column's name, and the arguments of `text_order`. `server_version`: such as 150004."""
    of_database = "pg_database_collation_actual_version(d.oid)" if server_version >= 15_00_00 else "NULL::text"
    return f"""
SELECT a.attname::text, pg_encoding_to_char(d.encoding)::text, to_jsonb(l), to_jsonb(d) - 'datacl',
       pg_collation_actual_version(l.oid), {of_database}
FROM pg_attribute a
JOIN pg_collation l ON l.oid = a.attcollation
JOIN pg_database d ON d.datname = current_database()
WHERE a.attrelid = to_regclass(%s) AND a.attname = ANY (%s::name[]) AND a.attnum > 0 AND NOT a.attisdropped"""


def text_order(
    encoding: str,
    collation: Mapping[str, Any],
    database: Mapping[str, Any],
    collation_version: str | None,
    database_version: str | None,
) -> str | None:
    """Returns the order of a column by a collation of PostgreSQL, None if it is not certain.

    `collation`, `database`: rows of the catalog; servers of different versions have different columns. The versions: those of
    the library that compares. A library without one, or with another one than the indexes were built with, is not certain. The
    server compares by bytes what a deterministic collation takes for equal."""
    is_default = collation["collprovider"] == "d"
    facts, prefix = (database, "dat") if is_default else (collation, "coll")
    provider = facts.get("datlocprovider", "c") if is_default else collation["collprovider"]
    locale = facts.get(f"{prefix}locale") or facts.get("daticulocale" if is_default else "colliculocale")
    collate, ctype = facts.get(f"{prefix}collate"), facts.get(f"{prefix}ctype")
    rules = facts.get("daticurules" if is_default else "collicurules")
    recorded = facts.get("datcollversion" if is_default else "collversion")
    version = database_version if is_default else collation_version
    if not collation.get("collisdeterministic", False):
        return None
    by_code_points = collate in {"C", "POSIX"} if provider == "c" else locale in _BUILTIN_CODE_POINTS
    if encoding == "UTF8" and provider in {"c", "b"} and by_code_points:
        return CODE_POINTS
    if version is None or version != recorded:
        return None
    name = f"{collate} {ctype}" if provider == "c" else f"{locale or collate} {rules or ''}"
    return f"texts of PostgreSQL by {provider} {name} {version} in {encoding}"
