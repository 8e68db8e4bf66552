"""MySQL and MariaDB as a source of jobs."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pymysql
from pymysql.constants import ER

from tidemark.conf.model import JobFile
from tidemark.readers.added_columns import new_columns, with_changed_columns
from tidemark.readers.bad_values import BadValueRule
from tidemark.readers.found_source import FoundTables
from tidemark.readers.lease import Lease, checkpoint_lock
from tidemark.readers.log.gap_filter import FinishedSplits, Int64s
from tidemark.readers.log.log_batch import LogBatch
from tidemark.readers.mysql.binlog.connection import ServerLog, different_log, file_begun
from tidemark.readers.mysql.binlog.positions import LogPositions, log_end
from tidemark.readers.mysql.binlog.reader import LogReader
from tidemark.readers.mysql.binlog.reading_state import ReadOptions
from tidemark.readers.mysql.connect import Connection, connect, error_code, error_text, quote_table, sql_errors
from tidemark.readers.mysql.keys.key_columns import can_split_by
from tidemark.readers.mysql.keys.split_keys import MySqlKeys
from tidemark.readers.mysql.keys.uuid_order import orders_as_known
from tidemark.readers.mysql.lease import MySqlLock
from tidemark.readers.mysql.schema.catalog import (
    find_tables,
    select_tables,
    split_key,
    table_statistics,
    views_left_out,
    visible_kinds,
    wildcards_without_tables,
)
from tidemark.readers.mysql.schema.constants import read_constants
from tidemark.readers.mysql.schema.preflight import Demands, preflight
from tidemark.readers.mysql.schema.table_checks import wait_for_alter
from tidemark.readers.mysql.schema.table_facts import read_tables
from tidemark.readers.mysql.schema.widening import widens
from tidemark.readers.mysql.server import (
    GroupApplies,
    ServerIdentity,
    ServerInfo,
    WatermarkMethod,
    another_node,
    binary_logs,
    connect_to,
    group_applies,
    read_server,
    replica_lag_seconds,
    require_identity,
    sync_problem,
    watermark_method,
)
from tidemark.readers.mysql.session import SqlSession, will_pass
from tidemark.readers.mysql.snapshot.split_reader import SnapshotSource, SplitReader
from tidemark.readers.mysql.snapshot.xa_commits import await_xa_commits
from tidemark.readers.projection.settings import findings_with, masked_tables
from tidemark.readers.schema_checks import CopiedColumns, TableSettings
from tidemark.readers.source import LostTransactions
from tidemark.readers.statistics import TableStatistics
from tidemark.readers.table_settings import ignored_targets, split_conditions, with_condition
from tidemark.state.errors import (
    LogPositionLostError,
    SourceNotUsableError,
    SourceUnavailableError,
    TableDroppedError,
    TidemarkError,
)
from tidemark.state.gtid import GtidSet
from tidemark.state.job_state import JobState
from tidemark.state.key_source import KeySource
from tidemark.state.log_extent import BinlogExtent, LogFile
from tidemark.state.log_range import LogRange
from tidemark.state.partitions import Partitions
from tidemark.state.position import BinlogPosition, Position, binlog_position
from tidemark.state.remedies import START_OVER, START_OVER_NOW
from tidemark.state.table import Column, TableId, TableSchema

REPLICA_SECONDS = 60
"""How long a start waits for a replica that answers now, and lacks transactions that the job has read."""
_LOOKS_AT_FILES = 3
"""How many times the server is asked for its log's end and files: between the two, the file at the end may be purged."""


