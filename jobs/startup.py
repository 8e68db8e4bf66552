"""Job startup: from a job file to a job that may run. Takes the lease, checks the source, makes the state durable, prepares
the sink."""

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tidemark.conf.model import JobFile
from tidemark.conf.quantities import Every
from tidemark.jobs.epoch.write_parts import Writing
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.monitoring.run_record import RunRecorder
from tidemark.jobs.monitoring.times import time_text
from tidemark.jobs.recovered_state import (
    is_going_back,
    needed_log,
    reached_before,
    recover_state,
    require_known_tables,
    rolled_back_from,
)
from tidemark.jobs.recovery.another_server import follows_another_server
from tidemark.jobs.recovery.late_report import removes_late_report
from tidemark.jobs.recovery.lost_log import reads_all_again
from tidemark.jobs.recovery.lost_rows import require_published
from tidemark.jobs.recovery.proven_log import require_known_log
from tidemark.jobs.recovery.regained_log import regains_log
from tidemark.jobs.recovery.server_upgrade import tidy_marks
from tidemark.jobs.recovery.set_back import MAX_IN_A_ROW, goes_back, lacks_only_the_driver
from tidemark.jobs.signals.repairs import read_again
from tidemark.jobs.signals.signal_table import SignalTable
from tidemark.jobs.signals.steering import (
    answer_steering,
    log_of_slot,
    require_goes_on,
    steered,
    steering_at,
    tell_steering,
)
from tidemark.jobs.sinks import make_sink, sink_identity, sink_needs
from tidemark.jobs.sources import acquire_lease, find_source
from tidemark.jobs.tables.discovery import Discovery
from tidemark.jobs.tables.job_tables import (
    Admit,
    TablesAlteredError,
    accepted,
    first_job_state,
    require_same_conditions,
    require_tables,
    with_later_tables,
)
from tidemark.jobs.tables.kinds_of_change import dropped_columns
from tidemark.jobs.tables.parking import (
    all_parked,
    answer_signals,
    can_t_come_back,
    comes_back_at_us,
    has_away,
    is_due,
    is_excluded,
    known_tables,
    leaving_tables,
    open_signals,
    park_absent,
    parks,
    parks_altered_too,
    pause_left,
    present_us,
    raise_with_way_back,
    require_tables_left,
    stays_unfinished,
    take_out,
    tell_parked,
    to_be_found,
    unfinished_epoch,
    waiting_tables,
)
from tidemark.jobs.tables.schema_changes import as_schema_change, changes_columns
from tidemark.readers.findings import Finding, raise_passing, raise_refusals
from tidemark.readers.projection.settings import projections_of, require_same_projections
from tidemark.readers.source import FoundSource, Lease, SourceServer
from tidemark.sinks.fencing import require_planned, require_same_time, taken_over
from tidemark.sinks.sink import Adapts, DropsColumns, JobIdentity, ReplacesRanges, Sink, Written, raise_problems
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import (
    CheckpointError,
    JobHeldError,
    NothingSelectedError,
    SinkError,
    SinkUnavailableError,
    SourceUnavailableError,
    TableGoneError,
    TablesParkedError,
    TidemarkError,
)
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState, Left
from tidemark.state.phase import Phase
from tidemark.state.plan import EnumeratorState
from tidemark.state.projection import outputs_of
from tidemark.state.remedies import START_OVER, reason
from tidemark.state.signals import UNSTEERED, Steering
from tidemark.state.table import TableId, TableSchema

