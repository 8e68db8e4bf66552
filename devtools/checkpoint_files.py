"""Values of each kind of checkpoint file. They contain every variant of its fields."""

from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidemark.state.change_batch import ChangeType, batch_schema
from tidemark.state.checkpoint.history import (
    EpochHistory,
    EpochStretch,
    EventHistory,
    JobEvent,
    RunRecord,
    SplitHistory,
    SplitStretch,
    TableSplits,
)
from tidemark.state.checkpoint.records import Again, Cut
from tidemark.state.job_state import Altered, JobState, Joined, Left, Membership, SplitKey, TableCondition
from tidemark.state.key_repair import KeyRepair
from tidemark.state.key_rereads import KeyReread
from tidemark.state.log_extent import KnownLog
from tidemark.state.log_range import LogRange, LogReport, LogTotals, PreparedXa, TableChanges, TouchedKeys
from tidemark.state.partitions import KeptPartitions, Partition, Partitions, WatchedTable
from tidemark.state.phase import Phase
from tidemark.state.plan import (
    Aside,
    AwaitedLog,
    AwaitedSplits,
    Cursor,
    EnumeratorState,
    Exhausted,
    LogWork,
    Plan,
    PlanRecord,
    Releasing,
    SnapshotWork,
    Staging,
    Stepping,
    TableState,
    Untouched,
    Walking,
)
from tidemark.state.position import BinlogPosition, WalPosition
from tidemark.state.projection import TableProjection
from tidemark.state.reached import Reached
from tidemark.state.run_state import RunState
from tidemark.state.seen_copy import SeenCopy, TableLog
from tidemark.state.signals import Answer, FirstRows, Signal, SourceRow
from tidemark.state.sink_identity import SinkIdentity, SinkSetting
from tidemark.state.split import Bound, KeyRange, ReleaseChunk, Report, SharedSnapshot, Split, StageChunk
from tidemark.state.table import Column, TableId, TableSchema
from tidemark.state.upgrade_mark import UpgradeMark