@dataclass(frozen=True, slots=True)
class MySqlServer:
    """`tidemark.readers.source.SourceServer`. `log_number`: how many times the job has continued in another log."""

    job: JobFile
    info: ServerInfo
    method: WatermarkMethod
    log_number: int = 0

    def planner_access(self, state: JobState) -> "MySqlAccess":
        return MySqlAccess(self, state.schemas)

    def split_reading(self, schemas: Sequence[TableSchema], job_uuid: str) -> SplitReader:
        job, source = self.job, self.job.source
        return SplitReader(
            SnapshotSource(
                endpoint=source.url,
                tls=source.tls,
                server=self.info,
                method=self.method,
                server_ids=tuple(job.server_ids),
                job_uuid=job_uuid,
                log_number=self.log_number,
                zero_dates_null=source.zero_dates == "null",
                cascades_pass=source.cascades == "warn",
                ignored_targets=ignored_targets(job),
                where=split_conditions(job, schemas),
                masked=masked_tables(job),
                bad_values=BadValueRule.of(job),
                reconnect=job.reconnect,
            )
        )

    def with_condition(self, table: TableId, where: str) -> "MySqlServer":
        """`tidemark.readers.source.TakesConditions`."""
        return replace(self, job=with_condition(self.job, table, where))

    def log_reading(self, schemas: Sequence[TableSchema]) -> LogReader:
        source, reconnect = self.job.source, self.job.reconnect
        log = ServerLog.of(source.url, source.tls, self.info, tuple(self.job.server_ids), reconnect)
        options = ReadOptions(
            zero_dates_null=source.zero_dates == "null",
            cascades_pass=source.cascades == "warn",
            ignored_targets=ignored_targets(self.job),
            bad_values=BadValueRule.of(self.job),
            reconnect_attempts=reconnect.attempts,
            max_delay_seconds=reconnect.max_delay_seconds,
        )
        return LogReader(log, {schema.table: schema for schema in schemas}, options)

    @contextmanager
    def key_routing(self, schemas: Sequence[TableSchema]) -> Iterator["MySqlRouting"]:
        with closing(SqlSession(self.connect)) as session:
            yield MySqlRouting(MySqlKeys(session, {schema.table: schema for schema in schemas}))

    def connect(self) -> Connection:
        """Connects. Raises LogPositionLostError if it is not the server that the job's positions belong to."""
        source, info = self.job.source, self.info
        return connect_to(
            source.url, source.tls, info.identity, accepted_writes=not info.read_only, reconnect=self.job.reconnect
        )


class MySqlAccess:
    """`tidemark.readers.source.PlannerAccess`. Connects at the first query."""

    def __init__(self, server: MySqlServer, schemas: Sequence[TableSchema]) -> None:
        self._server = server.info
        self._session = SqlSession(server.connect)
        self.keys: KeySource = MySqlKeys(self._session, {schema.table: schema for schema in schemas}, server.method)

    def log_end(self) -> BinlogPosition:
        return self._session.ask(lambda connection: log_end(connection, self._server))

    def log_extent(self) -> BinlogExtent:
        """The files up to the log's end. The end is read first, because the log may grow and rotate in between."""
        return BinlogExtent(self._session.ask(lambda connection: _log_files(connection, self._server)))

    def replica_lag_seconds(self) -> float | None:
        """`tidemark.readers.source.MeasuresReplicaLag`."""
        return self._session.ask(lambda connection: replica_lag_seconds(connection, self._server))


@dataclass(frozen=True, slots=True)
class MySqlRouting:
    """`tidemark.readers.source.KeyRouting`. Queries the source only for string keys."""

    keys: MySqlKeys

    def owners(
        self, schema: TableSchema, columns: tuple[str, ...], rows: pa.RecordBatch, finished_splits: FinishedSplits
    ) -> Int64s:
        return finished_splits.owners(self.keys.encoded_keys(schema, columns, rows))


