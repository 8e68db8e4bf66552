"""Reads facts about many tables from information_schema.

MySQL answers from its dictionary. MariaDB opens every table that a query may concern: cheap if the query names one
database, or one table in it; else it opens all tables of the server. So we query per database, or per table for few tables.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.readers.mysql.connect import Connection, flavour_of, lacks_generated, quote_table, version_of
from tidemark.state.errors import SourceNotUsableError, TableGoneError
from tidemark.state.table import TableId

_Rows = list[tuple[Any, ...]]
FEW_TABLES = 20
"""Up to this many tables of a database are queried one by one."""

SYSTEM_VERSIONED = "SYSTEM VERSIONED"
TABLE_KINDS = ("BASE TABLE", SYSTEM_VERSIONED)

_HASH_ENGINES = frozenset({"MEMORY", "NDB", "NDBCLUSTER"})
_RULE = r"(?P<{0}>CASCADE|SET NULL|SET DEFAULT|RESTRICT|NO ACTION)"
_FOREIGN_KEY = re.compile(
    r"^\s+CONSTRAINT `(?P<name>(?:[^`]|``)+)` FOREIGN KEY .*? REFERENCES .*?\)"
    rf"(?: ON DELETE {_RULE.format('on_delete')})?(?: ON UPDATE {_RULE.format('on_update')})?,?$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """`charset` is None for types without one, and for `binary`. `virtual`: the expression of a virtual column, which the
    server computes whenever it reads or logs a row. `logged`: False if the server leaves the column out of its log of updates
    and deletes."""

    name: str
    source_type: str
    charset: str | None
    collation: str | None
    nullable: bool
    generated: bool
    virtual: str | None = None
    logged: bool = True


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """`name` None: an expression. `prefix_length` None: the whole value is indexed."""

    name: str | None
    nullable: bool
    prefix_length: int | None


@dataclass(frozen=True, slots=True)
class Index:
    name: str
    unique: bool
    kind: str
    """BTREE, HASH, FULLTEXT, SPATIAL, RTREE, …"""
    columns: tuple[IndexColumn, ...]

    @property
    def column_names(self) -> tuple[str | None, ...]:
        return tuple(column.name for column in self.columns)


@dataclass(frozen=True, slots=True)
class ForeignKey:
    name: str
    on_delete: str
    on_update: str


@dataclass(frozen=True, slots=True)
class TableFacts:
    """`columns`: all that the account may see, in the server's order. `kind`: one of TABLE_KINDS.

    `hidden_hashes`: the count of hidden BIGINT columns after `columns` in the log's row images. MariaDB has one for each
    UNIQUE index that it checks by hash (DB_ROW_HASH_1, …).
    """

    table: TableId
    kind: str
    engine: str
    columns: tuple[ColumnFacts, ...]
    indexes: tuple[Index, ...]
    foreign_keys: tuple[ForeignKey, ...]
    hidden_hashes: int

    @property
    def column_names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def unlogged(self) -> frozenset[str]:
        """The columns that the server leaves out of its log of updates and deletes."""
        return frozenset(column.name for column in self.columns if not column.logged)

    @property
    def primary_key(self) -> Index | None:
        return next((index for index in self.indexes if index.name == "PRIMARY"), None)


def read_tables(connection: Connection, tables: Iterable[TableId]) -> dict[TableId, TableFacts]:
    """Facts of all `tables`, in their order. Raises TableGoneError for a table that does not exist, is not a base table,
    or is hidden from the account, and for one that is altered meanwhile: each query sees the catalog as it is then."""
    wanted = list(dict.fromkeys(tables))
    by_database: defaultdict[str, list[str]] = defaultdict(list)
    for table in wanted:
        by_database[table.database].append(table.name)
    found: dict[TableId, TableFacts] = {}
    for database, names in by_database.items():
        if len(names) <= FEW_TABLES:
            for name in names:
                found.update(_read(connection, database, name))
        else:
            found.update(_read(connection, database, None))
    missing = [table for table in wanted if table not in found]
    if missing:
        raise TableGoneError(
            f"{_listed(missing)}: no such table, or the account may not read it.",
            "Run the job again.",
        )
    return {table: found[table] for table in wanted}


def read_indexes(connection: Connection, table: TableId) -> tuple[Index, ...]:
    """The table's indexes; none if there is no such table. One query."""
    return _indexes(_select(connection, _INDEXES, table.database, table.name))


