"""PostgreSQL as a source of jobs."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from conf.model import JobFile
from conf.reading import StartAtEnd, StartAtLsn
from enumerator.log_extent import WalExtent
from enumerator.source import KeySource
from jobs.projections import columns_read, findings_with, masked_tables
from readers.findings import Finding
from readers.gap_filter import Int64s, TableRoutes
from readers.lease import Lease as SourceLease
from readers.log_batch import LogBatch
from readers.postgres.catalog import find_tables, split_key
from readers.postgres.connect import Connection, connect
from readers.postgres.key_reader import KeyReader
from readers.postgres.keys import PostgresKeys
from readers.postgres.lease import Lease, lock_name
from readers.postgres.log_reader import LogReader
from readers.postgres.log_reading import ReadOptions
from readers.postgres.pages import page_statistics
from readers.postgres.partition_checks import look_again
from readers.postgres.partitions import find_partitions
from readers.postgres.preflight import Demands, preflight
from readers.postgres.publication import add_tables, create_publication, memberships, require_memberships
from readers.postgres.server import ServerIdentity, ServerInfo, read_server, require_identity
from readers.postgres.server_log import ServerLog
from readers.postgres.session import SqlSession
from readers.postgres.slot import (
    LogPlace,
    advance_slot,
    create_slot,
    log_end,
    require_slot,
    slot_places,
    wait_for_open_transactions,
)
from readers.postgres.snapshot import SnapshotSource, SplitReader
from readers.postgres.statistics import table_statistics
from readers.postgres.table_facts import read_tables
from readers.statistics import TableStatistics
from state.errors import JobFileError, LogPositionLostError
from state.job_state import JobState, Membership
from state.key_statistics import PageStatistics
from state.log_range import LogRange, LogReport
from state.partitions import PartitionLook, Partitions
from state.position import Position, WalPosition, wal_position
from state.table import TableId, TableSchema

ADVANCE_SECONDS = 5.0
"""At most so often is the slot moved on: the server reads through the log for it."""


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """`jobs.sources.SourceServer`."""

    job: JobFile
    place: LogPlace
    start: WalPosition
    memberships: tuple[Membership, ...]

    def planner_access(self, state: JobState) -> "PostgresAccess":
        return PostgresAccess(self, state.schemas, [wal_position(joined.start).lsn for joined in state.joined])

    def split_reading(self, schemas: Sequence[TableSchema], job_uuid: str) -> SplitReader:
        job = self.job
        conditions = {s.table: job.snapshot.condition(s.table.database, s.table.name) for s in schemas}
        where = {table: condition for table, condition in conditions.items() if condition is not None}
        return SplitReader(self._snapshot_source(where))

    def log_reading(self, schemas: Sequence[TableSchema]) -> "PostgresLog":
        source, reconnect = self.job.source, self.job.log.reconnect
        options = ReadOptions(reconnect_attempts=reconnect.attempts, longest_delay_seconds=reconnect.max_delay_seconds)
        log = ServerLog(source.url, source.tls, self.place)
        return PostgresLog(self, LogReader(log, {schema.table: schema for schema in schemas}, options))

    @contextmanager
    def key_routing(self, schemas: Sequence[TableSchema]) -> Iterator["PostgresRouting"]:
        session = SqlSession(self.connect)
        try:
            yield PostgresRouting(PostgresKeys(session, {schema.table: schema for schema in schemas}))
        finally:
            session.close()

    @contextmanager
    def key_reading(self, schemas: Sequence[TableSchema]) -> Iterator[KeyReader]:
        with closing(KeyReader(self._snapshot_source({}), {schema.table: schema for schema in schemas})) as reader:
            yield reader

    def _snapshot_source(self, where: Mapping[TableId, str]) -> SnapshotSource:
        source = self.job.source
        return SnapshotSource(source.url, source.tls, self.place.identity, self.start, where, masked_tables(self.job))

    def connect(self) -> Connection:
        """Raises LogPositionLostError where another server answers than the one that the job's positions belong to."""
        connection = connect(self.job.source.url, self.job.source.tls)
        try:
            require_identity(connection, self.place.identity)
        except BaseException:
            connection.close()
            raise
        return connection


