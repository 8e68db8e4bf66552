"""Fixtures: real servers, shared by the tests of a process, and databases that a test has to itself.

Servers: `mysql_server` (GTIDs on), `mysql_nogtid_server`, `mariadb_server`, `postgres_server`. Databases on them:
`mysql_database`, `mysql_nogtid_database`, `mariadb_database`, `postgres_database`, and `source_database`, which runs a
test once on each server that a job can read, and `postgres_source_database`, once on the oldest and the newest
PostgreSQL that is tried. A test that stops a server or changes its settings takes one of its own
from `devtools.servers.start_server`.
"""

import contextlib
import os
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools import databases
from devtools.databases import Database
from devtools.fewer_cases import FILE as FEWER_CASES
from devtools.fewer_cases import cases_left_out, numbers_of_cases
from devtools.server import Server
from devtools.server_process import SupervisedProcess
from tests.support.server_broker import ServerBroker, ServerFound, ServerWanted, ask_broker
from tidemark.readers.mysql.connect import LACKS_GENERATED_SINCE

__all__ = [
    "Database",
    "FindServer",
    "fresh_database",
    "logs_generated_columns",
    "require_logged_generated_columns",
    "restart_with",
]

BROKER = pytest.StashKey[ServerBroker]()
USED = pytest.StashKey[set[ServerWanted]]()
"""The shared servers that this process has connected to or looked up since the set was last cleared."""

EVERY_SERVER = "TIDEMARK_TEST_EVERY_SERVER"
"""This variable of the environment is 1 where each test runs on each of its servers, whatever its marks are."""

MAX_LOG_BYTES = 100_000
"""A shared server's log file that is longer is not continued by the next test's database."""

SERVER_FIXTURES = ("mysql_server", "mysql_nogtid_server", "mariadb_server", "postgres_server", "postgres_source_server")

FindServer = Callable[..., Server]
_Parameters = tuple[tuple[str, str], ...]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[USED] = set()
    if not hasattr(config, "workerinput"):
        config.stash[BROKER] = ServerBroker()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Gives a worker of pytest-xdist the broker's address, in the controlling process, before it starts."""
    broker = node.config.stash[BROKER]
    node.workerinput["server_broker"] = (broker.address, broker.key)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (broker := config.stash.get(BROKER, None)) is not None:
        broker.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test that uses a server as an integration test, and skips what `make test` leaves out."""
    for item in items:
        if _publishes_schemas_on_14(item):
            item.add_marker(pytest.mark.skip(reason="PostgreSQL 14 has no publications of schemas"))
        if set(SERVER_FIXTURES) & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.integration)
    if os.environ.get(EVERY_SERVER) == "1":
        return
    left_out = {item for item in items if _is_left_out(item)}
    left_out.update(_out_of_turn([item for item in items if item not in left_out]))
    runs = [item for item in items if item not in left_out]
    beyond = cases_left_out([item.nodeid for item in runs], numbers_of_cases(FEWER_CASES.read_text()))
    left_out.update(item for item in runs if item.nodeid in beyond)
    for item in left_out:
        item.add_marker(pytest.mark.skip(reason="make test EVERY_SERVER=1 runs it"))


def _publishes_schemas_on_14(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return parameters.get("postgres_source_server") == "14" and any("IN SCHEMA" in str(p) for p in parameters.values())


def _is_left_out(item: pytest.Item) -> bool:
    """Whether the case has the mark `every_server`, or the test's mark `once_per_family` leaves out its server: MySQL without
    GTIDs, and the older PostgreSQL."""
    if item.get_closest_marker("every_server") is not None:
        return True
    if item.get_closest_marker("once_per_family") is None:
        return False
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if "postgres_source_server" in parameters and parameters["postgres_source_server"] is None:
        return True
    return bool(
        {"mysql_nogtid_server", "mysql-nogtid"} & {value for value in parameters.values() if isinstance(value, str)}
    )


def _out_of_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns what the mark `servers_in_turn` leaves out: it runs each case of a test, such as a failpoint, on one server, the
    next case on the next server. A test's name says which server is the first, so tests with a single case differ, too.

    The mark takes the names of the parameters that are the server, and `always`: a server that runs each case besides.
    """
    servers: dict[tuple[Path, str], dict[_Parameters, None]] = {}
    cases: dict[tuple[Path, str], dict[_Parameters, None]] = {}
    in_turn: list[tuple[pytest.Function, _Parameters, _Parameters]] = []
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        parameters = {name: repr(value) for name, value in item.callspec.params.items()}
        names, always = _server_of(item, parameters)
        if not names or (always is not None and repr(always) in parameters.values()):
            continue
        server = tuple((name, parameters.pop(name)) for name in names)
        case = tuple(sorted(parameters.items()))
        test = (item.path, item.originalname)
        servers.setdefault(test, {})[server] = None
        cases.setdefault(test, {})[case] = None
        in_turn.append((item, server, case))
    left_out: list[pytest.Item] = []
    for item, server, case in in_turn:
        test = (item.path, item.originalname)
        of_test = list(servers[test])
        number = list(cases[test]).index(case)
        turn = (
            zlib.crc32(item.originalname.encode()) + number + number // len(of_test)
        )  # rounds begin with another server
        if server != of_test[turn % len(of_test)]:
            left_out.append(item)
    return left_out


