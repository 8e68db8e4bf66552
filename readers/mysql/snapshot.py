"""The split reader: low → SELECT → high → normalise.

    connection │ low ── SELECT ── high                          one at a time, kept for the next split
    log        │                       └─ replay (low, high]    only when something lies between

The rows it gives are the exact state of the split's key range at high. Whatever makes that impossible halfway (a lost
connection, a DDL in the window) makes it read the split anew; nothing half-read is ever given.

- A table without a key has no rows that could be told apart, so it can't be normalised. Its SELECT runs in a
  transaction whose snapshot is opened between low and high; if the table changed in between, that is done again.
- `where` (snapshot.where) limits what the SELECT reads. It never limits changes: a row that changes after the low is
  copied as it then is, as it is later when the log is followed.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pymysql

from conf.endpoint import Endpoint
from conf.source import Tls
from readers.gathered_rows import GatheredRows
from readers.mysql.anchors import newest_anchor, remember_anchor
from readers.mysql.columns import ColumnPlan
from readers.mysql.connect import Connection, connect, error_code, quote_table
from readers.mysql.key_columns import column_list, null_key, range_condition
from readers.mysql.keys import MySqlKeys
from readers.mysql.log_connection import ServerLog, another_log, file_begun
from readers.mysql.log_reader import LogReader
from readers.mysql.log_state import ReadOptions
from readers.mysql.ranks import within
from readers.mysql.result import stream_select
from readers.mysql.server import ServerInfo, WatermarkMethod, require_identity
from readers.mysql.session import SqlSession
from readers.mysql.table_facts import read_tables
from readers.mysql.watermark import Low, Watermarks
from readers.normalise import Replay
from readers.split_read import SplitRead
from readers.split_reader import RetryingSplitReader, columns_are_gone
from state.errors import SourceNotUsableError, SplitChangedError
from state.failpoints import failpoint
from state.log_range import LogRange
from state.position import BinlogPosition, Position, binlog_position
from state.split import KeyRange, Report, Split
from state.table import TableId, TableSchema

FRESH_READS = 100
"""Of a split, against changes that make a read useless: a DDL in the window, or a table without a key that changes."""

_TABLE_CHANGED = 1412


def _nothing() -> None:
    pass


Hook = Callable[[], None]


@dataclass(frozen=True, slots=True)
class ReadHooks:
    """Called at these moments of each read; tests change the source there."""

    before_low: Hook = _nothing
    after_low: Hook = _nothing
    before_select: Hook = _nothing
    after_select: Hook = _nothing
    before_high: Hook = _nothing
    after_high: Hook = _nothing


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """Where and how splits are read; travels to executors. `server_ids` are for log connections, `where` is
    snapshot.where, `masked` the tables whose rows must not be written as they are. Anchors are shared by the readers of a
    process that have the same job and server."""

    endpoint: Endpoint
    tls: Tls | None
    server: ServerInfo
    method: WatermarkMethod
    server_ids: tuple[int, ...]
    job_uuid: str
    zero_dates_null: bool = True
    where: Mapping[TableId, str] = field(default_factory=dict)
    masked: frozenset[TableId] = frozenset()

    def connect(self) -> Connection:
        """Raises LogPositionLostError for another server than the job's."""
        connection = connect(self.endpoint, self.tls)
        try:
            require_identity(connection, self.server.identity)
        except BaseException:
            connection.close()
            raise
        return connection


