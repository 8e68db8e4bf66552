"""What a run hands to Spark's planner process: a file that only this user can read, named in the data source's options.

Options stand in Spark's UI, event log and error messages; secrets therefore go by this file instead.
"""

import os
import pickle
from dataclasses import dataclass
from pathlib import Path

from conf.model import JobFile
from jobs.checkpoint import Checkpoint
from jobs.planner import Planner
from jobs.run_folder import RunFolder
from jobs.sources import SourceServer
from state.job_state import JobState


@dataclass(frozen=True, slots=True)
class RunContext:
    """`folder` None: nobody tells the planner anything, nor asks the run to stop early."""

    job: JobFile
    server: SourceServer
    state: JobState
    folder: RunFolder | None

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.at(self.job.checkpoint)

    def planner(self) -> Planner:
        access = self.server.planner_access(self.state)
        return Planner(access, self.checkpoint, self.state, self.job, folder=self.folder)


def save_context(context: RunContext, path: Path) -> None:
    """Into a new file that others can't read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        pickle.dump(context, file)


def take_context(path: str) -> RunContext:
    """Removes the file: a run that is killed from here on leaves no secret behind."""
    with Path(path).open("rb") as file:
        os.unlink(path)
        context = pickle.load(file)
    assert isinstance(context, RunContext)
    return context