class PostgresAccess:
    """`jobs.sources.PlannerAccess`; opens its connection at the first question. `join_lsns`: where tables joined."""

    def __init__(self, server: PostgresServer, schemas: Sequence[TableSchema], join_lsns: Sequence[int] = ()) -> None:
        self._place = server.place
        self._slot = server.place.slot
        self._partitions_removed = server.job.source.partitions_removed
        self._join_lsns = list(join_lsns)
        self._session = SqlSession(server.connect)
        self._advanced_at = 0.0
        self.keys: KeySource = PostgresKeys(self._session, {schema.table: schema for schema in schemas})

    def log_end(self) -> WalPosition:
        return self._session.ask(log_end)

    def log_extent(self) -> WalExtent:
        start, end = self._session.ask(lambda connection: slot_places(connection, self._slot))
        return WalExtent(start, end)

    def look_at_partitions(self, known: Partitions) -> PartitionLook:
        keeps_removed = self._partitions_removed == "keep"
        return self._session.ask(
            lambda connection: look_again(connection, self._place, known, keeps_removed=keeps_removed)
        )

    def committed(self, position: Position) -> None:
        """Where tables joined the slot is moved before any more is read: servers of before 2025 lose changes of a table
        where they decode, before these, a transaction that was open while the table was published."""
        place = wal_position(position)
        if self._join_lsns and place.lsn >= min(self._join_lsns):
            self._session.ask(lambda connection: self._pass(connection, place))
            self._join_lsns = [lsn for lsn in self._join_lsns if lsn > place.lsn]
        elif time.monotonic() < self._advanced_at + ADVANCE_SECONDS:
            return
        else:
            self._session.ask(lambda connection: advance_slot(connection, self._slot, place))
        self._advanced_at = time.monotonic()

    def _pass(self, connection: Connection, place: WalPosition) -> None:
        """Raises SourceNotUsableError where somebody goes on reading from the slot."""
        while not advance_slot(connection, self._slot, place):
            require_slot(connection, self._place, place)


@dataclass(frozen=True, slots=True)
class PostgresLog:
    """`jobs.sources.LogReading`."""

    server: PostgresServer
    reader: LogReader

    def read(self, log_range: LogRange) -> Iterator[LogBatch]:
        """Raises LogPositionLostError, at the end, where a table was out of the publication in between."""
        yield from self.reader.read(log_range)
        with closing(self.server.connect()) as connection:
            known = {membership.table: membership.text for membership in self.server.memberships}
            require_memberships(connection, self.server.place.publication, known)

    @property
    def report(self) -> LogReport:
        return self.reader.report


@dataclass(frozen=True, slots=True)
class PostgresRouting:
    """`jobs.sources.KeyRouting`."""

    keys: PostgresKeys

    def owners(
        self, schema: TableSchema, columns: tuple[str, ...], rows: pa.RecordBatch, routes: TableRoutes
    ) -> Int64s:
        return self.keys.owners(schema, columns, rows, routes)

    def transactions(self, rows: pa.RecordBatch) -> Int64s:
        texts = rows.column("_txn_id")
        xids = np.array([int(text) for text in texts.dictionary.to_pylist()], np.int64)
        taken: Int64s = xids[texts.indices.to_numpy()]
        return taken


