"""From a job file to a job that may start: the source looked at, held and checked, its state durable, the sink ready."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from conf.model import JobFile
from conf.sink import ConsoleSink as ConsoleSettings
from conf.sink import DeltaSink as DeltaSettings
from conf.sink import FilesSink as FilesSettings
from conf.sink import MirrorSink as MirrorSettings
from jobs.checkpoint import Checkpoint
from jobs.events import Events
from jobs.session import open_session
from jobs.sources import FoundSource, Lease, SourceServer, acquire_lease, find_source
from jobs.standing import standing
from jobs.write_parts import Writing
from readers.findings import raise_refusals
from sinks.console import ConsoleSink
from sinks.delta.sink import DeltaSink
from sinks.files import FilesSink
from sinks.mirror.sink import MirrorSink
from sinks.sink import EpochSink, JobIdentity, PartSink
from state.errors import CheckpointError, JobHeldError
from state.job_state import JobState, SplitKey
from state.phase import Phase
from state.plan import EnumeratorState


@dataclass(frozen=True, slots=True)
class Held:
    """A job that this process holds, its state durable."""

    server: SourceServer
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


def make_sink(job: JobFile) -> PartSink | EpochSink:
    match job.sink:
        case MirrorSettings() as settings:
            return MirrorSink.of(settings, job.source.url.kind)
        case FilesSettings(path=path, format=file_format):
            return FilesSink.of(path, file_format)
        case DeltaSettings() as settings:
            return DeltaSink.of(settings, lambda: open_session(job))
        case ConsoleSettings():
            return ConsoleSink()


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
    with acquire_lease(job, wait=standby) as lease, find_source(job) as found:
        for finding in found.findings:
            if finding.severity == "warn":
                events.note("warning", table=str(finding.table or ""), text=str(finding))
        raise_refusals(found.findings)
        state = checkpoint.job_state()
        if state is None:
            state = checkpoint.create_job_state(_first_state(job, found))
            events.note("started", job=job.job, mode=job.mode, tables=len(state.schemas), start=str(state.start))
        else:
            _check_same_job(job, found, state, events)
            events.note("resumed", job=job.job, epoch=checkpoint.committed_epoch())
        yield Held(found.server(state), state, lease)


def _first_state(job: JobFile, found: FoundSource) -> JobState:
    """Its start is durable before the first row is read: what is committed from here on comes by the log."""
    keys = tuple(SplitKey(schema.table, found.split_columns[schema.table]) for schema in found.schemas)
    start = found.first_start()
    return JobState(
        job_uuid=str(uuid.uuid4()),
        job_name=job.job,
        mode=job.mode,
        server_identity=found.identity(),
        start=start,
        prepared=(),
        created_at_us=time.time_ns() // 1000,
        schemas=found.schemas,
        memberships=found.memberships(),
        split_keys=keys if job.has_snapshot else (),
    )


def _check_same_job(job: JobFile, found: FoundSource, state: JobState, events: Events) -> None:
    """A checkpoint goes on with the job that made it, on the log that it has read."""
    if state.job_name != job.job:
        raise CheckpointError(
            f"The checkpoint {job.checkpoint} belongs to job {state.job_name}, not to {job.job}.",
            "Give each job a checkpoint folder of its own.",
        )
    now = standing(Checkpoint.at(job.checkpoint), job, state)
    _check_mode(job, now)
    if now.phase is Phase.DONE:
        read = []  # nothing is read any more
    elif now.last_high is None or now.last_high.order <= now.position.order:
        read = [now.position]
    else:
        read = [now.position, now.last_high]
    found.require_same_log(state, read)
    known = {schema.table for schema in state.schemas}
    for schema in found.schemas:
        if schema.table not in known:
            events.note(
                "warning",
                table=str(schema.table),
                text="matches source.tables, but was not there when the job started: it is not copied. "
                "Start a job of its own for it.",
            )


def _check_mode(job: JobFile, now: EnumeratorState) -> None:
    if job.mode == now.mode:
        return
    if job.mode == "incremental" and now.mode == "full+incremental":
        if now.phase is Phase.STREAM:
            return
        raise CheckpointError(
            f"Mode incremental goes on from a complete copy, but this one stands in phase {now.phase.value}.",
            "Let the job complete its copy first, in the mode that it was started in or in full+incremental.",
        )
    why = "holds no copy of the rows" if now.mode == "incremental" else "follows the log already"
    raise CheckpointError(
        f"The job file says mode {job.mode}, but the checkpoint is of mode {now.mode} and {why}.",
        f"Write mode: {now.mode}, or start over with an empty checkpoint and an empty target.",
    )
