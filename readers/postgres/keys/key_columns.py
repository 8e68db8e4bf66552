"""Split-key columns: selecting their values, writing them as SQL, and comparing them.

The server orders, compares and formats all key values. A literal is the server's own text of a value. In a statement it is
cast to the column's base type, without the declared length (`bpchar`, never `character`, which is `character(1)`) and
without a domain, whose constraints may be newer than the row. Comparisons with a column name no collation: the column's
collation takes precedence over a literal's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from tidemark.readers.postgres.connect import Connection, quote_identifier, quote_literal, quote_table
from tidemark.state.errors import SchemaChangedError, SourceNotUsableError
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.split import KeyRange
from tidemark.state.table import TableId

INTEGERS = frozenset({"smallint", "integer", "bigint", "oid"})

# Operators are looked up as an index does: those of the type's default B-tree operator class. Only types of extensions
# (citext, ltree) have operators outside pg_catalog.
_READ = """
WITH RECURSIVE bases AS (
    SELECT c.oid, c.relkind, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod) AS source_type, a.attcollation,
           a.atttypid AS type
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.oid = to_regclass(%(table)s)
    UNION ALL
    SELECT b.oid, b.relkind, b.attnum, b.attname, b.source_type, b.attcollation, t.typbasetype
    FROM bases b JOIN pg_type t ON t.oid = b.type WHERE t.typtype = 'd'
)
SELECT b.oid::bigint, b.relkind, b.attnum, b.attname, b.source_type, l.name, format_type(b.type, -1),
       coalesce(o.nspname, 'pg_catalog'), coalesce(o.oprname, '<')
FROM bases b
JOIN pg_type t ON t.oid = b.type AND t.typtype <> 'd'
LEFT JOIN LATERAL (
    SELECT quote_ident(n.nspname) || '.' || quote_ident(c.collname) AS name
    FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace WHERE c.oid = b.attcollation
) l ON true
LEFT JOIN LATERAL (
    SELECT s.nspname, p.oprname
    FROM pg_opclass k
    JOIN pg_am m ON m.oid = k.opcmethod AND m.amname = 'btree'
    JOIN pg_amop a ON a.amopfamily = k.opcfamily AND a.amoplefttype = k.opcintype AND a.amoprighttype = k.opcintype
                    AND a.amopstrategy = 1
    JOIN pg_operator p ON p.oid = a.amopopr
    JOIN pg_namespace s ON s.oid = p.oprnamespace
    WHERE k.opcdefault AND k.opcintype = b.type AND b.attname = ANY (%(columns)s::name[]) LIMIT 1
) o ON true
ORDER BY b.attnum
"""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """`type`: the base type as a cast takes it. `operators`: the schema of its comparison operators, as SQL. `collation`: the
    column's, as SQL; None if the type has none. `alias`: the table's in the statement."""

    name: str
    type: str
    operators: str
    collation: str | None
    alias: str = "t"

    @property
    def sql(self) -> str:
        """The column in a statement whose FROM is TableKey.relation. It is qualified: ORDER BY would take the bare name as
        an output column, which is text."""
        return f"{self.alias}.{quote_identifier(self.name)}"

    @property
    def is_integer(self) -> bool:
        return self.type in INTEGERS

    def literal(self, text: str) -> str:
        return f"{quote_literal(text)}::{self.type}"


@dataclass(frozen=True, slots=True)
class TableKey:
    """A table's split key. `relation`: the table as FROM takes it, with the alias t. Of a table with inheritance children only
    its own rows are read: the children are separate tables. A partitioned table's rows are those of its partitions.
    `shape`: number, name, source type and collation of all columns, in the server's order."""

    oid: int
    relation: str
    columns: tuple[KeyColumn, ...]
    shape: tuple[tuple[int, str, str, str | None], ...]

    @property
    def is_integer(self) -> bool:
        """True if keys are encoded as numbers (`encode_integer` of state/key_encoding.py)."""
        return len(self.columns) == 1 and self.columns[0].is_integer


def read_key(connection: Connection, table: TableId, columns: Sequence[str]) -> TableKey:
    """Reads the key from the catalog. Raises SchemaChangedError if the table or a column is gone, SourceNotUsableError if
    a type has no operators such as `<`."""
    with connection.cursor() as cursor:
        cursor.execute(_READ, {"table": quote_table(table), "columns": list(columns)})
        rows = cursor.fetchall()
    known = {name: KeyColumn(name, base, quote_identifier(schema), c) for _, _, _, name, _, c, base, schema, _ in rows}
    missing = [name for name in columns if name not in known]
    if not rows or missing:
        raise SchemaChangedError(
            f"{table} no longer exists, or no longer has the columns {', '.join(missing)}.",
            START_OVER_NOW,
        )
    for _, _, _, name, source_type, _, _, _, less in rows:
        if name in columns and less != "<":
            raise SourceNotUsableError(
                f"{table} can't be read in parts by its key: {source_type}, the type of {name}, has no operator <.",
                "Name the table in source.exclude_tables.",
                table,
            )
    only = "" if rows[0][1] == "p" else "ONLY "
    shape = tuple((number, name, source_type, collation) for _, _, number, name, source_type, collation, *_ in rows)
    return TableKey(int(rows[0][0]), f"{only}{quote_table(table)} AS t", tuple(known[name] for name in columns), shape)


def under_own_name(key: TableKey, table: TableId) -> TableKey:
    """Returns the key for a statement that has the table under its own name, which conditions of the job file may write before
    columns."""
    columns = tuple(replace(column, alias=quote_identifier(table.name)) for column in key.columns)
    return replace(key, relation=key.relation.removesuffix(" AS t"), columns=columns)


def range_condition(keys: Sequence[KeyColumn], key_range: KeyRange) -> str:
    """Returns SQL that is true for the rows of [start, end) and can use the key's index; TRUE for an unbounded range."""
    parts = []
    if key_range.start is not None:
        parts.append(compared(keys, ">=", literals(keys, key_range.start.literals)))
    if key_range.end is not None:
        parts.append(compared(keys, "<", literals(keys, key_range.end.literals)))
    return " AND ".join(parts) or "TRUE"


def literals(keys: Sequence[KeyColumn], texts: Sequence[str]) -> list[str]:
    return [key.literal(text) for key, text in zip(keys, texts, strict=True)]


def compared(keys: Sequence[KeyColumn], operator: str, values: Sequence[str]) -> str:
    """Returns a row comparison, which the key's index supports. A row comparison takes its operators from one schema. If the
    operators are in several schemas, there is one row comparison per run of columns, and the index is searched by the
    first."""
    runs = [list(run) for _, run in groupby(zip(keys, values, strict=True), lambda pair: pair[0].operators)]
    if len(runs) == 1:
        return _row(runs[0], operator)
    outer = operator[0]
    condition = _row(runs[-1], operator)
    for run in reversed(runs[:-1]):
        condition = f"({_row(run, outer)} OR ({_row(run, '=')} AND {condition}))"
    return f"({_row(runs[0], f'{outer}=')} AND {condition})"


def column_list(keys: Iterable[KeyColumn], suffix: str = "") -> str:
    return ", ".join(key.sql + suffix for key in keys)


def _row(run: Sequence[tuple[KeyColumn, str]], operator: str) -> str:
    columns, values = ", ".join(key.sql for key, _ in run), ", ".join(value for _, value in run)
    qualified = f"OPERATOR({run[0][0].operators}.{operator})"
    if len(run) == 1:
        return f"{columns} {qualified} {values}"
    return f"({columns}) {qualified} ({values})"
