"""Backups of whole databases, and restores that leave nothing else: tables that came later are gone, dropped ones are back."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pymysql

from tests.support.servers import Database

_NUMBERS = itertools.count(1)


@dataclass
class Backups:
    """Backups of a target. A restore ends the sessions in it, as that of a server would."""

    database: Database
    _kept: list[str] = field(default_factory=list)

    def take(self) -> Callable[[], None]:
        """Returns what restores the database to what it is now."""
        return self._of_postgres() if self.database.kind == "postgres" else self._of_mysql()

    def _of_postgres(self) -> Callable[[], None]:
        name = self.database.name
        kept = f"{name}_backup_{next(_NUMBERS)}"
        self._kept.append(kept)
        self._copy(name, kept)

        def restore() -> None:
            with self._session() as run:
                run(f"DROP DATABASE {name} WITH (FORCE)")
            self._copy(kept, name)

        return restore

    def _copy(self, name: str, to: str) -> None:
        with self._session() as run:
            run(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            run(f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'")
            run(f"CREATE DATABASE {to} TEMPLATE {name}")
            run(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    def _of_mysql(self) -> Callable[[], None]:
        name = self.database.name
        names = [table for (table,) in self.database.query("SHOW TABLES")]
        creates = {table: self.database.query(f"SHOW CREATE TABLE {_quoted(table)}")[0][1] for table in names}
        rows = {table: self.database.query(f"SELECT * FROM {_quoted(table)}") for table in names}

        def restore() -> None:
            sessions = self.database.query(
                f"SELECT id FROM {self.database.server.processlist} WHERE db = %s AND id <> CONNECTION_ID()", (name,)
            )
            for (session,) in sessions:
                with contextlib.suppress(pymysql.err.OperationalError):  # it has ended meanwhile
                    self.database.execute(f"KILL {session}")
            self.database.execute(f"DROP DATABASE {name}", f"CREATE DATABASE {name}")
            with contextlib.closing(self.database.connect()) as connection, connection.cursor() as cursor:
                for table, create in creates.items():
                    cursor.execute(create)
                    if rows[table]:
                        holes, escaped = ", ".join(["%s"] * len(rows[table][0])), _quoted(table).replace("%", "%%")
                        cursor.executemany(f"INSERT INTO {escaped} VALUES ({holes})", rows[table])

        return restore

    @contextmanager
    def _session(self) -> Iterator[Callable[[str], None]]:
        with contextlib.closing(self.database.server.connect()) as connection, connection.cursor() as cursor:
            yield cursor.execute

    def drop(self) -> None:
        with self._session() as run:
            for kept in self._kept:
                run(f"DROP DATABASE IF EXISTS {kept}")


def _quoted(table: str) -> str:
    return "`" + table.replace("`", "``") + "`"


@contextmanager
def backups_of(database: Database) -> Iterator[Backups]:
    found = Backups(database)
    try:
        yield found
    finally:
        found.drop()