WAIT_SECONDS = 2.0
"""The time between two looks for signals while all tables of a job wait."""


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job whose lease this process holds and whose state is durable. `steering`: what signals have set. `looked_at_us`: when
    the start looked for tables, microseconds since 1970: it counts for those that wait."""

    server: SourceServer
    state: JobState
    lease: Lease
    steering: Steering = UNSTEERED
    looked_at_us: int = 0

    def identity(self, owner: int) -> JobIdentity:
        return JobIdentity(self.state.job_uuid, self.state.job_name, owner)

    def require_lease(self) -> None:
        """Raises JobHeldError once the lease is lost, SourceUnavailableError if the source was out of reach for too long,
        SourceNotUsableError if it refuses the lease."""
        require_lease(self.lease, self.state)


def require_lease(lease: Lease, state: JobState) -> None:
    """See `HeldJob.require_lease`."""
    if not lease.held():
        if lease.cause is not None:
            raise lease.cause
        raise JobHeldError(
            f"The lease on job {state.job_name} was lost.",
            "Check the connection to the source. Run the job again when no other driver runs it.",
        )


@dataclass(frozen=True, slots=True)
class OpenedJob:
    """A held job whose sink is ready. `job`: its job file, with the settings of signals. `again` opens it once more under the
    same lease: tables may have left or joined. `finishes`: only the planned epoch is to run, before tables leave; then the job
    must be opened again. `rows`: gives signals while it runs. `began_us`: when the run began, microseconds since 1970.
    `discovery`: looks for new tables while it runs. `taken_again`: the newest committed epoch, each time that the target had to
    be taken over again."""

    job: JobFile
    held: HeldJob
    writing: Writing
    again: Callable[[], "OpenedJob"]
    began_us: int
    discovery: Discovery
    finishes: bool = False
    rows: SignalTable | None = None
    taken_again: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Trouble:
    """The findings of the attempts at one start. `refused`: tables that can't come back now. `kept`: tables that are to
    leave, but only once the unfinished epoch is committed: nothing of them is checked before. `signals`: those that were open
    when the newest attempt began. `rows`: the table of the source that gives signals. `began_us`, `discovery`: as in OpenedJob.
    `looked_at_us`: as in HeldJob, of the newest attempt."""

    rows: SignalTable | None = None
    began_us: int = 0
    discovery: Discovery | None = None
    looked_at_us: int = 0
    refused: set[TableId] = field(default_factory=set)
    kept: set[TableId] = field(default_factory=set)
    signals: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Admission:
    """An `Admit`."""

    job: JobFile
    sink: Sink

    def __call__(self, state: JobState | None, schemas: Sequence[TableSchema]) -> None:
        if state is None:
            raise_problems(self.sink.check(schemas))
            return
        identity = JobIdentity(state.job_uuid, state.job_name)
        back = [schema for schema in schemas if schema.table in state.left_tables]
        if back and isinstance(self.sink, Adapts):
            self.sink.adapt(identity, back)
        written = Checkpoint.at(self.job.checkpoint).written_tables(state)
        raise_problems(self.sink.check(schemas, identity, written))

    def drop_columns(self, state: JobState, schema: TableSchema, output: TableSchema) -> None:
        checkpoint = Checkpoint.at(self.job.checkpoint)
        if self.job.sink.on_schema_change.drop_column != "drop" or not isinstance(self.sink, DropsColumns):
            return
        known, projection = checkpoint.newest_schemas()[schema.table]
        copied = known if projection is None else projection.output
        names = dropped_columns(known, copied, schema, output)
        if names:
            self.sink.drop_columns(JobIdentity(state.job_uuid, state.job_name, checkpoint.driver), output, names)

    def replaceable(
        self, state: JobState, schemas: Sequence[TableSchema], orders: Mapping[TableId, Mapping[str, str]]
    ) -> frozenset[TableId]:
        if not isinstance(self.sink, ReplacesRanges):
            return frozenset()
        return self.sink.replaceable(JobIdentity(state.job_uuid, state.job_name), schemas, orders)


@contextmanager
def open_job(
    job: JobFile, events: Events, *, standby: bool = False, recorder: RunRecorder | None = None
) -> Iterator[OpenedJob]:
    """Opens the job inside the `with` block. A table that can't be followed any more is parked (`on_table_error`). Raises
    JobHeldError, SourceNotUsableError, LogPositionLostError, CheckpointError, SinkError."""
    Checkpoint.at(job.checkpoint).require_writable()
    rows = None if job.signals is None else SignalTable(job, job.signals.table)
    with _leased(job, standby=standby, recorder=recorder) as (lease, number):
        yield _opened(job, events, lease, recorder, rows, time.time_ns() // 1000, Discovery(job), number)


def _opened(
    job: JobFile,
    events: Events,
    lease: Lease,
    recorder: RunRecorder | None,
    rows: SignalTable | None,
    began_us: int,
    discovery: Discovery,
    number: int | None = None,
    taken_again: Sequence[int] = (),
) -> OpenedJob:
    """`number`: of this driver, if it has one already and nothing was written to the sink with it."""
    sink = make_sink(job)
    admit = _Admission(job, sink)
    trouble = _Trouble(rows, began_us, discovery)
    while True:
        try:
            held = _held(job, events, lease, admit, recorder, trouble)
            checkpoint = Checkpoint.at(job.checkpoint)
            owner = number if number == checkpoint.newest_owner() else None
            identity, number = held.identity(owner or checkpoint.take_owner(again=True)), None
            _prepare(job, sink, identity, held.state)
        except TidemarkError as error:
            if isinstance(error, TablesParkedError) and _waits_for_tables(error, job, lease, events, recorder, trouble):
                continue
            if _is_of_others(error) or not lease.prove() or not _goes_on(error, job, sink, events, trouble):
                raise_with_way_back(
                    error, job, None if error.table is None else Checkpoint.at(job.checkpoint).job_state()
                )
        else:
            break
    schemas = {(schema.table, schema.version): schema for schema in held.state.outputs}
    writing = Writing(sink, identity, schemas)
    tell_steering(job, held.steering, events)
    again = list(taken_again)
    return OpenedJob(
        steered(job, held.steering),
        held,
        writing,
        lambda: _opened(job, events, lease, recorder, rows, began_us, discovery, taken_again=again),
        began_us,
        discovery,
        finishes=bool(trouble.kept),
        rows=rows,
        taken_again=again,
    )


def _waits_for_tables(
    error: TablesParkedError,
    job: JobFile,
    lease: Lease,
    events: Events,
    recorder: RunRecorder | None,
    trouble: _Trouble,
) -> bool:
    """Waits until a table of the job comes back by itself, a new one appears, or somebody gives a signal, if the job runs on
    and on, and has no other tables. Returns False if it does not, or if none comes back. Raises what `HeldJob.require_lease`
    does."""
    checkpoint = Checkpoint.at(job.checkpoint)
    state = checkpoint.job_state()
    if state is None or not isinstance(job.trigger, Every) or job.mode == "full":
        return False
    waiting = waiting_tables(job, state, trouble.looked_at_us)
    if not waiting:
        return False
    if recorder is not None:
        recorder.begin()
    if not is_due(waiting, present_us()):
        tell_parked(job, state, events)
        until = time_text(min(comes_back_at_us(left, trouble.looked_at_us) for left in waiting))
        news = ", for a new table," if job.source.discover_seconds else ""
        text = f"{error.message} The job waits until {until} UTC{news} or for a signal. {log_of_slot(job)}"
        events.note("waiting", text=text.rstrip())
    known = known_tables(job, state, trouble.looked_at_us)
    while not (is_due(waiting, present_us()) or open_signals(checkpoint) - trouble.signals):
        require_lease(lease, state)
        time.sleep(WAIT_SECONDS)
        failpoint("startup.waits")
        if trouble.rows is not None:
            trouble.rows.look(events)
        if trouble.discovery is not None and trouble.discovery.look(known):
            break
    _require_job(lease, state, checkpoint)
    trouble.refused.clear()
    return True


def _require_job(lease: Lease, state: JobState, checkpoint: Checkpoint) -> None:
    """For a driver that may have been frozen while it waited. Raises JobHeldError if another one has taken the job over, and
    what `HeldJob.require_lease` does."""
    while not lease.prove():
        require_lease(lease, state)  # the source does not answer now
    checkpoint.require_driver()


def _is_of_others(error: TidemarkError) -> bool:
    """True for an error that no change of the job mends: then the lease need not be proven, and perhaps can't be."""
    return isinstance(error, JobHeldError | SourceUnavailableError)


