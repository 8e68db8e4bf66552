"""A task of Spark folds the changes of a bucket in bounded memory."""

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from tidemark.jobs.reconcile.folding_tasks import FoldedBucket, FoldingBuckets, Portion
from tidemark.sinks.folded import rows_by_key
from tidemark.sinks.folded.hashed_rows import HashedRows
from tidemark.state.table import Column, TableId, TableSchema

SCHEMA = TableSchema(TableId("shop", "parts"), 1, (Column("id", "int", "int32", nullable=False),), ("id",))
KEYS = 10_000
PORTION = 8192


def rows_of(numbers: np.ndarray, version: int) -> HashedRows:
    """Rows whose values are those of their version's last digit."""
    keys = (numbers * 0x9E3779B97F4A7C15).astype(np.uint64)
    seq = np.arange(len(numbers))
    none = np.zeros(len(numbers), np.bool_)
    return HashedRows(
        (keys, keys ^ np.uint64(7)), np.full(len(numbers), version), seq, none, (keys + np.uint64(version),)
    )


def folded(changes: int, of_nobody: int = 0, *, read_at: int | None = None) -> tuple[FoldedBucket, int]:
    """A bucket in which each key has been changed again and again, and the peak of the memory that this took. `read_at`: the
    version that the source's rows are of; None: the last one."""
    last = changes // PORTION
    at = last if read_at is None else read_at

    def portions() -> Iterator[tuple[int, Portion]]:
        numbers = np.arange(KEYS).astype(np.uint64)
        yield 0, Portion(rows_of(numbers, at), np.zeros(KEYS, np.int32))
        for version in range(last):
            yield 0, Portion(rows_of(np.arange(PORTION).astype(np.uint64) * np.uint64(version + 1) % KEYS, version))
            if version == at:
                yield 0, Portion(rows_of(numbers, version))
        yield 0, Portion(rows_of(np.arange(KEYS + of_nobody).astype(np.uint64), last))

    tracemalloc.start()
    try:
        (found,) = FoldingBuckets(SCHEMA, 1, 1000, finds_surplus=True, since=at)(portions())
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def facts(found: FoldedBucket) -> tuple[int, ...]:
    return found.row_count, len(found.keys[0]), len(found.held), found.unlisted + found.unlisted_surplus


def test_any_number_of_changes_takes_as_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last change of each key counts, wherever it is."""
    monkeypatch.setattr(rows_by_key, "MAX_ROWS", 1 << 13)
    _, of_few = folded(50_000)
    found, of_many = folded(400_000, of_nobody=3)
    assert facts(found) == (KEYS, 0, 3, 0)
    assert of_many < 1.2 * of_few
    monkeypatch.setattr(rows_by_key, "MAX_ROWS", 1 << 30)
    in_memory, peak = folded(400_000, of_nobody=3)
    assert peak > 5 * of_many
    assert facts(in_memory) == (KEYS, 0, 3, 0)


def test_rows_of_an_earlier_time_take_as_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_by_key, "MAX_ROWS", 1 << 13)
    _, of_few = folded(50_000, read_at=1)
    found, of_many = folded(400_000, of_nobody=3, read_at=1)
    assert facts(found) == (KEYS, 0, 0, 0)
    assert of_many < 1.2 * of_few


def test_rows_of_an_earlier_time_take_hardly_more_memory_than_those_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_by_key, "MAX_ROWS", 1 << 30)
    monkeypatch.setattr(rows_by_key, "PIECE_ROWS", 1 << 14)
    _, of_now = folded(400_000)
    found, of_then = folded(400_000, of_nobody=3, read_at=12)
    assert facts(found) == (KEYS, 0, 0, 0)
    assert of_then < 1.2 * of_now
