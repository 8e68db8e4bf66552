"""The gap filter against looking up each change in a list of splits."""

from bisect import bisect_right
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.gap_filter import keep
from tidemark.readers.log.gap_filter import GapFilter, merge_segments, segment_of
from tidemark.state.errors import CheckpointError
from tidemark.state.key_encoding import encode_bytes, encode_integer
from tidemark.state.position import BinlogPosition, WalPosition
from tidemark.state.split import Bound, KeyRange, Report, Split
from tidemark.state.table import TableId

TABLE, OTHER = TableId("shop", "orders"), TableId("shop", "other")


def bound(encoded_key: bytes) -> Bound:
    return Bound(("?",), encoded_key.hex())


def splits_of(table: TableId, boundaries: list[bytes], highs: list[int], first_id: int) -> list[tuple[Split, Report]]:
    starts = [None, *map(bound, boundaries)]
    ends = [*map(bound, boundaries), None]
    return [
        (
            Split(first_id + i, table, 1, ("k",), KeyRange(start, end)),
            Report(first_id + i, table, 1, BinlogPosition("binlog.000007", high), row_count=1, replayed_changes=0),
        )
        for i, (start, end, high) in enumerate(zip(starts, ends, highs, strict=True))
    ]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[bytes], list[int], list[bytes], list[int]]:
    """The split boundaries, highs, keys and commit offsets of a table."""
    if draw(st.booleans()):
        encoded_key = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)
        encoded_keys = encoded_key.map(lambda value: encode_integer(value, unsigned=False))
    else:
        encoded_keys = st.binary(max_size=6).map(encode_bytes)
    boundaries = sorted(draw(st.sets(encoded_keys, max_size=30)))
    highs = draw(st.lists(st.integers(4, 40), min_size=len(boundaries) + 1, max_size=len(boundaries) + 1))
    keys = draw(st.lists(encoded_keys | st.sampled_from(boundaries) if boundaries else encoded_keys, max_size=40))
    commits = draw(st.lists(st.integers(4, 45), min_size=len(keys), max_size=len(keys)))
    return boundaries, highs, keys, commits


@given(
    case=cases(), epochs=st.lists(st.integers(0, 2), min_size=64, max_size=64), merged=st.booleans(), seed=st.randoms()
)
def test_a_change_is_kept_iff_it_is_after_the_high_of_its_split(case, epochs, merged, seed) -> None:  # type: ignore[no-untyped-def]
    boundaries, highs, keys, commits = case
    pairs = [
        *splits_of(TABLE, boundaries, highs, 0),
        *splits_of(OTHER, boundaries[:1], highs[:1] * len([None, *boundaries[:1]]), 1000),
    ]
    seed.shuffle(pairs)
    parts = [[p for p, epoch in zip(pairs, epochs, strict=False) if epoch == e] for e in range(3)]
    segments = [segment_of([s for s, _ in part], reversed([r for _, r in part])) for part in parts]
    if merged:
        segments = [merge_segments(segments, "finished")]
    gap_filter = GapFilter.from_segments(segments, [TABLE, OTHER], "finished")

    versions = np.array([BinlogPosition("binlog.000007", c).version for c in commits], np.int64)
    expected = [commit > highs[bisect_right(boundaries, key)] for key, commit in zip(keys, commits, strict=True)]
    for binary in (pa.binary(), pa.large_binary()):
        assert keep(gap_filter, TABLE, pa.array(keys, binary), versions).tolist() == expected
        padded = pa.array([b"", *keys, b"x"], binary).slice(1, len(keys))
        assert keep(gap_filter, TABLE, padded, versions).tolist() == expected
    if all(len(encoded_key) == 8 for encoded_key in (*boundaries, *keys)):
        numbers = np.array([int.from_bytes(key, "big") for key in keys], np.uint64)
        assert keep(gap_filter, TABLE, numbers, versions).tolist() == expected

    greatest = BinlogPosition("binlog.000007", max(highs)).version
    finished_splits = gap_filter.finished_splits[TABLE]
    assert gap_filter.of_table(TABLE, greatest) is finished_splits
    assert gap_filter.of_table(TABLE, greatest + 1) is None
    assert TABLE in gap_filter.passed(greatest - 1).finished_splits
    passed = gap_filter.passed(greatest)
    assert TABLE not in passed.finished_splits
    assert keep(passed, TABLE, None, versions).all()


