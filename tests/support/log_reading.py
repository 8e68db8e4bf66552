"""The log reader on a real server, for tests: where the log is, what was read, and readers that go on from there."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from conf.endpoint import parse_endpoint
from readers.mysql.catalog import load_schema
from readers.mysql.connect import connect
from readers.mysql.log_connection import ServerLog
from readers.mysql.log_positions import LogPlaces, log_end
from readers.mysql.log_reader import LogReader
from readers.mysql.log_state import ReadOptions
from readers.mysql.server import read_server
from scripts.server import Server
from scripts.servers import start_server
from state.gtid import GtidSet
from state.log_range import LogRange, PreparedXa
from state.position import BinlogPosition, binlog_position
from state.table import TableId, TableSchema

SERVER_IDS = (900_001, 900_002, 900_003)
FLAVOURS: dict[str, tuple[str, str | None, dict[str, str]]] = {
    "mysql-gtid": ("mysql", None, {}),
    "mysql-nogtid": ("mysql", None, {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}),
    "mariadb": ("mariadb", None, {}),
    "mariadb-11.4": ("mariadb", "11.4", {}),  # the first whose events do not say where they end
}

Change = dict[str, Any]


@dataclass
class LoggedServer:
    """A server of its own, the database `d` on it, and a place in its log: `read()` reads on from there."""

    server: Server
    name: str
    start: BinlogPosition = field(init=False)
    prepared: tuple[PreparedXa, ...] = ()

    def __post_init__(self) -> None:
        self.execute("CREATE DATABASE IF NOT EXISTS d", database=None)
        self.forget()

    @property
    def is_mariadb(self) -> bool:
        return self.server.kind == "mariadb"

    def connect(self, **settings: Any) -> Any:
        return self.server.connect("d", **settings)

    def execute(self, *statements: str, database: str | None = "d") -> None:
        """On one connection."""
        with contextlib.closing(self.server.connect(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def source(self) -> ServerLog:
        endpoint = parse_endpoint(self.server.url)
        with contextlib.closing(connect(endpoint, None)) as connection:
            return ServerLog.of(endpoint, None, read_server(connection, endpoint.kind), SERVER_IDS)  # type: ignore[arg-type]

    def places(self) -> LogPlaces:
        """Its connection stays open until the server ends."""
        endpoint = parse_endpoint(self.server.url)
        connection = connect(endpoint, None)
        server = read_server(connection, endpoint.kind)  # type: ignore[arg-type]
        return LogPlaces(self.source(), connection, server)

    def end(self) -> BinlogPosition:
        places = self.places()
        with contextlib.closing(places.connection):
            return log_end(places.connection, places.server)

    def anchor(self) -> BinlogPosition:
        places = self.places()
        with contextlib.closing(places.connection):
            return places.find_anchor()

    def schema(self, name: str) -> TableSchema:
        with contextlib.closing(connect(parse_endpoint(self.server.url), None)) as connection:
            return load_schema(connection, TableId("d", name))

    def reader(self, *tables: str | TableSchema, options: ReadOptions | None = None) -> LogReader:
        schemas = [self.schema(table) if isinstance(table, str) else table for table in tables]
        return LogReader(self.source(), {schema.table: schema for schema in schemas}, options or ReadOptions())

    def forget(self) -> None:
        """`read` begins here."""
        self.start, self.prepared = self.anchor(), ()

    def range(self) -> LogRange:
        """From where `read` would begin to the log's end."""
        end = self.end()
        return LogRange(self.start, end, self.prepared)

    def read(
        self, *tables: str | TableSchema, options: ReadOptions | None = None, skip: GtidSet | None = None
    ) -> list[Change]:
        """What was logged since the last `read`, in the log's order."""
        reader = self.reader(*tables, options=options)
        changes = list(changes_of(reader, self.range(), skip=skip))
        self.start, self.prepared = binlog_position(reader.report.end), reader.report.prepared
        return changes


def changes_of(reader: LogReader, part: LogRange, **reading: Any) -> Iterator[Change]:
    found = []
    for batch in reader.read(part, **reading):
        found += [{"table": batch.table.name, **row} for row in batch.rows.to_pylist()]
    yield from sorted(found, key=lambda row: (row["_commit_version"], row["_seq"]))


@contextlib.contextmanager
def logged_server(name: str, **options: Any) -> Iterator[LoggedServer]:
    """`name`: one of FLAVOURS."""
    kind, version, settings = FLAVOURS[name]
    with start_server(kind, {**settings, **options}, version) as server:
        yield LoggedServer(server, name)


@pytest.fixture(scope="module", params=list(FLAVOURS))
def logged(request: pytest.FixtureRequest) -> Iterator[LoggedServer]:
    """Once on each flavour; shared by the module's tests, one after the other."""
    with logged_server(request.param) as server:
        yield server
