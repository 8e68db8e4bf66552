"""The catalog's facts about tables, read for many tables at once."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tidemark.readers.postgres.connect import Connection
from tidemark.readers.postgres.schema.types import INNER_TYPES, NAMES_OF_OTHERS, BaseType
from tidemark.state.errors import TableGoneError
from tidemark.state.table import NamedType, TableId

Kind = Literal["table", "partitioned"]
Identity = Literal["default", "nothing", "full", "index"]

_KINDS: dict[str, Kind] = {"r": "table", "p": "partitioned"}
_IDENTITIES: dict[str, Identity] = {"d": "default", "n": "nothing", "f": "full", "i": "index"}

_TABLES = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind, c.relpersistence, c.relreplident,
       ARRAY(SELECT ARRAY[m.nspname::text, k.relname::text] FROM pg_inherits i JOIN pg_class k ON k.oid = i.inhrelid
             JOIN pg_namespace m ON m.oid = k.relnamespace
             WHERE i.inhparent = c.oid AND c.relkind = 'r' AND NOT c.relispartition ORDER BY 1),
       row_security_active(c.oid), pg_has_role(c.relowner, 'USAGE'), has_schema_privilege(n.oid, 'USAGE'),
       has_table_privilege(c.oid, 'SELECT'),
       ARRAY(SELECT s.name FROM unnest(ARRAY['ctid', 'tableoid', 'xmin', 'cmin']) AS s(name)
             WHERE NOT has_column_privilege(c.oid, s.name, 'SELECT'))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p')
  AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::name[], %s::name[]))"""
# NOT NULL may be NOT VALID since 18: older rows may have NULL.
_COLUMNS = f"""
WITH RECURSIVE bases AS (
    SELECT a.attrelid, a.attnum, a.atttypid AS type, a.atttypmod AS modifier
    FROM pg_attribute a WHERE a.attrelid = ANY (%(tables)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attrelid, b.attnum, t.typbasetype, t.typtypmod
    FROM bases b JOIN pg_type t ON t.oid = b.type WHERE t.typtype = 'd'
), parts(root, type) AS (
    SELECT b.type, b.type FROM bases b
    UNION
    SELECT s.root, i.oid FROM parts s JOIN pg_type p ON p.oid = s.type
    CROSS JOIN LATERAL ({INNER_TYPES}
    ) AS i(oid) WHERE i.oid <> 0
), names(root, type) AS (
    SELECT s.root, min(p.typname::text) FROM parts s JOIN pg_type p ON p.oid = s.type
    WHERE p.typnamespace = 'pg_catalog'::regnamespace AND p.typname::text = ANY (%(names)s) GROUP BY s.root
)
SELECT a.attrelid::bigint, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
       coalesce(s.type, CASE t.typnamespace WHEN 'pg_catalog'::regnamespace THEN t.typname::text ELSE '' END), b.modifier,
       a.attnotnull AND NOT EXISTS (SELECT FROM pg_constraint v WHERE v.conrelid = a.attrelid AND v.contype = 'n'
                                    AND NOT v.convalidated AND a.attnum = ANY (v.conkey)),
       a.attgenerated <> '', has_column_privilege(a.attrelid, a.attnum, 'SELECT'),
       CASE WHEN a.attcollation <> 0 THEN (
           SELECT quote_ident(n.nspname) || '.' || quote_ident(l.collname)
           FROM pg_collation l JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = a.attcollation) END
FROM bases b
JOIN pg_type t ON t.oid = b.type AND t.typtype <> 'd'
LEFT JOIN names s ON s.root = b.type
JOIN pg_attribute a ON a.attrelid = b.attrelid AND a.attnum = b.attnum
ORDER BY a.attrelid, a.attnum"""
# A row for each column of an enum or of the extension's citext, or of arrays of one. The labels are NULL for citext.
_NAMED_TYPES = """
WITH RECURSIVE bases AS (
    SELECT a.attrelid, a.attnum, a.atttypid AS type
    FROM pg_attribute a WHERE a.attrelid = ANY (%(tables)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attrelid, b.attnum, t.typbasetype FROM bases b JOIN pg_type t ON t.oid = b.type WHERE t.typtype = 'd'
)
SELECT b.attrelid::bigint, b.attnum, n.nspname, e.typname,
       CASE e.typtype WHEN 'e' THEN ARRAY(
           SELECT l.enumlabel::text FROM pg_enum l WHERE l.enumtypid = e.oid ORDER BY l.enumsortorder) END,
       e.oid <> b.type
FROM bases b JOIN pg_type t ON t.oid = b.type
JOIN pg_type e ON e.oid = coalesce((SELECT x.oid FROM pg_type x WHERE x.oid = t.typelem AND x.typarray = t.oid), t.oid)
JOIN pg_namespace n ON n.oid = e.typnamespace
WHERE e.typtype = 'e' OR (e.typname = 'citext' AND EXISTS (
    SELECT FROM pg_depend d JOIN pg_extension x ON x.oid = d.refobjid AND x.extname = 'citext'
    WHERE d.classid = 'pg_type'::regclass AND d.objid = e.oid AND d.refclassid = 'pg_extension'::regclass))"""
