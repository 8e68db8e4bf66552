"""The tables of a MySQL or MariaDB target, read from its catalog: a few queries for any number of tables."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tidemark.sinks.mirror.target import TargetColumn, TargetName, TargetTable
from tidemark.sinks.mirror.value_ranges import ValueRange, mysql_value_range

Row: TypeAlias = tuple[Any, ...]
Query: TypeAlias = Callable[[str, tuple[Any, ...]], list[Row]]
Rows: TypeAlias = Mapping[TargetName, list[Row]]

ASKED_ONE_BY_ONE = 100
"""For more tables, all tables of their schemas are read. MariaDB finds a table at once only if it is asked for that one alone.
Otherwise it opens every table of the schema."""

_TABLES = "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE, CREATE_TIME FROM information_schema.TABLES"
_COLUMNS = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, EXTRA, COLLATION_NAME "
    "FROM information_schema.COLUMNS"
)
_INDEXES = "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS"
_TRIGGERS = "SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE, TRIGGER_NAME FROM information_schema.TRIGGERS"
_FOREIGN_KEYS = (
    "SELECT CONSTRAINT_NAME, TABLE_SCHEMA, TABLE_NAME, REFERENCED_TABLE_SCHEMA, REFERENCED_TABLE_NAME "
    "FROM information_schema.KEY_COLUMN_USAGE WHERE REFERENCED_TABLE_NAME IS NOT NULL "
    "AND (TABLE_SCHEMA IN %s OR REFERENCED_TABLE_SCHEMA IN %s)"
)


class Catalog:
    """`same_name`: returns the same text for names that the server takes for one."""

    def __init__(self, query: Query, same_name: Callable[[str], str]) -> None:
        self._query = query
        self._same_name = same_name

    def read(self, targets: Iterable[TargetName]) -> dict[TargetName, TargetTable]:
        """Returns those of the tables that exist."""
        wanted = {self._same(target.schema, target.table): target for target in targets}
        tables = self._of(_TABLES, wanted)
        found = {self._same(target.schema, target.table): target for target in tables}
        if not found:
            return {}
        columns = self._of(_COLUMNS, found, order=" ORDER BY ORDINAL_POSITION")
        indexes = self._of(_INDEXES, found, " AND NON_UNIQUE = 0", " ORDER BY INDEX_NAME, SEQ_IN_INDEX")
        triggers = self._of(_TRIGGERS, found, order=" ORDER BY TRIGGER_NAME")
        foreign_keys = self._foreign_keys(found)
        return {
            target: TargetTable(
                columns=tuple(_column(*row) for row in columns.get(target, ())),
                key=tuple(
                    column if prefix is None else f"{column}({prefix})"
                    for name, column, prefix in indexes.get(target, ())
                    if name == "PRIMARY"
                ),
                unique_indexes=tuple(
                    dict.fromkeys(name for name, _, _ in indexes.get(target, ()) if name != "PRIMARY")
                ),
                indexed=tuple((name, column) for name, column, _ in indexes.get(target, ()) if name != "PRIMARY"),
                foreign_keys=tuple(dict.fromkeys(foreign_keys.get(target, ()))),
                engine_problem=_engine_problem(table_type, engine),
                incarnation=None if created is None else str(created),
                triggers=tuple(name for (name,) in triggers.get(target, ())),
            )
            for target, ((table_type, engine, created),) in tables.items()
        }

    def _same(self, schema: str, table: str) -> tuple[str, str]:
        return self._same_name(schema), self._same_name(table)

    def _of(
        self, select: str, wanted: Mapping[tuple[str, str], TargetName], condition: str = "", order: str = ""
    ) -> Rows:
        """Returns the rows of each table. The first two columns of `select` are the table's name."""
        schema_column, table_column = select.removeprefix("SELECT ").split(", ")[:2]
        where = f"{select} WHERE {schema_column} = %s"
        asked: list[tuple[str, tuple[str, ...]]]
        if len(wanted) <= ASKED_ONE_BY_ONE:
            asked = [(f"{where} AND {table_column} = %s", (t.schema, t.table)) for t in wanted.values()]
        else:
            asked = [(where, (schema,)) for schema in dict.fromkeys(t.schema for t in wanted.values())]
        found: defaultdict[TargetName, list[Row]] = defaultdict(list)
        for sql, arguments in asked:
            for schema, table, *row in self._query(f"{sql}{condition}{order}", arguments):
                target = wanted.get(self._same(schema, table))
                if target is not None:
                    found[target].append(tuple(row))
        return found

    def _foreign_keys(self, wanted: Mapping[tuple[str, str], TargetName]) -> Mapping[TargetName, Sequence[str]]:
        schemas = tuple(dict.fromkeys(target.schema for target in wanted.values()))
        found: defaultdict[TargetName, list[str]] = defaultdict(list)
        for name, schema, table, other_schema, other_table in self._query(_FOREIGN_KEYS, (schemas, schemas)):
            for place in (self._same(schema, table), self._same(other_schema, other_table)):
                if place in wanted:
                    found[wanted[place]].append(name)
        return found


def _engine_problem(table_type: str, engine: str | None) -> str | None:
    if table_type != "BASE TABLE":
        return f"it is a {table_type.lower()}, not a table"
    if engine is None or engine.lower() not in {"innodb", "rocksdb"}:
        return f"its engine {engine} has no transactions"
    return None


def _column(
    name: str, type_name: str, nullable: str, default: str | None, extra: str, collation: str | None
) -> TargetColumn:
    generated = "GENERATED" in extra.upper().replace("DEFAULT_GENERATED", "")
    return TargetColumn(
        name=name,
        type_name=type_name,
        value_range=_value_range(type_name),
        nullable=nullable == "YES",
        may_be_left_out=nullable == "YES" or default is not None or generated or "auto_increment" in extra,
        generated=generated,
        collation=collation,
    )


def _value_range(type_name: str) -> ValueRange | None:
    try:
        return mysql_value_range(type_name)
    except ValueError:
        return None
