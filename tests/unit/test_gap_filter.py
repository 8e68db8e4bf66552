from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.support.gap_filter import keep
from tidemark.readers.log import finished_splits
from tidemark.readers.log.finished_splits import load_gap_filter, segment_names, write_segment
from tidemark.readers.log.gap_filter import GapFilter, merge_segments, segment_of
from tidemark.state.checkpoint.layout import finished_file
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import CheckpointError
from tidemark.state.key_encoding import encode_integer
from tidemark.state.position import BinlogPosition
from tidemark.state.split import Bound, KeyRange, Report, Split
from tidemark.state.table import TableId

ORDERS, ITEMS = TableId("shop", "orders"), TableId("stock", "items")


def bound(value: int) -> Bound:
    return Bound((str(value),), encode_integer(value, unsigned=False).hex())


def split(split_id: int, start: int | None, end: int | None, table: TableId = ORDERS) -> Split:
    limits = [None if limit is None else bound(limit) for limit in (start, end)]
    return Split(split_id, table, 1, ("id",), KeyRange(*limits))


def report(split_id: int, high: int, table: TableId = ORDERS) -> Report:
    return Report(split_id, table, 1, BinlogPosition("b.000001", high), row_count=3, replayed_changes=0)


def version(pos: int, file: str = "b.000001") -> int:
    return BinlogPosition(file, pos).version


def segment_of_two_splits() -> pa.Buffer:
    return segment_of([split(0, None, 10), split(1, 10, None)], [report(0, 100), report(1, 200)])


@pytest.mark.pitfall(10)
def test_a_change_exactly_at_the_high_is_in_the_split() -> None:
    gap_filter = GapFilter.from_segments([segment_of_two_splits()], [ORDERS], "finished")
    encoded_keys = np.array([encode_integer(v, unsigned=False) for v in (9, 9, 10, 10)])
    numbers = np.array([int.from_bytes(encoded_key, "big") for encoded_key in encoded_keys.tolist()], np.uint64)
    versions = np.array([version(100), version(101), version(200), version(201)], np.int64)
    assert keep(gap_filter, ORDERS, numbers, versions).tolist() == [False, True, False, True]


@pytest.mark.pitfall(44)
def test_files_are_ordered_by_their_number() -> None:
    gap_filter = GapFilter.from_segments(
        [segment_of([split(0, None, None)], [Report(0, ORDERS, 1, BinlogPosition("b.999999", 500), 0, 0)])],
        [ORDERS],
        "finished",
    )
    versions = np.array([version(4, "b.1000000"), version(499, "b.999999")], np.int64)
    assert keep(gap_filter, ORDERS, None, versions).tolist() == [True, False]


def test_a_table_of_one_split_needs_no_ranks_and_one_of_two_does() -> None:
    gap_filter = GapFilter.from_segments(
        [segment_of_two_splits(), segment_of([split(2, None, None, ITEMS)], [report(2, 50, ITEMS)])],
        [ORDERS, ITEMS],
        "finished",
    )
    assert keep(gap_filter, ITEMS, None, np.array([version(50), version(51)])).tolist() == [False, True]
    with pytest.raises(ValueError, match="need as many owners"):
        keep(gap_filter, ORDERS, None, np.array([version(150)]))


def test_integer_ranks_for_a_key_of_bytes_are_refused() -> None:
    cut = Bound(("'a'",), b"a\0\0".hex())
    splits = [Split(i, ORDERS, 1, ("k",), r) for i, r in enumerate([KeyRange(None, cut), KeyRange(cut, None)])]
    gap_filter = GapFilter.from_segments([segment_of(splits, [report(0, 100), report(1, 200)])], [ORDERS], "finished")
    with pytest.raises(ValueError, match="not a single integer column"):
        keep(gap_filter, ORDERS, np.array([1], np.uint64), np.array([version(150)]))
    with pytest.raises(ValueError, match="an encoded key is null"):
        keep(gap_filter, ORDERS, pa.array([None], pa.binary()), np.array([version(150)]))


