"""The gap filter against looking up each change in a list of splits."""

from bisect import bisect_right
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from readers.gap_filter import GapFilter, merge_segments, write_segment
from state.position import BinlogPosition, WalPosition
from state.rank import bytes_rank, integer_rank
from state.split import Bound, KeyRange, Report, Split
from state.table import TableId
from tests.support.gap_filter import keep

TABLE, OTHER = TableId("shop", "orders"), TableId("shop", "other")


def bound(rank: bytes) -> Bound:
    return Bound(("?",), rank.hex())


def splits_of(table: TableId, cuts: list[bytes], highs: list[int], first_id: int) -> list[tuple[Split, Report]]:
    starts = [None, *map(bound, cuts)]
    ends = [*map(bound, cuts), None]
    return [
        (
            Split(first_id + i, table, 1, ("k",), KeyRange(start, end)),
            Report(first_id + i, table, 1, BinlogPosition("binlog.000007", high), row_count=1, replayed_changes=0),
        )
        for i, (start, end, high) in enumerate(zip(starts, ends, highs, strict=True))
    ]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[bytes], list[int], list[bytes], list[int]]:
    """Cuts, highs, keys and commit offsets of a table."""
    if draw(st.booleans()):
        rank = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)
        ranks = rank.map(lambda value: integer_rank(value, unsigned=False))
    else:
        ranks = st.binary(max_size=6).map(bytes_rank)
    cuts = sorted(draw(st.sets(ranks, max_size=30)))
    highs = draw(st.lists(st.integers(4, 40), min_size=len(cuts) + 1, max_size=len(cuts) + 1))
    keys = draw(st.lists(ranks | st.sampled_from(cuts) if cuts else ranks, max_size=40))
    commits = draw(st.lists(st.integers(4, 45), min_size=len(keys), max_size=len(keys)))
    return cuts, highs, keys, commits


@given(
    case=cases(), epochs=st.lists(st.integers(0, 2), min_size=64, max_size=64), merged=st.booleans(), seed=st.randoms()
)
def test_a_change_is_kept_iff_it_is_after_the_high_of_its_split(case, epochs, merged, seed) -> None:  # type: ignore[no-untyped-def]
    cuts, highs, keys, commits = case
    pairs = [*splits_of(TABLE, cuts, highs, 0), *splits_of(OTHER, cuts[:1], highs[:1] * len([None, *cuts[:1]]), 1000)]
    seed.shuffle(pairs)
    parts = [[p for p, epoch in zip(pairs, epochs, strict=False) if epoch == e] for e in range(3)]
    segments = [write_segment([s for s, _ in part], reversed([r for _, r in part])) for part in parts]
    if merged:
        segments = [merge_segments(segments, "routes")]
    gap_filter = GapFilter.from_segments(segments, [TABLE, OTHER], "routes")

    versions = np.array([BinlogPosition("binlog.000007", c).version for c in commits], np.int64)
    expected = [commit > highs[bisect_right(cuts, key)] for key, commit in zip(keys, commits, strict=True)]
    for binary in (pa.binary(), pa.large_binary()):
        assert keep(gap_filter, TABLE, pa.array(keys, binary), versions).tolist() == expected
        padded = pa.array([b"", *keys, b"x"], binary).slice(1, len(keys))
        assert keep(gap_filter, TABLE, padded, versions).tolist() == expected
    if all(len(rank) == 8 for rank in (*cuts, *keys)):
        numbers = np.array([int.from_bytes(key, "big") for key in keys], np.uint64)
        assert keep(gap_filter, TABLE, numbers, versions).tolist() == expected

    least, greatest = (BinlogPosition("binlog.000007", high).version for high in (min(highs), max(highs)))
    routes = gap_filter.routes[TABLE]
    assert (routes.least_high, routes.greatest_high) == (least, greatest)
    assert gap_filter.of_table(TABLE, greatest) is routes
    assert gap_filter.of_table(TABLE, greatest + 1) is None
    assert TABLE in gap_filter.passed(greatest - 1).routes
    passed = gap_filter.passed(greatest)
    assert TABLE not in passed.routes
    assert keep(passed, TABLE, None, versions).all()


xids = st.integers(900, 960)


@st.composite
def snapshots(draw: st.DrawFn) -> str:
    xmin, xmax = sorted((draw(xids), draw(xids)))
    running = draw(st.sets(st.integers(xmin, max(xmin, xmax - 1)))) if xmax > xmin else set()
    return f"{xmin}:{xmax}:{','.join(map(str, sorted(running)))}"


def covers(snapshot: str, xid: int) -> bool:
    xmin, xmax, running = snapshot.split(":")
    return xid < int(xmin) or (xid < int(xmax) and str(xid) not in running.split(","))


@pytest.mark.pitfall(3)
@given(cuts=st.sets(st.integers(-50, 50), max_size=6), data=st.data())
def test_a_change_is_kept_iff_its_splits_snapshot_does_not_contain_it(cuts: set[int], data: st.DataObject) -> None:
    ranks = sorted(integer_rank(cut, unsigned=False) for cut in cuts)
    taken = data.draw(st.lists(snapshots(), min_size=len(ranks) + 1, max_size=len(ranks) + 1))
    pairs = [
        (split, replace(report, high=WalPosition(1000 + split.id, taken[i])))
        for i, (split, report) in enumerate(splits_of(TABLE, ranks, [4] * (len(ranks) + 1), 0))
    ]
    segment = write_segment([split for split, _ in pairs], [report for _, report in pairs])
    routes = GapFilter.from_segments([merge_segments([segment], "routes")], [TABLE], "routes").routes[TABLE]

    changes = data.draw(st.lists(st.tuples(st.integers(-60, 60), xids), max_size=30))
    keys = [integer_rank(key, unsigned=False) for key, _ in changes]
    owners = routes.owners(np.array([int.from_bytes(key, "big") for key in keys], np.uint64))
    versions = np.full(len(changes), 900, np.int64)  # before all highs: in PostgreSQL this decides nothing
    kept = routes.keep(owners, versions, np.array([xid for _, xid in changes], np.int64))
    expected = [not covers(taken[bisect_right(ranks, key)], xid) for key, (_, xid) in zip(keys, changes, strict=True)]
    assert kept.tolist() == expected