@dataclass(frozen=True, slots=True)
class FoundMySql(FoundTables):
    """`tidemark.readers.source.FoundSource`."""

    connection: Connection
    info: ServerInfo
    demands: Demands

    @property
    def name(self) -> str:
        return self.info.name

    def watermarks(self) -> WatermarkMethod:
        return watermark_method(self.connection, self.info)

    def statistics(self, table: TableId) -> TableStatistics:
        return table_statistics(self.connection, table)

    def condition_problem(self, table: TableId, where: str) -> str | None:
        """`tidemark.readers.source.ChecksConditions`."""
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(f"SELECT 1 FROM {quote_table(table)} WHERE (\n{where}\n) LIMIT 0")
        except pymysql.MySQLError as error:
            if will_pass(error, self.connection):
                raise
            return error_text(error)
        return None

    def identity(self) -> str:
        return self.info.identity.uuid

    def first_start(self) -> BinlogPosition:
        if self.job.mode == "incremental":
            return self._with_file_start(self._positions().resolve(self.job.log_start))
        return self._log_end(dated=True)

    def joining_start(self, tables: Sequence[TableId], *, goes_on: bool = False) -> BinlogPosition:
        return self._log_end(dated=goes_on)  # else the job knows the time of what it has read

    def _log_end(self, *, dated: bool) -> BinlogPosition:
        anchor = self._positions().find_anchor(dated=dated)
        if self.job.has_snapshot and self.info.gtid_mode != "ON":
            await_xa_commits(self._log(), self.connection, anchor)
        return self._with_file_start(anchor)

    def schemas_now(self, tables: Sequence[TableId]) -> Mapping[TableId, TableSchema]:
        """Waits for each ALTER TABLE that is being committed: it is in the log shortly before it is in the catalog."""
        for table in tables:
            wait_for_alter(self.connection, table)
        return preflight(self.connection, self.info, read_tables(self.connection, tables), self.demands).accepted

    def was_dropped(self, schema: TableSchema) -> bool:
        """`tidemark.readers.source.ProvesDropped`: an account without rights to the table gets another error."""
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(f"SELECT 1 FROM {quote_table(schema.table)} LIMIT 0")
        except pymysql.MySQLError as error:
            if will_pass(error, self.connection):
                raise
            return error_code(error) in {ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE}
        return False

    def was_dropped_since(self, schema: TableSchema, positions: Sequence[Position]) -> bool:
        """`tidemark.readers.source.FindsDrops`."""
        since = max(map(binlog_position, positions), key=lambda position: position.order)
        end = log_end(self.connection, self.info)
        log = LogReader(self._log(), {schema.table: schema}, ReadOptions(only_drops=True))
        try:
            for _ in log.read(LogRange(since, end)):
                pass
        except TableDroppedError:
            return True
        except LogPositionLostError:
            return False
        return False

    def extended(self, known: TableSchema, seen: Partitions | None) -> TableSchema | None:
        now = self.schemas_now([known.table]).get(known.table)
        if now is None:
            return None
        new = [column for column in new_columns(known, now) if column.captured and not column.generated]
        if new and new_columns(now, known):
            return None  # one may be the other under a new name, by an ALTER TABLE that is in no log
        constants = read_constants(self.connection, known.table, new)
        return None if constants is None else with_changed_columns(known, now, widens, constants)

    def _positions(self) -> LogPositions:
        return LogPositions(self._log(), self.connection, self.info)

    def _with_file_start(self, position: BinlogPosition) -> BinlogPosition:
        """The position with the creation time of its file."""
        return replace(position, begun=file_begun(self._log(), position.file))

    def require_same_log(self, state: JobState, positions: Sequence[Position]) -> None:
        require_identity(self.connection, ServerIdentity(self.info.flavour, state.server_identity))
        if not positions:
            self._await_cluster()  # rows are read next, perhaps at another node with the same server_id
        for position in map(binlog_position, positions):
            self._require_transactions(position)
            BinlogExtent(_log_files(self.connection, self.info)).require(position)
            if position.begun is not None and (found := file_begun(self._log(), position.file)) != position.begun:
                raise another_node() if self.info.galera else different_log(position.file, position.begun, found)
        if self.info.galera:
            self._require_same_node([binlog_position(position) for position in positions])

    def _require_same_node(self, positions: Sequence[BinlogPosition]) -> None:
        """Raises LogPositionLostError if another node of the cluster answers. Nodes may have the same server_id, and begin
        files of one number in the same second, such as each night."""
        known = [position for position in positions if position.gtid_state is not None]
        last = max(known, key=lambda position: position.order, default=None)
        if last is not None and not self._positions().has_state_of(last):
            raise another_node()

    def same_place(self, state: JobState, position: Position) -> BinlogPosition:
        """`tidemark.readers.source.FindsPlace`: by GTIDs."""
        position, positions = binlog_position(position), self._positions()
        self._await_cluster()
        wanted = positions.known_gtids(position)
        if wanted is None and self._has_file_of(position):
            raise LogPositionLostError(
                "Its log has the file that the job has read. Probably it is the same server without the auto.cnf of its data "
                "directory, or a copy of its files; which of them can't be seen without GTIDs.",
                f"If it is the same server, give it its former server_uuid: stop it, write server-uuid={state.server_identity} "
                "in the section [auto] of the file auto.cnf in its data directory, and start it. Then run the job again: "
                f"nothing is lost. Otherwise connect to the server that the job has read, or {START_OVER}.",
            )
        if wanted is not None:
            _await_transactions(positions, wanted)
        place = positions.same_place(position, {schema.table: schema for schema in state.schemas})
        return self._with_file_start(place)

    def lost(self, state: JobState, position: Position) -> "LostGtids | None":
        """`tidemark.readers.source.FindsLost`."""
        positions = self._positions()
        lost = positions.lost(binlog_position(position))
        return LostGtids(lost, positions) if lost.intervals else None

    def place_without(
        self, state: JobState, since: Position, position: Position, lost: LostTransactions
    ) -> BinlogPosition:
        """`tidemark.readers.source.FindsLost`. The place of `since` proves that both servers' logs are of one topology. On
        MariaDB it is returned where it can't be proven that what both have after it is the same."""
        assert isinstance(lost, LostGtids)
        earlier, positions = self.same_place(state, since), self._positions()
        schemas = {schema.table: schema for schema in state.schemas}
        try:
            place = positions.same_place(binlog_position(position), schemas, lost=lost.gtids)
        except LogPositionLostError:
            if not positions.has_state:
                raise  # the place of `since` is known by numbers alone
            return earlier
        return self._with_file_start(place)

    def unread(self, state: JobState, position: Position, lost: LostTransactions | None = None) -> "UnreadRanges":
        """`tidemark.readers.source.FindsUnread`."""
        assert lost is None or isinstance(lost, LostGtids)
        position, positions, ranges = binlog_position(position), self._positions(), list[LogRange]()
        schemas = {schema.table: schema for schema in state.schemas}
        gtids = None if lost is None else lost.gtids
        place = positions.same_place(position, schemas, lost=gtids, unread=ranges)
        known = positions.known_gtids(position)
        assert known is not None, "it has a place"
        return UnreadRanges(self._with_file_start(place), tuple(ranges), known, self.server(state))

    def _has_file_of(self, position: BinlogPosition) -> bool:
        try:
            BinlogExtent(_log_files(self.connection, self.info)).require(position)
            return position.begun is not None and file_begun(self._log(), position.file) == position.begun
        except LogPositionLostError:
            return False

    def is_related(self, state: JobState, position: Position) -> bool:
        """`tidemark.readers.source.FindsPlace`."""
        self._await_cluster()  # all rows are perhaps read next
        positions = self._positions()
        wanted = positions.known_gtids(binlog_position(position))
        return wanted is not None and wanted.minus(positions.executed()) != wanted

    def _await_cluster(self) -> None:
        """Waits until a node of a Galera cluster has applied what the cluster has committed."""
        deadline = time.monotonic() + REPLICA_SECONDS
        while self.info.galera and (error := sync_problem(self.connection)) is not None:
            if time.monotonic() >= deadline:
                raise SourceUnavailableError(
                    f"The server is a node of a Galera cluster, and has not applied all that was committed there: {error}.",
                    "Wait until it has caught up and is in step with its cluster, or connect to another node.",
                )
            time.sleep(1)

    def _log(self) -> ServerLog:
        source = self.job.source
        return ServerLog.of(source.url, source.tls, self.info, tuple(self.job.server_ids))

    def _require_transactions(self, position: BinlogPosition) -> None:
        """Raises LogPositionLostError if the server lacks GTIDs of the position. A server keeps its identity when its log is
        reset or its data is restored, but its GTIDs differ."""
        if self.info.gtid_mode != "ON" or position.gtids is None:
            return
        if not self._positions().executed().contains_all(position.gtid_set()):
            raise LogPositionLostError(
                f"The source no longer has all transactions that the job has read up to {position}: its log was reset, "
                "or the server was restored from an older copy.",
                START_OVER_NOW,
            )

    def server(self, state: JobState) -> MySqlServer:
        log_number = sum(joined.restarts for joined in state.joined)
        return MySqlServer(self.job, self.info, self.watermarks(), log_number)


