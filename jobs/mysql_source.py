"""MySQL and MariaDB as a source of jobs."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import pyarrow as pa

from conf.model import JobFile
from enumerator.log_extent import BinlogExtent, LogFile
from enumerator.source import KeySource
from jobs.projections import columns_read, findings_with, masked_tables
from readers.findings import Finding
from readers.gap_filter import Int64s, TableRoutes
from readers.mysql.catalog import find_tables, split_key, table_statistics
from readers.mysql.connect import Connection, connect
from readers.mysql.key_columns import can_cut_by
from readers.mysql.keys import MySqlKeys
from readers.mysql.lease import Lease, lock_name
from readers.mysql.log_connection import ServerLog, another_log, file_begun
from readers.mysql.log_positions import LogPlaces, binary_logs, log_end
from readers.mysql.log_reader import LogReader
from readers.mysql.log_state import ReadOptions
from readers.mysql.preflight import Demands, preflight
from readers.mysql.server import (
    ServerIdentity,
    ServerInfo,
    WatermarkMethod,
    read_server,
    require_identity,
    watermark_method,
)
from readers.mysql.session import SqlSession
from readers.mysql.snapshot import SnapshotSource, SplitReader
from readers.mysql.table_facts import read_tables
from readers.statistics import TableStatistics
from state.errors import LogPositionLostError, SourceNotUsableError
from state.gtid import GtidSet
from state.job_state import JobState, Membership
from state.key_statistics import PageStatistics
from state.partitions import PartitionLook, Partitions
from state.position import BinlogPosition, Position, binlog_position
from state.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class MySqlServer:
    """`jobs.sources.SourceServer`."""

    job: JobFile
    info: ServerInfo
    method: WatermarkMethod

    def planner_access(self, state: JobState) -> "MySqlAccess":
        return MySqlAccess(self, state.schemas)

    def split_reading(self, schemas: Sequence[TableSchema], job_uuid: str) -> SplitReader:
        job, source = self.job, self.job.source
        conditions = {s.table: job.snapshot.condition(s.table.database, s.table.name) for s in schemas}
        return SplitReader(
            SnapshotSource(
                endpoint=source.url,
                tls=source.tls,
                server=self.info,
                method=self.method,
                server_ids=tuple(job.server_ids),
                job_uuid=job_uuid,
                zero_dates_null=source.zero_dates == "null",
                where={table: condition for table, condition in conditions.items() if condition is not None},
                masked=masked_tables(job),
            )
        )

    def log_reading(self, schemas: Sequence[TableSchema]) -> LogReader:
        source, reconnect = self.job.source, self.job.log.reconnect
        log = ServerLog.of(source.url, source.tls, self.info, tuple(self.job.server_ids))
        options = ReadOptions(
            zero_dates_null=source.zero_dates == "null",
            reconnect_attempts=reconnect.attempts,
            longest_delay_seconds=reconnect.max_delay_seconds,
        )
        return LogReader(log, {schema.table: schema for schema in schemas}, options)

    @contextmanager
    def key_routing(self, schemas: Sequence[TableSchema]) -> Iterator["MySqlRouting"]:
        session = SqlSession(self.connect)
        try:
            yield MySqlRouting(MySqlKeys(session, {schema.table: schema for schema in schemas}))
        finally:
            session.close()

    def key_reading(self, schemas: Sequence[TableSchema]) -> AbstractContextManager[None]:
        """The log has whole rows."""
        return nullcontext()

    def connect(self) -> Connection:
        """Raises LogPositionLostError where another server answers than the one that the job's positions belong to."""
        connection = connect(self.job.source.url, self.job.source.tls)
        try:
            require_identity(connection, self.info.identity)
        except BaseException:
            connection.close()
            raise
        return connection


class MySqlAccess:
    """`jobs.sources.PlannerAccess`; opens its connection at the first question."""

    def __init__(self, server: MySqlServer, schemas: Sequence[TableSchema]) -> None:
        self._server = server.info
        self._session = SqlSession(server.connect)
        self.keys: KeySource = MySqlKeys(self._session, {schema.table: schema for schema in schemas})

    def log_end(self) -> BinlogPosition:
        return self._session.ask(lambda connection: log_end(connection, self._server))

    def log_extent(self) -> BinlogExtent:
        """The files up to the log's end; the end is asked first, for the log may grow and rotate between the two."""
        return BinlogExtent(self._session.ask(lambda connection: _log_files(connection, self._server)))

    def look_at_partitions(self, known: Partitions) -> PartitionLook:
        """What is done to partitions is in the log."""
        return PartitionLook(known)

    def committed(self, position: Position) -> None:
        """The server keeps its log by its own rules."""


@dataclass(frozen=True, slots=True)
class MySqlRouting:
    """`jobs.sources.KeyRouting`; asks the source only for keys that are strings."""

    keys: MySqlKeys

    def owners(
        self, schema: TableSchema, columns: tuple[str, ...], rows: pa.RecordBatch, routes: TableRoutes
    ) -> Int64s:
        return routes.owners(self.keys.ranks(schema, columns, rows))

    def transactions(self, rows: pa.RecordBatch) -> None:
        """Highs are positions."""