def _goes_on(error: TidemarkError, job: JobFile, sink: Sink, events: Events, trouble: _Trouble) -> bool:
    """Gives the table that the error is about its new columns, or leaves it out of this start. Returns False if the error must
    stop the job."""
    checkpoint = Checkpoint.at(job.checkpoint)
    state = checkpoint.job_state()
    if state is None:
        return False
    if error.table is None:
        if not (
            follows_another_server(error, job, state, events)
            or regains_log(error, job, state, events)
            or reads_all_again(error, job, state, events)
            or goes_back(error, job, state, sink, events)
        ):
            return False
        trouble.kept.clear()  # the unfinished epoch is passed over
        return True
    if goes_back(error, job, state, sink, events, at_start=True):
        trouble.kept.clear()
        return True
    changed = as_schema_change(error, job, state, sink)
    if changes_columns(changed, job, state, sink, events) or _leave(
        changed, job, state, events, trouble.began_us, at_start=True
    ):
        return True
    # An epoch that was read can't be written to such a copy: the table leaves before it.
    if changed is not error and _leave(error, job, state, events, trouble.began_us, at_start=True):
        return True
    if error.table in state.left_tables - trouble.refused and can_t_come_back(
        error, job, state, trouble.signals, trouble.looked_at_us
    ):
        trouble.refused.add(error.table)
        return True
    known = {schema.table for schema in state.schemas}
    if error.table in known - trouble.kept and unfinished_epoch(checkpoint) is not None:
        trouble.kept.add(error.table)
        return True
    return False


