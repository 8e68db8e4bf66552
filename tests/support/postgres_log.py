"""PostgreSQL's log on a real server, for tests: a slot, a publication, and a place from which `read()` reads on."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from conf.endpoint import parse_endpoint
from readers.postgres.catalog import schema_of
from readers.postgres.connect import Connection, connect
from readers.postgres.log_reader import LogReader
from readers.postgres.log_reading import ReadOptions
from readers.postgres.publication import create_publication
from readers.postgres.server import read_identity
from readers.postgres.server_log import ServerLog
from readers.postgres.slot import LogPlace, create_slot
from readers.postgres.table_facts import read_tables
from state.log_range import LogRange
from state.position import WalPosition
from state.table import TableId, TableSchema
from tests.support.servers import Database, FindServer, fresh_database

VERSIONS = ("15", "18")
"""The oldest that the tests' servers have by default, and the newest."""

Change = dict[str, Any]


@dataclass
class LoggedDatabase:
    """`publish` comes first, then `read` gives what was written since."""

    database: Database
    start: WalPosition = field(init=False)

    @property
    def name(self) -> str:
        """Of slot and publication."""
        return self.database.name

    def execute(self, *statements: str) -> None:
        self.database.execute(*statements)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        return self.database.query(sql)

    @contextlib.contextmanager
    def connected(self) -> Iterator[Connection]:
        """As Tidemark connects."""
        with contextlib.closing(connect(parse_endpoint(self.database.url), None)) as connection:
            yield connection

    def publish(self, *tables: str) -> None:
        with self.connected() as connection:
            create_publication(connection, self.name, [TableId("public", table) for table in tables])
            self.start = create_slot(connection, self.name)

    def place(self) -> LogPlace:
        with self.connected() as connection:
            return LogPlace(read_identity(connection), self.name, self.name)

    def end(self) -> WalPosition:
        """Everything that is committed lies before it."""
        ((lsn,),) = self.query("SELECT pg_current_wal_flush_lsn() - '0/0'")
        return WalPosition(int(lsn))

    def schema(self, name: str, **options: Any) -> TableSchema:
        table = TableId("public", name)
        with self.connected() as connection:
            return schema_of(read_tables(connection, [table])[table], **options)

    def reader(self, *tables: str | TableSchema, options: ReadOptions | None = None) -> LogReader:
        schemas = [self.schema(table) if isinstance(table, str) else table for table in tables]
        source = ServerLog(parse_endpoint(self.database.url), None, self.place())
        return LogReader(source, {schema.table: schema for schema in schemas}, options or ReadOptions())

    def read(self, *tables: str | TableSchema, options: ReadOptions | None = None) -> list[Change]:
        """What was committed since the last `read`, in the log's order."""
        end = self.end()
        changes = changes_of(self.reader(*tables, options=options), LogRange(self.start, end))
        self.start = end
        return changes


def changes_of(reader: LogReader, part: LogRange) -> list[Change]:
    found = []
    for batch in reader.read(part):
        found += [{"table": batch.table.name, **row} for row in batch.rows.to_pylist()]
    return sorted(found, key=lambda row: (row["_commit_version"], row["_seq"]))


@pytest.fixture(params=[pytest.param(version, marks=pytest.mark.integration) for version in VERSIONS])
def logged_postgres(request: pytest.FixtureRequest, find_server: FindServer) -> Iterator[LoggedDatabase]:
    """A database of the test's own, once on each version."""
    with fresh_database(find_server("postgres", request.param)) as database:
        yield LoggedDatabase(database)
