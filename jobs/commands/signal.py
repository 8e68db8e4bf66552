"""`tidemark signal`: asks a job for something, whether it runs or not."""

import time
from collections.abc import Sequence

from rich.table import Table

from tidemark.conf.model import JobFile
from tidemark.conf.redaction import redact
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.drawing import console
from tidemark.jobs.monitoring.progress import JobProgress, read_progress
from tidemark.jobs.monitoring.times import time_text
from tidemark.jobs.reconcile.table_comparison import Repair
from tidemark.jobs.recovered_state import recover_state, required_state
from tidemark.jobs.signals.repairs import unfinished
from tidemark.jobs.signals.steering import kept_log, with_setting
from tidemark.jobs.signals.table_parts import HOW_TO_WRITE, PartRefusedError, parse_keys, require_part
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobFileError
from tidemark.state.job_state import JobState
from tidemark.state.signals import Answer, Signal, SignalKind
from tidemark.state.table import TableId

_OF_TABLES = {
    "resnapshot": "the rows of {} are read again",
    "pause": "{} leaves the job",
    "resume": "the rows of {} are read again",
}
_OF_JOB = {"pause": "the job is paused", "resume": "the job goes on", "stop-snapshot": "no more splits are read"}
_BY = "by the running driver, or at the next start."
_TABLE_LEFT = "the table has left the job since, or was read again as a whole."
SEE_ROWS = "Write a condition in the source's SQL, such as \"created_at >= '2024-01-01'\"."


def resnapshot(
    job: JobFile, tables: Sequence[TableName], *, keys: Sequence[str] = (), where: str | None = None
) -> None:
    """Asks for the rows of tables to be read again, or, if `keys` or `where` are given, for those of a part of a table.
    `keys`: each a key, or a range. Raises JobFileError, and gives no signal, if a table is not the job's."""
    required_state(Checkpoint.at(job.checkpoint), job)
    if tables and (keys or where is not None):
        _signal_parts(job, tables, keys, where)
        return
    if not tables:
        raise JobFileError(
            "signal resnapshot needs a table.", "Name it: --table database.table; more than one may be given."
        )
    _signal_tables(job, "resnapshot", tables)


def _signal_parts(job: JobFile, tables: Sequence[TableName], keys: Sequence[str], where: str | None) -> None:
    """Gives one signal for all single keys, and one for each range. Raises JobFileError, and gives none, if one is wrong."""
    checkpoint = Checkpoint.at(job.checkpoint)
    state = required_state(checkpoint, job)
    if keys and (where is not None or len(tables) > 1):
        raise JobFileError("--keys is about one table, and goes without --where.", "Give more than one signal.")
    if where == "":
        raise JobFileError("--where is empty.", "Leave it out to have all rows read again.")
    wanted, now_us = list[Signal](), _now_us()
    try:
        parsed = [parse_keys(text) for text in keys]
        single = tuple(key[0] for key in parsed if len(key) == 1)
        for table in (TableId(table.database, table.name) for table in tables):
            if where is not None:
                wanted.append(Signal(table, now_us, where=where))
            if single:
                wanted.append(Signal(table, now_us, keys=single))
            wanted += [Signal(table, now_us, span=span) for span in parsed if len(span) == 2]
        for signal in wanted:
            require_part(job, state, signal)
    except PartRefusedError as error:
        raise JobFileError(str(error), HOW_TO_WRITE if keys else SEE_ROWS) from error
    for signal in wanted:
        print(f"signal {checkpoint.create_signal(signal)}: {signal}: its rows are read again {_BY}")


def read_keys_again(job: JobFile, table: TableId, repair: Repair) -> None:
    """Asks for the rows of these keys to be read again."""
    wanted = Signal(table, _now_us(), "repair", keys=repair.keys, ranges=repair.ranges, whole=repair.whole)
    number = Checkpoint.at(job.checkpoint).create_signal(wanted)
    print(f"signal {number}: the rows of {table} with {_count(repair)} are read again {_BY}")


def _count(repair: Repair) -> str:
    return "1 key" if len(repair.keys) == 1 else f"{len(repair.keys):,} keys"


def pause(job: JobFile, tables: Sequence[TableName]) -> None:
    """Asks for the job to be paused, or, if `tables` are given, for these to leave it. Raises JobFileError as `resnapshot`."""
    if tables:
        _signal_tables(job, "pause", tables)
    else:
        _signal_job(job, "pause")
        print(kept_log(job))


def resume(job: JobFile, tables: Sequence[TableName]) -> None:
    """Asks for the job to go on, or, if `tables` are given, for these to come back. Raises JobFileError as `resnapshot`."""
    if tables:
        _signal_tables(job, "resume", tables)
    else:
        state = _signal_job(job, "resume")
        paused = ", ".join(str(left.table) for left in state.left if left.paused)
        if paused:
            print(f"These tables stay paused: {paused}. Name them with --table to read them again.")


def stop_snapshot(job: JobFile) -> None:
    """Asks for no more splits to be read. Raises JobFileError if the job reads none."""
    if not job.has_snapshot:
        raise JobFileError(f"Mode {job.mode} reads no splits.", "There is nothing to stop.")
    _signal_job(job, "stop-snapshot")


