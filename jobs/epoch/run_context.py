"""The job, its source and its state, as planning, reading and writing an epoch need them."""

from dataclasses import dataclass

from tidemark.conf.model import JobFile
from tidemark.jobs.epoch.planner import Planner
from tidemark.readers.source import SourceServer
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.job_state import JobState


@dataclass(frozen=True, slots=True)
class RunContext:
    job: JobFile
    server: SourceServer
    state: JobState

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.at(self.job.checkpoint)

    def planner(self) -> Planner:
        return Planner(self.server.planner_access(self.state), self.checkpoint, self.state, self.job)