def _read(connection: Connection, database: str, name: str | None) -> dict[TableId, TableFacts]:
    tables = _select(connection, _TABLES, database, name)
    columns = _grouped(_select(connection, _COLUMNS, database, name))
    indexes = _grouped(_select(connection, _INDEXES, database, name))
    if any(_has_others(indexes[table], columns[table]) for table in list(indexes)):
        # An account that may not see all columns sees them in MySQL's indexes.
        _require_same(database, columns, _grouped(_select(connection, _COLUMNS, database, name)))
    foreign_keys = _read_foreign_keys(connection, database, name)
    is_mariadb = flavour_of(connection) == "mariadb"
    unlogged = lacks_generated(flavour_of(connection), version_of(connection))
    found = {}
    for table_name, kind, engine in tables:
        if kind not in TABLE_KINDS:
            continue
        table = TableId(database, table_name)
        its_indexes = _indexes(indexes[table_name])
        hashed = is_mariadb and (engine or "").upper() not in _HASH_ENGINES
        found[table] = TableFacts(
            table=table,
            kind=kind,
            engine=engine or "",
            columns=tuple(_column(row, generated_are_logged=not unlogged) for row in columns[table_name]),
            indexes=its_indexes,
            foreign_keys=foreign_keys.get(table_name, ()),
            hidden_hashes=sum(index.unique and index.kind == "HASH" for index in its_indexes) if hashed else 0,
        )
    return found


def _has_others(indexes: Iterable[tuple[Any, ...]], columns: Iterable[tuple[Any, ...]]) -> bool:
    """True if an index has a column that is not among the columns."""
    return not {row[4] for row in indexes if row[4] is not None} <= {row[1] for row in columns}


def _require_same(database: str, before: Mapping[str, _Rows], now: Mapping[str, _Rows]) -> None:
    altered = sorted(table for table, rows in before.items() if now.get(table) != rows)
    if altered:
        named = _listed([TableId(database, table) for table in altered])
        raise TableGoneError(f"{named} was altered or dropped while it was looked at.", "Run the job again.")


_TABLES = "SELECT table_name, table_type, engine FROM information_schema.tables WHERE table_schema = %s"
_COLUMNS = (
    "SELECT table_name, column_name, column_type, character_set_name, collation_name, is_nullable, extra, "
    "generation_expression "
    "FROM information_schema.columns WHERE table_schema = %s"
)
_INDEXES = (
    "SELECT table_name, index_name, non_unique, index_type, column_name, nullable, sub_part "
    "FROM information_schema.statistics WHERE table_schema = %s"
)
_ORDER = {_COLUMNS: "ordinal_position", _INDEXES: "index_name, seq_in_index"}
_FOREIGN_KEYS = (
    "SELECT DISTINCT table_name, constraint_name FROM information_schema.key_column_usage "
    "WHERE referenced_table_name IS NOT NULL AND table_schema = %s"
)
_RULES = (
    "SELECT table_name, constraint_name, delete_rule, update_rule "
    "FROM information_schema.referential_constraints WHERE constraint_schema = %s"
)


def _select(connection: Connection, query: str, database: str, name: str | None) -> Sequence[tuple[Any, ...]]:
    arguments: tuple[str, ...] = (database,)
    if name is not None:
        query_text, arguments = f"{query} AND table_name = %s", (database, name)
    else:
        query_text = query
    if query in _ORDER:
        query_text += f" ORDER BY table_name, {_ORDER[query]}"
    with connection.cursor() as cursor:
        cursor.execute(query_text, arguments)
        # The catalog's collation ignores case, but tables whose names differ only by case are different tables.
        return [row for row in cursor.fetchall() if name is None or row[0] == name]


