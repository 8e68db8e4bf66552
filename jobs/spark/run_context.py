"""The context that a run hands to Spark's planner process, in a file that only this user can read.

The data source's options contain only the file's name: Spark shows options in its UI, event log and error messages, so they
must not contain secrets.
"""

import os
import pickle
from dataclasses import dataclass
from pathlib import Path

from tidemark.conf.model import JobFile
from tidemark.jobs.planner import Planner
from tidemark.jobs.spark.planner_ipc import PlannerIpc
from tidemark.readers.source import SourceServer
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.job_state import JobState


@dataclass(frozen=True, slots=True)
class RunContext:
    """`folder` None: there is no driver of ours that sends messages to the planner."""

    job: JobFile
    server: SourceServer
    state: JobState
    folder: PlannerIpc | None

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.at(self.job.checkpoint)

    def planner(self) -> Planner:
        access = self.server.planner_access(self.state)
        return Planner(access, self.checkpoint, self.state, self.job, folder=self.folder)


def save_context(context: RunContext, path: Path) -> None:
    """Writes to a new file that other users can't read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        pickle.dump(context, file)


def take_context(path: str) -> RunContext:
    """Reads and removes the file: if the run is killed later, no secret is left behind."""
    with Path(path).open("rb") as file:
        os.unlink(path)
        context = pickle.load(file)
    assert isinstance(context, RunContext)
    return context
