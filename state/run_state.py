"""The state of a run, as `status`, the report and the metrics tell it, and the moves that it can make.

    starting ─▶ snapshot ─▶ following ─▶ stopping ─▶ ended
        ▲  └──────▶ paused, waiting          └─────▶ failed
        └── the job is opened again: a signal, a new table, a parked table

Every state but the last three can end, fail or die. The driver's events lead from one state to the next (`after_event`,
`after_progress`). That a run is dead is only seen from outside: its heartbeat stopped.
"""

from collections.abc import Mapping
from enum import Enum

from tidemark.state.phase import Phase


class RunState(Enum):
    """`snapshot`: rows are read, and the log between them. `waiting`: all tables are parked, and one will come back by itself.
    `stopping`: the running epoch is the last one."""

    STARTING = "starting"
    SNAPSHOT = "snapshot"
    FOLLOWING = "following"
    PAUSED = "paused"
    WAITING = "waiting"
    STOPPING = "stopping"
    ENDED = "ended"
    FAILED = "failed"
    DEAD = "dead"

    @property
    def is_over(self) -> bool:
        return not NEXT[self]


_OVER = {RunState.ENDED, RunState.FAILED, RunState.DEAD}

NEXT: Mapping[RunState, frozenset[RunState]] = {
    RunState.STARTING: frozenset(
        {RunState.SNAPSHOT, RunState.FOLLOWING, RunState.PAUSED, RunState.WAITING, RunState.STOPPING, *_OVER},
    ),
    RunState.SNAPSHOT: frozenset(
        {RunState.STARTING, RunState.FOLLOWING, RunState.WAITING, RunState.STOPPING, *_OVER},
    ),
    RunState.FOLLOWING: frozenset({RunState.STARTING, RunState.WAITING, RunState.STOPPING, *_OVER}),
    RunState.PAUSED: frozenset({RunState.STARTING, RunState.WAITING, RunState.STOPPING, *_OVER}),
    RunState.WAITING: frozenset({RunState.STARTING, RunState.STOPPING, *_OVER}),
    RunState.STOPPING: frozenset(_OVER),
    RunState.ENDED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.DEAD: frozenset(),
}
"""The allowed moves."""

_EVENTS = {
    "started": RunState.STARTING,
    "resumed": RunState.STARTING,
    "waiting": RunState.WAITING,
    "stopping": RunState.STOPPING,
    "finished": RunState.ENDED,
    "failed": RunState.FAILED,
}
"""The states that events of a run show. All others show none."""


def after_event(now: RunState, event: str) -> RunState:
    """Returns the state after an event. One that does not fit, such as progress of the last epoch, changes nothing."""
    return _moved(now, _EVENTS.get(event, now))


def after_progress(now: RunState, phase: Phase, *, paused: bool) -> RunState:
    """Returns the state once the driver has shown its progress."""
    if paused:
        return _moved(now, RunState.PAUSED)
    match phase:
        case Phase.SNAPSHOT | Phase.CATCH_UP:
            return _moved(now, RunState.SNAPSHOT)
        case Phase.STREAM:
            return _moved(now, RunState.FOLLOWING)
        case Phase.DONE:
            return now


def _moved(now: RunState, to: RunState) -> RunState:
    return to if to in NEXT[now] else now