@dataclass(frozen=True, slots=True)
class FoundPostgres:
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

    def watermarks(self) -> str:
        return "snapshot"

    def statistics(self, table: TableId) -> TableStatistics:
        return table_statistics(self.connection, table)

    def pages(self, table: TableId) -> PageStatistics | None:
        return page_statistics(self.connection, table)

    def identity(self) -> str:
        return str(self.info.identity)

    def first_start(self) -> WalPosition:
        """Makes publication and slot, in this order, where they are missing."""
        job, tables = self.job, [schema.table for schema in self.schemas]
        if not create_publication(self.connection, job.publication, tables):
            add_tables(self.connection, job.publication, tables)
        end = log_end(self.connection)
        kept_from = create_slot(self.connection, job.slot)
        now = WalPosition(max(end.lsn, kept_from.lsn))
        if job.mode != "incremental" or (wanted := job.log_start) == StartAtEnd("latest"):
            return now
        if wanted == StartAtEnd("earliest"):
            return kept_from
        if not isinstance(wanted, StartAtLsn):
            raise JobFileError(
                f"log.start: {wanted.as_written()} belongs to other sources than PostgreSQL.",
                "Allowed are latest, earliest and {lsn: 16/B374D848}.",
            )
        if not kept_from.lsn <= wanted.lsn <= now.lsn:
            raise LogPositionLostError(
                f"log.start: {WalPosition(wanted.lsn)} is not in the log that the slot {job.slot} keeps, from {kept_from} "
                f"to {now}.",
                "A slot keeps the log from when it was made: make it before the changes that you want, and name it in "
                "source.slot.",
            )
        return WalPosition(wanted.lsn)

    def joining_start(self, tables: Sequence[TableId]) -> WalPosition:
        """Transactions that were open when the tables were published may lack changes of them in the log: they lie before.
        And whatever lies before is visible to every snapshot from now on."""
        add_tables(self.connection, self.job.publication, tables)
        wait_for_open_transactions(self.connection)
        start = log_end(self.connection)
        wait_for_open_transactions(self.connection)
        return start

    def memberships(self) -> tuple[Membership, ...]:
        found = memberships(self.connection, self.job.publication, [schema.table for schema in self.schemas])
        return tuple(Membership(table, text) for table, text in sorted(found.items()))

    def partitions(self, tables: Sequence[TableId]) -> Partitions | None:
        return find_partitions(self.connection, tables)

    def require_same_log(self, state: JobState, places: Sequence[Position]) -> None:
        identity = ServerIdentity.parse(state.server_identity)
        require_identity(self.connection, identity)
        for place in places:
            require_slot(self.connection, LogPlace(identity, self.job.slot, self.job.publication), wal_position(place))
        if places:
            known = {membership.table: membership.text for membership in state.memberships}
            require_memberships(self.connection, self.job.publication, known)

    def server(self, state: JobState) -> PostgresServer:
        place = LogPlace(self.info.identity, self.job.slot, self.job.publication)
        return PostgresServer(self.job, place, wal_position(state.start), state.memberships)


@contextmanager
def find_postgres(job: JobFile) -> Iterator[FoundPostgres]:
    """See `jobs.sources.find_source`."""
    source = job.source
    with closing(connect(source.url, source.tls)) as connection:
        server = read_server(connection)
        facts = read_tables(connection, find_tables(connection, source.tables, source.exclude_tables))
        result = preflight(connection, server, facts, _demands(job))
        columns = {table: split_key(schema) for table, schema in result.schemas.items()}
        yield FoundPostgres(
            job,
            connection,
            server,
            tuple(result.schemas.values()),
            columns,
            findings_with(job, result.findings, result.schemas.values()),
        )


def acquire_postgres_lease(job: JobFile, *, wait: bool) -> SourceLease:
    """See `jobs.sources.acquire_lease`."""
    return Lease.acquire(job.source.url, job.source.tls, lock_name(job.job, job.checkpoint), wait=wait)


def _demands(job: JobFile) -> Demands:
    source = job.source
    return Demands(
        needs_key=job.sink.type == "mirror",
        slot=job.slot,
        publication=job.publication,
        exclude_columns={TableId(t.database, t.name): frozenset(c.exclude) for t, c in source.columns.items()},
        keys={TableId(t.database, t.name): tuple(columns) for t, columns in source.keys.items()},
        transforms=columns_read(job),
    )
