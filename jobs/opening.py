"""From a job file to a job that may start: the source looked at, held and checked, its state durable, the sink ready."""

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from conf.model import JobFile
from conf.sink import ConsoleSink as ConsoleSettings
from conf.sink import FilesSink as FilesSettings
from conf.sink import MirrorSink as MirrorSettings
from jobs.checkpoint import Checkpoint
from jobs.events import Events
from jobs.write_parts import Writing
from readers.findings import Finding, raise_refusals
from readers.mysql.catalog import find_tables, split_key
from readers.mysql.connect import Connection, connect
from readers.mysql.key_columns import can_cut_by
from readers.mysql.lease import Lease, lock_name
from readers.mysql.log_connection import ServerLog
from readers.mysql.log_positions import LogPlaces
from readers.mysql.preflight import Demands, preflight
from readers.mysql.server import ServerInfo, WatermarkMethod, read_server, require_identity, watermark_method
from readers.mysql.table_facts import read_tables
from sinks.console import ConsoleSink
from sinks.files import FilesSink
from sinks.mirror.sink import MirrorSink
from sinks.sink import JobIdentity, Sink
from state.errors import CheckpointError, JobHeldError, LogPositionLostError
from state.gtid import GtidSet
from state.job_state import JobState, SplitKey
from state.position import binlog_position
from state.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look at the source shows. `schemas` lacks tables that are refused; `state` None: never started."""

    connection: Connection
    server: ServerInfo
    schemas: tuple[TableSchema, ...]
    split_columns: dict[TableId, tuple[str, ...]]
    findings: tuple[Finding, ...]
    state: JobState | None

    @property
    def identity(self) -> JobIdentity | None:
        return None if self.state is None else JobIdentity(self.state.job_uuid, self.state.job_name)

    def method(self) -> WatermarkMethod:
        return watermark_method(self.connection, self.server)


@dataclass(frozen=True, slots=True)
class Held:
    """A job that this process holds, its state durable."""

    server: ServerInfo
    method: WatermarkMethod
    state: JobState
    lease: Lease

    @property
    def identity(self) -> JobIdentity:
        return JobIdentity(self.state.job_uuid, self.state.job_name)

    def require_lease(self) -> None:
        """Raises JobHeldError once the lease is lost."""
        if not self.lease.held():
            raise JobHeldError(
                f"The lease on job {self.state.job_name} was lost.",
                "Check the connection to the source; start the job again once no other driver runs it.",
            )


@dataclass(frozen=True, slots=True)
class Opened:
    """A job that is held, and whose sink is ready."""

    held: Held
    writing: Writing


def make_sink(job: JobFile) -> Sink:
    match job.sink:
        case MirrorSettings() as settings:
            return MirrorSink.of(settings, job.source.url.kind)
        case FilesSettings(path=path, format=file_format):
            return FilesSink.of(path, file_format)
        case ConsoleSettings():
            return ConsoleSink()


@contextmanager
def look_at_source(job: JobFile) -> Iterator[Looked]:
    """Raises SourceNotUsableError where the source can't even be looked at; findings say the rest."""
    state = Checkpoint.at(job.checkpoint).job_state()
    connection = connect(job.source.url, job.source.tls)
    try:
        yield _look(job, connection, state)
    finally:
        connection.close()


@contextmanager
def open_job(job: JobFile, events: Events, *, standby: bool = False) -> Iterator[Opened]:
    """The job while inside. Raises JobHeldError, SourceNotUsableError, LogPositionLostError, CheckpointError, SinkError."""
    with hold_job(job, events, standby=standby) as held:
        sink = make_sink(job)
        sink.prepare(held.identity, held.state.schemas)
        schemas = {(schema.table, schema.version): schema for schema in held.state.schemas}
        yield Opened(held, Writing(sink, held.identity, schemas))


@contextmanager
def hold_job(job: JobFile, events: Events, *, standby: bool = False) -> Iterator[Held]:
    """The lease first, for nobody else may write the checkpoint; then the checks; then the state, durable."""
    checkpoint = Checkpoint.at(job.checkpoint)
    with ExitStack() as stack:
        lease = stack.enter_context(_lease(job, wait=standby))
        connection = connect(job.source.url, job.source.tls)
        stack.callback(connection.close)
        looked = _look(job, connection, checkpoint.job_state())
        for finding in looked.findings:
            if finding.severity == "warn":
                events.note("warning", table=str(finding.table or ""), text=str(finding))
        raise_refusals(looked.findings)
        state = looked.state
        if state is None:
            state = checkpoint.create_job_state(_first_state(job, looked))
            events.note("started", job=job.job, mode=job.mode, tables=len(state.schemas), start=str(state.start))
        else:
            _check_same_job(job, looked, state, events)
            events.note("resumed", job=job.job, epoch=checkpoint.committed_epoch())
        yield Held(looked.server, looked.method(), state, lease)


