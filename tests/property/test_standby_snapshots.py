"""The transactions that a standby's snapshot contains, from what the server says around it (docs/adr/0058)."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from tidemark.readers.postgres.snapshot.standby import Seen, snapshot_text
from tidemark.state.wal_snapshot import SnapshotWatermarks

FIRST = 100


@dataclass
class Standby:
    """Replays transactions' beginnings and ends. `xmax`: after the last id that has ended."""

    next_id: int = FIRST
    xmax: int = FIRST
    open: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)

    def replay(self, step: tuple[str, int]) -> None:
        kind, number = step
        if kind == "begin" or not self.open:
            self.open.add(self.next_id)
            self.next_id += 1
            return
        ended = sorted(self.open)[number % len(self.open)]
        self.open.remove(ended)
        self.xmax = max(self.xmax, ended + 1)
        if kind == "commit":
            self.committed.add(ended)


STEPS = st.lists(st.tuples(st.sampled_from(["begin", "begin", "commit", "rollback"]), st.integers(0, 9)), max_size=12)


@given(STEPS, STEPS, STEPS, STEPS)
def test_a_snapshot_is_exact_or_not_taken(
    earlier: list[tuple[str, int]],
    before: list[tuple[str, int]],
    to_snapshot: list[tuple[str, int]],
    after: list[tuple[str, int]],
) -> None:
    standby = Standby()
    for step in [*earlier, *before]:
        standby.replay(step)
    unfinished, known_until = {xid for xid in standby.open if xid < standby.xmax}, standby.xmax
    for step in to_snapshot:
        standby.replay(step)
    contained, xmax = set(standby.committed), standby.xmax
    xmin = min([xid for xid in standby.open if xid < xmax], default=xmax)
    for step in after:
        standby.replay(step)
    asked = unfinished | set(range(known_until, xmax))
    seen = Seen(xmin, xmax, sorted(asked & standby.open), sorted(asked & standby.committed))
    text = snapshot_text(seen)
    if text is None:
        assert to_snapshot or after
        return
    watermarks = SnapshotWatermarks.of([text])
    for xid in standby.committed | standby.open:
        covered = bool(watermarks.covered(*(_array(n) for n in (0, xid)))[0])
        # What is open now commits later, if it does.
        assert covered == (xid in contained), (xid, text)


def _array(number: int) -> npt.NDArray[np.int64]:
    return np.array([number], np.int64)
