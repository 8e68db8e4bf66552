"""Asks a source whether its log is the one that a job has read, where positions don't tell: PostgreSQL's."""

from tidemark.readers.source import FoundSource, ProvesLog
from tidemark.state.job_state import JobState
from tidemark.state.log_extent import KnownLog
from tidemark.state.position import Position


def require_known_log(found: FoundSource, state: JobState, position: Position, known: KnownLog | None) -> None:
    """Raises LogPositionLostError if the log before `position` is another one. `known`: what the job's log is known by there,
    None if nothing was noted."""
    if known is None:
        return
    access = found.server(state).planner_access(state)
    if isinstance(access, ProvesLog):
        access.require_known_log(position, known, position)
