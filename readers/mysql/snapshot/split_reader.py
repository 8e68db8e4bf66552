"""The split reader: low → SELECT → high → normalise.

    connection │ low ── SELECT ── high                          one at a time, kept for the next split
    log        │                       └─ replay (low, high]    only if something was logged between

The returned rows are the exact state of the split's key range at high. If that becomes impossible (a lost connection, a
DDL in the window), the split is read again; no incomplete rows are returned.

- A table without a key can't be normalised: its rows have no identity. Its SELECT runs in a transaction whose snapshot is
  opened between low and high. If the table changed in between, this is repeated.
- `where` (snapshot.where) limits only the SELECT, never changes: a row that changes after the low is copied in its new
  state, as later when the log is followed.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pymysql

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.reconnect import AT_START, Reconnect
from tidemark.conf.source import Tls
from tidemark.readers.bad_values import STOP, BadValueRule
from tidemark.readers.mysql.binlog.connection import ServerLog, different_log, file_begun
from tidemark.readers.mysql.binlog.positions import LogPositions
from tidemark.readers.mysql.binlog.reader import LogReader
from tidemark.readers.mysql.binlog.reading_state import ReadOptions
from tidemark.readers.mysql.connect import Connection, error_code, quote_table
from tidemark.readers.mysql.decoding.columns import ColumnPlan
from tidemark.readers.mysql.keys.key_columns import column_list, key_columns, null_key, range_condition
from tidemark.readers.mysql.keys.key_encoding import within
from tidemark.readers.mysql.keys.split_keys import MySqlKeys
from tidemark.readers.mysql.schema.table_facts import read_indexes, read_tables
from tidemark.readers.mysql.server import ServerInfo, WatermarkMethod, connect_to
from tidemark.readers.mysql.session import SqlSession
from tidemark.readers.mysql.snapshot.anchors import newest_anchor, remember_anchor
from tidemark.readers.mysql.snapshot.result import stream_select
from tidemark.readers.mysql.snapshot.watermark import Low, Watermarks
from tidemark.readers.snapshot.gathered_rows import GatheredRows
from tidemark.readers.snapshot.normalise import Replay
from tidemark.readers.snapshot.split_read import SplitRead
from tidemark.readers.snapshot.split_reader import Hook, RetryingSplitReader, columns_are_gone, no_hook
from tidemark.state.errors import (
    DamagedLogError,
    LogPositionLostError,
    SourceNotUsableError,
    SplitChangedError,
    TableGoneError,
)
from tidemark.state.failpoints import failpoint
from tidemark.state.log_range import LogRange
from tidemark.state.position import BinlogPosition, Position, binlog_position
from tidemark.state.split import KeyRange, Report, Split
from tidemark.state.table import TableId, TableSchema

MAX_FRESH_READS = 100
"""How often a split is read again because of a DDL in the window, or a change of a table without a key."""

_TABLE_CHANGED = 1412


@dataclass(frozen=True, slots=True)
class ReadHooks:
    """Called at these points of each read. Tests change the source there."""

    before_low: Hook = no_hook
    after_low: Hook = no_hook
    before_select: Hook = no_hook
    after_select: Hook = no_hook
    before_high: Hook = no_hook
    after_high: Hook = no_hook


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """Where and how splits are read; sent to executors. `server_ids`: for log connections. `log_number`: how many times the
    job has continued in another log. `cascades_pass`, `ignored_targets`: as in ReadOptions. `where`: snapshot.where.
    `masked`: tables whose rows must not be written to disk unmasked. `bad_values`: what becomes of values that their Arrow
    type can't hold, and of rows with an invalid date in their key. The readers of a process with the same job, log and
    server share anchors."""

    endpoint: Endpoint
    tls: Tls | None
    server: ServerInfo
    method: WatermarkMethod
    server_ids: tuple[int, ...]
    job_uuid: str
    log_number: int = 0
    zero_dates_null: bool = True
    cascades_pass: bool = False
    ignored_targets: frozenset[TableId] = frozenset()
    where: Mapping[TableId, str] = field(default_factory=dict)
    masked: frozenset[TableId] = frozenset()
    bad_values: BadValueRule = STOP
    reconnect: Reconnect = AT_START

    def connect(self) -> Connection:
        """Raises LogPositionLostError for another server than the job's."""
        return connect_to(
            self.endpoint,
            self.tls,
            self.server.identity,
            accepted_writes=not self.server.read_only,
            reconnect=self.reconnect,
        )


