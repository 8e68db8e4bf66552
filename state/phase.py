"""The phases of a job: what its epochs read."""

from enum import Enum


class Phase(str, Enum):
    """The kind of work of a job's epochs.

    SNAPSHOT: splits.
    CATCH_UP: the log through the gap filter, up to the greatest high.
    STREAM: the log without the gap filter.
    DONE: nothing more. The log of a job of mode `full` was read up to the greatest high.

    A job of mode `incremental` starts in STREAM, any other in SNAPSHOT. It returns to SNAPSHOT when tables join.
    Only `tidemark.enumerator.enumerator` changes the phase.
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
    """Returns `to`. Raises ValueError if that phase can't follow `now`."""
    if to not in NEXT[now]:
        raise ValueError(f"phase {to.value} can't follow phase {now.value}")
    return to
