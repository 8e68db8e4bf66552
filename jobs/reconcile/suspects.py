"""Decides which suspects are differences. Pure.

Source and copy move, so a row that differs once is only a suspect. Its table's range is looked at again and again. A look reads
the source's row, then the copy's:

    source 0 ── copy 0 ── the job passes ── source 1 ── copy 1 ── the job passes ── source 2 ── copy 2 …

Before look n the job has committed everything that the source had logged at look n - 1. So a correct copy is, at each look
from look 1 on, a state that the source had after it was last read. The copy at look 0 may lag behind by any time.

A suspect is a difference if the copy's row stayed the same over several looks and never was a row that the source had at a
look. A correct row stays the same only if the source's row does, and then the next look at the source shows that row. The
exception is a row that goes back to former values (a flag that is set and cleared): each look can hit it wrongly by chance. So
many looks are needed, but few if the log had no change of the table in the meantime.
"""

from dataclasses import dataclass, field
from enum import Enum

LOOKS = 10
"""A suspect is a difference if the copy's row was the same at so many looks."""
QUIET_LOOKS = 3
"""The same if the log had no change of the table since look 0."""
MAX_MOVES = 5
"""If the copy's row has changed so often between looks, it is being followed, and it is not judged."""
MAX_LOOKS = 30
"""No row is looked at more often."""


class Verdict(Enum):
    PENDING = "pending"
    EQUAL = "equal"
    MISSING = "missing"
    SURPLUS = "surplus"
    DIFFERENT = "different"
    MOVING = "moving"


DIFFERENCES = (Verdict.MISSING, Verdict.SURPLUS, Verdict.DIFFERENT)


@dataclass(slots=True)
class Suspect:
    """A key whose rows differed at look 0. Rows are given by their hashes, None for no row."""

    expected: str | None
    held: str | None
    seen: set[str | None] = field(default_factory=set)
    looks: int = 0
    moves: int = 0
    same: int = 0
    """Over how many looks, look 0 left out, the copy's row has stayed the same."""
    unlisted: int = 0

    def __post_init__(self) -> None:
        self.seen.add(self.expected)

    def look(self, expected: str | None, held: str | None, *, quiet: bool) -> Verdict:
        """Takes the next look. `quiet`: the log had no change of the table since look 0."""
        before, self.expected = self.expected, expected
        self.same = self.same + 1 if self.looks and held == self.held else 1
        self.moves += held != self.held
        self.held = held
        self.looks += 1
        self.seen.add(expected)
        if held in {expected, before}:
            return Verdict.EQUAL
        if self.same >= (QUIET_LOOKS if quiet else LOOKS) and held not in self.seen:
            return self._kind()
        moves_on = self.moves >= MAX_MOVES or self.looks >= MAX_LOOKS
        return Verdict.MOVING if moves_on else Verdict.PENDING

    def look_unlisted(self) -> bool:
        """Takes a look that has not told whether the copy has the row: there were too many. Returns False if it is not to be
        looked at again."""
        self.unlisted += 1
        return self.looks + self.unlisted < MAX_LOOKS

    def _kind(self) -> Verdict:
        if self.held is None:
            return Verdict.MISSING
        return Verdict.SURPLUS if self.expected is None else Verdict.DIFFERENT
