"""The log reader on a real server, for tests and benchmarks: positions in the log, and readers that resume there."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from devtools.server import Server
from devtools.servers import start_server
from tidemark.conf.endpoint import parse_endpoint
from tidemark.readers.mysql.binlog.connection import ServerLog
from tidemark.readers.mysql.binlog.positions import LogPositions, log_end
from tidemark.readers.mysql.binlog.reader import LogReader
from tidemark.readers.mysql.binlog.reading_state import ReadOptions
from tidemark.readers.mysql.connect import connect
from tidemark.readers.mysql.schema.catalog import load_schema
from tidemark.readers.mysql.server import read_server
from tidemark.state.gtid import GtidSet
from tidemark.state.log_range import LogRange, PreparedXa
from tidemark.state.position import BinlogPosition, binlog_position
from tidemark.state.table import TableId, TableSchema

SERVER_IDS = (900_001, 900_002, 900_003)
FLAVOURS: dict[str, tuple[str, str | None, dict[str, str]]] = {
    "mysql-gtid": ("mysql", None, {}),
    "mysql-nogtid": ("mysql", None, {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}),
    "mariadb": ("mariadb", None, {}),
    "mariadb-11.8": ("mariadb", "11.8", {}),  # its events do not have their end position, since 11.4
}
OLDER_FLAVOURS: dict[str, tuple[str, str | None, dict[str, str]]] = {
    "mysql-8.0": ("mysql", "8.0", {}),
    "mariadb-10.5": ("mariadb", "10.5", {}),
    "mariadb-11.4": ("mariadb", "11.4", {}),
}

Change = dict[str, Any]


@dataclass
class LoggedServer:
    """A private server with the database `d`, and a position in its log, at which `read` resumes."""

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

    @property
    def has_gtid_sets(self) -> bool:
        return self.name in {"mysql-gtid", "mysql-8.0"}

    def connect(self, **settings: Any) -> Any:
        return self.server.connect("d", **settings)

    def execute(self, *statements: str, database: str | None = "d") -> None:
        """Executes the statements on one connection."""
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

    def positions(self) -> LogPositions:
        """Returns positions on a new connection, which stays open until the caller closes it or the server ends."""
        endpoint = parse_endpoint(self.server.url)
        connection = connect(endpoint, None)
        server = read_server(connection, endpoint.kind)  # type: ignore[arg-type]
        return LogPositions(self.source(), connection, server)

    def end(self) -> BinlogPosition:
        positions = self.positions()
        with contextlib.closing(positions.connection):
            return log_end(positions.connection, positions.server)

    def anchor(self) -> BinlogPosition:
        positions = self.positions()
        with contextlib.closing(positions.connection):
            return positions.find_anchor()

    def schema(self, name: str) -> TableSchema:
        with contextlib.closing(connect(parse_endpoint(self.server.url), None)) as connection:
            return load_schema(connection, TableId("d", name))

    def reader(self, *tables: str | TableSchema, options: ReadOptions | None = None) -> LogReader:
        schemas = [self.schema(table) if isinstance(table, str) else table for table in tables]
        return LogReader(self.source(), {schema.table: schema for schema in schemas}, options or ReadOptions())

    def forget(self) -> None:
        """Makes the next `read` start at the current end of the log."""
        self.start, self.prepared = self.anchor(), ()

    def range(self) -> LogRange:
        """Returns the range that `read` would read: up to the log's end."""
        end = self.end()
        return LogRange(self.start, end, self.prepared)

    def read(
        self, *tables: str | TableSchema, options: ReadOptions | None = None, skip: GtidSet | None = None
    ) -> list[Change]:
        """Returns the changes that were logged since the last `read`, in the log's order."""
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
    """Starts a private server. `name` is one of FLAVOURS or OLDER_FLAVOURS, `options` are server settings."""
    kind, version, settings = (FLAVOURS | OLDER_FLAVOURS)[name]
    with start_server(kind, {**settings, **options}, version) as server:
        yield LoggedServer(server, name)
