"""Job startup: from a job file to a job that may run. Takes the lease, checks the source, makes the state durable, prepares
the sink."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tidemark.conf.model import JobFile
from tidemark.jobs.job_tables import (
    Admit,
    first_job_state,
    require_same_conditions,
    require_tables,
    with_later_tables,
)
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.monitoring.run_record import RunRecorder
from tidemark.jobs.recovered_state import recover_state
from tidemark.jobs.sinks import make_sink, sink_identity
from tidemark.jobs.sources import acquire_lease, find_source
from tidemark.jobs.write_parts import Writing
from tidemark.readers.findings import raise_refusals
from tidemark.readers.projection.settings import require_same_projections
from tidemark.readers.source import FoundSource, Lease, SourceServer
from tidemark.sinks.fencing import Written, require_same_time
from tidemark.sinks.sink import JobIdentity, Sink, raise_problems
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError, JobHeldError, SinkError
from tidemark.state.job_state import JobState
from tidemark.state.phase import Phase
from tidemark.state.plan import EnumeratorState
from tidemark.state.reached import NOTHING_REACHED
from tidemark.state.remedies import START_OVER
from tidemark.state.table import TableSchema


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job whose lease this process holds and whose state is durable."""

    server: SourceServer
    state: JobState
    lease: Lease

    def identity(self, owner: int) -> JobIdentity:
        return JobIdentity(self.state.job_uuid, self.state.job_name, owner)

    def require_lease(self) -> None:
        """Raises JobHeldError once the lease is lost."""
        if not self.lease.held():
            raise JobHeldError(
                f"The lease on job {self.state.job_name} was lost.",
                "Check the connection to the source. Run the job again when no other driver runs it.",
            )


@dataclass(frozen=True, slots=True)
class OpenedJob:
    """A held job whose sink is ready."""

    held: HeldJob
    writing: Writing


@contextmanager
def open_job(
    job: JobFile, events: Events, *, standby: bool = False, recorder: RunRecorder | None = None
) -> Iterator[OpenedJob]:
    """Opens the job inside the `with` block. Raises JobHeldError, SourceNotUsableError, LogPositionLostError,
    CheckpointError, SinkError."""
    sink = make_sink(job)

    def admit(state: JobState, schemas: Sequence[TableSchema]) -> None:
        written = Checkpoint.at(job.checkpoint).written_tables(state)
        raise_problems(sink.check(schemas, JobIdentity(state.job_uuid, state.job_name), written))

    with hold_job(job, events, standby=standby, admit=admit, recorder=recorder) as held:
        identity = held.identity(Checkpoint.at(job.checkpoint).take_owner())
        _prepare(job, sink, identity, held.state)
        schemas = {(schema.table, schema.version): schema for schema in held.state.outputs}
        yield OpenedJob(held, Writing(sink, identity, schemas))


def _prepare(job: JobFile, sink: Sink, owner: JobIdentity, state: JobState) -> None:
    """Prepares the sink. Raises SinkError; if the job file now has another location, the message names the old one."""
    checkpoint, identity = Checkpoint.at(job.checkpoint), sink_identity(job.sink)
    known = checkpoint.sink_identity()
    relocation = None if known is None else known.relocation(identity)
    try:
        sink.prepare(owner, state.outputs, checkpoint.written_tables(state))
        _require_same_time(checkpoint, sink.written(owner))
    except SinkError as error:
        if relocation is None:
            raise
        raise SinkError(f"{error.message} {relocation}", error.remedy) from error
    checkpoint.create_sink_identity(identity)


def _require_same_time(checkpoint: Checkpoint, written: Written | None) -> None:
    """Raises SinkError if the target was set back, CheckpointError if the checkpoint was."""
    if written is None:
        return
    committed, planned = checkpoint.committed_epoch(), max(checkpoint.plan_epochs(), default=0)
    reached = NOTHING_REACHED if committed == 0 else checkpoint.plan(committed).state.reached
    if reached is not None:  # None: the job was started by an older version
        require_same_time(written, reached, committed, planned)


@contextmanager
def hold_job(
    job: JobFile,
    events: Events,
    *,
    standby: bool = False,
    admit: Admit | None = None,
    recorder: RunRecorder | None = None,
) -> Iterator[HeldJob]:
    """Holds the job inside the `with` block. Takes the lease first, because only its holder may write the checkpoint. Then
    runs the checks, closes their connection, and makes the state durable.

    `admit` is called before tables join the job; if it is None, none join. `recorder` records the run."""
    recording = contextlib.nullcontext() if recorder is None else recorder.recording()
    with acquire_lease(job, wait=standby) as lease, recording:
        with find_source(job) as found:
            state = _checked_state(job, found, events, admit)
            held = HeldJob(found.server(state), state, lease)
        if recorder is not None:
            recorder.begin()
        yield held


def _checked_state(job: JobFile, found: FoundSource, events: Events, admit: Admit | None) -> JobState:
    """Returns the job's durable state. Raises everything that prevents a start."""
    for finding in found.findings:
        if finding.severity == "warn":
            events.note("warning", table=str(finding.table or ""), text=str(finding))
    raise_refusals(found.findings)
    checkpoint = Checkpoint.at(job.checkpoint)
    state = checkpoint.job_state()
    if state is None:
        state = checkpoint.create_job_state(first_job_state(job, found))
        facts = {"source": found.name, "watermarks": found.watermarks()}
        events.note("started", job=job.job, mode=job.mode, tables=len(state.schemas), start=str(state.start), **facts)
        return state
    healed = checkpoint.heal_newest_plan()
    if healed is not None:
        text = f"A power cut has left an incomplete plan of epoch {healed}. Nothing of it had run, so it is made again."
        events.note("warning", text=text)
    _check_same_job(job, found, state, events)
    facts = {"source": found.name, "watermarks": found.watermarks()}
    events.note("resumed", job=job.job, epoch=checkpoint.committed_epoch(), **facts)
    return with_later_tables(job, found, state, events, admit)


def _check_same_job(job: JobFile, found: FoundSource, state: JobState, events: Events) -> None:
    """Raises unless the checkpoint belongs to this job, its settings and its source's log."""
    if state.job_name != job.job:
        raise CheckpointError(
            f"The checkpoint {job.checkpoint} belongs to job {state.job_name}, not to {job.job}.",
            "Give each job a checkpoint folder of its own.",
        )
    known = Checkpoint.at(job.checkpoint).sink_identity()
    if known is not None:
        known.require_same(sink_identity(job.sink))
    require_same_conditions(job, state)
    require_same_projections(job, state.schemas, state.projections)
    now = recover_state(Checkpoint.at(job.checkpoint), job, state)
    _check_mode(job, now)
    if now.phase is Phase.DONE:
        read = []  # the job reads nothing any more
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
            f"Mode incremental needs a complete copy, but this job is in phase {now.phase.value}.",
            "Run the job in mode full+incremental until its copy is complete.",
        )
    why = "has no copy of the rows" if now.mode == "incremental" else "already follows the log"
    raise CheckpointError(
        f"The job file says mode {job.mode}, but the checkpoint is of mode {now.mode} and {why}.",
        f"Write mode: {now.mode}, or {START_OVER}.",
    )