def _server_of(item: pytest.Function, parameters: Collection[str]) -> tuple[tuple[str, ...], str | None]:
    """Returns the arguments of the closest mark `servers_in_turn` whose names are those of parameters of the test."""
    for mark in item.iter_markers("servers_in_turn"):
        names = mark.args or ("any_source_database",)
        if set(names) <= set(parameters):
            return names, mark.kwargs.get("always")
    return (), None


class SharedServer(Server):
    """A shared server. Notes in `used` that it is used: a test that connects anywhere to a server connects to it in
    this process too."""

    def __init__(self, wanted: ServerWanted, found: ServerFound, used: set[ServerWanted]) -> None:
        super().__init__(wanted.kind, found.url, version=found.version, data_folder=found.data_folder)
        self.wanted, self.used = wanted, used
        used.add(wanted)

    def connect(self, database: str | None = None, **settings: Any) -> Any:
        self.used.add(self.wanted)
        return super().connect(database, **settings)


def restart_with(server: Server, **options: str | bool) -> None:
    """Restarts a private server with other settings."""
    if not isinstance(server.process, SupervisedProcess):
        pytest.skip("the server runs in a container, whose settings can't be changed")
    server.stop()
    server.process.options = {**server.process.options, **options}
    server.start()


@contextlib.contextmanager
def fresh_database(server: Server, settings: str | None = None) -> Iterator[Database]:
    """As `devtools.databases.fresh_database`. A job of MySQL or MariaDB reads the log's newest file from its start to find its
    start position, so that with the statements of a thousand tests it would take longer than the test itself."""
    if isinstance(server, SharedServer) and server.kind != "postgres":
        _end_long_log_file(server)
    with databases.fresh_database(server, settings) as database:
        yield database


def _end_long_log_file(server: Server) -> None:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@log_bin")
        if cursor.fetchone()[0]:
            cursor.execute("SHOW BINARY LOGS")
            if cursor.fetchall()[-1][1] > MAX_LOG_BYTES:
                cursor.execute("FLUSH BINARY LOGS")


@pytest.fixture(scope="session")
def find_server(request: pytest.FixtureRequest) -> FindServer:
    """`find_server(kind, version=None, **options)`: a server shared with every test that asks for the same. With
    `of_worker=True` only with those that run in this process: they run one after the other, so nothing else writes its log
    or holds transactions open on it."""
    config = request.config

    def find(
        kind: str, version: str | None = None, *, of_worker: bool = False, **options: str | int | bool | None
    ) -> Server:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "") if of_worker else ""
        wanted = ServerWanted.of(kind, options, version, worker)
        if hasattr(config, "workerinput"):
            address, key = config.workerinput["server_broker"]
            found = ask_broker(address, key, wanted)
        else:
            found = config.stash[BROKER].find(wanted)
        return SharedServer(wanted, found, config.stash[USED])

    return find


def logs_generated_columns(server: Server) -> bool:
    numbers = tuple(int(number) for number in server.version.split("-")[0].split(".")[:2])
    return server.kind == "mysql" or (server.kind == "mariadb" and numbers < LACKS_GENERATED_SINCE[:2])


def require_logged_generated_columns(server: Server) -> None:
    """Skips the test if the server's log lacks generated columns: see test_unlogged_columns.py."""
    if not logs_generated_columns(server):
        pytest.skip(f"{server.version} does not log generated columns")


@pytest.fixture(scope="session")
def mysql_server(find_server: FindServer) -> Server:
    return find_server("mysql", of_worker=True)


@pytest.fixture(scope="session")
def mysql_nogtid_server(find_server: FindServer) -> Server:
    return find_server("mysql", of_worker=True, gtid_mode="OFF", enforce_gtid_consistency="OFF")


@pytest.fixture(scope="session")
def mariadb_server(find_server: FindServer) -> Server:
    return find_server("mariadb", of_worker=True)


@pytest.fixture(scope="session")
def postgres_server(find_server: FindServer) -> Server:
    return find_server("postgres", of_worker=True)


@pytest.fixture(scope="session")
def postgres18_server(find_server: FindServer) -> Server:
    return find_server("postgres", "18", of_worker=True)


POSTGRES_SOURCES = [pytest.param(None, id="pg15"), pytest.param("18", id="pg18")]
OLDEST_POSTGRES = pytest.param("14", id="pg14", marks=pytest.mark.every_server)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A file whose RUNS_ON_POSTGRES_14 is True runs on PostgreSQL 14, too, with EVERY_SERVER=1."""
    if "postgres_source_server" in metafunc.fixturenames and getattr(metafunc.module, "RUNS_ON_POSTGRES_14", False):
        sources = [*POSTGRES_SOURCES, OLDEST_POSTGRES]
        mark = pytest.mark.parametrize("postgres_source_server", sources, indirect=True, scope="session")
        metafunc.definition.add_marker(mark)


@pytest.fixture(scope="session", params=POSTGRES_SOURCES)
def postgres_source_server(request: pytest.FixtureRequest, find_server: FindServer) -> Server:
    return find_server("postgres", request.param, of_worker=True)


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
    """A database, once on every kind of server that a job reads, except PostgreSQL."""
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
    """A database, once on every kind of server that a job reads."""
    with fresh_database(request.getfixturevalue(request.param)) as database:
        yield database


@pytest.fixture
def twin_database(any_source_database: Database, request: pytest.FixtureRequest) -> Database:
    """A target on a server of the same kind as `any_source_database`."""
    database: Database = request.getfixturevalue(f"{any_source_database.kind}_database")
    return database