@dataclass(frozen=True, slots=True)
class LostGtids:
    """`tidemark.readers.source.LostTransactions`."""

    gtids: GtidSet
    positions: LogPositions

    def any_before(self, position: Position) -> bool:
        known = self.positions.known_gtids(binlog_position(position))
        return known is None or known.minus(self.gtids) != known

    def __str__(self) -> str:
        return self.positions.text(self.gtids)


@dataclass(frozen=True, slots=True)
class UnreadRanges:
    """`tidemark.readers.source.UnreadTransactions`: what is in the ranges, but the known transactions."""

    place: BinlogPosition
    ranges: tuple[LogRange, ...]
    known: GtidSet
    server: MySqlServer

    def changes(self, schemas: Sequence[TableSchema], unreadable: set[TableId]) -> Iterator[LogBatch]:
        for log_range in self.ranges:
            start: Position = log_range.start
            while True:
                left = {schema.table: schema for schema in schemas if schema.table not in unreadable}
                reader = self.server.log_reading(tuple(left.values()))
                try:
                    yield from reader.read(LogRange(start, log_range.stop), skip=self.known)
                    break
                except TidemarkError as error:
                    if error.table is None or error.table not in left:
                        raise
                    unreadable.add(error.table)
                    start = reader.reached


@contextmanager
def find_mysql(
    job: JobFile,
    *,
    needs_key: bool,
    appends_keyless: bool = False,
    has_started: bool = False,
    followed: Collection[TableId] = (),
    copied: Mapping[TableId, CopiedColumns] | None = None,
) -> Iterator[FoundMySql]:
    """See `tidemark.jobs.sources.find_source`. `needs_key`, `appends_keyless`: as in `tidemark.sinks.sink.SinkNeeds`.
    `has_started`: all tables that a wildcard matched may be gone. `followed`: the tables that the job has already. `copied`: as
    in TableSettings."""
    source = job.source
    assert source.url.kind != "postgresql"
    with closing(connect(source.url, source.tls)) as connection, sql_errors(connection):
        server = read_server(connection, source.url.kind)
        kinds = visible_kinds(connection, source.tables)
        tables = select_tables(kinds, source.tables, source.exclude_tables, each_matches=not has_started)
        facts = read_tables(connection, tables)
        views = views_left_out(kinds, source.tables, source.exclude_tables)
        views += wildcards_without_tables(kinds, source.tables)
        demands = _demands(job, copied or {}, needs_key=needs_key, appends_keyless=appends_keyless)
        result = preflight(connection, server, facts, demands, followed=followed)
        yield FoundMySql(
            job=job,
            schemas=tuple(result.schemas.values()),
            split_columns={
                table: split_key(facts[table], s, partial(_can_split_by, connection, server, table))
                for table, s in result.schemas.items()
            },
            findings=findings_with(job, [*views, *result.findings], result.schemas.values()),
            connection=connection,
            info=server,
            demands=demands,
        )


