"""PostgreSQL as a source of jobs."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import psycopg2
import pyarrow as pa

from tidemark.conf.model import JobFile
from tidemark.conf.reading import StartAtEnd, StartAtLsn
from tidemark.readers.added_columns import new_columns, wider_columns, with_changed_columns
from tidemark.readers.bad_values import BadValueRule
from tidemark.readers.findings import Finding
from tidemark.readers.found_source import FoundTables
from tidemark.readers.lease import Lease, checkpoint_lock, lock_name
from tidemark.readers.log.gap_filter import FinishedSplits, Int64s
from tidemark.readers.log.log_batch import LogBatch
from tidemark.readers.long_waits import LongWait
from tidemark.readers.postgres.connect import (
    Connection,
    connect,
    end_limit_of_lock_waits,
    error_text,
    limit_lock_waits,
    quote_table,
    sql_errors,
)
from tidemark.readers.postgres.keys.split_keys import PostgresKeys
from tidemark.readers.postgres.lease import AdvisoryLock
from tidemark.readers.postgres.partitions.catalog import fingerprint, first_look, values_of_older_rows
from tidemark.readers.postgres.partitions.checks import look_again
from tidemark.readers.postgres.pgoutput.reader import LogReader
from tidemark.readers.postgres.pgoutput.reading import ReadOptions
from tidemark.readers.postgres.pgoutput.text_values import constant_of
from tidemark.readers.postgres.replay import await_replay
from tidemark.readers.postgres.schema.catalog import (
    find_tables,
    read_candidates,
    select_tables,
    split_key,
    views_left_out,
    wildcards_without_tables,
)
from tidemark.readers.postgres.schema.identity import oids_of, require_same_tables
from tidemark.readers.postgres.schema.preflight import Demands, preflight
from tidemark.readers.postgres.schema.server_checks import STANDBY_MAJOR, after_failover, check_settings
from tidemark.readers.postgres.schema.statistics import table_statistics
from tidemark.readers.postgres.schema.table_facts import labels_of, read_tables
from tidemark.readers.postgres.schema.text_orders import certain, text_orders
from tidemark.readers.postgres.schema.widening import widens
from tidemark.readers.postgres.server import (
    ServerIdentity,
    ServerInfo,
    another_identity,
    read_server,
    require_identity,
)
from tidemark.readers.postgres.session import SqlSession, will_pass
from tidemark.readers.postgres.slot.held_back import AdvancePace, held_back_by
from tidemark.readers.postgres.slot.kept_log import forget_kept_log, keep_log, lost_failover, regain_log
from tidemark.readers.postgres.slot.known_log import require_known_log
from tidemark.readers.postgres.slot.open_transactions import (
    OpenTransaction,
    wait_for_open_transactions,
    wait_for_writers,
)
from tidemark.readers.postgres.slot.publication import (
    add_tables,
    create_publication,
    has_column_list,
    memberships,
    published_later,
    require_memberships,
    without_identity,
)
from tidemark.readers.postgres.slot.server_log import ServerLog
from tidemark.readers.postgres.slot.slot import (
    FAILOVER_MAJOR,
    SlotSource,
    advance_slot,
    create_slot,
    drop_slot,
    let_survive_failover,
    log_end,
    require_slot,
    slot_exists,
    slot_extent,
    started_us,
)
from tidemark.readers.postgres.snapshot.key_reader import KeyReader
from tidemark.readers.postgres.snapshot.locks import locked_tables
from tidemark.readers.postgres.snapshot.pages import page_statistics
from tidemark.readers.postgres.snapshot.split_reader import SnapshotSource, SplitReader
from tidemark.readers.postgres.timelines import identity_now, require_timeline, shared_until, timeline_session
from tidemark.readers.postgres.upgrade import UpgradedServer, next_xid
from tidemark.readers.projection.settings import findings_with, masked_tables
from tidemark.readers.schema_checks import CopiedColumns, Preflight, TableSettings
from tidemark.readers.source import LostTransactions
from tidemark.readers.statistics import TableStatistics
from tidemark.readers.table_settings import split_conditions, with_condition
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError, TableLockedError
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState, Membership
from tidemark.state.key_source import SharesSnapshots
from tidemark.state.key_statistics import PageStatistics
from tidemark.state.log_extent import KnownLog, WalExtent
from tidemark.state.log_range import LogRange, LogReport
from tidemark.state.partitions import PartitionLook, Partitions, WatchedTable
from tidemark.state.position import Position, WalPosition, wal_position
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.table import TableId, TableSchema
from tidemark.state.upgrade_mark import Upgraded, UpgradeMark


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """Implements `tidemark.readers.source.SourceServer` and `RereadsKeys`."""

    job: JobFile
    slot_source: SlotSource
    start: WalPosition
    memberships: tuple[Membership, ...]
    reached: WalPosition
    """How far the source's log surely was. A standby that was restarted is waited for."""

    def planner_access(self, state: JobState) -> "PostgresAccess":
        return PostgresAccess(self, state.schemas, [wal_position(joined.start).lsn for joined in state.joined])

    def split_reading(self, schemas: Sequence[TableSchema], job_uuid: str) -> SplitReader:
        return SplitReader(self._snapshot_source(split_conditions(self.job, schemas)))

    def with_condition(self, table: TableId, where: str) -> "PostgresServer":
        """Implements `tidemark.readers.source.TakesConditions`."""
        return replace(self, job=with_condition(self.job, table, where))

    def log_reading(self, schemas: Sequence[TableSchema]) -> "PostgresLog":
        source, reconnect = self.job.source, self.job.reconnect
        options = ReadOptions(
            reconnect_attempts=reconnect.attempts,
            max_delay_seconds=reconnect.max_delay_seconds,
            bad_values=BadValueRule.of(self.job),
        )
        log = ServerLog(source.url, source.tls, self.slot_source, reconnect, source.standby)
        return PostgresLog(self, LogReader(log, {schema.table: schema for schema in schemas}, options))

    @contextmanager
    def key_routing(self, schemas: Sequence[TableSchema]) -> Iterator["PostgresRouting"]:
        with closing(SqlSession(self.connect)) as session:
            yield PostgresRouting(PostgresKeys(session, {schema.table: schema for schema in schemas}))

    @contextmanager
    def key_reading(self, schemas: Sequence[TableSchema]) -> Iterator[KeyReader]:
        with closing(KeyReader(self._snapshot_source({}), {schema.table: schema for schema in schemas})) as reader:
            yield reader

    def _snapshot_source(self, where: Mapping[TableId, str]) -> SnapshotSource:
        source = self.job.source
        return SnapshotSource(
            source.url,
            source.tls,
            self.slot_source.identity,
            self.start,
            where,
            masked_tables(self.job),
            BadValueRule.of(self.job),
            self.job.reconnect,
            self.slot_source.slot if source.standby else None,
        )

    def connect(self, reached: WalPosition | None = None) -> Connection:
        """Connects. After a restart a standby's catalog is an older one: it is waited for until its log ends where it surely
        ended before (`reached`). Raises LogPositionLostError if the server is not the one of the job's positions."""
        source, identity = self.job.source, self.slot_source.identity
        needed = max(self.reached, reached or self.reached, key=lambda position: position.lsn)

        def check(opened: Connection) -> None:
            require_identity(opened, identity)
            if source.standby:
                await_replay(opened, needed)

        return connect(source.url, source.tls, reconnect=self.job.reconnect, primary=not source.standby, check=check)


