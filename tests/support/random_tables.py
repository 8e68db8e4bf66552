"""Random tables with odd names and columns, and random transactions that write to them."""

import contextlib
import itertools
import random
from collections.abc import Iterator

import psycopg2
import pymysql

from tests.support.random_values import KEY_TYPES, PLAIN_TYPES, TYPES, RandomColumn, as_text, literal
from tests.support.servers import Database, logs_generated_columns

REFUSALS = (pymysql.err.MySQLError, psycopg2.Error)
"""A server may refuse a random statement: for a duplicate key, or because the job has the table locked just now."""
TABLE_NAMES = ("plain", "With Space", "dot.ted", 'quo"te', "päth√", "100%", "select", "UPPER", "b`tick", "-dash")
COLUMN_NAMES = ("a", "B b", "c.d", "e`f", 'g"h', "ï", "order", "_k", "m%", "it's")
ODD_SESSIONS = (
    "SET SESSION binlog_row_image = MINIMAL",
    "SET SESSION binlog_row_image = NOBLOB",
    "SET SESSION binlog_row_value_options = PARTIAL_JSON",
    "SET SESSION binlog_alter_two_phase = ON",
    "SET SESSION sql_mode = ''",
    "SET SESSION foreign_key_checks = 0, unique_checks = 0",
    "CREATE TEMPORARY TABLE tmp (id INT PRIMARY KEY)",
)


