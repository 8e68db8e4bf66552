"""Private databases on a shared server, dropped at the end."""

import contextlib
import os
import secrets
import select
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from devtools.server import Server

LOCK_WAIT_SECONDS = 20
_OF_THREAD = threading.local()


def _kept_sessions() -> dict[tuple[str, str], Any]:
    """This thread's sessions with PostgreSQL, by the server's URL and the database's name."""
    if not hasattr(_OF_THREAD, "sessions"):
        _OF_THREAD.sessions = {}
    sessions: dict[tuple[str, str], Any] = _OF_THREAD.sessions
    return sessions


def _has_ended(connection: Any) -> bool:
    """Whether the server has ended an idle session: it sends something then, or its socket is closed."""
    if connection.closed:
        return True
    waiting, _, _ = select.select([connection], [], [], 0)
    return bool(waiting)


@dataclass(frozen=True, slots=True)
class Database:
    """A database on a server."""

    server: Server
    name: str

    @property
    def kind(self) -> str:
        return self.server.kind

    @property
    def schema(self) -> str:
        """The schema of its tables in the job file."""
        return "public" if self.kind == "postgres" else self.name

    @property
    def url(self) -> str:
        """The server's URL with this database."""
        return f"{self.server.url}{self.name}"

    def connect(self, **settings: Any) -> Any:
        """A driver's connection with autocommit, in this database."""
        return self.server.connect(self.name, **settings)

    def execute(self, *statements: str) -> None:
        """Executes the statements in a session that has the server's settings."""
        with self._session() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def query(self, sql: str, arguments: Any = None) -> list[tuple[Any, ...]]:
        with self._session() as connection, connection.cursor() as cursor:
            cursor.execute(sql, arguments)
            return list(cursor.fetchall())

    def close(self) -> None:
        """Ends the session that this thread keeps for `execute` and `query`."""
        connection = _kept_sessions().pop((self.server.url, self.name), None)
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _session(self) -> Iterator[Any]:
        """A connection for some statements. A thread keeps PostgreSQL's, as if it were new each time: its server takes
        milliseconds for a new one, and thirty times less for a statement."""
        if self.kind != "postgres":
            with contextlib.closing(self.connect()) as connection:
                yield connection
            return
        kept = _kept_sessions()
        connection = kept.pop((self.server.url, self.name), None)
        if connection is None or _has_ended(connection):
            connection = self.connect()
        try:
            yield connection
            if connection.info.transaction_status == TRANSACTION_STATUS_IDLE:
                with connection.cursor() as cursor:
                    cursor.execute("DISCARD ALL")
                kept[self.server.url, self.name] = connection
        finally:
            if kept.get((self.server.url, self.name)) is not connection:
                connection.close()


@contextlib.contextmanager
def fresh_database(server: Server, settings: str | None = None) -> Iterator[Database]:
    """Creates an empty database and drops it at the end, with its remaining sessions and replication slots.

    `settings` follow CREATE DATABASE and the name. Without them the character set is utf8mb4 or UTF8.
    """
    database = Database(server, f"t_{os.getpid()}_{secrets.token_hex(5)}")
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database.name} {_usual(server) if settings is None else settings}")
    try:
        yield database
    finally:
        database.close()
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            if server.kind == "postgres":
                _drop_postgres(cursor, database.name)
            else:
                _drop_mysql(cursor, server.processlist, database.name)


def _usual(server: Server) -> str:
    if server.kind != "postgres":
        return "CHARACTER SET utf8mb4"
    # Otherwise, since 15, the log has each page of the 7 MB of a new database.
    return "" if server.version.startswith("14.") else "STRATEGY = FILE_COPY"


def _drop_mysql(cursor: Any, processlist: str, name: str) -> None:
    import pymysql

    cursor.execute(f"SELECT id FROM {processlist} WHERE db = %s", (name,))
    for (session,) in cursor.fetchall():
        with contextlib.suppress(pymysql.err.OperationalError):  # 1094: the session has ended meanwhile
            cursor.execute("KILL %s", (session,))
    cursor.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_SECONDS}")
    cursor.execute(f"DROP DATABASE IF EXISTS {name}")


def _drop_postgres(cursor: Any, name: str) -> None:
    cursor.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", (name,))
    cursor.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (name,))
    cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