_LABELS = """
SELECT n.nspname, t.typname,
       ARRAY(SELECT l.enumlabel::text FROM pg_enum l WHERE l.enumtypid = t.oid ORDER BY l.enumsortorder)
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE t.typtype = 'e' AND (n.nspname, t.typname) IN (SELECT * FROM unnest(%s::name[], %s::name[]))"""
# An index's columns are the first indnkeyatts of its indkey; the others are INCLUDEd. 0 is an expression.
_INDEXES = """
SELECT i.indrelid::bigint, c.relname, i.indisprimary, i.indisreplident,
       i.indisvalid AND i.indimmediate AND i.indpred IS NULL,
       ARRAY(SELECT a.attname::text FROM generate_series(0, i.indnkeyatts - 1) k
             LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k] AND a.attnum > 0
             ORDER BY k)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indisunique AND i.indrelid = ANY (%(tables)s::oid[]) ORDER BY 1, 2"""
# pg_partition_tree() would lock each partition, and wait for a session that rewrites one.
_PARTITIONS = """
WITH RECURSIVE tree(root, oid) AS (
    SELECT i.inhparent, i.inhrelid FROM pg_inherits AS i JOIN pg_class AS r ON r.oid = i.inhparent AND r.relkind = 'p'
    WHERE i.inhparent = ANY (%(tables)s::oid[]) AND NOT i.inhdetachpending
    UNION ALL
    SELECT t.root, i.inhrelid FROM tree AS t JOIN pg_inherits AS i ON i.inhparent = t.oid AND NOT i.inhdetachpending
)
SELECT t.root::bigint, n.nspname, c.relname, c.relkind, c.relpersistence, c.relreplident
FROM tree AS t JOIN pg_class AS c ON c.oid = t.oid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind <> 'p' ORDER BY 1, 2, 3"""


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column. `number`: attnum. `source_type` is format_type(); types outside pg_catalog are qualified by their schema."""

    number: int
    name: str
    source_type: str
    base: BaseType
    nullable: bool
    generated: bool
    readable: bool
    """The role may SELECT it."""
    collation: str | None
    named_type: NamedType | None = None


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """`columns` has None for an expression. `exact`: valid, not DEFERRABLE, and of all rows."""

    name: str
    primary: bool
    of_identity: bool
    exact: bool
    columns: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """A leaf of a partitioned table."""

    table: TableId
    foreign: bool
    unlogged: bool
    identity: Identity


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One table. `columns`: in the server's order, without dropped ones. `children`: other tables that are not partitions
    inherit from it. `rows_hidden`: row security applies to the role. `owned`: the role is the table's owner or a member of
    it. `schema_usable`: the role has USAGE on the table's schema. `readable`: the role may SELECT from the table, not only
    from columns of it. `unreadable_system_columns`: those of ctid, tableoid, xmin and cmin that the role may not SELECT.
    `hypertable`: TimescaleDB keeps its rows in other tables."""

    table: TableId
    oid: int
    kind: Kind
    unlogged: bool
    identity: Identity
    children: tuple[TableId, ...]
    rows_hidden: bool
    owned: bool
    schema_usable: bool
    readable: bool
    unreadable_system_columns: frozenset[str]
    hypertable: bool
    columns: tuple[ColumnFacts, ...]
    indexes: tuple[UniqueIndex, ...]
    partitions: tuple[Partition, ...]

    def column(self, name: str) -> ColumnFacts:
        return next(column for column in self.columns if column.name == name)

    @property
    def keys(self) -> tuple[UniqueIndex, ...]:
        """The indexes that identify a row: exact indexes of plain NOT NULL columns, the primary key first."""
        fitting = [index for index in self.indexes if index.exact and all(map(self._is_not_null, index.columns))]
        return tuple(sorted(fitting, key=lambda index: (not index.primary, index.name)))

    @property
    def primary_key(self) -> UniqueIndex | None:
        """The primary key. None also for a DEFERRABLE one, which the server does not use in its log."""
        return next((index for index in self.keys if index.primary), None)

    @property
    def identity_columns(self) -> frozenset[str] | None:
        """The columns that the log has of the old row of an update or delete; None if it has no old row."""
        match self.identity:
            case "full":
                return frozenset(column.name for column in self.columns)
            case "default":
                return None if self.primary_key is None else frozenset(filter(None, self.primary_key.columns))
            case "index":
                index = next((index for index in self.indexes if index.of_identity and index.exact), None)
                return None if index is None else frozenset(filter(None, index.columns))
            case "nothing":
                return None

    def _is_not_null(self, name: str | None) -> bool:
        return name is not None and not self.column(name).nullable


