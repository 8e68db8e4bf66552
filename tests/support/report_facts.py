"""Invented facts of a job that a report shows: as a busy MySQL source would leave them."""

import random
from dataclasses import replace
from pathlib import Path

from tidemark.conf.load import load_job_options
from tidemark.conf.model import JobFile
from tidemark.jobs.monitoring.progress import JobProgress, TableProgress
from tidemark.jobs.report.facts import ReportFacts, TableFacts
from tidemark.state.checkpoint.history import (
    EpochHistory,
    EpochStretch,
    EventHistory,
    JobEvent,
    SplitHistory,
)
from tidemark.state.job_state import JobState, SplitKey
from tidemark.state.key_encoding import encode_integer
from tidemark.state.position import BinlogPosition
from tidemark.state.split import Bound, KeyRange, Report, Split
from tidemark.state.table import TableId, TableSchema

HOUR_US = 3_600_000_000
BEGUN_US = 1_790_000_000_000_000
START = BinlogPosition("binlog.000041", 1_200_000, "")
HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>'


def job_file(password: str = "pa55word-of-the-source") -> JobFile:
    base = f"""
job: shop-mirror
trigger: 5s
checkpoint: /checkpoints/shop-mirror
source: {{url: "mysql://cdc:{password}@shop-db/", tables: ["shop.*"]}}
sink: {{type: files, path: /lake/shop}}
"""
    return load_job_options(base, (), Path.cwd(), {})


def busy_facts(*tables: str, splits: int = 48, epochs: int = 240, seed: int = 1) -> ReportFacts:
    """Facts with `splits` of the first table, and a fourth of the previous table's for each next one."""
    chance = random.Random(seed)
    ids = [TableId("shop", name) for name in tables]
    history, last_high, epoch = SplitHistory(), START, 0
    progress, split_id = [], 0
    for i, table in enumerate(ids):
        count = max(1, splits // 4**i)
        read = []
        for number in range(count):
            key = None if number in (0, count) else _bound(number * 50_000)
            end = None if number == count - 1 else _bound((number + 1) * 50_000)
            low = BinlogPosition(last_high.file, last_high.pos + chance.randrange(0, 40_000))
            last_high = BinlogPosition(low.file, low.pos + chance.randrange(20_000, 260_000))
            split = Split(split_id, table, 1, ("id",), KeyRange(key, end))
            read.append((split, Report(split_id, table, 1, last_high, 49_000, chance.randrange(900), low)))
            split_id += 1
        history, epoch = history.plus(epoch + 1, read, len(ids)), epoch + 1
        rows = count * 49_000
        progress.append(
            TableProgress(str(table), count, count, rows, rows, True, *(chance.randrange(90_000) for _ in "abc"))
        )
    kept = _epochs(epochs, chance)
    events = EventHistory()
    for at, name, facts in _events(kept):
        events = events.plus(JobEvent(at, name, facts))
    schemas = tuple(TableSchema(table, 1, (), ("id",)) for table in ids)
    state = JobState(
        job_uuid="u",
        job_name="shop-mirror",
        mode="full+incremental",
        server_identity="s",
        start=START,
        prepared=(),
        created_at_us=BEGUN_US,
        schemas=schemas,
        split_keys=tuple(SplitKey(table, ("id",)) for table in ids),
    )
    told = JobProgress(
        mode="full+incremental",
        phase="stream",
        committed_epoch=kept.last_epoch,
        position="binlog.000042:77120",
        lag_seconds=3.4,
        lag_bytes=182_044,
        epochs=12,
        epoch_seconds=4.5,
        changes=77,
        transactions=48_211,
        filtered_changes=1_204,
        reconnects=2,
        caught_up=False,
        tables=tuple(progress),
    )
    return ReportFacts(
        state=state,
        progress=told,
        tables=tuple(TableFacts(one, ("id",), ("id",)) for one in progress),
        epochs=kept,
        splits=history,
        last_high=last_high.order,
        events=events,
        watermarks="gtid",
        notes=(),
    )


def _bound(key: int) -> Bound:
    return Bound((str(key),), encode_integer(key, unsigned=False).hex())


def _epochs(count: int, chance: random.Random) -> EpochHistory:
    history, at_us, behind = EpochHistory(), BEGUN_US, 9_000_000
    for number in range(1, count + 1):
        snapshot, catching_up = number <= 12, number <= 24
        seconds = (
            chance.uniform(7, 11) if snapshot else chance.uniform(3, 6) if catching_up else chance.uniform(0.3, 0.8)
        )
        changes = 0 if snapshot else chance.randrange(90_000, 130_000) if catching_up else chance.randrange(200, 4_000)
        behind = behind + 2_000_000 if snapshot else max(0, behind - 3_000_000) if catching_up else changes * 60
        epoch = EpochStretch(
            first_epoch=number,
            last_epoch=number,
            phase="snapshot" if snapshot else "catch_up" if catching_up else "stream",
            begin_us=at_us,
            end_us=at_us + round(seconds * 1e6),
            seconds=round(seconds, 3),
            measured=1,
            rows=chance.randrange(300_000, 500_000) if snapshot else 0,
            changes=changes,
            transactions=changes // 20,
            lag_seconds=None if snapshot else 260 - number * 10.0 if catching_up else chance.uniform(0.6, 5),
            lag_bytes=behind,
            reconnects=int(number in (80, 81)),
        )
        history = history.plus(epoch)
        at_us += round(max(seconds, 5) * 1e6)
    return history


def _events(epochs: EpochHistory) -> list[tuple[int, str, tuple[tuple[str, str], ...]]]:
    at = [epoch.begin_us for epoch in epochs.whole]
    server = (("source", "MySQL 9.1.0"), ("watermarks", "gtid"))
    resumed_at, failed_at = at[len(at) * 2 // 3], at[len(at) * 2 // 3 - 1]
    return [
        (at[0], "started", (("job", "shop-mirror"), ("mode", "full+incremental"), ("tables", "4"), *server)),
        (failed_at, "error", (("text", "The disk of the target is full. Remedy: make room, start the job again."),)),
        (resumed_at, "resumed", (("job", "shop-mirror"), ("epoch", "160"), *server)),
    ]


def as_of(facts: ReportFacts) -> int:
    return facts.epochs.recent[-1].end_us + 2_000_000


def unfinished(facts: ReportFacts) -> ReportFacts:
    """The same facts in the middle of the snapshot."""
    assert facts.progress is not None
    tables = tuple(replace(t, splits_total=t.splits_done * 3, complete=False) for t in facts.progress.tables)
    progress = replace(facts.progress, phase="snapshot", tables=tables)
    shown = tuple(replace(fact, progress=table) for fact, table in zip(facts.tables, tables, strict=True))
    return replace(facts, progress=progress, tables=shown)
