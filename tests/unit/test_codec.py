import json
from dataclasses import replace

import pytest

from state import codec
from state.errors import CheckpointError
from state.job_state import JobState, SplitKey
from state.log_range import LogRange, LogReport, PreparedXa
from state.partitions import KeptPartitions, Partition, PartitionedTable, Partitions
from state.phase import Phase
from state.plan import (
    AwaitedLog,
    AwaitedSplits,
    Cursor,
    EnumeratorState,
    Exhausted,
    LogWork,
    Plan,
    PlanRecord,
    SnapshotWork,
    Stepping,
    TableState,
    Untouched,
    Walking,
)
from state.points import PointReading
from state.position import BinlogPosition, WalPosition
from state.split import Bound, KeyRange, Split
from state.table import Column, TableId, TableSchema

TABLE = TableId("shöp", "orders\n")
START = BinlogPosition("binlog.000001", 4, "")
LATER = BinlogPosition("binlog.000002", 2**33, "00000000-0000-0000-0000-00000000000a:1-5:7")
XA = PreparedXa("X'61',X'',1", START, LATER)
BOUND = Bound(("18446744073709551615", "_utf8mb4 0x61"), "00ff")
SPLIT = Split(7, TABLE, 1, ("a", "b"), KeyRange(None, BOUND))
CURSORS: tuple[Cursor, ...] = (
    Untouched(),
    Stepping(-5, None, 2**64 - 1, 50_000, unsigned=True),
    Stepping(-5, -(2**63), 9, 1, unsigned=False),
    Walking(None, BOUND, 10),
    Walking(BOUND, BOUND, 10),
    Exhausted(),
)
STATE = EnumeratorState(
    mode="full+incremental",
    phase=Phase.SNAPSHOT,
    epoch=3,
    tables=tuple(TableState(TABLE, 1, ("a", "b"), cursor, None, 2, 1, 50_000) for cursor in CURSORS),
    next_split_id=9,
    splits_per_task=4,
    position=START,
    prepared=(XA,),
    last_high=LATER,
    batch_bytes=1 << 26,
    awaited=AwaitedSplits(7, 9),
)
PARTITIONS = Partitions(
    2**40,
    (PartitionedTable(TABLE, 2**32 - 1, (Partition(7, 2**32 - 1, "a.b", 3, None), Partition(8, 7, "a.c", 3, 9))),),
)
RANGE = LogRange(START, BinlogPosition("binlog.000002", 5), (XA,))
RECORD = PlanRecord(Plan(3, Phase.SNAPSHOT, SnapshotWork(((SPLIT,), (SPLIT, SPLIT)), LATER)), STATE)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (codec.PLAN, RECORD),
        (
            codec.PLAN,
            PlanRecord(
                Plan(4, Phase.STREAM, LogWork(RANGE)),
                replace(STATE, phase=Phase.STREAM, last_high=None, awaited=AwaitedLog(RANGE, 10)),
            ),
        ),
        (codec.PLAN, replace(RECORD, partitions=KeptPartitions("00ff", 2**40), warnings=("w",))),
        (codec.PARTITIONS, PARTITIONS.tables),
        (codec.LOG_REPORT, LogReport(LATER, (XA,), 1, 2, 3, None, last_high=LATER)),
        (codec.POINTS, (PointReading(TABLE, WalPosition(5, "7:9:8"), ("1", "a\0b"), (3, 4), (0, 2**31 - 1)),)),
        (
            codec.JOB,
            JobState(
                job_uuid="u",
                job_name="j",
                mode="incremental",
                server_identity="s",
                start=START,
                prepared=(),
                created_at_us=1,
                schemas=(TableSchema(TABLE, 1, (Column("a", "enum('x')", "string", nullable=True),), ("a",)),),
                split_keys=(SplitKey(TABLE, ()),),
                partitions=PARTITIONS,
            ),
        ),
    ],
)
def test_what_is_written_is_read(kind: codec.Codec[object], value: object) -> None:
    data = kind.encode(value)
    assert kind.decode(data, "x") == value
    assert kind.encode(kind.decode(data, "x")) == data


def test_any_changed_or_missing_byte_is_noticed() -> None:
    good = codec.PLAN.encode(RECORD)
    for at in range(len(good)):
        changed = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        for bad in (good[:at], changed):
            with pytest.raises(CheckpointError, match="plans/1"):
                codec.PLAN.decode(bad, "plans/1")


def test_another_version_is_refused_as_such() -> None:
    head, body = codec.PLAN.encode(RECORD).split(b"\n", 1)
    newer = json.dumps({**json.loads(head), "version": codec.VERSION + 1}).encode() + b"\n" + body
    with pytest.raises(CheckpointError, match=f"format version {codec.VERSION + 1}"):
        codec.PLAN.decode(newer, "plans/1")


def test_another_kind_is_refused() -> None:
    with pytest.raises(CheckpointError, match="'plan' where 'job'"):
        codec.JOB.decode(codec.PLAN.encode(RECORD), "job")


@pytest.mark.pitfall(73)
def test_nothing_is_read_from_an_empty_file_or_one_without_a_field() -> None:
    with pytest.raises(CheckpointError):
        codec.PLAN.decode(b"", "plans/1")
    broken = codec.Codec[object]("plan", dict).encode({"phase": "stream"})
    with pytest.raises(CheckpointError, match="not what version"):
        codec.PLAN.decode(broken, "plans/1")
