"""Snapshots as watermarks, against the definition on whole 64-bit ids."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemark.state.wal_snapshot import SnapshotWatermarks

WRAP = 1 << 32
MAX_AGE = (1 << 31) - 1


@dataclass(frozen=True)
class Case:
    """A snapshot, and the 64-bit id of a transaction that is asked for."""

    xmin: int
    xmax: int
    running: tuple[int, ...]
    xid: int

    @property
    def text(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"

    @property
    def contained(self) -> bool:
        return self.xid < self.xmin or (self.xid < self.xmax and self.xid not in self.running)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    epoch = draw(st.sampled_from((0, 1, 2, 1000, (1 << 30) - 2)))
    near_wrap = epoch * WRAP + draw(st.integers(-50, 50))
    xmax = max(3, draw(st.one_of(st.just(near_wrap), st.integers(epoch * WRAP, (epoch + 1) * WRAP - 1))))
    xmin = max(3, xmax - draw(st.one_of(st.integers(0, 20), st.integers(0, MAX_AGE))))
    candidates = st.integers(xmin, min(xmin + 40, xmax - 1)) | st.integers(xmin, xmax - 1)
    running = sorted(draw(st.sets(candidates, max_size=8))) if xmin < xmax else []
    far = st.integers(max(3, xmax - (1 << 31)), xmax + MAX_AGE)
    near = st.integers(max(3, xmin - 3), xmin + 45) | st.integers(max(3, xmax - 45), xmax + 3)
    asked = near | far | st.sampled_from(running) if running else near | far
    xid = draw(asked.filter(lambda xid: xid % WRAP >= 3 and -(1 << 31) <= xid - xmax < 1 << 31))
    return Case(xmin, xmax, tuple(running), xid)


@pytest.mark.pitfall(3)
@example([Case(WRAP - 2, WRAP + 5, (WRAP - 1, WRAP + 4), xid) for xid in (WRAP - 3, WRAP - 1, WRAP + 3, WRAP + 4)])
@example([Case(WRAP - 2, WRAP + 5, (), xid) for xid in (WRAP + 5 - (1 << 31), WRAP + 4, WRAP + 5, WRAP + (1 << 31))])
@given(st.lists(cases(), max_size=12))
def test_each_answer_is_that_of_the_whole_id(asked: list[Case]) -> None:
    watermarks = SnapshotWatermarks.of([case.text for case in asked])
    order = np.arange(len(asked), dtype=np.int64)[::-1].copy()
    xids = np.array([asked[i].xid % WRAP for i in order], np.int64)
    assert watermarks.covered(order, xids).tolist() == [asked[i].contained for i in order]


def test_one_snapshot_answers_for_many_transactions() -> None:
    watermarks = SnapshotWatermarks.of(["100:110:100,105", "100:100:"])
    xids = np.array([99, 100, 101, 105, 109, 110, 111], np.int64)
    assert watermarks.covered(np.zeros(7, np.int64), xids).tolist() == [True, False, True, False, True, False, False]
    assert watermarks.covered(np.ones(7, np.int64), xids).tolist() == [True] + [False] * 6


@pytest.mark.parametrize(
    "text",
    ["", "10", "10:20", "10:20:30", "10:20:9", "10:20:12,11", "10:20:11,11", "20:10:", "2:10:", "10:20:x", "10:20::"],
)
def test_what_is_no_snapshot_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a snapshot"):
        SnapshotWatermarks.of([text])


@pytest.mark.parametrize("xid", [-1, 0, 2, WRAP])
def test_what_is_no_transaction_id_is_refused(xid: int) -> None:
    with pytest.raises(ValueError, match="transaction ids"):
        SnapshotWatermarks.of(["100:110:"]).covered(np.zeros(1, np.int64), np.array([xid], np.int64))
