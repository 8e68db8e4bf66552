"""How the changes of an epoch are divided among several connections."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.support.change_parts import DELETE, INSERT, ITEMS, NOTES, ORDERS, TRUNCATE, UNCHANGED, UPDATE, rows
from tidemark.sinks.mirror import buckets, shares
from tidemark.sinks.mirror.buckets import bucket_part, buckets_of, has_buckets, obstacle
from tidemark.sinks.mirror.filling import Chunk
from tidemark.sinks.mirror.shares import Division
from tidemark.state.table import TableId, TableSchema

PAIRS = replace(ORDERS, key=("id", "amount"))


def of(schema: TableSchema, *keys: pa.Array) -> list[int]:
    found: list[int] = buckets_of(schema, pa.RecordBatch.from_arrays(list(keys), names=list(schema.key))).tolist()
    return found


def test_a_key_has_its_bucket_for_ever() -> None:
    """An epoch that was written in part is ended by a later version."""
    numbers = [0, 255, 256, 512, 768, 1 << 40, -1, -(1 << 63), 12345678901]
    assert of(ORDERS, pa.array(numbers)) == [0, 0, 4, 1, 6, 3, 3, 0, 3]
    assert of(ORDERS, pa.array(numbers, pa.decimal128(20, 0))[3:7]) == [1, 6, 3, 3]
    assert of(PAIRS, pa.array([0, 1, 2, 1], pa.int16()), pa.array([0, 0, 0, 256], pa.int32())) == [0, 5, 6, 2]
    assert bucket_part(TableId("shop", "orders"), 3) == "log273b481b0b7498df42737825dede866a_3/8"


@pytest.mark.parametrize("step", [1, 2, 3, 10, 64, 256, 1024, 1 << 20])
def test_buckets_are_of_one_size(step: int) -> None:
    counts = np.bincount(of(ORDERS, pa.array(np.arange(0, 400_000 * step, step)[:400_000])), minlength=buckets.COUNT)
    assert counts.min() > 45_000
    assert counts.max() < 55_000


def test_what_has_buckets() -> None:
    assert has_buckets(ORDERS)
    assert not has_buckets(ITEMS)
    assert not has_buckets(NOTES)
    assert not has_buckets(replace(ORDERS, key=()))
    masked = tuple(replace(column, made=column.name == "id") for column in ORDERS.columns)
    assert not has_buckets(replace(ORDERS, columns=masked))


def test_what_lets_rows_depend_on_each_other() -> None:
    order = (1, "Ada", None, None, None)
    assert obstacle(ORDERS, [rows(ORDERS, [(INSERT, order), (UPDATE, order), (DELETE, order)])]) is None
    assert obstacle(ORDERS, [rows(ORDERS, [(TRUNCATE, (None,) * 5)])]) == "it was truncated"
    assert obstacle(ORDERS, [rows(ORDERS, [(INSERT, order), (INSERT, (None, *order[1:]))])]) == "a key is null"
    note = (1, "en", 1, UNCHANGED, None, None)
    assert obstacle(NOTES, [rows(NOTES, [(UPDATE, note)])]) is None
    assert obstacle(NOTES, [rows(NOTES, [(UPDATE, note), (INSERT, note)])]) is not None


def chunk(**sizes: int) -> Chunk:
    """Changes of tables, with this many bytes."""
    return {
        (TableId("s", name), 1): [pa.RecordBatch.from_arrays([pa.array(np.zeros(size, np.uint8))], names=["x"])]
        for name, size in sizes.items()
    }


def test_a_large_table_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes up for the other tables. What has come first stays where it is."""
    monkeypatch.setattr(shares, "MIN_BYTES", 8)
    large = TableId("s", "large")
    division = Division(2, lambda table, _: table == large)
    work = division.divided(chunk(small=240, large=560))
    assert {share: [table.name for table, _ in some.chunk] for share, some in work.items()} == {
        0: ["small", "large"],
        1: ["large"],
    }
    assert {share: len(some.buckets[large]) for share, some in work.items()} == {0: 2, 1: 6}
    assert work[0].buckets[large] | work[1].buckets[large] == buckets.ALL
    again = division.divided(chunk(large=1))
    assert {share: some.buckets for share, some in again.items()} == {
        share: some.buckets for share, some in work.items()
    }


@pytest.mark.parametrize(
    ("sizes", "asked"),
    [
        ({"a": 100, "b": 101}, ["b"]),
        ({"a": 100, "b": 100}, []),
        ({"a": 7}, []),
        ({"a": 100, "b": 10}, ["a"]),
    ],
)
def test_which_tables_are_not_divided(sizes: dict[str, int], asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, those with no more than a share's part, and those that may not be."""
    monkeypatch.setattr(shares, "MIN_BYTES", 8)
    found: list[str] = []

    def refuse(table: TableId, _: Chunk) -> bool:
        found.append(table.name)
        return False

    work = Division(2, refuse).divided(chunk(**sizes))
    assert found == asked
    assert all(not some.buckets for some in work.values())
    assert len(work) == len(sizes)
