"""PostgreSQL's log on a real server, for tests and benchmarks: slot, publication, and the position at which `read` resumes."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from devtools.databases import Database
from tidemark.conf.endpoint import parse_endpoint
from tidemark.readers.postgres.connect import Connection, connect
from tidemark.readers.postgres.pgoutput.reader import LogReader
from tidemark.readers.postgres.pgoutput.reading import ReadOptions
from tidemark.readers.postgres.schema.catalog import schema_of
from tidemark.readers.postgres.schema.table_facts import read_tables
from tidemark.readers.postgres.server import read_identity
from tidemark.readers.postgres.slot.publication import create_publication
from tidemark.readers.postgres.slot.server_log import ServerLog
from tidemark.readers.postgres.slot.slot import SlotSource, create_slot
from tidemark.state.log_range import LogRange
from tidemark.state.position import WalPosition
from tidemark.state.table import TableId, TableSchema

Change = dict[str, Any]


@dataclass
class LoggedDatabase:
    """A database with a slot. Call `publish` first. Then `read` returns the changes that were committed since."""

    database: Database
    start: WalPosition = field(init=False)

    @property
    def name(self) -> str:
        """The name of the slot and of the publication."""
        return self.database.name

    def execute(self, *statements: str) -> None:
        self.database.execute(*statements)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        return self.database.query(sql)

    @contextlib.contextmanager
    def connected(self) -> Iterator[Connection]:
        """Connects as Tidemark does."""
        with contextlib.closing(connect(parse_endpoint(self.database.url), None)) as connection:
            yield connection

    def publish(self, *tables: str) -> None:
        with self.connected() as connection:
            create_publication(connection, self.name, [TableId("public", table) for table in tables])
            self.start = create_slot(connection, self.name)

    def place(self) -> SlotSource:
        with self.connected() as connection:
            return SlotSource(read_identity(connection), self.name, self.name)

    def end(self) -> WalPosition:
        """Returns the log's end. Every committed transaction is before it."""
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
        """Returns the changes that were committed since the last `read`, in the log's order."""
        end = self.end()
        changes = changes_of(self.reader(*tables, options=options), LogRange(self.start, end))
        self.start = end
        return changes


def changes_of(reader: LogReader, part: LogRange) -> list[Change]:
    found = []
    for batch in reader.read(part):
        found += [{"table": batch.table.name, **row} for row in batch.rows.to_pylist()]
    return sorted(found, key=lambda row: (row["_commit_version"], row["_seq"]))
