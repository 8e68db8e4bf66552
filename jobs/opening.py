"""From a job file to a job that may start: the source looked at, held and checked, its state durable, the sink ready."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from conf.model import JobFile
from conf.sink import ConsoleSink as ConsoleSettings
from conf.sink import DeltaSink as DeltaSettings
from conf.sink import FilesSink as FilesSettings
from conf.sink import MirrorSink as MirrorSettings
from jobs.checkpoint import Checkpoint
from jobs.events import Events
from jobs.job_tables import Admit, first_job_state, require_tables, with_later_tables
from jobs.projections import require_same_projections
from jobs.session import open_session
from jobs.sources import FoundSource, Lease, SourceServer, acquire_lease, find_source
from jobs.standing import standing
from jobs.write_parts import Writing
from readers.findings import raise_refusals
from sinks.console import ConsoleSink
from sinks.files import FilesSink
from sinks.sink import EpochSink, JobIdentity, PartSink, raise_problems
from state.errors import CheckpointError, JobHeldError
from state.job_state import JobState
from state.phase import Phase
from state.plan import EnumeratorState
from state.table import TableSchema


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
    """Loads what this job's kind of sink needs, and not the libraries of the others."""
    match job.sink:
        case MirrorSettings() as settings:
            from sinks.mirror.sink import MirrorSink

            return MirrorSink.of(settings, job.source.url.kind)
        case FilesSettings(path=path, format=file_format):
            return FilesSink.of(path, file_format, Checkpoint.at(job.checkpoint).store)
        case DeltaSettings() as settings:
            from sinks.delta.sink import DeltaSink

            return DeltaSink.of(settings, Checkpoint.at(job.checkpoint).store, lambda: open_session(job))
        case ConsoleSettings():
            return ConsoleSink()


@contextmanager
def open_job(job: JobFile, events: Events, *, standby: bool = False) -> Iterator[Opened]:
    """The job while inside. Raises JobHeldError, SourceNotUsableError, LogPositionLostError, CheckpointError, SinkError."""
    sink = make_sink(job)

    def admit(identity: JobIdentity, schemas: Sequence[TableSchema]) -> None:
        raise_problems(sink.check(schemas, identity))

    with hold_job(job, events, standby=standby, admit=admit) as held:
        sink.prepare(held.identity, held.state.outputs)
        schemas = {(schema.table, schema.version): schema for schema in held.state.outputs}
        yield Opened(held, Writing(sink, held.identity, schemas))


@contextmanager
def hold_job(job: JobFile, events: Events, *, standby: bool = False, admit: Admit | None = None) -> Iterator[Held]:
    """The lease first, for nobody else may write the checkpoint; then the checks; then the state, durable.

    `admit` is asked before tables join the job; without it none do."""
    checkpoint = Checkpoint.at(job.checkpoint)
    with acquire_lease(job, wait=standby) as lease, find_source(job) as found:
        for finding in found.findings:
            if finding.severity == "warn":
                events.note("warning", table=str(finding.table or ""), text=str(finding))
        raise_refusals(found.findings)
        state = checkpoint.job_state()
        if state is None:
            state = checkpoint.create_job_state(first_job_state(job, found))
            facts = {"source": found.name, "watermarks": found.watermarks()}
            events.note(
                "started", job=job.job, mode=job.mode, tables=len(state.schemas), start=str(state.start), **facts
            )
        else:
            _check_same_job(job, found, state, events)
            facts = {"source": found.name, "watermarks": found.watermarks()}
            events.note("resumed", job=job.job, epoch=checkpoint.committed_epoch(), **facts)
            state = with_later_tables(job, found, state, events, admit)
        yield Held(found.server(state), state, lease)


def _check_same_job(job: JobFile, found: FoundSource, state: JobState, events: Events) -> None:
    """A checkpoint goes on with the job that made it, on the log that it has read."""
    if state.job_name != job.job:
        raise CheckpointError(
            f"The checkpoint {job.checkpoint} belongs to job {state.job_name}, not to {job.job}.",
            "Give each job a checkpoint folder of its own.",
        )
    require_same_projections(job, state.schemas, state.projections)
    now = standing(Checkpoint.at(job.checkpoint), job, state)
    _check_mode(job, now)
    if now.phase is Phase.DONE:
        read = []  # nothing is read any more
    else:
        require_tables(job, found, state, events)
        read = [now.position]
        if now.last_high is not None and now.last_high.order > now.position.order:
            read.append(now.last_high)
    found.require_same_log(state, read)


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