class SplitReader(RetryingSplitReader[Connection]):
    """Uses the plan's anchor, or a newer one that this process knows. `read` also raises SourceNotUsableError for a table that
    changes during every read."""

    table_is_gone: ClassVar[frozenset[int]] = frozenset({1054, 1146})
    _error_code = staticmethod(error_code)

    def __init__(
        self, source: SnapshotSource, *, hooks: ReadHooks | None = None, watermarks: Watermarks | None = None
    ) -> None:
        session = SqlSession(source.connect)
        super().__init__(session)
        self._source = source
        self._hooks = ReadHooks() if hooks is None else hooks
        self._watermarks = Watermarks(source.server, source.method, self._log) if watermarks is None else watermarks
        self._keys = MySqlKeys(session, {})
        self._scope = (source.job_uuid, source.log_number, source.server.identity)
        self._begun: dict[str, int] = {}

    def _read(self, split: Split, schema: TableSchema, anchor: Position) -> SplitRead:
        fresh = 0
        while True:
            start = newest_anchor(self._scope, binlog_position(anchor))
            try:
                return self._read_once(split, schema, start)
            except LogPositionLostError:
                if not self._finds_later_anchor(start):
                    raise
                continue
            except DamagedLogError:  # perhaps the values are of other types: an ALTER TABLE came before the SELECT
                self._session.close()
                self._session.ask(lambda connection: require_columns(connection, schema))
                raise
            except SplitChangedError as error:
                cause: Exception = error
            except pymysql.MySQLError as error:
                if error_code(error) != _TABLE_CHANGED:
                    raise
                cause = error
            fresh += 1
            self._count_fresh(cause, schema, fresh)

    def _finds_later_anchor(self, lost: BinlogPosition) -> bool:
        """Remembers the log's end as an anchor if it continues the log of this one, which was purged. The job may not need that
        log any more: while the log is read between epochs of splits, it passes the anchor, which is the greatest high."""
        if self._watermarks.method != "gtid":
            return False
        self._session.ask(lambda connection: connection.rollback())  # a transaction may be open
        server = self._source.server
        found = self._session.ask(
            lambda connection: LogPositions(self._log(), connection, server).find_anchor(dated=False)
        )
        if found.order <= lost.order or not found.gtid_set().contains_all(lost.gtid_set()):
            return False
        remember_anchor(self._scope, replace(found, begun=file_begun(self._log(), found.file)))
        return True

    def _count_fresh(self, cause: Exception, schema: TableSchema, fresh: int) -> None:
        self.counters.fresh_reads += 1
        self._session.ask(lambda connection: connection.rollback())  # a transaction may be open
        self._session.ask(lambda connection: require_columns(connection, schema))
        if fresh == MAX_FRESH_READS:
            raise SourceNotUsableError(
                f"A split of {schema.table} was read {fresh} times, and each time the table changed during the read: {cause}",
                "Pause DDL on the table, and if it has no key also writes to it. Or name a unique key, if it has one, in "
                "source.keys.",
                schema.table,
            ) from cause

    def _read_once(self, split: Split, schema: TableSchema, anchor: BinlogPosition) -> SplitRead:
        connection, hooks = self._session.connection, self._hooks
        hooks.before_low()
        low = self._watermarks.low(connection, anchor)
        failpoint("snapshot.after_low")
        hooks.after_low()
        if not low.exact and not schema.key:
            return self._read_at_rest(connection, split, schema, low, anchor)
        if low.exact:  # the high: the SELECT may take longer than the source keeps its log
            low = replace(low, start=self._dated(low.start, anchor))
        rows = self._select(connection, split, schema, in_transaction=low.exact)
        hooks.before_high()
        high, settled = self._watermarks.high(connection, low), 0
        hooks.after_high()
        if not low.exact:
            replay = Replay(schema.key, lambda keys: self._in_range(split, schema, keys))
            high = self._replay(schema, low, high, lambda changes: replay.add(_with_keys(schema, changes)))
            rows, settled = _normalised(schema, replay, rows)
        if schema.key:
            require_key(connection, schema)  # after the SELECT: its rows may have been of another key
        failpoint("snapshot.normalised")
        return _split_read(split, rows, self._anchored(high, anchor), settled, low)

    def _read_at_rest(
        self, connection: Connection, split: Split, schema: TableSchema, low: Low, anchor: BinlogPosition
    ) -> SplitRead:
        """Reads a table without a key. If it did not change between low and the log's end after the snapshot was opened, the
        snapshot is the state at that end."""
        changes: list[int] = []
        with connection.cursor() as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        self._hooks.before_high()
        end = self._watermarks.high(connection, low)
        self._hooks.after_high()
        high = self._replay(schema, low, end, lambda rows: changes.append(rows.num_rows))
        if changes:
            raise SplitChangedError(f"{schema.table}, which has no key, changed.")
        high = self._dated(high, anchor)  # before the SELECT, as above
        rows = self._select(connection, split, schema, in_transaction=True)
        return _split_read(split, rows, self._anchored(high, anchor), 0, low)

    def _select(self, connection: Connection, split: Split, schema: TableSchema, *, in_transaction: bool) -> pa.Table:
        """Selects an explicit list of columns: `*` omits invisible ones, and changes with a DDL."""
        condition = range_condition(key_columns(schema, split.columns), split.range) if split.columns else "TRUE"
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
            rule=self._source.bad_values,
        )
        gathered = GatheredRows(schema.arrow_schema(), in_memory=schema.table in self._source.masked)
        for batch in batches:
            gathered.add(batch)
        rows = gathered.table()
        if in_transaction:  # release undo logs and metadata locks early
            connection.commit()
        failpoint("snapshot.after_select")
        self._hooks.after_select()
        for name in schema.key:
            rule = self._source.bad_values
            if rows[name].null_count and not rule.takes_null_keys:
                raise null_key(schema.table, schema.column(name), stops=rule.policy(schema.table, name) == "stop")
        return rows

    def _replay(
        self, schema: TableSchema, low: Low, end: BinlogPosition, take: Callable[[pa.RecordBatch], None]
    ) -> BinlogPosition:
        """Passes the changes after the low, at least up to `end`, to `take`. Returns the position that was reached."""
        if end.order == low.start.order:
            return low.start
        self.counters.replays += 1
        log_range = LogRange(low.start, end, low.prepared)
        source = self._source
        options = ReadOptions(
            zero_dates_null=source.zero_dates_null,
            cascades_pass=source.cascades_pass,
            ignored_targets=source.ignored_targets,
            bad_values=source.bad_values,
        )
        reader = LogReader(self._log(), {schema.table: schema}, options)
        for batch in reader.read(log_range, skip=low.contained, replay=True):
            self.counters.replayed_changes += batch.rows.num_rows
            take(batch.rows)
        return reader.end

    def _anchored(self, high: BinlogPosition, anchor: BinlogPosition) -> BinlogPosition:
        """The dated high, which is the anchor of later splits."""
        dated = self._dated(high, anchor)
        remember_anchor(self._scope, dated)
        return dated

    def _dated(self, high: BinlogPosition, anchor: BinlogPosition) -> BinlogPosition:
        """The high with the creation time of its file. Raises LogPositionLostError if that contradicts the anchor."""
        begun = high.begun
        if begun is None:
            if high.file not in self._begun:
                self._begun[high.file] = file_begun(self._log(), high.file)
            begun = self._begun[high.file]
        if high.file == anchor.file and anchor.begun not in {None, begun}:
            raise different_log(high.file, anchor.begun, begun)
        return replace(high, begun=begun)

    def _log(self) -> ServerLog:
        source = self._source
        ids = tuple(
            random.sample(source.server_ids, len(source.server_ids))
        )  # other readers take theirs from the same range
        return ServerLog.of(source.endpoint, source.tls, source.server, ids, source.reconnect)

    def _in_range(self, split: Split, schema: TableSchema, rows: pa.Table) -> npt.NDArray[np.bool_]:
        if split.range == KeyRange(None, None):
            return np.ones(rows.num_rows, np.bool_)
        keys = [rows[name].combine_chunks() for name in split.columns]
        batch = pa.RecordBatch.from_arrays(keys, names=list(split.columns))
        return within(self._keys.encoded_keys(schema, split.columns, batch), split.range)


