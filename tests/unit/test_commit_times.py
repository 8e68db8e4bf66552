"""The times of transactions that a position notes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.state.commit_times import MAX_TIMES, CommitTimes
from tidemark.state.errors import CheckpointError
from tidemark.state.gtid import GtidSet, Source

A, B = "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"


@pytest.mark.parametrize("text", [None, f"{A}:7=1,{B}:7=2,{B}:9=2,{B}:tag:7=3", "0-1-7=1,0-11-8=2,1-1-7=1"])
def test_the_text_of_times_is_read_again(text: str | None) -> None:
    times = CommitTimes.parse(text)
    assert times.text() == text
    assert bool(times) == (text is not None)


@pytest.mark.parametrize("text", ["7=1", f"{A}:7", f"{A}:x=1", f"{A}:7=x", ","])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match="Not the time of a transaction"):
        CommitTimes.parse(text)


def test_hundreds_of_sources_leave_the_newest_times() -> None:
    sources = [(f"00000000-0000-0000-0000-{number:012x}", "") for number in range(3 * MAX_TIMES)]
    times = {source: {5: 1_000 + i} for i, source in enumerate(sources)}
    shuffled = dict(sorted(times.items(), key=lambda _: random.random()))
    text = CommitTimes(shuffled).text()
    assert text == CommitTimes(times).text()
    assert set(CommitTimes.parse(text).times) == set(sources[-MAX_TIMES:])


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans(), st.integers(1, 9)), unique_by=lambda t: t[0]), st.data())
def test_the_times_do_not_depend_on_how_the_log_is_divided(
    transactions: list[tuple[int, bool, int]], data: st.DataObject
) -> None:
    """The last transaction of each interval whose time is known is left."""
    source: Source = (A, "")
    gtids, times, i = GtidSet(), CommitTimes(), 0
    while i < len(transactions):
        part = transactions[i : i + data.draw(st.integers(1, 5))]
        i += len(part)
        gtids = gtids.union(GtidSet.parse(",".join(f"{A}:{number}" for number, _, _ in part)))
        times = times.after(CommitTimes({source: {n: at for n, is_known, at in part if is_known}}), gtids)
    expected = {}
    for start, after in gtids.intervals.get(source, ()):
        known = [(n, at) for n, is_known, at in transactions if is_known and start <= n < after]
        expected.update([max(known)] if known else [])
    assert {(number, at) for _, number, at in times} == set(expected.items())