class PostgresAccess:
    """Implements `tidemark.readers.source.PlannerAccess`, `WatchesPartitions`, `KnowsLabels`, `RetainsLog`,
    `ProvesLog` and `FindsLocks`. Connects at the first query. `join_lsns`: where tables joined."""

    def __init__(self, server: PostgresServer, schemas: Sequence[TableSchema], join_lsns: Sequence[int] = ()) -> None:
        self._slot_source = server.slot_source
        self._slot = server.slot_source.slot
        self._partitions_removed = server.job.source.partitions_removed
        self._join_lsns = list(join_lsns)
        self._catalogs_at: WalPosition | None = None
        """Where the log of a standby ended after its catalogs were looked at."""
        self._is_standby = server.job.source.standby
        self._session = SqlSession(lambda: server.connect(self._catalogs_at))
        source = server.job.source
        self._timeline = timeline_session(source.url, source.tls, server.job.reconnect)
        self._let_survive_failover = partial(let_survive_failover, source.url, source.tls, self._slot)
        self._keep_seconds = 0.0 if server.job.mode == "full" else server.job.checkpoints.keep.seconds
        self._keep_at = 0.0
        self._pace = AdvancePace()
        self._extent: WalExtent | None = None
        self._reached: WalPosition | None = None
        self._warned: str | None = None
        self._limits_waits = False
        self._looked: tuple[tuple[WatchedTable, ...], str] | None = None
        self._labels: tuple[str | None, Mapping[tuple[str, str], tuple[str, ...]]] | None = None
        self._schemas = {schema.table: schema for schema in schemas}
        self.keys: SharesSnapshots = PostgresKeys(self._session, self._schemas)

    def log_end(self) -> WalPosition:
        return self._session.ask(log_end)

    def log_extent(self) -> WalExtent:
        """Raises LogPositionLostError if the log may end on another timeline than that of the job's positions: the primary of a
        standby was replaced by a promoted one."""
        self._extent = self._session.ask(lambda connection: slot_extent(connection, self._slot))
        if self._is_standby:
            self._timeline.ask(lambda connection: require_timeline(connection, self._slot_source.identity))
        self._catalogs_at = self._extent.end
        return self._extent

    def require_known_log(self, position: Position, known: KnownLog, reached: Position) -> None:
        """Implements `tidemark.readers.source.ProvesLog`. A standby is waited for until its log has reached `reached`."""
        until = wal_position(position)
        self._session.ask(lambda connection: require_known_log(connection, self._slot_source, until, known))
        self._session.ask(lambda connection: await_replay(connection, wal_position(reached)))

    def locked_tables(self, tables: Collection[TableId]) -> Mapping[TableId, str]:
        """From now on until the partitions are looked at, queries about keys don't wait without limit for a later lock."""
        found = self._session.ask(lambda connection: _locked_now(connection, tables))
        self._limits_waits = True
        return {table: f"{keeper.text} keeps it locked. {keeper.ending}." for table, keeper in found.items()}

    def look_at_partitions(self, known: Partitions) -> PartitionLook:
        """Looks at partitions, and warns of transactions that hold the slot back, once for each."""
        if self._limits_waits:
            self._session.ask(end_limit_of_lock_waits)
            self._limits_waits = False
        seen = self._look(known)
        if self._is_standby:
            self._catalogs_at = self._session.ask(log_end)
        held_back = self._session.ask(lambda connection: held_back_by(connection, self._slot, self._decoded_again()))
        if held_back is None or held_back.holder == self._warned:
            return seen
        self._warned = held_back.holder
        return PartitionLook(seen.now, (*seen.warnings, held_back.warning))

    def _look(self, known: Partitions) -> PartitionLook:
        """Compares what the catalogs say of each table only if they changed since the last look."""
        oids = [table.oid for table in known.tables]
        ended_xid, text = self._session.ask(lambda connection: fingerprint(connection, oids))
        if self._looked is not None and self._looked[0] is known.tables and self._looked[1] == text:
            return PartitionLook(Partitions(ended_xid, known.tables))
        keeps_removed = self._partitions_removed == "keep"
        seen = self._look_at_rows(
            lambda connection: look_again(
                connection, self._slot_source, known, self._schemas, keeps_removed=keeps_removed
            )
        )
        self._looked = seen.now.tables, text
        return seen

    def labels(self, types: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """Implements `tidemark.readers.source.KnowsLabels`. Asks only if a look found other catalogs."""
        catalogs = None if self._looked is None else self._looked[1]
        if self._labels is None or catalogs is None or self._labels[0] != catalogs:
            self._labels = catalogs, self._session.ask(lambda connection: labels_of(connection, types))
        return self._labels[1]

    def _look_at_rows(self, look: Callable[[Connection], PartitionLook]) -> PartitionLook:
        """Raises TableLockedError if a table stays locked."""
        wait = LongWait()
        for _ in range(LOOK_ATTEMPTS - 1):
            try:
                return self._session.ask(look)
            except TableLockedError as error:
                wait.goes_on(partial(_waited_for, error))
        return self._session.ask(look)

    def _decoded_again(self) -> int:
        """Returns how many bytes of log that the job has read the server decodes again for the next range."""
        extent, reached = self._extent, self._reached
        return (
            0
            if extent is None or extent.decoded_from is None or reached is None
            else reached.lsn - extent.decoded_from.lsn
        )

    def committed(self, position: Position) -> None:
        """Keeps the log for longer (`checkpoints.keep`) and advances the slot, where that is due. After a table joined, the
        slot is advanced before more is read: servers released before 2025 lose a table's changes if they first decode a
        transaction that was open while the table was published."""
        reached = self._reached = wal_position(position)
        began = time.monotonic()
        if began >= self._keep_at:
            if self._session.ask(lambda connection: lost_failover(connection, self._slot)):
                self._let_survive_failover()
            wait = self._session.ask(lambda connection: keep_log(connection, self._slot_source, self._keep_seconds))
            self._keep_at = time.monotonic() + wait
        if self._join_lsns and reached.lsn >= min(self._join_lsns):
            self._session.ask(lambda connection: self._advance_past(connection, reached))
            self._join_lsns = [lsn for lsn in self._join_lsns if lsn > reached.lsn]
        elif self._pace.is_due(self._extent, reached, now=began):
            self._session.ask(lambda connection: advance_slot(connection, self._slot, reached))
        else:
            return
        self._pace.advanced(began=began, ended=time.monotonic())

    def _advance_past(self, connection: Connection, reached: WalPosition) -> None:
        """Raises SourceNotUsableError if somebody else keeps reading from the slot."""
        while not advance_slot(connection, self._slot, reached):
            require_slot(connection, self._slot_source, reached)


LOOK_ATTEMPTS = 30
"""How often, each time for LOOK_SECONDS, partitions are looked at before a table that stays locked leaves the job."""


def _waited_for(error: TableLockedError) -> str:
    return f"The log is read once it is known which rows came and went with partitions. {error.message} {error.remedy}"


def _locked_now(connection: Connection, tables: Collection[TableId]) -> Mapping[TableId, OpenTransaction]:
    found = locked_tables(connection, tables)
    limit_lock_waits(connection)
    return found


@dataclass(frozen=True, slots=True)
class PostgresLog:
    """Implements `tidemark.readers.source.LogReading`."""

    server: PostgresServer
    reader: LogReader

    def read(self, log_range: LogRange) -> Iterator[LogBatch]:
        """Raises LogPositionLostError after the last batch if a table was out of the publication in the meantime. Tables
        without a membership are those that leave the job after this range, which was read before."""
        yield from self.reader.read(log_range)
        known = {membership.table: membership.text for membership in self.server.memberships}
        oids = oids_of(schema for schema in self.reader.schemas.values() if schema.table in known)
        name = self.server.slot_source.publication
        with closing(SqlSession(self.server.connect)) as session:
            session.ask(lambda connection: require_memberships(connection, name, known, oids))

    @property
    def report(self) -> LogReport:
        return self.reader.report


@dataclass(frozen=True, slots=True)
class PostgresRouting:
    """Implements `tidemark.readers.source.KeyRouting` and `RoutesByTransaction`."""

    keys: PostgresKeys

    def owners(
        self, schema: TableSchema, columns: tuple[str, ...], rows: pa.RecordBatch, finished_splits: FinishedSplits
    ) -> Int64s:
        return self.keys.owners(schema, columns, rows, finished_splits)

    def transactions(self, rows: pa.RecordBatch) -> Int64s:
        texts = rows.column("_txn_id")
        xids = np.array([int(text) for text in texts.dictionary.to_pylist()], np.int64)
        taken: Int64s = xids[texts.indices.to_numpy()]
        return taken

    def unseen(self, transactions: Int64s) -> tuple[int, ...]:
        return self.keys.unseen(transactions)


@dataclass(frozen=True, slots=True)
class FoundPostgres(FoundTables):
    """Implements `tidemark.readers.source.FoundSource`, `ReadsPages`, `PublishesTables`, `FindsPartitions`, `OrdersTexts`,
    `SharesLog`, `OutlivesUpgrade` and `RegainsLog`."""

    connection: Connection
    info: ServerInfo
    demands: Demands
    reached: WalPosition | None = None
    """As in `find_postgres`."""
    published: dict[TableId, str] = field(default_factory=dict)
    """How the tables were published before the start position was taken."""

    @property
    def name(self) -> str:
        return self.info.name

    def watermarks(self) -> str:
        return "snapshot"

    def statistics(self, table: TableId) -> TableStatistics:
        return table_statistics(self.connection, table)

    def pages(self, table: TableId) -> PageStatistics | None:
        return page_statistics(self.connection, table)

    def text_orders(self, table: TableId, columns: Sequence[str]) -> Mapping[str, str]:
        """Implements `tidemark.readers.source.OrdersTexts`."""
        return certain(text_orders(self.connection, table, columns))

    def condition_problem(self, table: TableId, where: str) -> str | None:
        """Implements `tidemark.readers.source.ChecksConditions`."""
        try:
            with self.connection.cursor() as cursor:
                try:
                    limit_lock_waits(self.connection)
                    cursor.execute(f"SELECT 1 FROM {quote_table(table)} WHERE (\n{where}\n) LIMIT 0")
                finally:
                    if not self.connection.closed:
                        end_limit_of_lock_waits(self.connection)
        except psycopg2.Error as error:
            if will_pass(error, self.connection) and not SqlSession.is_locked(error):
                raise
            return error_text(error)
        return None

    def identity(self) -> str:
        return str(self.info.identity)

    def first_start(self) -> WalPosition:
        """Creates the publication and then the slot, if they are missing."""
        job, tables = self.job, [schema.table for schema in self.schemas]
        if not create_publication(self.connection, job.publication, tables):
            add_tables(self.connection, job.publication, tables)
        self._note_memberships()
        wait_for_open_transactions(self.connection)  # the log may lack what they wrote
        unidentified = self._wait_for_unidentified(tables)
        forget_kept_log(self.connection, job.slot)
        end, is_new = log_end(self.connection), not slot_exists(self.connection, job.slot)
        kept_from = create_slot(self.connection, job.slot, needs_older_log=job.mode == "incremental")
        now = WalPosition(max(end.lsn, kept_from.lsn))
        start = self._wanted_start(kept_from, now)
        if start.lsn < end.lsn and not is_new:
            later = published_later(self.connection, job.publication, job.slot, tables)
            if later := sorted({*later, *unidentified}):
                raise _not_published_then(job, start, later)
        return start

    def _wanted_start(self, kept_from: WalPosition, now: WalPosition) -> WalPosition:
        job = self.job
        if job.mode != "incremental" or (wanted := job.log_start) == StartAtEnd("latest"):
            return now
        if wanted == StartAtEnd("earliest"):
            return kept_from
        assert isinstance(wanted, StartAtLsn)  # the job file's check refuses the others
        if not kept_from.lsn <= wanted.lsn <= now.lsn:
            raise LogPositionLostError(
                f"log.start: {WalPosition(wanted.lsn)} is not in the log that the slot {job.slot} keeps: {kept_from} to {now}.",
                f"Write an LSN from {kept_from} to {now}. A slot keeps the log only from its creation on: next time create it "
                "before the changes that you want, and name it in source.slot.",
            )
        return WalPosition(wanted.lsn)

    def joining_start(self, tables: Sequence[TableId], *, goes_on: bool = False) -> WalPosition:
        """Waits for the transactions that were open when the tables were published: the log may lack their changes to these
        tables. Everything before the returned position is visible to every later snapshot."""
        add_tables(self.connection, self.job.publication, tables, seconds=JOINING_WAIT_SECONDS)
        self._note_memberships()
        wait_for_open_transactions(self.connection, seconds=JOINING_WAIT_SECONDS)
        self._wait_for_unidentified(tables, seconds=JOINING_WAIT_SECONDS)
        start = log_end(self.connection)
        wait_for_open_transactions(self.connection, seconds=JOINING_WAIT_SECONDS)
        return start

    def _wait_for_unidentified(self, tables: Sequence[TableId], *, seconds: float | None = None) -> list[TableId]:
        """Waits until no statement on those of the tables without a replica identity runs that began before they were
        published: the server did not refuse it, and the log lacks the rows that it deletes. Returns these tables."""
        without = without_identity(self.connection, tables)
        if without:
            oids = oids_of(schema for schema in self.schemas if schema.table in without)
            wait_for_writers(self.connection, oids.values(), seconds=seconds)
            wait_for_open_transactions(self.connection, seconds=seconds)  # of those, some may have been prepared
        return without

    def schemas_now(self, tables: Sequence[TableId]) -> Mapping[TableId, TableSchema]:
        return preflight(self.connection, self.info, read_tables(self.connection, tables), self.demands).accepted

    def was_dropped(self, schema: TableSchema) -> bool:
        """`tidemark.readers.source.ProvesDropped`. Every role sees all tables in the catalog."""
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_class WHERE oid = %s", (schema.oid,))
            return cursor.fetchone() is None

    def extended(self, known: TableSchema, seen: Partitions | None) -> TableSchema | None:
        """The table's newest columns, added one after the other: with a column that was dropped in between, the log may have
        values of that under the same name."""
        now = self.schemas_now([known.table]).get(known.table)
        if now is None or has_column_list(self.connection, self.job.publication, known):
            return None
        new = new_columns(known, now)
        last = max(column.number or 0 for column in known.columns)
        numbers = [column.number or 0 for column in new]
        if numbers != list(range(last + 1, last + 1 + len(new))):
            return None
        tables = () if seen is None else seen.tables
        before = next((table for table in tables if table.oid == known.oid), None)
        wider = [column.number or 0 for column in wider_columns(known, now)]
        values = None if before is None else values_of_older_rows(self.connection, before, [*numbers, *wider])
        if values is None:
            return None
        constants = {}
        for column in new:
            if column.captured and column.number in values:
                constant = constant_of(now, column, *values[column.number])
                if constant is None:
                    return None
                constants[column.name] = constant
        return with_changed_columns(known, now, widens, constants)

    def memberships(self) -> tuple[Membership, ...]:
        return tuple(Membership(table, text) for table, text in sorted(self.published.items()))

    def _note_memberships(self) -> None:
        tables = [schema.table for schema in self.schemas]
        self.published.update(memberships(self.connection, self.job.publication, tables))

    def partitions(self, tables: Sequence[TableId]) -> Partitions:
        oids = oids_of(self.schemas)
        return first_look(self.connection, {table: oids[table] for table in tables})

    def watched_now(self, known: WatchedTable) -> WatchedTable:
        return first_look(self.connection, {known.table: known.oid}).tables[0]

    def require_same_log(self, state: JobState, positions: Sequence[Position]) -> None:
        identity = ServerIdentity.parse(state.server_identity)
        require_identity(self.connection, identity)
        if self.info.identity != identity:
            raise another_identity(self.info.identity, identity)  # a standby, on another timeline
        slot_source = SlotSource(identity, self.job.slot, self.job.publication)
        for position in positions:
            require_slot(self.connection, slot_source, wal_position(position))
        if positions:
            require_same_tables(self.schemas, state.schemas)
            known = {membership.table: membership.text for membership in state.memberships}
            require_memberships(self.connection, self.job.publication, known, oids_of(state.schemas))

    def shared_until(self, state: JobState, known: KnownLog | None = None) -> WalPosition:
        """`tidemark.readers.source.SharesLog`: by the server's timeline history. A standby that follows another primary goes on
        replaying: it does so only if nothing that it has replayed before is missing there."""
        until = shared_until(self.job.source.url, self.job.source.tls, ServerIdentity.parse(state.server_identity))
        end = log_end(self.connection)
        runs_since = known is not None and known.server_started_us == started_us(self.connection)
        return end if runs_since and end.lsn > until.lsn else until

    def is_standby(self) -> bool:
        """`tidemark.readers.source.SharesLog`."""
        return self.info.in_recovery

    def same_place(self, state: JobState, position: Position) -> WalPosition:
        """`tidemark.readers.source.FindsPlace`: positions are the same. The slot must be there."""
        place = wal_position(position)
        until = self.shared_until(state)
        if place.lsn > until.lsn:
            raise LogPositionLostError(
                f"The job has read the log up to {place}, and this server has only what was before {until}: when it was "
                "promoted, it lacked transactions that are in the copies.",
                START_OVER_NOW,
            )
        if state.schemas:
            require_slot(self.connection, SlotSource(self.info.identity, self.job.slot, self.job.publication), place)
        return place

    def lost(self, state: JobState, position: Position) -> "LostLog | None":
        """`tidemark.readers.source.FindsLost`."""
        try:
            until = self.shared_until(state)
        except LogPositionLostError:
            return None
        return LostLog(until) if wal_position(position).lsn > until.lsn else None

    def place_without(
        self, state: JobState, since: Position, position: Position, lost: LostTransactions
    ) -> WalPosition:
        """`tidemark.readers.source.FindsLost`: the end of the log that both servers have."""
        assert isinstance(lost, LostLog)
        return self.same_place(state, lost.until)

    def is_related(self, state: JobState, position: Position) -> bool:
        """`tidemark.readers.source.FindsPlace`. A former primary, on an older timeline, is none."""
        try:
            self.shared_until(state)
        except LogPositionLostError:
            return False
        return True

    def system(self) -> str:
        return self.info.identity.system

    def is_of_another_system(self, state: JobState) -> bool:
        return ServerIdentity.parse(state.server_identity).system != self.info.identity.system

    def next_transaction(self) -> int | None:
        if self.info.version[0] < FAILOVER_MAJOR or self.info.in_recovery:
            what = "a standby" if self.info.in_recovery else self.info.name
            raise SourceNotUsableError(
                f"pg_upgrade keeps replication slots of PostgreSQL {FAILOVER_MAJOR} and newer, not of {what}.",
                "Upgrade the server without this step. Then the job stops with exit code 4, and says how it goes on: it reads "
                "all rows again.",
            )
        return next_xid(self.connection)

    def log_end(self) -> WalPosition:
        return log_end(self.connection)

    def regain_log(self, state: JobState, position: Position) -> bool:
        """`tidemark.readers.source.RegainsLog`: what `checkpoints.keep` has kept. Not if the tables are published otherwise
        than before: then they are read again. Those that were dropped are told of later."""
        identity = ServerIdentity.parse(state.server_identity)
        slot_source = SlotSource(identity, self.job.slot, self.job.publication)
        known = {membership.table: membership.text for membership in state.memberships}
        oids = oids_of(schema for schema in state.schemas if not self.was_dropped(schema))
        try:
            require_identity(self.connection, identity)
            require_memberships(self.connection, self.job.publication, known, oids)
        except LogPositionLostError:
            return False
        return regain_log(self.connection, slot_source, wal_position(position), self._let_survive_failover)

    def _let_survive_failover(self) -> None:
        if self.info.version[0] >= FAILOVER_MAJOR and not self.info.in_recovery:
            let_survive_failover(self.job.source.url, self.job.source.tls, self.job.slot)

    def set_mark(self, mark: UpgradeMark) -> None:
        """pg_upgrade refuses a server with slots that have not consumed the log."""
        forget_kept_log(self.connection, self.job.slot)
        position = wal_position(mark.position)
        slot_source = SlotSource(self.info.identity, self.job.slot, self.job.publication)
        while not advance_slot(self.connection, self.job.slot, position):
            require_slot(self.connection, slot_source, position)
        failpoint("upgrade.advanced")
        create_slot(self.connection, mark.slot)

    def remove_mark(self, mark: UpgradeMark) -> None:
        drop_slot(self.connection, mark.slot)

    def after_upgrade(self, state: JobState, mark: UpgradeMark, before: Partitions) -> Upgraded:
        server = UpgradedServer(self.connection, self.job.slot, self.job.publication, self.schemas)
        return server.proven(mark, state.schemas, before)

    def after_failover(self) -> str:
        return after_failover(self.connection, self.info, self.job.slot)

    def server(self, state: JobState) -> PostgresServer:
        slot_source = SlotSource(self.info.identity, self.job.slot, self.job.publication)
        start = wal_position(state.start)
        return PostgresServer(self.job, slot_source, start, state.memberships, self.reached or start)


@dataclass(frozen=True, slots=True)
class LostLog:
    """`tidemark.readers.source.LostTransactions`. `until`: the end of the log that both servers have."""

    until: WalPosition

    def any_before(self, position: Position) -> bool:
        return wal_position(position).lsn > self.until.lsn

    def __str__(self) -> str:
        return f"those after {self.until}"


JOINING_WAIT_SECONDS = 60.0
"""How long tables that join a job wait for open transactions. The changes of its other tables wait as long."""


@contextmanager
def find_postgres(
    job: JobFile,
    *,
    needs_key: bool,
    appends_keyless: bool = False,
    lists: bool = False,
    has_started: bool = False,
    copied: Mapping[TableId, CopiedColumns] | None = None,
    used_keys: Mapping[TableId, tuple[str, ...]] | None = None,
    reached: Position | None = None,
) -> Iterator[FoundPostgres]:
    """See `tidemark.jobs.sources.find_source`. `needs_key`, `appends_keyless`: as in `tidemark.sinks.sink.SinkNeeds`. `lists`:
    the sink takes arrays as lists. `has_started`: all tables that a wildcard matched may be gone. `copied`, `used_keys`: as in
    TableSettings. `reached`: how far the source's log was when the job has last looked at its tables. The job's standby, if it
    was restarted, is waited for before its catalog is read."""
    source = job.source
    with closing(connect(source.url, source.tls)) as connection, sql_errors(connection):
        server = read_server(connection)
        settings = TableSettings.of(job, copied or {}, used_keys)
        demands = _demands(job, settings, needs_key=needs_key, appends_keyless=appends_keyless, lists=lists)
        views: list[Finding] = []
        if reads_standby(server, job):
            if reached is not None and slot_exists(connection, job.slot):
                await_replay(connection, wal_position(reached))
            server = replace(server, identity=identity_now(source.url, source.tls))
        if server.in_recovery and not reads_standby(server, job):
            # What a standby lacks it may only not have yet: that is no table's trouble.
            result = Preflight({}, tuple(check_settings(connection, server, job.slot, standby=source.standby)))
        else:
            candidates = read_candidates(connection)
            tables = select_tables(candidates, source.tables, source.exclude_tables, each_matches=not has_started)
            facts = read_tables(connection, tables)
            result = preflight(connection, server, facts, demands)
            views = views_left_out(candidates, source.tables, source.exclude_tables)
            views += wildcards_without_tables(candidates, source.tables)
        yield FoundPostgres(
            job=job,
            schemas=tuple(result.schemas.values()),
            split_columns={table: split_key(schema) for table, schema in result.schemas.items()},
            findings=findings_with(job, [*views, *result.findings], result.schemas.values()),
            connection=connection,
            info=server,
            demands=demands,
            reached=None if reached is None else wal_position(reached),
        )


def reads_standby(server: ServerInfo, job: JobFile) -> bool:
    """Returns whether a standby of this version may be the source."""
    return job.source.standby and server.version[0] >= STANDBY_MAJOR


def postgres_tables(job: JobFile) -> list[TableId]:
    """See `tidemark.jobs.sources.selected_tables`."""
    with closing(connect(job.source.url, job.source.tls)) as connection, sql_errors(connection):
        return find_tables(connection, job.source.tables, job.source.exclude_tables, each_matches=False)


def acquire_postgres_lease(job: JobFile, *, wait: bool) -> Lease:
    """See `tidemark.jobs.sources.acquire_lease`."""
    names = checkpoint_lock(job.checkpoint), lock_name("slot", job.slot)
    lock = AdvisoryLock(job.source.url, job.source.tls, *names, standby=job.source.standby)
    return Lease.acquire(lock, wait=wait, reconnect=job.reconnect)


def _not_published_then(job: JobFile, start: WalPosition, tables: Sequence[TableId]) -> LogPositionLostError:
    return LogPositionLostError(
        f"The slot {job.slot} has log from before {', '.join(map(str, tables))} was published ({job.publication}), or it can't "
        f"be proven that it has none: from {start} on, changes may be missing.",
        "Write log.start: latest. Next time create the slot after the publication, when no other slot of the server is behind.",
    )


def _demands(job: JobFile, settings: TableSettings, *, needs_key: bool, appends_keyless: bool, lists: bool) -> Demands:
    return Demands(
        needs_key=needs_key,
        slot=job.slot,
        publication=job.publication,
        tables=settings,
        lists=lists,
        appends_keyless=appends_keyless,
        standby=job.source.standby,
    )