def require_another_startup(error: TidemarkError, job: JobFile, opened: OpenedJob, events: Events) -> None:
    """Makes the job ready to be opened again after an error of a run: a table gets its new columns or leaves, or all tables are
    to be read again. Raises the error if it must stop the job. Raises JobHeldError if another driver has taken the job over,
    which may be the cause of the error: what this driver knows about the job is old then."""
    state = opened.held.state
    if _is_of_others(error):
        raise error
    if not opened.held.lease.prove():
        opened.held.require_lease()
        raise_with_way_back(error, job, state)  # whether another driver runs is not known: nothing may be changed
    owner = opened.writing.job.owner
    if (newest := Checkpoint.at(job.checkpoint).newest_owner()) > owner:
        raise taken_over(opened.writing.job, newest, "the checkpoint")
    if not (
        removes_late_report(error, job, opened.writing.job, opened.writing.sink)
        or changes_columns(error, job, state, opened.writing.sink, events)
        or goes_back(error, job, state, opened.writing.sink, events)  # an older copy may lack what the table needs
        or _takes_over_again(error, job, opened, events)
        or _leave(error, job, state, events, opened.began_us)
        or follows_another_server(error, job, state, events)
        or regains_log(error, job, state, events)
        or reads_all_again(error, job, state, events)
    ):
        raise_with_way_back(error, job, state)


def _takes_over_again(error: TidemarkError, job: JobFile, opened: OpenedJob, events: Events) -> bool:
    """Lets the job be opened again, and so take over a target that has all, but was set back to before this run."""
    committed = Checkpoint.at(job.checkpoint).committed_epoch()
    if opened.taken_again.count(committed) >= MAX_IN_A_ROW:
        return False
    if not lacks_only_the_driver(error, job, opened.held.state, opened.writing.sink):
        return False
    opened.taken_again.append(committed)
    text = f"{error.message} The target has all epochs that the job has written. So the job takes it over again."
    events.note("warning", text=text)
    return True


