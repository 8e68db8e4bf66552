"""Fixtures: real servers, shared by the whole run, and databases that a test has to itself.

Servers: `mysql_server` (GTIDs on), `mysql_nogtid_server`, `mariadb_server`, `postgres_server`. Databases on them:
`mysql_database`, `mysql_nogtid_database`, `mariadb_database`, `postgres_database`, and `source_database`, which runs a
test once on each server that a job can read, and `postgres_source_database`, once on the oldest and the newest
PostgreSQL that is tried. A test that stops a server or changes its settings takes one of its own
from `scripts.servers.start_server`.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from scripts.server import Server
from tests.support.server_broker import ServerBroker, ServerWanted, ask_broker

BROKER = pytest.StashKey[ServerBroker]()
SERVER_FIXTURES = ("mysql_server", "mysql_nogtid_server", "mariadb_server", "postgres_server", "postgres_source_server")
LOCK_WAIT_SECONDS = 20

FindServer = Callable[..., Server]


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[BROKER] = ServerBroker()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist, in the controlling process, before it starts a worker."""
    broker = node.config.stash[BROKER]
    node.workerinput["server_broker"] = (broker.address, broker.key)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (broker := config.stash.get(BROKER, None)) is not None:
        broker.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever uses a server is an integration test, whether it says so or not."""
    for item in items:
        if set(SERVER_FIXTURES) & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def find_server(request: pytest.FixtureRequest) -> FindServer:
    """`find_server(kind, version=None, **options)`: a server shared with every test that asks for the same."""
    config = request.config

    def find(kind: str, version: str | None = None, **options: str | int | bool | None) -> Server:
        wanted = ServerWanted.of(kind, options, version)
        if hasattr(config, "workerinput"):
            address, key = config.workerinput["server_broker"]
            found = ask_broker(address, key, wanted)
        else:
            found = config.stash[BROKER].find(wanted)
        return Server(kind, found.url, version=found.version, data_folder=found.data_folder)

    return find


@pytest.fixture(scope="session")
def mysql_server(find_server: FindServer) -> Server:
    return find_server("mysql")


@pytest.fixture(scope="session")
def mysql_nogtid_server(find_server: FindServer) -> Server:
    return find_server("mysql", gtid_mode="OFF", enforce_gtid_consistency="OFF")


@pytest.fixture(scope="session")
def mariadb_server(find_server: FindServer) -> Server:
    return find_server("mariadb")


@pytest.fixture(scope="session")
def postgres_server(find_server: FindServer) -> Server:
    return find_server("postgres")


@pytest.fixture(scope="session")
def postgres18_server(find_server: FindServer) -> Server:
    return find_server("postgres", "18")


@pytest.fixture(scope="session", params=[pytest.param(None, id="pg15"), pytest.param("18", id="pg18")])
def postgres_source_server(request: pytest.FixtureRequest, find_server: FindServer) -> Server:
    return find_server("postgres", request.param)


@dataclass(frozen=True, slots=True)
class Database:
    """A database of a test's own, dropped after it."""

    server: Server
    name: str

    @property
    def kind(self) -> str:
        return self.server.kind

    @property
    def schema(self) -> str:
        """What stands before a table's name in the job file."""
        return "public" if self.kind == "postgres" else self.name

    @property
    def url(self) -> str:
        """The server's URL with this database."""
        return f"{self.server.url}{self.name}"

    def connect(self, **settings: Any) -> Any:
        """A driver's connection with autocommit, in this database."""
        return self.server.connect(self.name, **settings)

    def execute(self, *statements: str) -> None:
        """On a connection of its own."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def query(self, sql: str, arguments: Any = None) -> list[tuple[Any, ...]]:
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(sql, arguments)
            return list(cursor.fetchall())


@contextlib.contextmanager
def fresh_database(server: Server, settings: str | None = None) -> Iterator[Database]:
    """Made empty, utf8mb4 or UTF8 (or by other `settings`, that follow CREATE DATABASE and its name); dropped at the end,
    with the sessions and replication slots that are still on it."""
    database = Database(server, f"t_{os.getpid()}_{secrets.token_hex(5)}")
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        usual = "" if server.kind == "postgres" else "CHARACTER SET utf8mb4"
        cursor.execute(f"CREATE DATABASE {database.name} {usual if settings is None else settings}")
    try:
        yield database
    finally:
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            if server.kind == "postgres":
                _drop_postgres(cursor, database.name)
            else:
                _drop_mysql(cursor, server.processlist, database.name)


def _drop_mysql(cursor: Any, processlist: str, name: str) -> None:
    import pymysql

    cursor.execute(f"SELECT id FROM {processlist} WHERE db = %s", (name,))
    for (session,) in cursor.fetchall():
        with contextlib.suppress(pymysql.err.OperationalError):  # 1094: it has ended meanwhile
            cursor.execute("KILL %s", (session,))
    cursor.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_SECONDS}")
    cursor.execute(f"DROP DATABASE IF EXISTS {name}")


def _drop_postgres(cursor: Any, name: str) -> None:
    cursor.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", (name,))
    cursor.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (name,))
    cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture
def mysql_database(mysql_server: Server) -> Iterator[Database]:
    with fresh_database(mysql_server) as database:
        yield database


@pytest.fixture
def mysql_nogtid_database(mysql_nogtid_server: Server) -> Iterator[Database]:
    with fresh_database(mysql_nogtid_server) as database:
        yield database


@pytest.fixture
def mariadb_database(mariadb_server: Server) -> Iterator[Database]:
    with fresh_database(mariadb_server) as database:
        yield database


@pytest.fixture
def postgres_database(postgres_server: Server) -> Iterator[Database]:
    with fresh_database(postgres_server) as database:
        yield database


@pytest.fixture
def postgres18_database(postgres18_server: Server) -> Iterator[Database]:
    with fresh_database(postgres18_server) as database:
        yield database


@pytest.fixture
def postgres_source_database(postgres_source_server: Server) -> Iterator[Database]:
    with fresh_database(postgres_source_server) as database:
        yield database


@pytest.fixture(
    params=[
        pytest.param("mysql_server", id="mysql-gtid", marks=pytest.mark.integration),
        pytest.param("mysql_nogtid_server", id="mysql-nogtid", marks=pytest.mark.integration),
        pytest.param("mariadb_server", id="mariadb", marks=pytest.mark.integration),
    ]
)
def source_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Once on every kind of server that a job reads without PostgreSQL."""
    with fresh_database(request.getfixturevalue(request.param)) as database:
        yield database


@pytest.fixture(
    params=[
        pytest.param("mysql_server", id="mysql-gtid", marks=pytest.mark.integration),
        pytest.param("mysql_nogtid_server", id="mysql-nogtid", marks=pytest.mark.integration),
        pytest.param("mariadb_server", id="mariadb", marks=pytest.mark.integration),
        pytest.param("postgres18_server", id="pg18", marks=pytest.mark.integration),
    ]
)
def any_source_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Once on every kind of server that a job reads."""
    with fresh_database(request.getfixturevalue(request.param)) as database:
        yield database