class RandomTables:
    """Tables of a database. `plain`: those that a mirror of any kind can hold. `done`: what was executed."""

    def __init__(self, database: Database, generator: random.Random, *, plain: bool = False) -> None:
        self.database, self.generator, self.plain = database, generator, plain
        self.is_postgres = database.kind == "postgres"
        self.family = "postgres" if self.is_postgres else "mysql"
        self.types = (PLAIN_TYPES if plain else TYPES)[self.family]
        self.numbers = itertools.count(1)
        self.prepared: list[str] = []
        self.done: list[str] = []

    def begin(self) -> None:
        """Creates the first tables, with rows."""
        if self.is_postgres:
            self.execute("CREATE TYPE mood AS ENUM ('x', 'y')")
        for name in self.generator.sample(TABLE_NAMES, 3):
            self.execute(*self.create(name))
            for _ in range(3):
                self._write(name, 12)

    def execute(self, *statements: str, together: bool = False, odd: bool = False) -> None:
        """Executes what the server accepts. `together`: in one transaction. `odd`: perhaps in a session that logs in another
        way."""
        with contextlib.closing(self.database.connect()) as connection, connection.cursor() as cursor:
            if self.is_postgres:
                cursor.execute("SET lock_timeout = '300ms'; SET timezone = 'UTC'")
            else:
                cursor.execute("SET SESSION lock_wait_timeout = 1, innodb_lock_wait_timeout = 1, time_zone = '+00:00'")
                if odd and self.generator.random() < 0.15:
                    statements = (self.generator.choice(ODD_SESSIONS), *statements)
            if together:
                statements = ("BEGIN", *statements, "ROLLBACK" if self.generator.random() < 0.1 else "COMMIT")
            for number, statement in enumerate(statements):
                if together and self.is_postgres and 0 < number < len(statements) - 1:
                    cursor.execute("SAVEPOINT each")
                try:
                    cursor.execute(statement)
                    self.done.append(statement)
                except REFUSALS as error:
                    self.done.append(f"-- {error.args[:2]!r} {statement}"[:300])
                    if together and self.is_postgres and statement != "COMMIT":
                        cursor.execute("ROLLBACK TO each")

    def q(self, name: str) -> str:
        mark = '"' if self.is_postgres else "`"
        return mark + name.replace(mark, mark * 2) + mark

    # what there is

    def names(self) -> list[str]:
        query = (
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
            if self.is_postgres
            else "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
        )
        return sorted(name for (name,) in self.database.query(query) if not name.startswith("tidemark"))

    def columns(self, table: str) -> list[RandomColumn]:
        if self.is_postgres:
            found = self.database.query(
                "SELECT attname, typname, attgenerated <> '', CASE WHEN atttypmod > 4 THEN atttypmod - 4 END FROM pg_attribute "
                "JOIN pg_type t ON t.oid = atttypid WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped "
                "ORDER BY attnum",
                (self.q(table),),
            )
            return [RandomColumn(*row) for row in found]
        found = self.database.query(
            "SELECT column_name, data_type, generation_expression, character_maximum_length, column_type "
            "FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = %s ORDER BY ordinal_position",
            (table,),
        )
        return [
            RandomColumn(name, kind, bool(computed), length, tuple(whole.split("'")[1::2]))
            for name, kind, computed, length, whole in found
        ]

    def key(self, table: str) -> list[str]:
        if self.is_postgres:
            query = (
                "SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey) "
                "WHERE indrelid = %s::regclass AND indisprimary ORDER BY array_position(indkey::int[], attnum::int)"
            )
            return [name for (name,) in self.database.query(query, (self.q(table),))]
        query = (
            "SELECT column_name FROM information_schema.key_column_usage WHERE table_schema = DATABASE() AND table_name = %s "
            "AND constraint_name = 'PRIMARY' ORDER BY ordinal_position"
        )
        return [name for (name,) in self.database.query(query, (table,))]

    def copied_columns(self, table: str) -> list[RandomColumn]:
        logged = logs_generated_columns(self.database.server)
        return [column for column in self.columns(table) if logged or not column.is_computed]

    def rows(self, table: str) -> list[tuple[str, ...]]:
        """The rows' copied columns as texts, sorted."""
        columns = self.copied_columns(table)
        chosen = ", ".join(self._read(column) for column in columns)
        with contextlib.closing(self.database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET timezone = 'UTC'" if self.is_postgres else "SET time_zone = '+00:00'")
            cursor.execute(f"SELECT {chosen} FROM {self.q(table)}")
            return sorted(
                tuple(as_text(value, column.type) for value, column in zip(row, columns, strict=True))
                for row in cursor.fetchall()
            )

    def _read(self, column: RandomColumn) -> str:
        if column.type in ("time", "interval", "uuid"):
            return f"CAST({self.q(column.name)} AS {'text' if self.is_postgres else 'CHAR'})"
        return self.q(column.name) + (" + 0" if column.type == "bit" else "")

    # writes

    def create(self, name: str) -> Iterator[str]:
        generator, q = self.generator, self.q
        chosen = generator.sample(COLUMN_NAMES, generator.randrange(2, 6))
        width = generator.choice((1, 1, 1, 2)) if self.plain or generator.random() < 0.85 else 0
        types = [generator.choice(KEY_TYPES[self.family]) + " NOT NULL" for _ in range(width)]
        types += [generator.choice(self.types) for _ in chosen[width:]]
        key = f", PRIMARY KEY ({', '.join(map(q, chosen[:width]))})" if width else ""
        columns = ", ".join(f"{q(column)} {kind}" for column, kind in zip(chosen, types, strict=True))
        yield f"CREATE TABLE {q(name)} ({columns}{key})"
        if self.is_postgres and (not width or generator.random() < 0.2):
            yield f"ALTER TABLE {q(name)} REPLICA IDENTITY FULL"

    def change(self) -> None:
        """A transaction, or one that stays prepared, or the end of one."""
        if not self.is_postgres and self.generator.random() < 0.06:
            self._prepare_or_finish()
        elif names := self.names():
            self._write(self.generator.choice(names), self.generator.choice((1, 2, 5, 15)), odd=True)

    def _write(self, table: str, count: int, *, odd: bool = False) -> None:
        statements: list[str] = []
        for _ in range(count):
            name = table if self.generator.random() < 0.7 else self.generator.choice(self.names())
            statements.extend(self.changes_of(name))
        if self.generator.random() < 0.15:
            at = self.generator.randrange(len(statements) + 1)
            statements.insert(at, "SAVEPOINT s")
            statements.insert(self.generator.randrange(at + 1, len(statements) + 1), "ROLLBACK TO SAVEPOINT s")
        self.execute(*statements, together=self.generator.random() < 0.7, odd=odd)

    def _prepare_or_finish(self) -> None:
        if self.prepared and self.generator.random() < 0.6:
            self.finish(self.prepared.pop())
        elif names := [name for name in self.names() if self.key(name)]:
            name, xid = self.generator.choice(names), f"'{self.database.name}-{next(self.numbers)}'"
            statements = [text for _ in range(3) for text in self.changes_of(name) if text.startswith("INSERT")]
            self.execute(f"XA START {xid}", *statements, f"XA END {xid}", f"XA PREPARE {xid}")
            self.prepared.append(xid)

    def finish(self, xid: str) -> None:
        self.execute(f"XA {self.generator.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} {xid}")

    def literal(self, column: RandomColumn, *, few: bool = False) -> str:
        return literal(column, self.generator, few=few)

    def changes_of(self, table: str) -> Iterator[str]:
        """Statements that change rows of the table."""
        generator, q = self.generator, self.q
        columns, key = [column for column in self.columns(table) if not column.is_computed], self.key(table)
        if not columns:
            return
        one, value = generator.choice(columns), generator.choice([c for c in columns if c.name not in key] or columns)
        names = ", ".join(q(column.name) for column in columns)
        text = "::text" if one.type in ("json", "_int4", "_text") else ""
        at = " AND ".join(f"{q(c.name)} = {self.literal(c, few=True)}" for c in columns if c.name in key)
        at = at or f"{q(one.name)}{text} = {self.literal(one)}"
        sets = f"{q(value.name)} = {self.literal(value)}"

        def row() -> str:
            return "(" + ", ".join(self.literal(column, few=column.name in key) for column in columns) + ")"

        rows = ", ".join(row() for _ in range(generator.choice((1, 1, 3, 9))))
        match generator.randrange(17):
            case 0 | 1:
                yield f"INSERT INTO {q(table)} ({names}) VALUES {rows}"
            case 2:
                ignore, conflict = ("", " ON CONFLICT DO NOTHING") if self.is_postgres else (" IGNORE", "")
                yield f"INSERT{ignore} INTO {q(table)} ({names}) VALUES {rows}{conflict}"
            case 3 if not self.is_postgres:
                yield f"REPLACE INTO {q(table)} ({names}) VALUES {rows}"
            case 4 if not self.is_postgres:
                yield f"INSERT INTO {q(table)} ({names}) VALUES {rows} ON DUPLICATE KEY UPDATE {sets}"
            case 3 | 4 if key:
                conflict = f"ON CONFLICT ({', '.join(map(q, key))}) DO UPDATE SET {sets}"
                yield f"INSERT INTO {q(table)} ({names}) VALUES {row()} {conflict}"
            case 5 | 6 | 7:
                yield f"UPDATE {q(table)} SET {sets} WHERE {at}"
            case 8:
                yield f"UPDATE {q(table)} SET {sets}"
            case 9 | 10 if key:
                moved = next(
                    column for column in columns if column.name == generator.choice(key) or column.name == key[0]
                )
                yield f"UPDATE {q(table)} SET {q(moved.name)} = {self.literal(moved, few=True)} WHERE {at}"
            case 11:
                yield f"DELETE FROM {q(table)} WHERE {at}"
            case 12 if generator.random() < 0.3:
                yield f"DELETE FROM {q(table)} WHERE {q(one.name)} IS NOT NULL"
            case 13 if generator.random() < 0.1:
                yield f"TRUNCATE TABLE {q(table)}"
            case 14 if key and not self.is_postgres:
                yield from self._of_two_tables(table, at, sets)
            case 15 if key and self.is_postgres:
                old = f"WITH gone AS (DELETE FROM {q(table)} WHERE {at} RETURNING *)"
                yield f"{old} INSERT INTO {q(table)} ({names}) VALUES {row()}"
            case 16 if key and self.is_postgres:
                yield (
                    f"MERGE INTO {q(table)} t USING (SELECT 1) s ON t.{at.replace(' AND ', ' AND t.')} WHEN MATCHED THEN "
                    f"UPDATE SET {sets} WHEN NOT MATCHED THEN INSERT ({names}) VALUES {row()}"
                )
            case _:
                yield f"DELETE FROM {q(table)} WHERE {at}"
                yield f"INSERT INTO {q(table)} ({names}) VALUES {row()}"

    def _of_two_tables(self, table: str, at: str, sets: str) -> Iterator[str]:
        other, q = self.generator.choice(self.names()), self.q
        its = [c for c in self.columns(other) if not c.is_computed and c.name not in self.key(other)]
        if other != table and its:
            c = self.generator.choice(its)
            yield (
                f"UPDATE {q(table)} t, {q(other)} o SET t.{sets}, o.{q(c.name)} = {self.literal(c)} "
                f"WHERE t.{at.replace(' AND ', ' AND t.')}"
            )
