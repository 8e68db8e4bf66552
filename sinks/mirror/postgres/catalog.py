"""The tables of a PostgreSQL target, read from its catalog: a few queries for any number of tables."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from tidemark.sinks.mirror.postgres.types import postgres_value_range
from tidemark.sinks.mirror.target import TargetColumn, TargetName, TargetTable
from tidemark.sinks.mirror.value_ranges import Citext, EnumOfPostgres, PostgresType, is_kept_type

Row: TypeAlias = tuple[Any, ...]
Query: TypeAlias = Callable[[str, tuple[Any, ...]], list[Row]]

_TABLES = """
    SELECT n.nspname, c.relname, c.oid::bigint, c.relkind, c.relpersistence,
           c.oid || '/' || CASE c.relkind WHEN 'p' THEN (
               SELECT md5(string_agg(l.oid || '/' || l.relfilenode, ',' ORDER BY l.oid))
               FROM pg_partition_tree(c.oid) p JOIN pg_class l ON l.oid = p.relid WHERE p.isleaf
           ) ELSE c.relfilenode::text END,
           NOT c.relhasrules
           AND NOT EXISTS (SELECT 1 FROM pg_index WHERE indrelid = c.oid AND indisprimary AND NOT indimmediate)
           AND NOT EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = c.oid AND attidentity = 'a' AND NOT attisdropped)
    FROM unnest(%s::text[], %s::text[]) AS wanted(schema, name)
    JOIN pg_namespace n ON n.nspname = wanted.schema
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name"""
"""A partitioned table has no file: those of its partitions tell that it was truncated. NULL without partitions.
The last column: ON CONFLICT takes no table with rules and no deferrable key. GENERATED ALWAYS refuses an UPDATE."""
_COLUMNS = """
    SELECT a.attrelid::bigint, a.attname, t.typname, format_type(t.oid, a.atttypmod), a.atttypmod, a.attnotnull,
           a.atthasdef OR a.attidentity <> '',
           a.attgenerated <> '',
           (SELECT c.collname FROM pg_collation c WHERE c.oid = a.attcollation AND NOT c.collisdeterministic),
           quote_ident(n.nspname) || '.' || quote_ident(e.typname), e.oid <> t.oid,
           CASE e.typtype WHEN 'e' THEN ARRAY(
               SELECT l.enumlabel::text FROM pg_enum l WHERE l.enumtypid = e.oid ORDER BY l.enumsortorder) END,
           pg_has_role(e.typowner, 'USAGE'),
           CASE e.typname WHEN 'citext' THEN EXISTS (
               SELECT FROM pg_depend d JOIN pg_extension x ON x.oid = d.refobjid AND x.extname = 'citext'
               WHERE d.classid = 'pg_type'::regclass AND d.objid = e.oid AND d.refclassid = 'pg_extension'::regclass)
           ELSE false END
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    JOIN pg_type e ON e.oid = coalesce((SELECT x.oid FROM pg_type x WHERE x.oid = t.typelem AND x.typarray = t.oid), t.oid)
    JOIN pg_namespace n ON n.oid = e.typnamespace
    WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attrelid, a.attnum"""
"""The type e is the column's, or that of the elements of its arrays."""
_KEYS = """
    SELECT i.indrelid::bigint, a.attname
    FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = ANY (%s::oid[]) AND i.indisprimary AND k.place <= i.indnkeyatts
    ORDER BY i.indrelid, k.place"""
"""Without the columns that an index only INCLUDEs."""
_KEY_NAMES = """
    SELECT conrelid::bigint, conname FROM pg_constraint WHERE contype = 'p' AND conrelid = ANY (%s::oid[])"""
_UNIQUE = """
    SELECT i.indrelid::bigint, c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = ANY (%s::oid[]) AND (i.indisunique OR i.indisexclusion) AND NOT i.indisprimary ORDER BY 1, 2"""
_FOREIGN_KEYS = """
    SELECT conrelid::bigint, conname FROM pg_constraint WHERE contype = 'f' AND conrelid = ANY (%s::oid[])
    UNION SELECT confrelid::bigint, conname FROM pg_constraint WHERE contype = 'f' AND confrelid = ANY (%s::oid[])
    ORDER BY 1, 2"""
_TRIGGERS = """
    SELECT tgrelid::bigint, tgname FROM pg_trigger
    WHERE tgrelid = ANY (%s::oid[]) AND NOT tgisinternal AND tgenabled IN ('O', 'A')
    UNION ALL SELECT ev_class::bigint, rulename FROM pg_rewrite
    WHERE ev_class = ANY (%s::oid[]) AND rulename <> '_RETURN' AND ev_enabled IN ('O', 'A')
    ORDER BY 1, 2"""


def read_tables(query: Query, targets: Iterable[TargetName]) -> dict[TargetName, TargetTable]:
    """Returns those of the tables that exist."""
    wanted = list(targets)
    tables = (
        query(_TABLES, ([target.schema for target in wanted], [target.table for target in wanted])) if wanted else []
    )
    if not tables:
        return {}
    oids = [row[2] for row in tables]
    columns, keys = _by_table(query(_COLUMNS, (oids,))), _by_table(query(_KEYS, (oids,)))
    unique, triggers = _by_table(query(_UNIQUE, (oids,))), _by_table(query(_TRIGGERS, (oids, oids)))
    foreign_keys = _by_table(query(_FOREIGN_KEYS, (oids, oids)))
    key_names: dict[int, str] = dict(query(_KEY_NAMES, (oids,)))
    return {
        TargetName(schema, table): TargetTable(
            columns=tuple(_column(*row) for row in columns[oid]),
            key=tuple(name for (name,) in keys[oid]),
            unique_indexes=tuple(name for (name,) in unique[oid]),
            foreign_keys=tuple(name for (name,) in foreign_keys[oid]),
            engine_problem=_kind_problem(kind, persistence),
            triggers=tuple(name for (name,) in triggers[oid]),
            updatable=updatable,
            incarnation=incarnation,
            key_name=key_names.get(oid),
        )
        for schema, table, oid, kind, persistence, incarnation, updatable in tables
    }


def _by_table(rows: Iterable[Row]) -> Mapping[int, list[Row]]:
    found: defaultdict[int, list[Row]] = defaultdict(list)
    for oid, *row in rows:
        found[oid].append(tuple(row))
    return found


def _kind_problem(kind: str, persistence: str) -> str | None:
    if kind not in {"r", "p"}:
        return "it is not a table"
    if persistence != "p":
        return "it is not logged: a crash of the server would empty it"
    return None


def _column(
    name: str,
    type_name: str,
    sql_type: str,
    modifier: int,
    not_null: bool,
    has_default: bool,
    generated: bool,
    collation: str | None,
    element_name: str,
    in_array: bool,
    labels: list[str] | None,
    owned: bool,
    is_citext: bool,
) -> TargetColumn:
    value_range = postgres_value_range(type_name, modifier)
    if labels is not None or is_citext:
        type_name = sql_type = f"{element_name}[]" if in_array else element_name
        value_range = Citext(in_array)
        if labels is not None:
            value_range = EnumOfPostgres(tuple(labels), in_array, element_name, owned)
    elif value_range is None and is_kept_type(sql_type):
        value_range = PostgresType(sql_type)
    return TargetColumn(
        name=name,
        type_name=type_name,
        value_range=value_range,
        sql_type=sql_type,
        nullable=not not_null,
        may_be_left_out=has_default or generated or not not_null,
        generated=generated,
        collation=collation,
    )