def _can_split_by(connection: Connection, server: ServerInfo, table: TableId, column: Column) -> bool:
    if not can_split_by(column, server.flavour):
        return False
    return column.source_type != "uuid" or orders_as_known(connection, table, column.name)


def mysql_tables(job: JobFile) -> list[TableId]:
    """See `tidemark.jobs.sources.selected_tables`."""
    with closing(connect(job.source.url, job.source.tls)) as connection, sql_errors(connection):
        return find_tables(connection, job.source.tables, job.source.exclude_tables, each_matches=False)


def acquire_mysql_lease(job: JobFile, *, wait: bool) -> Lease:
    """See `tidemark.jobs.sources.acquire_lease`."""
    lock = MySqlLock(job.source.url, job.source.tls, checkpoint_lock(job.checkpoint))
    return Lease.acquire(lock, wait=wait, reconnect=job.reconnect)


def _await_transactions(positions: LogPositions, wanted: GtidSet) -> None:
    """Waits for a replica, or a member of a replication group, that does not have them yet."""
    info = positions.server
    applies: GroupApplies = "never"
    for attempt in range(REPLICA_SECONDS + 1):
        missing = wanted.minus(positions.executed())
        if not missing.intervals:
            return
        if not info.is_replica:
            applies = group_applies(positions.connection, missing) if info.is_group_member else "never"
            if applies == "never":
                return
        if attempt < REPLICA_SECONDS:
            time.sleep(1)
    if applies == "perhaps":
        return
    if info.is_replica:
        raise SourceUnavailableError(
            "The server is a replica, and still lacks transactions that the job has read.",
            "Wait until it has caught up, or connect to the server that was promoted.",
        )
    raise SourceUnavailableError(
        "The server is a member of a replication group, and still lacks transactions that the job has read.",
        "Wait until it has caught up, let it join its group again if it has left it, or connect to another member. If all "
        "others are lost for good, run there: STOP GROUP_REPLICATION; SET GLOBAL read_only = OFF.",
    )


def _demands(
    job: JobFile, copied: Mapping[TableId, CopiedColumns], *, needs_key: bool, appends_keyless: bool
) -> Demands:
    return Demands(
        mode=job.mode,
        needs_key=needs_key,
        cascades=job.source.cascades,
        tables=TableSettings.of(job, copied),
        appends_keyless=appends_keyless,
    )


def _log_files(connection: Connection, server: ServerInfo) -> tuple[LogFile, ...]:
    for _ in range(_LOOKS_AT_FILES):
        end = log_end(connection, server)
        files: list[LogFile] = []
        for name, size_bytes in binary_logs(connection):
            if name == end.file:
                return (*files, LogFile(name, end.pos))
            files.append(LogFile(name, size_bytes))
    raise SourceNotUsableError(
        f"The source's log ends in {end.file}, but the source does not list that file.",
        f"Put {end.file} back into the server's list of its log files (SHOW VARIABLES LIKE 'log_bin_index'), then FLUSH BINARY "
        "LOGS, and run the job again.",
    )