def _leave(
    error: TidemarkError, job: JobFile, state: JobState, events: Events, began_us: int, *, at_start: bool = False
) -> bool:
    """Takes the table that the error is about out of the job, as `parks` does, and others that were altered with it."""
    if not parks(error, job, state, events, began_us, at_start=at_start):
        return False
    failpoint("tables.parked")
    parks_altered_too(error, job, events, began_us)
    return True


def _prepare(job: JobFile, sink: Sink, owner: JobIdentity, state: JobState) -> None:
    """Prepares the sink. Raises SinkError; if the job file now has another location, the message names the old one."""
    checkpoint, identity = Checkpoint.at(job.checkpoint), sink_identity(job.sink)
    known = checkpoint.sink_identity()
    relocation = None if known is None else known.relocation(identity)
    try:
        sink.prepare(owner, state.outputs, checkpoint.written_tables(state))
        written = sink.written(owner)
        _require_same_time(checkpoint, state, written)
        if written is not None:
            require_published(checkpoint, state, written)
    except (SinkError, SinkUnavailableError) as error:
        if relocation is None:
            raise
        raise type(error)(f"{error.message} {relocation}", error.remedy) from error  # about all tables
    checkpoint.create_sink_identity(identity)


def _require_same_time(checkpoint: Checkpoint, state: JobState, written: Written | None) -> None:
    """Raises SinkError if the target was set back, CheckpointError if the checkpoint was."""
    if written is None:
        return
    committed, planned = checkpoint.committed_epoch(), max(checkpoint.plan_epochs(), default=0)
    if is_going_back(checkpoint, state):
        require_planned(written.last_epoch, planned, "The target")
        return
    reached = reached_before(checkpoint, state, committed, planned)
    if reached is not None:  # None: the job was started by an older version
        require_same_time(written, reached, committed, planned)


@contextmanager
def hold_job(job: JobFile, events: Events) -> Iterator[HeldJob]:
    """Holds the job inside the `with` block, without its sink. No table joins it."""
    with _leased(job, standby=False, recorder=None) as (lease, _):
        yield _held(job, events, lease, None, None, _Trouble())


@contextmanager
def _leased(job: JobFile, *, standby: bool, recorder: RunRecorder | None) -> Iterator[tuple[Lease, int | None]]:
    """Takes the lease first, because only its holder may write the checkpoint, and the driver's number, None at the job's first
    start. `recorder` records the run."""
    recording = contextlib.nullcontext() if recorder is None else recorder.recording()
    with acquire_lease(job, wait=standby) as lease, recording:
        checkpoint = Checkpoint.at(job.checkpoint)
        checkpoint.remove_leftovers()
        # Before the state is read: what earlier drivers add from here on does not count.
        yield lease, checkpoint.take_first_owner()


def _held(
    job: JobFile, events: Events, lease: Lease, admit: Admit | None, recorder: RunRecorder | None, trouble: _Trouble
) -> HeldJob:
    """Runs the checks, closes their connection, and makes the state durable. `admit` is called before tables join the job;
    if it is None, none join."""
    for attempts_left in reversed(range(START_ATTEMPTS)):
        try:
            held = _looked_for(job, events, lease, admit, trouble)
            break
        except (TablesAlteredError, TableGoneError):
            if not attempts_left:
                raise
    if recorder is not None:
        recorder.begin()
    return held


START_ATTEMPTS = 5
"""How often a start looks for the tables, if some are altered or dropped while it takes their start position."""


