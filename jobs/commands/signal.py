"""`tidemark signal`: gives signals to a job, whether it runs or not, and lists them."""

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
from tidemark.jobs.signals.requests import signal_that_accepts, signals_about, signals_that_set
from tidemark.jobs.signals.steering import kept_log, steering_at
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.job_state import JobState
from tidemark.state.signals import NOT_PAUSED, Answer, Signal, SignalKind
from tidemark.state.table import TableId

_OF_TABLES = {
    "pause": "pause {}",
    "resume": "resume {}",
    "stop-snapshot": "read no more splits of {}",
}
_OF_JOB = {"pause": "pause the job", "resume": "resume the job", "stop-snapshot": "read no more splits"}
_BY = "The running driver does it after its epoch. If none runs, the next run does it."
_TABLE_LEFT = "the table has left the job since, or was read again as a whole."


def resnapshot(
    job: JobFile, tables: Sequence[TableName], *, keys: Sequence[str] = (), where: str | None = None
) -> None:
    """Asks for the rows of tables to be read again, or, if `keys` or `where` are given, for those of a part of a table.
    `keys`: each a key, or a range. Raises JobFileError, and gives no signal, if a table is not the job's."""
    checkpoint, state = _started(job)
    wanted = signals_about(job, state, "resnapshot", tables, keys=keys, where=where)
    for signal in wanted:
        what = f"{signal}: read its rows again" if signal.is_partial else f"read all rows of {signal.table} again"
        print(f"signal {checkpoint.create_signal(signal)}: {what}. {_BY}")


def read_keys_again(job: JobFile, table: TableId, repair: Repair) -> None:
    """Asks for the rows of these keys to be read again."""
    wanted = Signal(table, _now_us(), "repair", keys=repair.keys, ranges=repair.ranges, whole=repair.whole)
    number = Checkpoint.at(job.checkpoint).create_signal(wanted)
    print(f"signal {number}: read the rows of {table} with {_count(repair)} again. {_BY}")


def _count(repair: Repair) -> str:
    return "1 key" if len(repair.keys) == 1 else f"{len(repair.keys):,} keys"


def pause(job: JobFile, tables: Sequence[TableName]) -> None:
    """Asks for the job to be paused, or, if `tables` are given, for these to leave it. Raises JobFileError as `resnapshot`."""
    _give(job, "pause", tables)
    if not tables:
        print(kept_log(job))


def resume(job: JobFile, tables: Sequence[TableName]) -> None:
    """Asks the job to continue, or, if `tables` are given, asks for these to come back, or for their splits to be read.
    Raises JobFileError as `resnapshot`."""
    state = _give(job, "resume", tables)
    if tables:
        return
    paused = ", ".join(str(left.table) for left in state.left if left.paused)
    if paused:
        print(f"These tables stay paused: {paused}. Name them with --table to read them again.")
    stopped = ", ".join(map(str, steering_at(Checkpoint.at(job.checkpoint)).stopped_tables))
    if stopped:
        print(f"No splits of these tables are read: {stopped}. Name them with --table to continue with them.")


def stop_snapshot(job: JobFile, tables: Sequence[TableName] = ()) -> None:
    """Asks the job to read no more splits, or, if `tables` are given, no more splits of these. Raises JobFileError as
    `resnapshot` does, and if the job reads no splits."""
    _give(job, "stop-snapshot", tables)


def set_settings(job: JobFile, assignments: Sequence[str]) -> None:
    """Asks for settings to have other values. Raises JobFileError, and gives no signal, if one is not allowed."""
    checkpoint, _ = _started(job)
    pairs = [assignment.partition("=") for assignment in assignments]
    for signal in signals_that_set(job, [(key, value) for key, _, value in pairs]):
        number = checkpoint.create_signal(signal)
        text = f"{signal.setting}={signal.value} holds from the next epoch on, also in later runs."
        print(f"signal {number}: {text}")


def accept_server(job: JobFile, identifiers: Sequence[str]) -> None:
    """Allows the job to go on at another server, which is named by its system identifier. Raises JobFileError as
    `signal_that_accepts` does."""
    checkpoint, state = _started(job)
    signal = signal_that_accepts(job, state, identifiers)
    number = checkpoint.create_signal(signal)
    print(f"signal {number}: go on at the server {signal.value} as soon as that one answers. Run the job.")


def _started(job: JobFile) -> tuple[Checkpoint, JobState]:
    checkpoint = Checkpoint.at(job.checkpoint)
    return checkpoint, required_state(checkpoint, job)


def _give(job: JobFile, kind: SignalKind, tables: Sequence[TableName]) -> JobState:
    checkpoint, state = _started(job)
    for signal in signals_about(job, state, kind, tables):
        what = _OF_JOB[kind] if signal.table is None else _OF_TABLES[kind].format(signal.table)
        print(f"signal {checkpoint.create_signal(signal)}: {what}. {_BY}")
    return state


def list_signals(job: JobFile) -> None:
    """Prints the job's signals, oldest first."""
    checkpoint = Checkpoint.at(job.checkpoint)
    state = required_state(checkpoint, job)
    signals = checkpoint.signals()
    progress = read_progress(checkpoint, job, state, checkpoint.committed_epoch())
    newest = {signal.table: number for number, (signal, answer) in signals.items() if _reads(signal, answer)}
    repairs = _repairs(checkpoint, job, state)
    drawn = Table(box=None, pad_edge=False)
    for heading in ("signal", "given", "what", "state"):
        drawn.add_column(heading)
    for number, (signal, answer) in signals.items():
        told = _state_of(signal, answer, state, progress, is_newest=newest.get(signal.table) == number)
        if signal.is_partial and answer is not None and answer.accepted:
            told = repairs.get(number, f"failed, accepted {time_text(answer.at_us)}: {_TABLE_LEFT}")
        row = "" if signal.row is None else f" (row {signal.row.id})"
        drawn.add_row(str(number), time_text(signal.at_us), redact(f"{signal}{row}"), redact(told))
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


def _reads(signal: Signal, answer: Answer | None) -> bool:
    """True if because of the signal all rows of its table are read."""
    of_table = signal.table is not None and not signal.is_partial and signal.kind in {"resnapshot", "resume"}
    return of_table and answer is not None and answer.accepted and answer.text != NOT_PAUSED


def _state_of(
    signal: Signal, answer: Answer | None, state: JobState, progress: JobProgress | None, *, is_newest: bool
) -> str:
    if answer is None:
        return "requested"
    if not answer.accepted:
        return f"failed {time_text(answer.at_us)}: {answer.text}"
    is_in_job = any(schema.table == signal.table for schema in state.schemas)
    if not is_newest or not is_in_job:
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