class SplitReader(RetryingSplitReader[Connection]):
    """Where this process knows a newer anchor than the plan's, it takes that. `read` raises SourceNotUsableError also where a
    table never rests."""

    table_is_gone: ClassVar[frozenset[int]] = frozenset({1054, 1146})
    _error_code = staticmethod(error_code)

    def __init__(
        self, source: SnapshotSource, *, hooks: ReadHooks | None = None, watermarks: Watermarks | None = None
    ) -> None:
        session = SqlSession(source.connect)
        super().__init__(session)
        self._source = source
        self._hooks = ReadHooks() if hooks is None else hooks
        self._watermarks = Watermarks(source.server, source.method) if watermarks is None else watermarks
        self._keys = MySqlKeys(session, {})
        self._scope = (source.job_uuid, source.server.identity)
        self._begun: dict[str, int] = {}

    def _read(self, split: Split, schema: TableSchema, anchor: Position) -> SplitRead:
        fresh = 0
        while True:
            try:
                return self._read_once(split, schema, newest_anchor(self._scope, binlog_position(anchor)))
            except SplitChangedError as error:
                cause: Exception = error
            except pymysql.MySQLError as error:
                if error_code(error) != _TABLE_CHANGED:
                    raise
                cause = error
            fresh += 1
            self._count_fresh(cause, schema, fresh)

    def _count_fresh(self, cause: Exception, schema: TableSchema, fresh: int) -> None:
        self.counters.fresh_reads += 1
        self._session.ask(lambda connection: connection.rollback())  # a transaction may be open
        self._session.ask(lambda connection: require_columns(connection, schema))
        if fresh == FRESH_READS:
            raise SourceNotUsableError(
                f"A split of {schema.table} was read {fresh} times, and each time the table changed meanwhile so that "
                f"it was useless: {cause}",
                "Let DDL on the table rest; name a unique key for it in source.keys if it has none.",
            ) from cause

    def _read_once(self, split: Split, schema: TableSchema, anchor: BinlogPosition) -> SplitRead:
        connection, hooks = self._session.connection, self._hooks
        hooks.before_low()
        low = self._watermarks.low(connection, anchor)
        failpoint("snapshot.after_low")
        hooks.after_low()
        if not low.exact and not schema.key:
            return self._read_at_rest(connection, split, schema, low, anchor)
        rows = self._select(connection, split, schema, in_transaction=low.exact)
        hooks.before_high()
        high, settled = self._watermarks.high(connection, low), 0
        hooks.after_high()
        if not low.exact:
            replay = Replay(schema.key, lambda keys: self._in_range(split, schema, keys))
            high = self._replay(schema, low, high, replay.add)
            rows, settled = replay.apply(rows)
        failpoint("snapshot.normalised")
        return _split_read(split, rows, self._dated(high, anchor), settled, low)

    def _read_at_rest(
        self, connection: Connection, split: Split, schema: TableSchema, low: Low, anchor: BinlogPosition
    ) -> SplitRead:
        """A table without a key. Between low and the log's end after the snapshot was opened it did not change, so the
        snapshot is the state at that end."""
        changes: list[int] = []
        with connection.cursor() as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        self._hooks.before_high()
        end = self._watermarks.high(connection, low)
        self._hooks.after_high()
        high = self._replay(schema, low, end, lambda rows: changes.append(rows.num_rows))
        if changes:
            raise SplitChangedError(f"{schema.table}, which has no key, changed.", "It is read again.")
        rows = self._select(connection, split, schema, in_transaction=True)
        return _split_read(split, rows, self._dated(high, anchor), 0, low)

    def _select(self, connection: Connection, split: Split, schema: TableSchema, *, in_transaction: bool) -> pa.Table:
        """An explicit list of columns: `*` leaves out invisible ones, and follows a DDL."""
        condition = range_condition(split.columns, split.range) if split.columns else "TRUE"
        where = self._source.where.get(schema.table)
        if where is not None:
            condition = f"({condition}) AND (\n{where}\n)"
        columns = column_list(column.name for column in schema.captured)
        self._hooks.before_select()
        batches = stream_select(
            connection,
            f"SELECT {columns} FROM {quote_table(schema.table)} WHERE {condition}",
            ColumnPlan.for_result(schema),
            zero_dates_null=self._source.zero_dates_null,
        )
        gathered = GatheredRows(schema.arrow_schema(), in_memory=schema.table in self._source.masked)
        for batch in batches:
            gathered.add(batch)
        rows = gathered.table()
        if in_transaction:  # undo and metadata locks are kept no longer than they are needed
            connection.commit()
        failpoint("snapshot.after_select")
        self._hooks.after_select()
        for name in schema.key:
            if rows[name].null_count:
                raise null_key(schema.table, name)
        return rows

    def _replay(
        self, schema: TableSchema, low: Low, end: BinlogPosition, take: Callable[[pa.RecordBatch], None]
    ) -> BinlogPosition:
        """Gives `take` the changes after the low, up to the log's `end` at least; returns the place that was reached."""
        if end.order == low.start.order:
            return low.start
        self.counters.replays += 1
        log_range = LogRange(low.start, end)
        source = self._source
        reader = LogReader(self._log(), {schema.table: schema}, ReadOptions(zero_dates_null=source.zero_dates_null))
        for batch in reader.read(log_range, skip=low.contained, replay=True):
            self.counters.replayed_changes += batch.rows.num_rows
            take(batch.rows)
        remember_anchor(self._scope, reader.end)
        return reader.end

    def _dated(self, high: BinlogPosition, anchor: BinlogPosition) -> BinlogPosition:
        """With the time at which its file was begun. Raises LogPositionLostError where it is not the anchor's file."""
        begun = high.begun
        if begun is None:
            if high.file not in self._begun:
                self._begun[high.file] = file_begun(self._log(), high.file)
            begun = self._begun[high.file]
        if high.file == anchor.file and anchor.begun not in {None, begun}:
            raise another_log(high.file, anchor.begun, begun)
        return replace(high, begun=begun)

    def _log(self) -> ServerLog:
        source = self._source
        ids = tuple(random.sample(source.server_ids, len(source.server_ids)))  # others take theirs from the same range
        return ServerLog.of(source.endpoint, source.tls, source.server, ids)

    def _in_range(self, split: Split, schema: TableSchema, rows: pa.Table) -> npt.NDArray[np.bool_]:
        if split.range == KeyRange(None, None):
            return np.ones(rows.num_rows, np.bool_)
        keys = [rows[name].combine_chunks() for name in split.columns]
        batch = pa.RecordBatch.from_arrays(keys, names=list(split.columns))
        return within(self._keys.ranks(schema, split.columns, batch), split.range)


def require_columns(connection: Connection, schema: TableSchema) -> None:
    """Raises SchemaChangedError unless the table still has the columns of `schema`."""
    found = read_tables(connection, [schema.table])[schema.table]
    now = [(c.name, c.source_type, c.charset, c.collation) for c in found.columns]
    known = [(c.name, c.source_type, c.charset, c.collation) for c in schema.columns]
    if now != known[: len(now)] or len(known) != len(now) + found.hidden_hashes:
        raise columns_are_gone(f"{schema.table} no longer has the columns that it had when the job began.")


def _split_read(split: Split, rows: pa.Table, high: BinlogPosition, settled: int, low: Low) -> SplitRead:
    low_place = BinlogPosition(low.start.file, low.start.pos)
    report = Report(split.id, split.table, split.schema_version, high, rows.num_rows, settled, low_place)
    return SplitRead(report, rows, low.taken_at_us)