def _grouped(rows: Sequence[tuple[Any, ...]]) -> defaultdict[str, list[tuple[Any, ...]]]:
    grouped: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        grouped[row[0]].append(row)
    return grouped


def _column(row: tuple[Any, ...], *, generated_are_logged: bool) -> ColumnFacts:
    # MySQL's catalog returns some of its text columns as bytes.
    texts = [value.decode() if isinstance(value, bytes) else value for value in row]
    _, name, source_type, charset, collation, is_nullable, extra, expression = texts
    generated = any(word in extra.upper() for word in ("VIRTUAL", "STORED GENERATED", "PERSISTENT"))
    return ColumnFacts(
        name=name,
        source_type=source_type,
        charset=None if charset == "binary" else charset,
        collation=None if charset == "binary" else collation,
        nullable=is_nullable == "YES",
        generated=generated,
        virtual=expression or "" if "VIRTUAL" in extra.upper() else None,
        logged=generated_are_logged or not generated,
    )


def _indexes(rows: Iterable[tuple[Any, ...]]) -> tuple[Index, ...]:
    parts: dict[str, list[IndexColumn]] = {}
    about: dict[str, tuple[bool, str]] = {}
    for _, name, non_unique, kind, column, nullable, prefix_length in rows:
        about[name] = (not int(non_unique), kind.upper())
        length = None if prefix_length is None else int(prefix_length)
        parts.setdefault(name, []).append(IndexColumn(column, nullable == "YES", length))
    return tuple(Index(name, *about[name], tuple(columns)) for name, columns in parts.items())


def _read_foreign_keys(connection: Connection, database: str, name: str | None) -> dict[str, tuple[ForeignKey, ...]]:
    """The foreign keys of each table. MariaDB hides the rules from accounts that only have SELECT; SHOW CREATE TABLE shows
    them."""
    names: defaultdict[str, set[str]] = defaultdict(set)
    for table_name, constraint in _select(connection, _FOREIGN_KEYS, database, name):
        names[table_name].add(constraint)
    if not names:
        return {}
    rules: defaultdict[str, dict[str, ForeignKey]] = defaultdict(dict)
    for table_name, constraint, on_delete, on_update in _select(connection, _RULES, database, name):
        rules[table_name][constraint] = ForeignKey(constraint, on_delete, on_update)
    found: dict[str, tuple[ForeignKey, ...]] = {}
    for table_name, constraints in names.items():
        known = rules[table_name]
        if not constraints <= set(known):
            known = _shown_foreign_keys(connection, TableId(database, table_name))
        if not constraints <= set(known):
            raise SourceNotUsableError(
                f"{database}.{table_name} has foreign keys whose rules the server does not show "
                f"({', '.join(sorted(constraints - set(known)))}).",
                "GRANT SELECT on the whole table to the account.",
            )
        found[table_name] = tuple(known[constraint] for constraint in sorted(constraints))
    return found


def _shown_foreign_keys(connection: Connection, table: TableId) -> dict[str, ForeignKey]:
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW CREATE TABLE {quote_table(table)}")
        row = cursor.fetchone()
    return foreign_keys_in("" if row is None else row[1])


def foreign_keys_in(create_table: str) -> dict[str, ForeignKey]:
    """Parses the output of SHOW CREATE TABLE: one line per constraint, in which default rules are omitted."""
    return {
        (name := match["name"].replace("``", "`")): ForeignKey(
            name, match["on_delete"] or "RESTRICT", match["on_update"] or "RESTRICT"
        )
        for match in _FOREIGN_KEY.finditer(create_table)
    }


def _listed(tables: Sequence[TableId]) -> str:
    shown = ", ".join(map(str, tables[:10]))
    return shown if len(tables) <= 10 else f"{shown} and {len(tables) - 10} more"