TABLE = TableId("shöp", "orders\n")
START = BinlogPosition(
    "binlog.000001",
    4,
    "",
    begun=1_700_000_000,
    gtid_state="0-1-7",
    last_at=1_700_000_001,
    unlogged="00000000-0000-0000-0000-00000000000a:9",
    times="00000000-0000-0000-0000-00000000000a:7=1700000001000000",
)
LATER = BinlogPosition("binlog.000002", 2**33, "00000000-0000-0000-0000-00000000000a:1-5:7")
HIGH = WalPosition(2**40 + 5, "7:9:8")
XA = PreparedXa("X'61',X'',1", START, LATER)
CONDITION = TableCondition(TABLE, "a > 1")
BOUND = Bound(("18446744073709551615", "_utf8mb4 0x61"), "00ff")
REREAD = KeyRepair(3, TABLE, 1, "repairs/n3-1700000000000000", LATER, 5, KeyRange(BOUND, None))
SNAPSHOT = SharedSnapshot("00000003-0000001B-1", HIGH, 1_700_000_000_000_000, 16_385)
SPLIT = Split(7, TABLE, 1, ("a", "b"), KeyRange(None, BOUND))
CHUNKS = (
    replace(SPLIT, id=8, pages=StageChunk(8, SNAPSHOT)),
    replace(SPLIT, id=9, pages=ReleaseChunk(8)),
    replace(SPLIT, id=10, pages=ReleaseChunk(8, "7d0c")),
)
CURSORS: tuple[Cursor, ...] = (
    Untouched(),
    Stepping(-5, None, 2**64 - 1, 50_000, unsigned=True),
    Stepping(-5, -(2**63), 9, 1, unsigned=False),
    Walking(None, BOUND, 10),
    Walking(BOUND, BOUND, 10),
    Staging(8, SNAPSHOT, None, 90, 10),
    Releasing(8, 20, 90, 10),
    Aside(8, LATER),
    Releasing(8, 20, 90, 1, "7d0c"),
    Exhausted(),
)
CHANGES = (TableChanges(TABLE, 1, 2, 3),)
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
    joined=1,
    totals=LogTotals(CHANGES, 4, 5, 6, 7),
    reached=Reached(2, 5),
    key_rereads=(2,),
    known_log=KnownLog(1_700_000_000_000_000, START, LATER, 1_700_000_000_000_009),
)
PARTITIONS = Partitions(
    2**40,
    (WatchedTable(TABLE, 2**32 - 1, (Partition(7, 2**32 - 1, "a.b", 3, None), Partition(8, 7, "a.c", 3, 9))),),
)
RANGE = LogRange(START, BinlogPosition("binlog.000002", 5), (XA,))
SNAPSHOT_PLAN = PlanRecord(
    Plan(3, Phase.SNAPSHOT, SnapshotWork(((SPLIT,), (SPLIT, *CHUNKS)), LATER), bytes_behind=12),
    STATE,
    planned_at_us=1_700_000_000_000_001,
    partitions=KeptPartitions("00ff", 2**40),
    warnings=("w",),
)
LOG_PLAN = PlanRecord(
    Plan(4, Phase.STREAM, LogWork(RANGE, after=Reached(2, 5), rereads=(REREAD,))),
    replace(
        STATE,
        phase=Phase.STREAM,
        rereads=(REREAD,),
        last_high=None,
        awaited=AwaitedLog(RANGE, 10),
        reached=Reached(4, 0),
        key_rereads=(),
    ),
)
SCHEMA = TableSchema(
    TABLE,
    1,
    (
        Column("a", "enum('x')", "string", nullable=True, charset="utf8mb4", collation="utf8mb4_bin"),
        Column("b", "geometry", "", nullable=False, captured=False, generated=True, toastable=True, made=True),
    ),
    ("a",),
)
ADDED = Column("c", "int", "int32", nullable=True, added=True, constant="5")
DROPPED = Column("d", "int", "", nullable=True, captured=False, dropped=True)
WIDENED = Column("e", "bigint", "int64", nullable=True, narrower=("smallint", "int"))
PROJECTION = TableProjection(SCHEMA, ("b",), (("a", "sha256"),), "00", "ff")
JOB = JobState(
    job_uuid="u",
    job_name="j",
    mode="incremental",
    server_identity="s",
    start=START,
    prepared=(XA,),
    created_at_us=1,
    schemas=(SCHEMA,),
    split_keys=(SplitKey(TABLE, ()),),
    memberships=(Membership(TABLE, "16385 3"),),
    projections=(PROJECTION,),
    partitions=PARTITIONS,
    conditions=(CONDITION,),
    lists=True,
)
JOINED = Joined(
    HIGH,
    (SCHEMA,),
    (SplitKey(TABLE, ("a",)),),
    JOB.memberships,
    (PROJECTION,),
    PARTITIONS,
    (CONDITION,),
    back=(TABLE,),
    left_files=2,
    after_epoch=41,
    at_us=1_700_000_000_000_000,
    restarts=True,
    server_identity="s2",
    version_offset=2**41,
    reached=Reached(40, 2),
    rereads=(REREAD,),
    replaced=(TABLE,),
)
EPOCH = EpochStretch(1, 2, "stream", 10, 20, 0.5, 1, 2, 3, 4, 5, 6, 7, 0.25, 8)

