"""`tidemark status`: a job's state, from its checkpoint alone."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.table import Table

from tidemark.conf.model import JobFile
from tidemark.conf.redaction import redact, redact_values
from tidemark.jobs.commands.drawing import console
from tidemark.jobs.commands.tables import text_of as left_text
from tidemark.jobs.monitoring.progress import JobProgress, read_progress
from tidemark.jobs.monitoring.run_record import facts_of, last_run, text_of
from tidemark.jobs.monitoring.running_splits import RunningSplits
from tidemark.jobs.monitoring.times import iso_time, time_text
from tidemark.jobs.recovered_state import required_state
from tidemark.jobs.signals.steering import RESUME, resume_of, steering_at
from tidemark.jobs.tables.parking import is_dropped
from tidemark.state.checkpoint.history import RunRecord
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.job_state import JobState
from tidemark.state.signals import Steering

_OF_A_RUN = frozenset({"epochs", "epoch_seconds", "changes", "caught_up", "paused", "snapshot_stopped"})
"""Fields that a checkpoint does not have, and those that signals say."""


def status(job: JobFile, *, as_json: bool) -> None:
    """Prints what the checkpoint says. Raises CheckpointError if the job was never started."""
    checkpoint = Checkpoint.at(job.checkpoint)
    state = required_state(checkpoint, job)
    run = last_run(checkpoint)
    epochs = checkpoint.plan_epochs()
    committed = checkpoint.committed_epoch()
    progress = read_progress(checkpoint, job, state, committed)
    steering = steering_at(checkpoint)
    if progress is not None:
        progress = progress.steered(steering)
    if progress is not None and max(epochs) > committed:
        progress = progress.with_published(RunningSplits(checkpoint).count(max(epochs)))
    if as_json:
        print(json.dumps(redact_values(_facts(job, state, run, progress, max(epochs, default=0), steering)), indent=2))
    else:
        _print(job, state, run, progress, max(epochs, default=0), steering)


def _facts(
    job: JobFile,
    state: JobState,
    run: RunRecord | None,
    progress: JobProgress | None,
    planned_epoch: int,
    steering: Steering,
) -> dict[str, Any]:
    facts: dict[str, Any] = {"job": job.job, "job_uuid": state.job_uuid, "mode": state.mode}
    facts |= {"run": None if run is None else facts_of(run, _now_us())}
    facts |= {"start": str(state.start), "planned_epoch": planned_epoch, "phase": "starting"}
    facts["left"] = [
        {
            "table": str(left.table),
            "parked": left.is_parked and not is_dropped(job, left),
            "paused": left.paused,
            "why": left.why,
            "since": iso_time(left.at_us),
        }
        for left in state.left
    ]
    facts |= {"paused": steering.paused_us is not None, "snapshot_stopped": steering.stopped_us is not None}
    facts["stopped_tables"] = [str(table) for table in steering.stopped_tables]
    facts["settings"] = dict(steering.settings)
    if progress is not None:
        facts |= {name: value for name, value in asdict(progress).items() if name not in _OF_A_RUN}
    return facts


def _print(
    job: JobFile,
    state: JobState,
    run: RunRecord | None,
    progress: JobProgress | None,
    planned_epoch: int,
    steering: Steering,
) -> None:
    out = console()
    mode = state.mode if progress is None else progress.mode
    out.print(f"job       {job.job} ({mode}), first started {time_text(state.created_at_us)} UTC")
    if run is not None:
        out.print(redact(f"run       {text_of(run, _now_us())}"), soft_wrap=True)
    for line in _signalled(steering):
        out.print(f"signals   {line}", soft_wrap=True)
    if progress is None:
        out.print("phase     starting: no epoch is planned yet")
        return
    seconds = progress.lag_seconds
    lag = "no change read yet" if seconds is None else f"{seconds:,.1f} s since the newest change read"
    out.print(f"phase     {progress.phase}, epoch {progress.committed_epoch} committed, {planned_epoch} planned")
    behind = (
        ""
        if progress.lag_bytes is None
        else f" · {progress.lag_bytes:,} bytes of log behind as of {progress.as_of[:19]}"
    )
    out.print(f"position  {progress.position} · {lag}{behind}")
    out.print(_tables(progress))
    for left in state.left:
        out.print(redact(f"{left.table}  {left_text(left)}"), soft_wrap=True)


def _signalled(steering: Steering) -> Iterator[str]:
    """The settings that signals have made, for people."""
    if steering.paused_us is not None:
        yield f"PAUSED since {time_text(steering.paused_us)}. {RESUME} ends it."
    if steering.stopped_us is not None:
        yield f"no splits have been read since {time_text(steering.stopped_us)}. {RESUME} ends it."
    for table in steering.stopped_tables:
        yield f"no splits of {table} are read. {resume_of(table)} ends it."
    if steering.settings:
        yield ", ".join(f"{key}={value}" for key, value in steering.settings)


def _tables(progress: JobProgress) -> Table:
    drawn = Table(box=None, pad_edge=False)
    drawn.add_column("table")
    for heading in ("splits", "rows", "inserts", "updates", "deletes"):
        drawn.add_column(heading, justify="right")
    drawn.add_column("")
    for table in progress.tables:
        total = "?" if table.splits_total is None else f"{table.splits_total:,}"
        splits = table.splits_done + table.splits_published
        counts = (table.rows, table.inserts, table.updates, table.deletes)
        done = "done" if table.complete else "stopped" if table.stopped else ""
        drawn.add_row(table.table, f"{splits:,}/{total}", *(f"{count:,}" for count in counts), done)
    return drawn


def _now_us() -> int:
    return time.time_ns() // 1000
