"""The tables of the peers' regression schemas on a server: loading them, and changing each of their rows through the log."""

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg2
import pymysql

from tests.support.peers import Renaming, sql_files, table_statements
from tests.support.servers import Database

LENIENT = "NO_AUTO_VALUE_ON_ZERO"
"""The sql_mode that takes every row as it is: zero dates, and texts that are no label of their ENUM."""
ZERO_DATES = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
"""MySQL's own sql_mode without NO_ZERO_DATE and NO_ZERO_IN_DATE: the files are from servers that had it so."""


@dataclass(frozen=True, slots=True)
class PeerTable:
    """`settable`: the columns that take values. `nullable`: those of them outside the key that may become NULL."""

    place: str
    name: str
    settable: tuple[str, ...]
    nullable: tuple[str, ...]
    key: tuple[str, ...]


class PeerTables:
    """All tables of all files for the database's kind of server. Each file has databases (PostgreSQL: schemas) of its own.
    Their names begin with `prefix`.

    `refused`: file → the server's error → how many statements it refuses with it.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.is_postgres = database.kind == "postgres"
        self.prefix = "peers" if self.is_postgres else database.name
        self.refused: defaultdict[str, Counter[int | str]] = defaultdict(Counter)
        self.tables: list[PeerTable] = []
        self._files: dict[str, str] = {}
        self._rest: list[tuple[Any, str, list[str]]] = []
        self._session = database.connect()
        if not self.is_postgres:
            self._execute(f"SET SESSION sql_mode = '{LENIENT}', foreign_key_checks = 0")

    def close(self) -> None:
        """Closes its connections, and drops the databases that are not the test's own."""
        for connection in (self._session, *(connection for connection, _, _ in self._rest)):
            connection.close()
        if not self.is_postgres:
            query = "SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE %s"
            found = self.database.query(query, (self._like,))
            self.database.execute(*(f"DROP DATABASE `{name}`" for (name,) in found))

    def label(self, place: str, table: str) -> str:
        """The table as its file names it: `peer/file: table`."""
        own = place[: len(self.prefix) + len("_000")]
        database = place[len(own) + 1 :]
        return f"{self._files[own]}: {database}.{table}" if database else f"{self._files[own]}: {table}"

    def labels(self, *, keyless: bool = False) -> set[str]:
        """All tables, or those without a primary key."""
        return {self.label(table.place, table.name) for table in self.tables if not (keyless and table.key)}

    def begin(self, share: float) -> None:
        """Executes the first statements of each file: this share of them, and PostgreSQL's extensions."""
        for number, (file, text) in enumerate(sql_files(self.database.kind).items()):
            own = f"{self.prefix}_{number:03}"
            self._files[own] = file
            connection = self._connect(own)
            found = table_statements(text, self.database.kind)
            renaming = Renaming.of(own, found, kept={"public"})
            statements = [renaming.apply(statement) for statement in found]
            is_extension = "/init_" in file  # the first statements of other files need it
            count = len(statements) if is_extension else int(len(statements) * share)
            self._try(connection, file, statements[:count])
            self._rest.append((connection, file, statements[count:]))

    def complete(self) -> None:
        """Executes the other statements. A table without rows gets one."""
        for connection, file, statements in self._rest:
            with contextlib.closing(connection):
                self._try(connection, file, statements)
        self._rest = []
        self.tables = self._found_tables()
        for number, table in enumerate(self.tables):
            if not self._count(self._name(table)):
                self._insert_one(table)
            # In the session: temporary tables are in no log.
            columns = self._all(table.settable)
            self._execute(f"CREATE TEMPORARY TABLE kept_{number} AS SELECT {columns} FROM {self._name(table)}")

    def change_all(self) -> None:
        """Changes each row of each table, so that in the end it is what it was: rows with a key lose their values and get them
        again, and half of them are deleted and inserted again, as are all rows without a key."""
        for number, table in enumerate(self.tables):
            half = (self._count(f"kept_{number}") + 1) // 2
            self._execute("BEGIN", *self._changes(table, f"kept_{number}", half), "COMMIT")

    # Below: SQL of both dialects

    @property
    def _like(self) -> str:
        return self.prefix.replace("_", r"\_") + r"\_%"

    def _execute(self, *statements: str) -> None:
        with self._session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def _try(self, connection: Any, file: str, statements: Sequence[str]) -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                try:
                    cursor.execute(statement)
                except pymysql.err.MySQLError as error:
                    self.refused[file][error.args[0]] += 1
                except psycopg2.Error as error:
                    self.refused[file][error.pgcode] += 1

    def _count(self, table: str) -> int:
        with self._session.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {table}")
            return int(cursor.fetchone()[0])

    def _connect(self, own: str) -> Any:
        connection = self.database.connect()
        with connection.cursor() as cursor:
            if self.is_postgres:
                cursor.execute(f"CREATE SCHEMA {own}")
                cursor.execute(f"SET search_path TO {own}, public")
            else:
                cursor.execute(f"CREATE DATABASE {own} CHARACTER SET utf8mb4")
                cursor.execute(f"USE {own}")
                cursor.execute(f"SET SESSION sql_mode = '{ZERO_DATES}'")
        return connection

    def _found_tables(self) -> list[PeerTable]:
        columns: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
        query = _POSTGRES_COLUMNS if self.is_postgres else _MYSQL_COLUMNS
        for place, name, *column in self.database.query(query, (self._like,)):
            columns.setdefault((place, name), []).append(tuple(column))
        return [
            PeerTable(
                place,
                name,
                tuple(column for column, _, settable, _ in found if settable),
                tuple(column for column, nullable, settable, in_key in found if nullable and settable and not in_key),
                tuple(column for column, _, _, in_key in found if in_key),
            )
            for (place, name), found in columns.items()
        ]

    def _name(self, table: PeerTable) -> str:
        return f"{self._quoted(table.place)}.{self._quoted(table.name)}"

    def _quoted(self, name: str) -> str:
        mark = '"' if self.is_postgres else "`"
        return f"{mark}{name.replace(mark, mark * 2)}{mark}"

    def _all(self, names: Sequence[str]) -> str:
        return ", ".join(map(self._quoted, names))

    def _insert_one(self, table: PeerTable) -> None:
        if not self.is_postgres:
            with contextlib.suppress(pymysql.err.MySQLError):  # a geometry has no zero
                # IGNORE: a column without a default gets its type's zero. For dates that is a zero date.
                self._execute(f"INSERT IGNORE INTO {self._name(table)} () VALUES ()")
            return
        types = dict(self.database.query(_POSTGRES_TYPES, (table.place, table.name)))
        made = {name: made_value(name, types[name]) for name in table.settable if name not in table.key}
        values = f"({self._all(list(made))}) VALUES ({', '.join(made.values())})" if made else "DEFAULT VALUES"
        self._execute(f"INSERT INTO {self._name(table)} {values}")

    def _changes(self, table: PeerTable, kept: str, half: int) -> Iterator[str]:
        name, columns = self._name(table), self._all(table.settable)
        overriding = "OVERRIDING SYSTEM VALUE " if self.is_postgres else ""
        insert = f"INSERT INTO {name} ({columns}) {overriding}SELECT {columns} FROM {kept} k"
        if not table.key:
            yield f"DELETE FROM {name}"
            yield insert
            return
        equal = "IS NOT DISTINCT FROM" if self.is_postgres else "<=>"
        same_key = " AND ".join(f"t.{column} {equal} k.{column}" for column in map(self._quoted, table.key))
        if table.nullable:
            emptied = [self._quoted(column) for column in table.nullable]
            yield f"UPDATE {name} SET {', '.join(f'{column} = NULL' for column in emptied)}"
            if self.is_postgres:
                filled = ", ".join(f"{column} = k.{column}" for column in emptied)
                yield f"UPDATE {name} t SET {filled} FROM {kept} k WHERE {same_key}"
            else:
                filled = ", ".join(f"t.{column} = k.{column}" for column in emptied)
                yield f"UPDATE {name} t JOIN {kept} k ON {same_key} SET {filled}"
        if self.is_postgres:
            yield f"DELETE FROM {name} WHERE ctid IN (SELECT ctid FROM {name} ORDER BY ctid LIMIT {half})"
        else:
            yield f"DELETE FROM {name} LIMIT {half}"
        yield f"{insert} WHERE NOT EXISTS (SELECT 1 FROM {name} t WHERE {same_key})"


