"""From what a user asks for to signals: `tidemark signal` (`jobs/commands/signal.py`) and rows of the signal table
(`jobs/signals/signal_table.py`).

What is known to be wrong is refused here. The driver checks it again when it follows the signal.
"""

import time
from collections.abc import Sequence

from tidemark.conf.model import JobFile
from tidemark.conf.tables import TableName
from tidemark.jobs.signals.steering import steering_at, with_setting
from tidemark.jobs.signals.table_parts import HOW_TO_WRITE, PartRefusedError, parse_keys, require_part
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobFileError
from tidemark.state.job_state import JobState
from tidemark.state.remedies import read_again as whole_table
from tidemark.state.signals import Signal, SignalKind
from tidemark.state.table import TableId

SEE_ROWS = "Write a condition in the source's SQL, such as \"created_at >= '2024-01-01'\"."


def signals_about(
    job: JobFile,
    state: JobState,
    kind: SignalKind,
    tables: Sequence[TableName] = (),
    *,
    keys: Sequence[str] = (),
    where: str | None = None,
) -> list[Signal]:
    """Returns the signals that ask for this, of the tables, or of the whole job if there are none. `keys`: each a key, or a
    range; they and `where` are about a part of a table. Raises JobFileError if one can't be followed."""
    if (keys or where is not None) and kind != "resnapshot":
        raise JobFileError(f"signal {kind} takes no keys and no condition.", "Only resnapshot takes them.")
    if kind == "resnapshot" and not tables:
        raise JobFileError(
            "signal resnapshot needs a table.", "Name it: --table database.table; more than one may be given."
        )
    if keys or where is not None:
        return _about_parts(job, state, tables, keys, where)
    if kind == "stop-snapshot" and not job.has_snapshot:
        raise JobFileError(f"Mode {job.mode} reads no splits.", "There is nothing to stop.")
    if tables:
        return _about_tables(job, state, kind, tables)
    return [Signal(None, _now_us(), kind)]


def signals_that_set(job: JobFile, settings: Sequence[tuple[str, str]]) -> list[Signal]:
    """Returns the signals that give settings, keys of the job file, other values. Raises JobFileError if one is not allowed."""
    if not settings:
        raise JobFileError("signal set needs a setting.", "Write tidemark signal JOB.yaml set snapshot.parallelism=2.")
    for key, value in settings:
        with_setting(job, key, value)
    return [Signal(None, _now_us(), "set", key, value) for key, value in settings]


def signal_that_accepts(job: JobFile, state: JobState, identifiers: Sequence[str]) -> Signal:
    """Returns the signal after which the job goes on at the server with this identifier. Raises JobFileError if no job can, or
    if it is the job's own server."""
    if job.source.url.kind != "postgresql":
        raise JobFileError(
            "signal accept-server is for PostgreSQL: a MySQL or MariaDB server that takes over is known by its GTIDs.",
            "Run the job: it says whether it can go on at the server that answers.",
        )
    if len(identifiers) != 1 or not (identifiers[0].isascii() and identifiers[0].isdigit()):
        raise JobFileError(
            "signal accept-server needs one system identifier of a server, which is a number.",
            "Run the job at the new server: its error names the command, with the number.",
        )
    (identifier,) = identifiers
    if state.server_identity.partition("/")[0] == identifier:
        raise JobFileError(f"The job is at the server {identifier} already.", "Run the job: it continues.")
    return Signal(None, _now_us(), "accept-server", value=identifier)


def _about_parts(
    job: JobFile, state: JobState, tables: Sequence[TableName], keys: Sequence[str], where: str | None
) -> list[Signal]:
    """Returns one signal for all single keys, and one for each range."""
    if keys and (where is not None or len(tables) > 1):
        raise JobFileError(
            "--keys is for one table, and can't be given together with --where.", "Give more than one signal."
        )
    if where == "":
        raise JobFileError("--where is empty.", "Leave it out to have all rows read again.")
    wanted, now_us = list[Signal](), _now_us()
    for table in (TableId(table.database, table.name) for table in tables):
        _require_table(job, state, "resnapshot", table)
        if table in state.left_tables and all(schema.table != table for schema in state.schemas):
            raise JobFileError(
                f"{table} is parked or paused: its copy lacks changes.",
                whole_table(TableName(table.database, table.name)),
            )
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
    return wanted


def _about_tables(job: JobFile, state: JobState, kind: SignalKind, tables: Sequence[TableName]) -> list[Signal]:
    wanted = [TableId(table.database, table.name) for table in tables]
    # A table whose splits are not read is still in the job: nothing needs to be read again.
    stopped = steering_at(Checkpoint.at(job.checkpoint)).stopped_tables if kind == "resume" else ()
    for table in wanted:
        _require_table(job, state, kind, table, reads=kind != "stop-snapshot" and table not in stopped)
    return [Signal(table, _now_us(), kind) for table in wanted]


def _require_table(job: JobFile, state: JobState, kind: SignalKind, table: TableId, *, reads: bool = True) -> None:
    """Raises JobFileError unless the job has, or had, the table. `reads`: the signal has rows read again."""
    known = {schema.table for schema in state.schemas} | state.left_tables
    if reads and job.mode != "full+incremental":
        raise JobFileError(f"Mode {job.mode} can't read rows again.", "Start another job for these tables.")
    if table not in known:
        raise JobFileError(f"The job does not copy {table}.", "tidemark tables JOB.yaml lists its tables.")
    if kind in {"resnapshot", "resume"} and not job.source.selects(table.database, table.name):
        raise JobFileError(
            f"The job file does not select {table}.", "Change source.tables or source.exclude_tables first."
        )


def _now_us() -> int:
    return time.time_ns() // 1000