@given(case=cases(), left=st.sets(st.integers(0, 8)), merged=st.booleans())
def test_changes_of_splits_that_are_left_are_withheld(
    case: tuple[list[bytes], list[int], list[bytes], list[int]], left: set[int], merged: bool
) -> None:
    boundaries, highs, keys, commits = case
    pairs = [pair for i, pair in enumerate(splits_of(TABLE, boundaries, highs, 0)) if i not in left]
    segments = [segment_of([split], [report]) for split, report in reversed(pairs)]
    if merged:
        segments = [merge_segments(segments, "finished")]
    gap_filter = GapFilter.from_segments(segments, [TABLE], "finished", {TABLE: len(pairs)})

    versions = np.array([BinlogPosition("binlog.000007", c).version for c in commits], np.int64)
    owners = [bisect_right(boundaries, key) for key in keys]
    expected = [owner not in left and commit > highs[owner] for owner, commit in zip(owners, commits, strict=True)]
    assert keep(gap_filter, TABLE, pa.array(keys, pa.binary()), versions).tolist() == expected
    if left.intersection(range(len(highs))):
        assert gap_filter.of_table(TABLE, 2**62) is not None, "no high is the last word"
        with pytest.raises(CheckpointError, match=r"leave out a part|missing"):
            GapFilter.from_segments(segments, [TABLE], "finished")
    if pairs:
        with pytest.raises(CheckpointError, match=f"{len(pairs)} finished splits instead of {len(pairs) + 1}"):
            GapFilter.from_segments(segments, [TABLE], "finished", {TABLE: len(pairs) + 1})


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
@given(boundaries=st.sets(st.integers(-50, 50), max_size=6), data=st.data())
def test_a_change_is_kept_iff_its_splits_snapshot_does_not_contain_it(
    boundaries: set[int], data: st.DataObject
) -> None:
    encoded_keys = sorted(encode_integer(cut, unsigned=False) for cut in boundaries)
    taken = data.draw(st.lists(snapshots(), min_size=len(encoded_keys) + 1, max_size=len(encoded_keys) + 1))
    pairs = [
        (split, replace(report, high=WalPosition(1000 + split.id, taken[i])))
        for i, (split, report) in enumerate(splits_of(TABLE, encoded_keys, [4] * (len(encoded_keys) + 1), 0))
    ]
    left = data.draw(st.sets(st.integers(0, len(encoded_keys))))
    done = [pair for i, pair in enumerate(pairs) if i not in left]
    segment = segment_of([split for split, _ in done], [report for _, report in done])
    finished_splits = GapFilter.from_segments(
        [merge_segments([segment], "finished")], [TABLE], "finished", {TABLE: len(done)} if left else {}
    ).finished_splits[TABLE]

    changes = data.draw(st.lists(st.tuples(st.integers(-60, 60), xids), max_size=30))
    keys = [encode_integer(key, unsigned=False) for key, _ in changes]
    owners = finished_splits.owners(np.array([int.from_bytes(key, "big") for key in keys], np.uint64))
    versions = np.full(len(changes), 900, np.int64)  # before all highs: in PostgreSQL this decides nothing
    kept = finished_splits.keep(owners, versions, np.array([xid for _, xid in changes], np.int64))
    expected = [
        bisect_right(encoded_keys, key) not in left and not covers(taken[bisect_right(encoded_keys, key)], xid)
        for key, (_, xid) in zip(keys, changes, strict=True)
    ]
    assert kept.tolist() == expected
