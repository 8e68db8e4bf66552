"""A table on a real server and its split reader, for tests of watermarks, snapshots and gap filling."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from devtools.server import Server
from tests.support.servers import Database, FindServer
from tidemark.conf.endpoint import parse_endpoint
from tidemark.readers.mysql.binlog.connection import ServerLog
from tidemark.readers.mysql.binlog.reader import LogReader
from tidemark.readers.mysql.binlog.reading_state import ReadOptions
from tidemark.readers.mysql.connect import connect
from tidemark.readers.mysql.keys.split_keys import MySqlKeys
from tidemark.readers.mysql.schema.catalog import load_schema
from tidemark.readers.mysql.server import read_log_status, read_server, watermark_method
from tidemark.readers.mysql.session import SqlSession
from tidemark.readers.mysql.snapshot.split_reader import ReadHooks, SnapshotSource, SplitRead, SplitReader
from tidemark.readers.mysql.snapshot.watermark import Watermarks
from tidemark.state.change_batch import ChangeType
from tidemark.state.log_range import LogRange
from tidemark.state.position import BinlogPosition
from tidemark.state.split import KeyRange, Split
from tidemark.state.table import TableId, TableSchema

Row = tuple[Any, ...]
WHOLE = KeyRange(None, None)
SYNC_DELAY_US = 2000


@dataclass(frozen=True, slots=True)
class Change:
    """A row event of the log as the reader gives it; `version` is its transaction's end."""

    type: ChangeType
    row: Row
    version: int


class SourceTable:
    """Table `name` of a test's database, and `anchor`: the log's end when this was made, while nobody wrote."""

    def __init__(self, database: Database, name: str = "t") -> None:
        self.database = database
        self.endpoint = parse_endpoint(database.url)
        self.table = TableId(database.name, name)
        with contextlib.closing(connect(self.endpoint, None)) as connection:
            server = read_server(connection, self.endpoint.kind)
            method = watermark_method(connection, server)
            self.schema: TableSchema = load_schema(connection, self.table)
        self.source = SnapshotSource(self.endpoint, None, server, method, tuple(range(710_000, 710_500)), database.name)
        self.anchor = self.log_end()

    def log_end(self) -> BinlogPosition:
        """The log's end, with GTIDs where the server has them; exact while nobody writes."""
        with contextlib.closing(connect(self.endpoint, None)) as connection:
            gtids = None
            if self.source.method == "gtid":
                with connection.cursor() as cursor:
                    cursor.execute("SELECT @@GLOBAL.gtid_executed")
                    gtids = str(cursor.fetchone()[0]).replace("\n", "")  # type: ignore[index]
            status = read_log_status(connection, self.source.server)
        return BinlogPosition(status.file, status.pos, gtids)

    def reader(
        self, hooks: ReadHooks | None = None, *, watermarks: Watermarks | None = None, **options: Any
    ) -> SplitReader:
        return SplitReader(replace(self.source, **options), hooks=hooks, watermarks=watermarks)

    def split(self, key_range: KeyRange = WHOLE, columns: tuple[str, ...] | None = None, split_id: int = 1) -> Split:
        return Split(
            split_id, self.table, self.schema.version, self.schema.key if columns is None else columns, key_range
        )

    def read(self, split: Split | None = None, hooks: ReadHooks | None = None, **options: Any) -> SplitRead:
        with self.reader(hooks, **options) as reader:
            return reader.read(self.split() if split is None else split, self.schema, self.anchor)

    @contextlib.contextmanager
    def keys(self) -> Iterator[MySqlKeys]:
        session = SqlSession(lambda: connect(self.endpoint, None))
        try:
            yield MySqlKeys(session, {self.table: self.schema})
        finally:
            session.close()

    def batches(self, start: BinlogPosition, stop: BinlogPosition | None = None) -> list[pa.RecordBatch]:
        """The log's batches in order, up to its end unless `stop` says otherwise."""
        end = self.log_end() if stop is None else stop
        if start.order >= end.order:
            return []
        options = ReadOptions(zero_dates_null=self.source.zero_dates_null)
        reader = LogReader(self.log(), {self.table: self.schema}, options)
        return [batch.rows for batch in reader.read(LogRange(start, end))]

    def log(self) -> ServerLog:
        return ServerLog.of(self.endpoint, None, self.source.server, self.source.server_ids[::-1])

    def changes(self, start: BinlogPosition, stop: BinlogPosition | None = None) -> list[Change]:
        """The changes of `batches`."""
        found = []
        for batch in self.batches(start, stop):
            names = self.schema.arrow_schema().names
            rows = zip(*(batch[name].to_pylist() for name in names), strict=True)
            types, versions = batch["_change_type"].to_pylist(), batch["_commit_version"].to_pylist()
            found += [Change(ChangeType(t), row, v) for t, row, v in zip(types, rows, versions, strict=True)]
        return found

    def key_of(self, row: Row) -> Row:
        names = self.schema.arrow_schema().names
        return tuple(row[names.index(name)] for name in self.schema.key)

    def do(self, *statements: str) -> Callable[[], None]:
        """A hook that runs statements on a connection of its own, one transaction each."""
        return lambda: self.database.execute(*statements)

    def rows(self) -> list[Row]:
        """The rows that the source has now."""
        return sorted(self.database.query(f"SELECT * FROM {self.table.name}"))


def delayed_server(find_server: FindServer, *, gtid: bool) -> Server:
    """MySQL that keeps transactions between log and visibility for longer. Shared by few tests, so that XA transactions, which
    every reader of the log has to know, don't come between others."""
    off = {} if gtid else {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
    return find_server("mysql", binlog_group_commit_sync_delay=SYNC_DELAY_US, **off)


def rows_of(rows: pa.Table) -> list[Row]:
    return sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def once(hook: Callable[[], None]) -> Callable[[], None]:
    """A hook that runs only the first time, however often the split is read."""
    left = [hook]
    return lambda: left.pop()() if left else None


def followed(table: SourceTable, read: SplitRead) -> list[Row]:
    """The split's rows with every later change of the log applied. For whole tables only: a split of a part of the key
    would get the other keys' changes too."""
    state = {table.key_of(row): row for row in rows_of(read.rows)}
    assert len(state) == read.rows.num_rows, "a key is twice in a split"
    for change in table.changes(read.report.high):
        if change.type is ChangeType.DELETE:
            assert state.pop(table.key_of(change.row), None) is not None, f"{change} of a row that is not there"
        else:
            known = table.key_of(change.row) in state
            assert known == (change.type is ChangeType.UPDATE_POSTIMAGE), f"{change} meets another state"
            state[table.key_of(change.row)] = change.row
    return sorted(state.values())
