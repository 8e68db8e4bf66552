"""`tidemark checkpoints JOB.yaml list`: the consistent cuts that a checkpoint holds."""

from tidemark.conf.model import JobFile
from tidemark.jobs.commands.drawing import console, table_of
from tidemark.jobs.monitoring.times import time_text
from tidemark.jobs.recovered_state import required_state
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.plan import LogWork


def checkpoints(job: JobFile) -> None:
    """Prints one line per consistent cut: epoch, phase, when it was planned, what it read, the log position after it. Raises
    CheckpointError if the job was never started."""
    checkpoint = Checkpoint.at(job.checkpoint)
    required_state(checkpoint, job)
    checkpoint = checkpoint.with_attempts(checkpoint.attempts())
    committed = checkpoint.committed_epoch()
    drawn = table_of(("epoch", "phase", "planned (UTC)", "read", "log position", ""))
    for epoch in checkpoint.plan_epochs():
        record = checkpoint.plan(epoch)
        work = record.plan.work
        if isinstance(work, LogWork):
            read = f"log from {work.range.start}"
            position = str(checkpoint.log_report(epoch).end) if epoch <= committed else ""
        else:
            read = f"{sum(map(len, work.tasks))} splits"
            position = str(record.state.position)
        planned = time_text(record.planned_at_us) if record.planned_at_us else ""  # an older version has not stored it
        state = "" if epoch <= committed else "not committed"
        drawn.add_row(str(epoch), record.plan.phase.value, planned, read, position, state)
    console().print(drawn)
