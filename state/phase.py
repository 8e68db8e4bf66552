"""Where a job stands: what its epochs read."""

from enum import Enum


class Phase(str, Enum):
    """SNAPSHOT: splits. CATCH_UP: the log, up to the greatest high, through the gap filter. STREAM: the log, plainly.
    DONE: mode `full` has reached the greatest high; nothing is read any more.

    A job of mode `incremental` begins in STREAM, any other in SNAPSHOT, and comes there again when tables join.
    `enumerator.enumerator` makes every move.
    """

    SNAPSHOT = "snapshot"
    CATCH_UP = "catch_up"
    STREAM = "stream"
    DONE = "done"


NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.SNAPSHOT: frozenset({Phase.CATCH_UP}),
    Phase.CATCH_UP: frozenset({Phase.STREAM, Phase.DONE, Phase.SNAPSHOT}),
    Phase.STREAM: frozenset({Phase.SNAPSHOT}),
    Phase.DONE: frozenset(),
}


def move(now: Phase, to: Phase) -> Phase:
    """`to`; raises ValueError where `now` does not lead there."""
    if to not in NEXT[now]:
        raise ValueError(f"no way from {now.value} to {to.value}")
    return to