def _looked_for(job: JobFile, events: Events, lease: Lease, admit: Admit | None, trouble: _Trouble) -> HeldJob:
    state, steering, opens = Checkpoint.at(job.checkpoint).job_state(), UNSTEERED, admit is not None
    is_new, trouble.looked_at_us = state is None, present_us()
    if state is not None:
        _require_same_settings(job, state, events)
        if opens:
            if trouble.rows is not None:
                trouble.rows.look_now(events)
            steering = answer_steering(job, state)
            require_goes_on(job, steering)
            trouble.signals = open_signals(Checkpoint.at(job.checkpoint))
            state = pause_left(job, state, trouble.signals)
        state = _without_leaving_tables(job, state, events, trouble, opens=opens)
    try:
        # Later signals wait for the next start: they must not change what is done for these.
        seen = trouble.signals if opens else None
        hidden = trouble.refused | trouble.kept
        if state is not None and {schema.table for schema in state.schemas} <= trouble.kept:
            hidden = trouble.refused  # a source is not looked at without tables
        wanted = to_be_found(job, state, hidden, seen, trouble.looked_at_us)
        with find_source(wanted, state) as found:
            state = _checked_state(job, found, events, admit, trouble)
            if is_new and trouble.rows is not None:
                trouble.rows.look_now(events)
            if trouble.signals:
                steering = steering_at(Checkpoint.at(job.checkpoint))  # signals about tables are answered now, too
            return HeldJob(found.server(_but(state, trouble.kept)), state, lease, steering, trouble.looked_at_us)
    except NothingSelectedError as error:
        if error.table is not None or state is None or state.schemas or not has_away(job, state):
            raise
        if opens:
            state = park_absent(job, state, {}, (), trouble.looked_at_us)
        raise all_parked(job, state) from error


def _require_same_settings(job: JobFile, state: JobState, events: Events) -> None:
    """Raises CheckpointError unless the checkpoint belongs to this job, its target and its mode. No table leaves before."""
    checkpoint = Checkpoint.at(job.checkpoint)
    if state.job_name != job.job:
        raise CheckpointError(
            f"The checkpoint {job.checkpoint} belongs to job {state.job_name}, not to {job.job}.",
            "Give each job a checkpoint folder of its own.",
        )
    known = checkpoint.sink_identity()
    if known is not None:
        known.require_same(sink_identity(job.sink))
    healed = checkpoint.heal_newest_plan()
    if healed is not None:
        text = f"A power cut has left an incomplete plan of epoch {healed}. Nothing of it had run, so it is made again."
        events.note("warning", text=text)
    require_known_tables(checkpoint, state)
    _check_mode(job, recover_state(checkpoint, job, state), events)


def _without_leaving_tables(
    job: JobFile, state: JobState, events: Events, trouble: _Trouble, *, opens: bool
) -> JobState:
    """Takes tables out of the job, or notes that they are to leave once an unfinished epoch is committed. `opens` False: the
    job is only held. Then no signal is taken, and tables stay if there is such an epoch."""
    leaving = leaving_tables(job, state, trouble.signals)
    if not leaving:
        return state
    checkpoint = Checkpoint.at(job.checkpoint)
    # Where each table has a commit of its own, the others get the same without it.
    leaves_now = sink_needs(job.sink).commits_tables and job.mode == "full+incremental"
    is_unfinished = unfinished_epoch(checkpoint) is not None
    if not is_unfinished or (opens and (leaves_now or not stays_unfinished(job, checkpoint, state))):
        return take_out(job, state, leaving, events, trouble.signals)
    if opens:
        trouble.kept |= {schema.table for schema in leaving}
    return state


def _but(state: JobState, tables: Collection[TableId]) -> JobState:
    """The job without these tables, of which nothing is to be checked."""
    return state.without([Left(schema.table, schema.version) for schema in state.schemas if schema.table in tables])


