"""A job's epochs without Spark: the loop of a run with an engine that does everything in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemark.conf.load import load_job_file
from tidemark.jobs.engine import Engine
from tidemark.jobs.epoch.aside_reads import AsideReads
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.loop import EpochLoop
from tidemark.jobs.monitoring import events
from tidemark.jobs.monitoring.progress import JobProgress
from tidemark.jobs.monitoring.run_summary import RunSummary
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.jobs.startup import open_job, require_another_startup
from tidemark.state import failpoints
from tidemark.state.errors import TidemarkError
from tidemark.state.failpoints import FailpointError
from tidemark.state.plan import PlanRecord


class Notes:
    """The events of a run, kept."""

    def __init__(self) -> None:
        self.found: list[tuple[str, dict[str, Any]]] = []

    def note(self, event: str, **facts: Any) -> None:
        self.found.append((event, facts))

    def progress(self, progress: JobProgress) -> None:
        pass


class LocalEngine(Engine):
    """Runs every epoch in this process, splits too. Remembers the phases."""

    phases: list[str]

    def is_small(self, record: PlanRecord) -> bool:
        self.phases.append(record.plan.phase.value)
        return True


def run_epochs(
    path: Path,
    *overrides: str,
    at_most: int | None = None,
    notes: Notes | None = None,
    interval_seconds: float | None = None,
    aside: AsideReads | None = None,
) -> list[str]:
    """Runs the job of a job file up to the log's end, or, with an interval, on and on. Returns the phase of each epoch, or
    raises as a run does."""
    job = load_job_file(path, overrides)
    told, kept = events.Notes(), Notes() if notes is None else notes
    # The server may still be ending the connection of the run before, which held the lease.
    with open_job(job, kept, standby=True) as opened:
        phases: list[str] = []
        aside = AsideReads() if aside is None else aside
        while True:
            context = RunContext(opened.job, opened.held.server, opened.held.state)
            engine = LocalEngine(context, opened.writing, SparkSessions(job, told))
            engine.phases = phases
            engine.threads = 1  # so that a failpoint finds the same parts written each time
            steering = opened.held.steering
            loop = EpochLoop(
                context,
                opened.writing,
                engine,
                RunSummary(),
                told,
                interval_seconds=interval_seconds,
                steering=steering,
                aside=aside,
            )
            try:
                loop.run(max_epochs=1 if opened.finishes else at_most)
            except TidemarkError as error:
                told.pass_on(kept)
                require_another_startup(error, job, opened, kept)
            else:
                told.pass_on(kept)
                if not (opened.finishes or loop.must_open_again):
                    return phases
            opened = opened.again()


def before_the_next_epoch(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Acts once between the plan of an epoch and its reading."""
    is_small, acts = LocalEngine.is_small, [act]

    def acting(engine: LocalEngine, record: PlanRecord) -> bool:
        if acts:
            acts.pop()()
        return is_small(engine, record)

    patch.setattr(LocalEngine, "is_small", acting)


def die_at(path: Path, point: str, *overrides: str, notes: Notes | None = None) -> None:
    """Runs the job until it reaches a failpoint, which ends it as a kill does. Fails if the run never reaches it."""
    die_in(path.parent, point, lambda: run_epochs(path, *overrides, notes=notes))


def die_in(folder: Path, point: str, act: Callable[[], object]) -> None:
    """The same with what `act` does. The failpoint is armed in `folder`."""
    armed = folder / "armed"
    armed.mkdir(exist_ok=True)
    (armed / point).write_text("raise")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "_FOLDER", str(armed))
        with pytest.raises(FailpointError):
            act()
