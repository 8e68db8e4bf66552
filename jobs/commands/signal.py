"""`tidemark signal`: asks a job for something, whether it runs or not."""

import time
from collections.abc import Sequence

from rich.table import Table

from tidemark.conf.model import JobFile
from tidemark.conf.redaction import redact
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.drawing import console
from tidemark.jobs.monitoring.times import time_text
from tidemark.jobs.recovered_state import required_state
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobFileError
from tidemark.state.signals import Signal
from tidemark.state.table import TableId


def resnapshot(job: JobFile, tables: Sequence[TableName]) -> None:
    """Asks for the rows of tables to be read again. Raises JobFileError, and gives no signal, if a table is not the job's."""
    checkpoint = Checkpoint.at(job.checkpoint)
    state = required_state(checkpoint, job)
    if not tables:
        raise JobFileError(
            "signal resnapshot needs a table.", "Name it: --table database.table; more than one may be given."
        )
    if job.mode != "full+incremental":
        raise JobFileError(f"Mode {job.mode} can't read rows again.", "Start another job for these tables.")
    wanted = [TableId(table.database, table.name) for table in tables]
    known = {schema.table for schema in state.schemas} | state.left_tables
    for table in wanted:
        if table not in known:
            raise JobFileError(
                f"The job does not copy {table}.", f"tidemark tables JOB.yaml lists its {len(known)} tables."
            )
        if not job.source.selects(table.database, table.name):
            raise JobFileError(
                f"The job file does not select {table}.", "Change source.tables or source.exclude_tables first."
            )
    for table in wanted:
        number = checkpoint.create_signal(Signal(table, time.time_ns() // 1000))
        print(f"signal {number}: the rows of {table} are read again by the running driver, or at the next start.")


def list_signals(job: JobFile) -> None:
    """Prints the job's signals, oldest first."""
    checkpoint = Checkpoint.at(job.checkpoint)
    required_state(checkpoint, job)
    drawn = Table(box=None, pad_edge=False)
    for heading in ("signal", "given", "what", "state"):
        drawn.add_column(heading)
    for number, (signal, answer) in checkpoint.signals().items():
        state = "requested"
        if answer is not None:
            state = f"{'accepted' if answer.accepted else 'failed'} {time_text(answer.at_us)}: {answer.text}"
        drawn.add_row(str(number), time_text(signal.at_us), f"{signal.kind} {signal.table}", redact(state))
    console().print(drawn)
