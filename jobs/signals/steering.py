"""Signals about the whole job: pause and resume, stop-snapshot (also of single tables), and settings. The others about tables:
`jobs/tables/parking.py`.

The driver answers them before it looks at anything else, and what they have set follows from the answered signals: a driver
that dies in between leaves nothing half done.
"""

import time

from pydantic import ValidationError

from tidemark.conf.contradictions import contradictions
from tidemark.conf.model import JobFile
from tidemark.conf.problems import dotted
from tidemark.conf.quantities import Every
from tidemark.conf.section import form_of
from tidemark.conf.tables import TableName
from tidemark.conf.yaml_tree import Place, YamlRefusedError, read_tree, to_plain
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.monitoring.times import time_text
from tidemark.jobs.recovered_state import recover_state
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobFileError, PausedError
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState
from tidemark.state.plan import Exhausted
from tidemark.state.remedies import in_shell
from tidemark.state.signals import NOT_PAUSED, OF_THE_FILE, Answer, Signal, Steering, steering_of
from tidemark.state.table import TableId

SETTINGS = (
    "snapshot.parallelism",
    "snapshot.max_rows_per_second",
    "snapshot.max_replica_lag_seconds",
    "log.max_batch_bytes",
    "log.max_batch_seconds",
)
"""The keys of the job file that `tidemark signal … set` may change: only future plans depend on them."""

RESUME = "tidemark signal JOB.yaml resume"


def resume_of(table: TableId) -> str:
    """The command after which splits of the table are read again."""
    return f"{RESUME} --table {in_shell(TableName(table.database, table.name))}"


def steering_at(checkpoint: Checkpoint) -> Steering:
    """The settings that the answered signals have made."""
    return steering_of(checkpoint.signals().values())


def with_setting(job: JobFile, key: str, value: str) -> JobFile:
    """Returns the job file with another value of one of SETTINGS, written as in the file. Raises JobFileError."""
    if key not in SETTINGS:
        raise JobFileError(f"signal set can't change {key}.", f"It can change {', '.join(SETTINGS)}.")
    if value == OF_THE_FILE:
        return job
    name, _, field = key.partition(".")
    section = getattr(job, name)
    form = form_of(type(section).model_fields[field])
    try:
        text = "null" if value == "none" else value
        plain = to_plain(read_tree(text, lambda line: Place(key, line)), text_at=lambda path: False)
        checked = getattr(type(section).model_validate({field: plain}), field)
    except (ValidationError, YamlRefusedError):
        raise JobFileError(
            f"{key} must be {form}, or {OF_THE_FILE}.", f"Write tidemark signal JOB.yaml set {key}=VALUE."
        ) from None
    changed = job.model_copy(update={name: section.model_copy(update={field: checked})})
    found = contradictions(changed)
    if found:
        text = "; ".join(f"{dotted(path)} {text}" for path, text in found)
        raise JobFileError(f"{key}={value} does not fit the job file: {text}.", "Write another value.")
    return changed


def steered(job: JobFile, steering: Steering) -> JobFile:
    """Returns the job file with what signals have set. A setting that does not fit the job file any more is left out. While no
    splits are read, the log is followed, whatever `snapshot.interleave` says: the server would drop it."""
    for key, value in steering.settings:
        try:
            job = with_setting(job, key, value)
        except JobFileError:
            continue
    if steering.stopped_us is not None or steering.stopped_tables:
        job = job.model_copy(update={"snapshot": job.snapshot.model_copy(update={"interleave": True})})
    return job


def answer_steering(job: JobFile, state: JobState) -> Steering:
    """Answers the open signals about the whole job, and those that stop the reading of a table's splits, durably. Returns
    what all of them have set. Only the lease's holder may."""
    checkpoint = Checkpoint.at(job.checkpoint)
    checkpoint.answer_repeated()
    signals = checkpoint.signals()
    for number, (signal, answer) in signals.items():
        if answer is None and (signal.table is None or signal.kind == "stop-snapshot"):
            new = _answer(job, state, signal, steering_of(signals.values()))
            checkpoint.create_answer(number, new)
            signals[number] = signal, new
            failpoint("signals.answered")
    return steering_of(signals.values())


def _answer(job: JobFile, state: JobState, signal: Signal, now: Steering) -> Answer:
    accepted, text = True, ""
    match signal.kind:
        case "stop-snapshot" if signal.table is not None and job.has_snapshot:
            reads = recover_state(Checkpoint.at(job.checkpoint), job, state).tables
            read = {table.table for table in reads if isinstance(table.cursor, Exhausted)}
            known = {schema.table for schema in state.schemas} | state.left_tables
            accepted = signal.table in known - read
            text = "No more splits of it are read."
            if not accepted:
                why = (
                    "All its splits are read or planned" if signal.table in read else "The job does not copy this table"
                )
                text = f"{why}."
        case "pause":
            text = "The job is paused."
        case "resume":
            text = NOT_PAUSED if now.paused_us is None and now.stopped_us is None else "The job continues."
        case "stop-snapshot":
            accepted = job.has_snapshot
            text = "No more splits are read." if accepted else f"Mode {job.mode} reads no splits."
        case "set":
            try:
                with_setting(job, signal.setting, signal.value)
                text = "It holds from the next epoch on."
            except JobFileError as error:
                accepted, text = False, error.message
        case "accept-server":
            text = f"The job goes on at the server {signal.value} if that one answers."
        case "refused":
            accepted, text = False, signal.value
        case _:
            accepted, text = False, "This signal needs a table."
    return Answer(accepted, text, time.time_ns() // 1000)


def require_goes_on(job: JobFile, steering: Steering) -> None:
    """Raises PausedError if the job is paused and the run would have to wait, but is one that ends by itself."""
    if steering.paused_us is not None and not waits(job):
        raise PausedError(
            f"The job has been paused by a signal since {time_text(steering.paused_us)} UTC: nothing is copied.",
            f"{RESUME}, then run the job again.",
        )


def waits(job: JobFile) -> bool:
    """True if a run goes on until it is stopped, so that it can wait for a signal."""
    return isinstance(job.trigger, Every) and job.mode != "full"


def kept_log(job: JobFile) -> str:
    """Returns a sentence about the source's log during a pause."""
    return log_of_slot(job) or "The server must keep its log meanwhile."


def log_of_slot(job: JobFile) -> str:
    """Returns a sentence about the log that a replication slot keeps while nothing reads it, "" for a source without slots."""
    has_slot = job.source.url.kind == "postgresql"
    return "Meanwhile the replication slot keeps the server's log: watch the disk." if has_slot else ""


def tell_steering(job: JobFile, steering: Steering, events: Events) -> None:
    """Says what signals have set, if they have set anything."""
    if steering.paused_us is not None:
        since = f"The job is paused since {time_text(steering.paused_us)} UTC: no epochs are planned."
        text = f"{since} {kept_log(job)} {RESUME} ends it."
        events.note("paused", text=text)
    if steering.stopped_us is not None:
        text = f"No splits are read since {time_text(steering.stopped_us)} UTC; the log is followed. {RESUME} ends it."
        events.note("snapshot_stopped", text=text)
    for table in steering.stopped_tables:
        text = f"No splits of it are read; the log is followed. {resume_of(table)} ends it."
        events.note("snapshot_stopped", table=str(table), text=text)
    if steering.settings:
        events.note("settings", text="Signals have set: " + ", ".join(f"{k}={v}" for k, v in steering.settings))
