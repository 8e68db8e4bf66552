"""How far a job's copy must have come before an epoch may be written to it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reached:
    """The last log epoch that the target has, 0 before the first one, and how many splits were written to it since then."""

    log_epoch: int
    splits: int


NOTHING_REACHED = Reached(0, 0)
