"""Which epochs the driver's own process runs."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from devtools.checkpoint_files import LATER, START, STATE, TABLE
from tidemark.conf.load import load_job_options
from tidemark.conf.model import JobFile
from tidemark.jobs.engine import MAX_SPLITS_HERE, is_small
from tidemark.jobs.spark.submitted import local_slots
from tidemark.state.log_range import LogRange
from tidemark.state.plan import AwaitedLog, AwaitedSplits, Exhausted, TableState, Walking

MIB = 1 << 20


def job(*settings: str) -> JobFile:
    source = {"url": "mysql://cdc@db/", "tables": ["shop.*"]}
    text = json.dumps({"job": "x", "checkpoint": "cp", "source": source, "sink": {"type": "console"}})
    return load_job_options(text, settings, Path.cwd())


CLUSTER = "spark.master=spark://db:7077"


@pytest.mark.parametrize(
    ("size_bytes", "settings", "small"),
    [
        (16 * MIB, (CLUSTER,), True),
        (16 * MIB + 1, (CLUSTER,), False),
        (16 * MIB + 1, (), True),
        (16 * MIB + 1, ("spark.master=local-cluster[1,1,1024]",), False),
        (5, ("log.driver_bytes=4",), False),
        (0, ("log.driver_bytes=0",), True),
        (1, ("log.driver_bytes=0",), False),
    ],
)
def test_a_log_range(size_bytes: int, settings: tuple[str, ...], small: bool) -> None:
    state = replace(STATE, awaited=AwaitedLog(LogRange(START, LATER, ()), size_bytes))
    assert is_small(state, job(*settings)) is small


def exhausted(rows: int | None, *, splits: int = 1, done: int = 0, columns: tuple[str, ...] = ("id",)) -> TableState:
    return TableState(TABLE, 1, columns, Exhausted(), rows, planned_splits=splits, done_splits=done)


WALKING = replace(exhausted(10), cursor=next(t.cursor for t in STATE.tables if isinstance(t.cursor, Walking)))


@pytest.mark.parametrize(
    ("tables", "small"),
    [
        ((exhausted(1_000), exhausted(49_000)), True),
        ((exhausted(1_000), exhausted(49_001)), False),
        ((exhausted(10**9, splits=9, done=9), exhausted(7)), True),  # a table that joined a job
        ((exhausted(7), WALKING), False),  # more splits will follow
        ((exhausted(None),), True),  # at most one split's rows
        ((exhausted(None, splits=2),), False),
        ((exhausted(5, columns=()),), False),  # without a key: one split of any size
    ],
)
def test_splits(tables: tuple[TableState, ...], small: bool) -> None:
    assert is_small(replace(STATE, tables=tables, awaited=AwaitedSplits(3, 5)), job()) is small
    assert not is_small(replace(STATE, tables=tables, awaited=AwaitedSplits(3, 5)), job("snapshot.driver_rows=0"))
    many = AwaitedSplits(3, 3 + MAX_SPLITS_HERE + 1)
    assert not is_small(replace(STATE, tables=tables, awaited=many), job())


@pytest.mark.parametrize(
    ("master", "slots"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3,4]", 3),
        ("local[*]", os.cpu_count()),
        ("local[*, 2]", os.cpu_count()),
        ("local-cluster[2,1,1024]", None),
        ("spark://db:7077", None),
        ("yarn", None),
    ],
)
def test_threads_are_as_many_as_spark_would_run_tasks(
    master: str, slots: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_ENV_LOADED", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert local_slots(job(f"spark.master={master}")) == slots
    monkeypatch.setenv("SPARK_ENV_LOADED", "1")
    assert local_slots(job(f"spark.master={master}")) is None