@pytest.mark.pitfall(8)
@pytest.mark.parametrize(
    ("splits", "tables"),
    [
        ([split(0, None, 10)], [ORDERS]),
        ([split(1, 10, None)], [ORDERS]),
        ([split(0, None, 10), split(1, 11, None)], [ORDERS]),
        ([split(0, None, 10), split(1, 9, None)], [ORDERS]),
        ([split(0, None, None), split(1, None, None)], [ORDERS]),
        ([split(0, None, None)], [ORDERS, ITEMS]),
        ([], [ORDERS]),
    ],
    ids=["no end", "no start", "hole", "overlap", "twice", "table missing", "nothing"],
)
def test_lost_or_doubled_reports_are_an_error(splits: list[Split], tables: list[TableId]) -> None:
    segment = segment_of(splits, [report(s.id, 100, s.table) for s in splits])
    with pytest.raises(CheckpointError, match="finished"):
        GapFilter.from_segments([segment], tables, "finished")


def test_tables_that_the_log_has_passed_are_left_out_whatever_is_left_of_them() -> None:
    segment = segment_of([split(0, None, None), split(1, 10, None, ITEMS)], [report(0, 100), report(1, 50, ITEMS)])
    assert set(GapFilter.from_segments([segment], [ORDERS], "finished").finished_splits) == {ORDERS}


def test_splits_and_reports_must_belong_together() -> None:
    for reports in ([], [report(0, 1), report(1, 1)], [report(0, 1, ITEMS)]):
        with pytest.raises(ValueError, match="belong together"):
            segment_of([split(0, None, None)], reports)


def test_any_changed_or_missing_byte_is_noticed() -> None:
    good = bytes(segment_of_two_splits())
    assert GapFilter.from_segments([merge_segments([good], "r")], [ORDERS], "r").finished_splits[ORDERS].highs.any()
    for at in range(0, len(good), 7):
        for bad in (good[:at], good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]):
            with pytest.raises(CheckpointError, match=r"r"):
                GapFilter.from_segments([bad], [ORDERS], "r")


def test_another_format_version_is_refused_as_such() -> None:
    good = bytes(segment_of_two_splits())
    with pytest.raises(CheckpointError, match="version 3"):
        merge_segments([good[:8] + b"\3" + good[9:]], "finished")


class TwoDrivers(LocalStore):
    """Another driver acts when this one, just before, asks for the names in a folder: `acts` says when."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.acts = dict[int, Callable[[], object]]()
        self._count = 0

    def list(self, prefix: str) -> list[str]:
        self._count += 1
        self.acts.pop(self._count, lambda: None)()
        return super().list(prefix)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_driver_that_was_frozen_removes_no_segment_of_the_next_one(tmp_path: Path, at: int) -> None:
    frozen, other = TwoDrivers(str(tmp_path)), LocalStore(str(tmp_path))
    frozen.acts[at] = lambda: write_segment(other, 2, [split(1, 10, None)], [report(1, 200)])
    write_segment(frozen, 1, [split(0, None, 10)], [report(0, 100)])
    for act in frozen.acts.values():  # it did not ask so often
        act()
    assert load_gap_filter(other, [ORDERS], {}, {}).finished_splits[ORDERS].highs.tolist() == [
        version(100),
        version(200),
    ]


def test_two_drivers_may_merge_segments_one_of_them_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished_splits, "_MERGE_AT", 2)
    store = LocalStore(str(tmp_path))
    for number, limits in enumerate([(None, 10), (10, 20), (20, None)], 1):
        write_segment(store, number, [split(number, *limits)], [report(number, number * 100)])
    whole = merge_segments([bytes(store.read(name) or b"") for name in segment_names(store)], "finished")
    store.create(finished_file(1, 3), whole)
    assert segment_names(store) == [finished_file(1, 3)]
    found = load_gap_filter(store, [ORDERS], {}, {}).finished_splits[ORDERS]
    assert found.highs.tolist() == [version(100), version(200), version(300)]