def _with_keys(schema: TableSchema, changes: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the changes. Raises SplitChangedError if the key of one is not known: then the row that it changed is not
    known either."""
    if any(changes.column(name).null_count for name in schema.key):
        raise SplitChangedError(f"A row of {schema.table} with an invalid date in its key changed.")
    return changes


def _normalised(schema: TableSchema, replay: Replay, rows: pa.Table) -> tuple[pa.Table, int]:
    """Returns the rows at high, as `Replay.apply` does. Rows whose key is not known did not change."""
    known = np.logical_and.reduce([np.asarray(rows[name].is_valid()) for name in schema.key])
    if known.all():
        return replay.apply(rows)
    found, settled = replay.apply(rows.filter(pa.array(known)))
    return pa.concat_tables([found, rows.filter(pa.array(~known))]), settled


def require_columns(connection: Connection, schema: TableSchema) -> None:
    """Raises SchemaChangedError unless the table still has the columns of `schema`."""
    try:
        found = read_tables(connection, [schema.table])[schema.table]
    except TableGoneError as error:
        raise columns_are_gone(schema.table, error.message) from error
    now = [(c.name, c.source_type, c.charset, c.collation) for c in found.columns]
    known = [(c.name, c.source_type, c.charset, c.collation) for c in schema.present]
    if now != known[: len(now)] or len(known) != len(now) + found.hidden_hashes:
        raise columns_are_gone(
            schema.table, f"{schema.table} no longer has the columns that it had when the job started."
        )


def require_key(connection: Connection, schema: TableSchema) -> None:
    """Raises SchemaChangedError unless the columns of the key are still unique. Otherwise rows of a split may have one key, and
    a copy refuses them."""
    unique = [index for index in read_indexes(connection, schema.table) if index.unique]
    if not any(set(index.column_names) == set(schema.key) for index in unique):
        raise columns_are_gone(
            schema.table,
            f"The job finds rows of {schema.table} by ({', '.join(schema.key)}), which is not a key any more.",
        )


def _split_read(split: Split, rows: pa.Table, high: BinlogPosition, settled: int, low: Low) -> SplitRead:
    low_position = BinlogPosition(low.start.file, low.start.pos)
    report = Report(split.id, split.table, split.schema_version, high, rows.num_rows, settled, low_position)
    return SplitRead(report, rows, low.taken_at_us)