def _checked_state(
    job: JobFile, found: FoundSource, events: Events, admit: Admit | None, trouble: _Trouble
) -> JobState:
    """Returns the job's durable state. Raises everything that prevents a start."""
    for finding in found.findings:
        if finding.severity == "warn":
            events.note("warning", table=str(finding.table or ""), text=str(finding))
    checkpoint = Checkpoint.at(job.checkpoint)
    state = checkpoint.job_state()
    if state is not None:
        raise_passing(found.findings)
    raise_refusals(found.findings if state is None else _of_its_tables(found.findings, job, state, events, trouble))
    if state is None:
        if admit is not None:  # before anything is created, in the source too
            admit(None, outputs_of(found.schemas, projections_of(job, found.schemas)))
        state = checkpoint.create_job_state(first_job_state(job, found))
        failpoint("startup.created")
        facts = {"source": found.name, "watermarks": found.watermarks()}
        events.note("started", job=job.job, mode=job.mode, tables=len(state.schemas), start=str(state.start), **facts)
        return state
    _check_same_job(job, found, _but(state, trouble.kept), events)
    facts = {"source": found.name, "watermarks": found.watermarks()}
    events.note("resumed", job=job.job, epoch=checkpoint.committed_epoch(), **facts)
    if admit is not None:
        tidy_marks(job, found, state)
    if trouble.kept:
        return state  # tables join, and signals are answered, once the unfinished epoch is committed
    before, state = state, with_later_tables(job, found, state, events, admit)
    if admit is None:
        return state
    failpoint("signals.joined")
    tables = {schema.table for schema in accepted(found)}
    refusals = [f for f in found.findings if f.severity == "refuse"]
    reasons = {f.table: reason(f.message, f.remedy) for f in refusals if f.table is not None}
    state = answer_signals(job, state, reasons, tables, before, trouble.signals)
    state = read_again(job, found, state, events, trouble.signals)
    state = park_absent(job, state, reasons, tables, trouble.looked_at_us)
    require_tables_left(job, state)
    tell_parked(job, state, events)
    return state


def _of_its_tables(
    findings: Iterable[Finding], job: JobFile, state: JobState, events: Events, trouble: _Trouble
) -> Iterator[Finding]:
    """Yields the findings without refusals of tables that the job does not have: they do not join, and the others go on."""
    known = {schema.table for schema in state.schemas}
    found = list(findings)
    judged = known - trouble.kept
    if judged and judged <= {finding.table for finding in found if finding.severity == "refuse"}:
        found = [replace(finding, table=None) for finding in found]  # it is not one table's trouble: no table is parked
    for finding in found:
        if finding.table in trouble.kept or (finding.table is not None and is_excluded(job, finding.table)):
            continue  # such as settings of columns of a table that is to leave
        is_new = finding.table is not None and finding.table not in known
        has_left = finding.table in state.left_tables
        if is_new and finding.severity == "refuse" and (has_left or job.source.on_table_error == "park"):
            text = f"It does not join the job. {finding.message} {finding.remedy}"
            events.note("warning", table=str(finding.table), text=text)
        else:
            yield finding


def _check_same_job(job: JobFile, found: FoundSource, state: JobState, events: Events) -> None:
    """Raises unless the checkpoint's tables have the settings of the job file, and are those of the source and its log."""
    require_same_conditions(job, state)
    require_same_projections(job, state.schemas, state.projections, found.schemas)
    now = recover_state(Checkpoint.at(job.checkpoint), job, state)
    is_done = now.phase is Phase.DONE
    if not is_done:
        require_tables(job, found, state, events)
    # Without tables nothing is read either. If they come back, the log is asked for then.
    if is_done or not state.schemas:
        found.require_same_log(state, [])
        return
    copied = rolled_back_from(state, now)
    found.require_same_log(state, [*needed_log(now, state), *(position for position, _ in copied)])
    for position, known in copied:
        require_known_log(found, state, position, known)


def _check_mode(job: JobFile, now: EnumeratorState, events: Events) -> None:
    if job.mode == now.mode:
        return
    if job.mode == "incremental" and now.mode == "full+incremental":
        if now.phase is Phase.STREAM:
            text = (
                f"The job file says mode incremental. The job, which has mode {now.mode}, has copied all rows and continues. "
                "But no rows are read any more: of tables that join, only changes are copied, and no table is read again."
            )
            events.note("warning", text=text)
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