_MYSQL_COLUMNS = """
SELECT c.table_schema, c.table_name, c.column_name, c.is_nullable = 'YES', coalesce(c.generation_expression, '') = '',
       s.column_name IS NOT NULL
FROM information_schema.columns c
JOIN information_schema.tables t
  ON t.table_schema = c.table_schema AND t.table_name = c.table_name AND t.table_type = 'BASE TABLE'
LEFT JOIN information_schema.statistics s
  ON s.table_schema = c.table_schema AND s.table_name = c.table_name AND s.column_name = c.column_name
  AND s.index_name = 'PRIMARY'
WHERE c.table_schema LIKE %s ORDER BY c.table_schema, c.table_name, c.ordinal_position"""
_POSTGRES_COLUMNS = """
SELECT n.nspname, c.relname, a.attname, NOT a.attnotnull, a.attgenerated = '',
       coalesce(a.attnum = ANY (i.indkey), false)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE n.nspname LIKE %s AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY n.nspname, c.relname, a.attnum"""
_POSTGRES_TYPES = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
WHERE a.attrelid = format('%%I.%%I', %s, %s)::regclass AND a.attnum > 0 AND NOT a.attisdropped"""

_VALUES = {
    "smallint": "'-32768'",
    "integer": "'-2147483648'",
    "bigint": "'9223372036854775807'",
    "oid": "'4294967295'",
    "real": "'0.1'",
    "double precision": "'5e-324'",
    "numeric": "'-9.25'",
    "boolean": "true",
    "text": "E'ü😀 \\\\'",
    "character": "'a'",
    "character varying": "'b'",
    "citext": "'Mixed'",
    "bytea": r"'\x00ff'",
    "uuid": "'a1234567-89ab-cdef-0123-456789abcdef'",
    "date": "'0001-12-31 BC'",
    "timestamp without time zone": "'10000-01-01 12:34:56.789012'",
    "timestamp with time zone": "'2024-03-31 01:30:00.123456+02'",
    "time without time zone": "'24:00'",
    "time with time zone": "'12:34:56.7+05:30'",
    "interval": "'1 year -3 days 04:05:06.789'",
    "json": """'{"a":  1, "a": 2}'""",
    "jsonb": """'{"a": [1, 2.50, null]}'""",
    "xml": "'<a>ü</a>'",
    "inet": "'10.0.0.1'",
    "cidr": "'10.0.0.0/8'",
    "macaddr": "'08:00:2b:01:02:03'",
    "money": "'-1234567.89'",
    "bit": "B'1'",
    "bit varying": "B'01'",
    "point": "'(1.1,-2)'",
    "box": "'(1,1),(0,0)'",
    "line": "'{1,2,3}'",
    "lseg": "'[(0,0),(1,1)]'",
    "path": "'((0,0),(1,1))'",
    "polygon": "'((0,0),(1,1),(1,0))'",
    "circle": "'<(1,2),3>'",
    "int4range": "'[1,5)'",
    "int8range": "'(,3]'",
    "numrange": "'(1.5,2.25]'",
    "daterange": "'[2024-01-01,infinity)'",
    "tsrange": "'(2024-01-01 00:00,)'",
    "tstzrange": "'[2024-01-01 00:00+02,)'",
    "ltree": "'Top.Collections'",
    "isbn": "'978-0-393-04002-9'",
    "hstore": """'"a key"=>"1,2", b=>NULL'""",
    "tsvector": "'a:1 b:2A'",
}
"""PostgreSQL's type without its length → a value as SQL."""
_ENDINGS = {"_pinf": "'infinity'", "_ninf": "'-infinity'", "_nan": "'NaN'"}
"""The values that Debezium's tests write into columns with such names."""


def made_value(column: str, kind: str) -> str:
    """A value for a column of a type of PostgreSQL, as SQL."""
    for ending, value in _ENDINGS.items():
        if column.endswith(ending):
            return value
    if kind.endswith("[]"):
        return f"ARRAY[{made_value('', kind[:-2])}, NULL]::{kind}"
    return f"{_VALUES[re.sub(r'[(][^)]*[)]', '', kind)]}::{kind}"