VALUES: dict[str, tuple[Any, ...]] = {
    "plan": (SNAPSHOT_PLAN, LOG_PLAN),
    "job": (JOB,),
    "joined": (JOINED,),
    "joined_list": ((JOINED, JOINED),),
    "cut": (Cut(7, {"joined": 3, "left": 0}),),
    "again": (Again(42),),
    "left": (
        (Left(TABLE, 1), Left(TABLE, 2, "ALTER TABLE", 1_700_000_000_000_000, 1)),
        (Left(TABLE, 3, paused=True),),
    ),
    "altered": (
        Altered(
            replace(SCHEMA, columns=(*SCHEMA.columns, ADDED, DROPPED, WIDENED)), PROJECTION, 1_700_000_000_000_000, 41
        ),
        Altered(SCHEMA),
    ),
    "signal": (
        Signal(TABLE, 1_700_000_000_000_000),
        Signal(None, 1_700_000_000_000_000, "set", "snapshot.parallelism", "2"),
        Signal(
            TABLE,
            1_700_000_000_000_000,
            "repair",
            keys=(("1", "é"),),
            ranges=(KeyRange(None, BOUND),),
            whole=(KeyRange(BOUND, None),),
        ),
        Signal(TABLE, 1_700_000_000_000_000, span=(("1", "é"), ("2", "a"))),
        Signal(TABLE, 1_700_000_000_000_000, where="a > 5"),
        Signal(
            None, 1_700_000_000_000_000, "refused", "é", "It is no type.", row=SourceRow("shop.signals", "7", "9f2c")
        ),
        Signal(None, 1_700_000_000_000_000, "accept-server", value="7436592817365928173"),
    ),
    "answer": (Answer(accepted=False, text="The source has no such table.", at_us=1_700_000_000_000_000),),
    "first_rows": (FirstRows("shop.signals", (("1", "9f2c"), ("é", "00"))),),
    "upgrade_mark": (
        UpgradeMark("7436592817365928173/1", WalPosition(16), 742, 35, "tidemark_shop_9f2c", 1_700_000_000_000_000),
    ),
    "sink": (
        SinkIdentity((SinkSetting("sink.type", "files"),), SinkSetting("sink.path", "/lake")),
        SinkIdentity((), None),
    ),
    "seen_copies": (
        (SeenCopy(TABLE, "0f8fad5b-d9cb-469f-a165-70867728950e", 42, TableLog(43, "9f2c", "a1b2"), "c3d4"),),
        (),
    ),
    "partitions": (PARTITIONS.tables,),
    "published_split": (
        Report(7, TABLE, 1, LATER, 10, 2, BinlogPosition("binlog.000001", 9)),
        Report(8, TABLE, 1, HIGH, 10, 0, kind="staged"),
    ),
    "log_report": (
        LogReport(LATER, (XA,), 1, 2, 3, 1_700_000_000_000_000, CHANGES, LATER, reconnects=1),
        LogReport(HIGH, (), 0, 0, 0, None, last_commit=HIGH),
        LogReport(HIGH, (), 2, 0, 1, None, touched=(TouchedKeys(TABLE, 1, "AAAA"), TouchedKeys(TABLE, 2, None))),
    ),
    "key_rereads": ((KeyReread(TABLE, HIGH, ("1", "a\0b"), (3, 4), (0, 2**31 - 1)),),),
    "epochs": (EpochHistory((EPOCH,), (EPOCH,), 2),),
    "splits": (SplitHistory(3, (TableSplits(TABLE, (SplitStretch(None, "9", 1, 2, 3, None, (1, 4), (1, 5)),), 2),)),),
    "events": (EventHistory(JobEvent(1, "started", (("job", "j"),)), (JobEvent(2, "warning", ()),)),),
    "run": (
        RunRecord("etl-1", "pid:[4026531836]", 77, 1, 2),
        RunRecord("etl-1", "", 77, 1, 3, 3, "No grant.", "Grant it.", RunState.FAILED),
    ),
}
"""Values by kind of checkpoint file."""

PUBLISHED_SCHEMA = TableSchema(
    TABLE,
    1,
    (Column("a", "int", "int32", nullable=False), Column("b", "text", "string", nullable=True, toastable=True)),
    ("a",),
)
PUBLISHED_REPORT = replace(VALUES["published_split"][0], row_count=2)
PUBLISHED_ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "a": number,
            "b": text,
            "_change_type": int(ChangeType.INSERT),
            "_commit_version": LATER.version,
            "_commit_timestamp": 1_700_000_000_000_000,
            "_seq": number,
            "_txn_id": None,
            "_is_snapshot": True,
            "_unchanged": None,
        }
        for number, text in ((0, "ä\0"), (1, None))
    ],
    schema=batch_schema(PUBLISHED_SCHEMA),
)
"""The rows of a published split."""

FINISHED = (
    (Split(0, TABLE, 1, ("a",), KeyRange(None, BOUND)), Report(0, TABLE, 1, HIGH, 10, 0)),
    (Split(1, TABLE, 1, ("a",), KeyRange(BOUND, None)), Report(1, TABLE, 1, WalPosition(2**40 + 9, "8:9:"), 5, 1)),
)
"""Splits of one table that an epoch finished, with their reports."""