@dataclass(frozen=True, slots=True)
class FoundMySql:
    """`jobs.sources.FoundSource`."""

    job: JobFile
    connection: Connection
    info: ServerInfo
    schemas: tuple[TableSchema, ...]
    split_columns: dict[TableId, tuple[str, ...]]
    findings: tuple[Finding, ...]

    @property
    def name(self) -> str:
        return self.info.name

    def watermarks(self) -> WatermarkMethod:
        return watermark_method(self.connection, self.info)

    def statistics(self, table: TableId) -> TableStatistics:
        return table_statistics(self.connection, table)

    def pages(self, table: TableId) -> PageStatistics | None:
        return None

    def identity(self) -> str:
        return self.info.identity.uuid

    def first_start(self) -> BinlogPosition:
        job = self.job
        return (
            self._begun(self._places().resolve(job.log_start)) if job.mode == "incremental" else self.joining_start(())
        )

    def joining_start(self, tables: Sequence[TableId]) -> BinlogPosition:
        return self._begun(self._places().find_anchor())

    def _places(self) -> LogPlaces:
        return LogPlaces(self._log(), self.connection, self.info)

    def _begun(self, place: BinlogPosition) -> BinlogPosition:
        return replace(place, begun=file_begun(self._log(), place.file))

    def require_same_log(self, state: JobState, places: Sequence[Position]) -> None:
        require_identity(self.connection, ServerIdentity(self.info.flavour, state.server_identity))
        for place in map(binlog_position, places):
            self._require_transactions(place)
            BinlogExtent(_log_files(self.connection, self.info)).require(place)
            if place.begun is not None and (found := file_begun(self._log(), place.file)) != place.begun:
                raise another_log(place.file, place.begun, found)

    def _log(self) -> ServerLog:
        source = self.job.source
        return ServerLog.of(source.url, source.tls, self.info, tuple(self.job.server_ids))

    def _require_transactions(self, position: BinlogPosition) -> None:
        """A server keeps its identity when its log is reset or its data restored; its GTIDs tell."""
        if self.info.gtid_mode != "ON" or position.gtids is None:
            return
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT @@GLOBAL.gtid_executed")
            row = cursor.fetchone()
        executed = GtidSet.parse("" if row is None else str(row[0]))
        if not executed.contains_all(position.gtid_set()):
            raise LogPositionLostError(
                f"The source no longer has all transactions that the job has read up to {position}: its log was reset, "
                "or the server was restored from an older copy.",
                "Start the job over with an empty checkpoint and an empty target.",
            )

    def memberships(self) -> tuple[Membership, ...]:
        return ()

    def partitions(self, tables: Sequence[TableId]) -> None:
        return None

    def server(self, state: JobState) -> MySqlServer:
        return MySqlServer(self.job, self.info, self.watermarks())


@contextmanager
def find_mysql(job: JobFile) -> Iterator[FoundMySql]:
    """See `jobs.sources.find_source`."""
    source = job.source
    assert source.url.kind != "postgresql"
    connection = connect(source.url, source.tls)
    try:
        server = read_server(connection, source.url.kind)
        facts = read_tables(connection, find_tables(connection, source.tables, source.exclude_tables))
        result = preflight(connection, server, facts, _demands(job))
        columns = {table: split_key(facts[table], schema, can_cut_by) for table, schema in result.schemas.items()}
        yield FoundMySql(
            job,
            connection,
            server,
            tuple(result.schemas.values()),
            columns,
            findings_with(job, result.findings, result.schemas.values()),
        )
    finally:
        connection.close()


def acquire_mysql_lease(job: JobFile, *, wait: bool) -> Lease:
    """See `jobs.sources.acquire_lease`."""
    return Lease.acquire(job.source.url, job.source.tls, lock_name(job.job, job.checkpoint), wait=wait)


def _demands(job: JobFile) -> Demands:
    source = job.source
    return Demands(
        mode=job.mode,
        needs_key=job.sink.type == "mirror",
        parallelism=job.snapshot.parallelism,
        server_id_count=len(job.server_ids),
        exclude_columns={TableId(t.database, t.name): frozenset(c.exclude) for t, c in source.columns.items()},
        keys={TableId(t.database, t.name): tuple(columns) for t, columns in source.keys.items()},
        transforms=columns_read(job),
    )


def _log_files(connection: Connection, server: ServerInfo) -> tuple[LogFile, ...]:
    end = log_end(connection, server)
    files: list[LogFile] = []
    for name, size_bytes in binary_logs(connection):
        if name == end.file:
            return (*files, LogFile(name, end.pos))
        files.append(LogFile(name, size_bytes))
    raise SourceNotUsableError(
        f"The source says that its log ends in {end.file}, but does not list that file.",
        "Check the source's binlog index file.",
    )
