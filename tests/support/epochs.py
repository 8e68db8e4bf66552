"""A job's epochs without Spark: planned, read, written and committed in this process."""

import json
from pathlib import Path
from typing import Any

from tidemark.conf.load import load_job_file
from tidemark.jobs.monitoring.progress import JobProgress
from tidemark.jobs.spark.read_parts import read_part, tasks_of
from tidemark.jobs.spark.run_context import RunContext
from tidemark.jobs.startup import open_job
from tidemark.state.checkpoint.layout import Checkpoint


class Notes:
    """The events of a run, kept."""

    def __init__(self) -> None:
        self.found: list[tuple[str, dict[str, Any]]] = []

    def note(self, event: str, **facts: Any) -> None:
        self.found.append((event, facts))

    def progress(self, progress: JobProgress) -> None:
        pass


def run_epochs(path: Path, *overrides: str, at_most: int | None = None, notes: Notes | None = None) -> list[str]:
    """Runs the job of a job file up to the log's end. Returns the phase of each epoch, or raises as a run does."""
    job = load_job_file(path, overrides)
    checkpoint = Checkpoint.at(job.checkpoint)
    phases: list[str] = []
    # The server may still be ending the connection of the run before, which held the lease.
    with open_job(job, Notes() if notes is None else notes, standby=True) as opened:
        held, writing = opened.held, opened.writing
        context = RunContext(job, held.server, held.state, folder=None)
        planner = context.planner()
        planner.end_at_log_end()
        committed = checkpoint.committed_epoch()
        while at_most is None or len(phases) < at_most:
            epoch = planner.next_epoch(committed)
            if epoch == committed:
                break
            for task in tasks_of(context, epoch):
                list(writing.sink.writer(writing.job).write(read_part(task), writing.schemas))
            phases.append(checkpoint.plan(epoch).plan.phase.value)
            _commit(checkpoint, epoch)
            committed = epoch
    return phases


def _commit(checkpoint: Checkpoint, epoch: int) -> None:
    """Notes the epoch as committed, as Spark's query does."""
    checkpoint.store.create(f"spark/offsets/{epoch}", b"v1\n{}\n" + json.dumps({"epoch": epoch}).encode())
    checkpoint.store.create(f"spark/commits/{epoch}", b"v1\n{}")