def read_tables(connection: Connection, tables: Sequence[TableId]) -> dict[TableId, TableFacts]:
    """Returns the facts in the order of `tables`. Raises TableGoneError for a table that does not exist, or is altered
    meanwhile: each query sees the catalog as it is then."""
    schemas, names = [t.database for t in tables], [t.name for t in tables]
    with connection.cursor() as cursor:
        cursor.execute(_TABLES, (schemas, names))
        heads = {TableId(row[1], row[2]): row for row in cursor.fetchall()}
        hypertables = _hypertables(cursor)
        arguments = {"tables": [row[0] for row in heads.values()], "names": sorted(NAMES_OF_OTHERS)}
        columns, named_types, indexes, partitions = (
            _by_table(cursor, query, arguments) for query in (_COLUMNS, _NAMED_TYPES, _INDEXES, _PARTITIONS)
        )
    found = {}
    for table in tables:
        if table not in heads:
            raise TableGoneError(f"{table} no longer exists.", "Run the job again.")
        oid, _, _, kind, persistence, identity, children, rows_hidden, owned, usable, readable, hidden = heads[table]
        its_types = {number: _named_type(*row) for number, *row in named_types[oid]}
        its_columns = tuple(replace(_column(*row), named_type=its_types.get(row[0])) for row in columns[oid])
        its_indexes = tuple(UniqueIndex(n, primary, of, exact, tuple(c)) for n, primary, of, exact, c in indexes[oid])
        there = {column.name for column in its_columns}
        if not all(there.issuperset(filter(None, index.columns)) for index in its_indexes):
            raise TableGoneError(f"{table} was altered or dropped while it was looked at.", "Run the job again.")
        found[table] = TableFacts(
            table=table,
            oid=oid,
            kind=_KINDS[kind],
            unlogged=persistence != "p",
            identity=_IDENTITIES[identity],
            children=tuple(TableId(*names) for names in children),
            rows_hidden=rows_hidden,
            owned=owned,
            schema_usable=usable,
            readable=readable,
            unreadable_system_columns=frozenset(hidden),
            hypertable=table in hypertables,
            columns=its_columns,
            indexes=its_indexes,
            partitions=tuple(
                Partition(TableId(schema, name), kind == "f", persistence == "u", _IDENTITIES[replident])
                for schema, name, kind, persistence, replident in partitions[oid]
            ),
        )
    return found


def labels_of(connection: Connection, types: Collection[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Returns the labels of those of the types, by schema and name, that are enums now, in their order."""
    schemas, names = [schema for schema, _ in types], [name for _, name in types]
    with connection.cursor() as cursor:
        cursor.execute(_LABELS, (schemas, names))
        return {(schema, name): tuple(labels) for schema, name, labels in cursor.fetchall()}


def _hypertables(cursor: Any) -> set[TableId]:
    """Returns TimescaleDB's partitioned tables, which have inheritance children instead of partitions."""
    cursor.execute("SELECT to_regclass('_timescaledb_catalog.hypertable') IS NOT NULL")
    ((installed,),) = cursor.fetchall()
    if not installed:
        return set()
    cursor.execute("SELECT schema_name, table_name FROM _timescaledb_catalog.hypertable")
    return {TableId(schema, name) for schema, name in cursor.fetchall()}


def _by_table(cursor: Any, query: str, arguments: dict[str, Any]) -> defaultdict[int, list[tuple[Any, ...]]]:
    """Returns the rows by their first column, the table's OID, without it."""
    cursor.execute(query, arguments)
    found: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for oid, *rest in cursor.fetchall():
        found[oid].append(tuple(rest))
    return found


def _column(
    number: int,
    name: str,
    source_type: str,
    base: str,
    modifier: int,
    not_null: bool,
    generated: bool,
    readable: bool,
    collation: str | None,
) -> ColumnFacts:
    return ColumnFacts(
        number, name, source_type, BaseType(base, modifier), not not_null, generated, readable, collation
    )


def _named_type(schema: str, name: str, labels: list[str] | None, in_array: bool) -> NamedType:
    return NamedType(schema, name, None if labels is None else tuple(labels), in_array)