def set_settings(job: JobFile, assignments: Sequence[str]) -> None:
    """Asks for settings to have other values. Raises JobFileError, and gives no signal, if one is not allowed."""
    checkpoint = Checkpoint.at(job.checkpoint)
    required_state(checkpoint, job)
    pairs = [assignment.partition("=")[::2] for assignment in assignments]
    if not pairs:
        raise JobFileError("signal set needs a setting.", "Write tidemark signal JOB.yaml set snapshot.parallelism=2.")
    for key, value in pairs:
        with_setting(job, key, value)
    for key, value in pairs:
        number = checkpoint.create_signal(Signal(None, _now_us(), "set", key, value))
        print(f"signal {number}: {key}={value} holds for the running driver's next epoch, and at later starts.")


def _signal_job(job: JobFile, kind: SignalKind) -> JobState:
    checkpoint = Checkpoint.at(job.checkpoint)
    state = required_state(checkpoint, job)
    number = checkpoint.create_signal(Signal(None, _now_us(), kind))
    print(f"signal {number}: {_OF_JOB[kind]} {_BY}")
    return state


def _signal_tables(job: JobFile, kind: SignalKind, tables: Sequence[TableName]) -> None:
    checkpoint = Checkpoint.at(job.checkpoint)
    state = required_state(checkpoint, job)
    if job.mode != "full+incremental":
        raise JobFileError(f"Mode {job.mode} can't read rows again.", "Start another job for these tables.")
    wanted = [TableId(table.database, table.name) for table in tables]
    known = {schema.table for schema in state.schemas} | state.left_tables
    for table in wanted:
        if table not in known:
            raise JobFileError(
                f"The job does not copy {table}.", f"tidemark tables JOB.yaml lists its {len(known)} tables."
            )
        if kind != "pause" and not job.source.selects(table.database, table.name):
            raise JobFileError(
                f"The job file does not select {table}.", "Change source.tables or source.exclude_tables first."
            )
    for table in wanted:
        number = checkpoint.create_signal(Signal(table, _now_us(), kind))
        print(f"signal {number}: {_OF_TABLES[kind].format(table)} {_BY}")


def list_signals(job: JobFile) -> None:
    """Prints the job's signals, oldest first."""
    checkpoint = Checkpoint.at(job.checkpoint)
    state = required_state(checkpoint, job)
    signals = checkpoint.signals()
    progress = read_progress(checkpoint, job, state, checkpoint.committed_epoch())
    newest = {signal.table: number for number, (signal, _) in signals.items() if not signal.is_partial}
    repairs = _repairs(checkpoint, job, state)
    drawn = Table(box=None, pad_edge=False)
    for heading in ("signal", "given", "what", "state"):
        drawn.add_column(heading)
    for number, (signal, answer) in signals.items():
        told = _state_of(signal, answer, state, progress, is_newest=newest.get(signal.table) == number)
        if signal.is_partial and answer is not None and answer.accepted:
            told = repairs.get(number, f"failed, accepted {time_text(answer.at_us)}: {_TABLE_LEFT}")
        drawn.add_row(str(number), time_text(signal.at_us), redact(str(signal)), redact(told))
    console().print(drawn)


def _repairs(checkpoint: Checkpoint, job: JobFile, state: JobState) -> dict[int, str]:
    """The states of accepted signals about some rows, by signal."""
    told, count = dict.fromkeys(unfinished(checkpoint, state), "running: no rows were read yet."), 0
    now = recover_state(checkpoint, job, state)
    for count, joined in enumerate(state.joined, 1):
        for reread in joined.rereads:
            text = "its rows were read again"
            if reread.rest is not None:
                rows = state.reread_rows(reread.signal)
                text = f"{rows:,} {'row was' if rows == 1 else 'rows were'} read again so far, and more will be; the newest"
            step = (
                f"wait until the log has been read up to {joined.start}" if count > now.joined else "are being written"
            )
            told[reread.signal] = f"running: {text}, and {step}."
    for number, outcome in checkpoint.outcomes().items():
        told[number] = f"{'done' if outcome.accepted else 'failed'} {time_text(outcome.at_us)}: {outcome.text}"
    return told


def _state_of(
    signal: Signal, answer: Answer | None, state: JobState, progress: JobProgress | None, *, is_newest: bool
) -> str:
    if answer is None:
        return "requested"
    if not answer.accepted:
        return f"failed {time_text(answer.at_us)}: {answer.text}"
    reads = signal.table is not None and signal.kind in {"resnapshot", "resume"}
    is_in_job = any(schema.table == signal.table for schema in state.schemas)
    if not reads or not is_newest or not is_in_job:
        return f"done {time_text(answer.at_us)}: {answer.text}"
    tables = () if progress is None else progress.tables
    table = next((table for table in tables if table.table == str(signal.table)), None)
    if table is not None and table.complete:
        return f"done, accepted {time_text(answer.at_us)}: its rows have been read."
    total = "?" if table is None or table.splits_total is None else f"{table.splits_total:,}"
    splits = 0 if table is None else table.splits_done
    return f"accepted {time_text(answer.at_us)}: {answer.text} Read so far: {splits:,} of {total} splits."


def _now_us() -> int:
    return time.time_ns() // 1000