def _lease(job: JobFile, *, wait: bool) -> Lease:
    return Lease.acquire(job.source.url, job.source.tls, lock_name(job.job, job.checkpoint), wait=wait)


def _look(job: JobFile, connection: Connection, state: JobState | None) -> Looked:
    source = job.source
    assert source.url.kind != "postgresql"  # refused by conf
    server = read_server(connection, source.url.kind)
    facts = read_tables(connection, find_tables(connection, source.tables, source.exclude_tables))
    result = preflight(connection, server, facts, _demands(job))
    columns = {table: split_key(facts[table], schema, can_cut_by) for table, schema in result.schemas.items()}
    return Looked(connection, server, tuple(result.schemas.values()), columns, result.findings, state)


def _demands(job: JobFile) -> Demands:
    source = job.source
    return Demands(
        mode=job.mode,
        needs_key=job.sink.type == "mirror",
        parallelism=job.snapshot.parallelism,
        server_id_count=len(job.server_ids),
        exclude_columns={TableId(t.database, t.name): frozenset(c.exclude) for t, c in source.columns.items()},
        keys={TableId(t.database, t.name): tuple(columns) for t, columns in source.keys.items()},
    )


def _first_state(job: JobFile, looked: Looked) -> JobState:
    """Its start is durable before the first row is read: what is committed from here on comes by the log."""
    log = ServerLog.of(job.source.url, job.source.tls, looked.server, tuple(job.server_ids))
    places = LogPlaces(log, looked.connection, looked.server)
    start = places.resolve(job.log_start) if job.mode == "incremental" else places.find_anchor()
    keys = tuple(SplitKey(schema.table, looked.split_columns[schema.table]) for schema in looked.schemas)
    return JobState(
        job_uuid=str(uuid.uuid4()),
        job_name=job.job,
        mode=job.mode,
        server_identity=looked.server.identity.uuid,
        start=start,
        prepared=(),
        created_at_us=time.time_ns() // 1000,
        schemas=looked.schemas,
        split_keys=keys if job.has_snapshot else (),
    )


def _check_same_job(job: JobFile, looked: Looked, state: JobState, events: Events) -> None:
    """A checkpoint goes on with the job that made it, on the server whose positions it holds."""
    require_identity(looked.connection, type(looked.server.identity)(looked.server.flavour, state.server_identity))
    _require_same_log(job, looked)
    if state.job_name != job.job:
        raise CheckpointError(
            f"The checkpoint {job.checkpoint} belongs to job {state.job_name}, not to {job.job}.",
            "Give each job a checkpoint folder of its own.",
        )
    if state.mode != job.mode and not (state.mode == "full+incremental" and job.mode == "incremental"):
        raise CheckpointError(
            f"The checkpoint was made in mode {state.mode}; the job file says {job.mode}.",
            f"Write mode: {state.mode}, or start over with an empty checkpoint and an empty target.",
        )
    known = {schema.table: schema for schema in state.schemas}
    for schema in looked.schemas:
        if schema.table not in known:
            events.note(
                "warning",
                table=str(schema.table),
                text="matches source.tables, but was not there when the job started: it is not copied. "
                "Start a job of its own for it.",
            )


def _require_same_log(job: JobFile, looked: Looked) -> None:
    """A server keeps its identity when its log is reset or its data restored; its GTIDs tell."""
    checkpoint = Checkpoint.at(job.checkpoint)
    epochs = checkpoint.plan_epochs()
    if not epochs or looked.server.flavour != "mysql" or looked.server.gtid_mode != "ON":
        return
    position = binlog_position(checkpoint.plan(epochs[-1]).state.position)
    if position.gtids is None:
        return
    with looked.connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.gtid_executed")
        row = cursor.fetchone()
    executed = GtidSet.parse("" if row is None else str(row[0]))
    if not executed.contains_all(position.gtid_set()):
        raise LogPositionLostError(
            f"The source no longer has all transactions that the job has read up to {position}: its log was reset, or "
            "the server was restored from an older copy.",
            "Start the job over with an empty checkpoint and an empty target.",
        )
