"""`other_rows` takes rows as the same only if they have the same values, bit by bit, whatever their order."""

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.jobs.reconcile.same_rows import other_rows

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "a": (pa.int64(), st.integers(0, 3)),
    "b": (pa.string(), st.sampled_from(["", "a", "A", "ä", "ä", "a "])),
    "f": (pa.float64(), st.none() | st.sampled_from([0.0, -0.0, 1.5, float("nan")])),
    "d": (pa.decimal128(20, 2), st.none() | st.sampled_from([Decimal("1.00"), Decimal("-1.00")])),
    "l": (pa.list_(pa.int32()), st.none() | st.lists(st.none() | st.integers(0, 1), max_size=2)),
}
KEY = ("a", "b")
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in KINDS.items()])
ROWS = st.lists(
    st.fixed_dictionaries({name: values for name, (_, values) in KINDS.items()}),
    unique_by=lambda row: tuple(row[name] for name in KEY),
    max_size=8,
)


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def bits_of(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"f": None if row["f"] is None else struct.pack("d", row["f"])}


def in_batches(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_batches(pa.Table.from_pylist(rows, SCHEMA).to_batches(max_chunksize=3), SCHEMA)


@given(ROWS, ROWS, st.sets(st.integers(0, 7)), st.randoms())
def test_rows_are_the_same_bit_by_bit(
    expected: list[dict[str, Any]], others: list[dict[str, Any]], kept: set[int], random: Any
) -> None:
    kept_rows = [row for number, row in enumerate(expected) if number in kept]
    kept_keys = set(map(key_of, kept_rows))
    held = [*kept_rows, *(row for row in others if key_of(row) not in kept_keys)]
    random.shuffle(held)
    by_key = {key_of(row): bits_of(row) for row in held}
    found = other_rows(in_batches(expected), in_batches(held), KEY)
    assert found is not None
    assert found.rows.tolist() == [by_key.get(key_of(row)) != bits_of(row) for row in expected]
    assert found.has_more_keys == bool(by_key.keys() - set(map(key_of, expected)))


@pytest.mark.parametrize(
    ("expected", "kind", "held", "other_kind", "same"),
    [
        (7, pa.int8(), 7, pa.int16(), True),
        (2**63, pa.uint64(), Decimal(2**63), pa.decimal128(20, 0), True),
        (2**63, pa.uint64(), 7, pa.int64(), None),
        (True, pa.bool_(), 1, pa.int8(), True),
        (Decimal("1.5"), pa.decimal128(4, 1), Decimal("1.500"), pa.decimal128(10, 3), True),
        (Decimal("1.5"), pa.decimal128(4, 1), Decimal(1), pa.decimal128(10, 0), None),
        (1.1, pa.float32(), 1.1, pa.float64(), None),
        ("7", pa.string(), 7, pa.int64(), None),
        (7, pa.timestamp("us", "UTC"), 7, pa.timestamp("us"), True),
        (7, pa.timestamp("us", "UTC"), 8, pa.timestamp("us"), False),
        (None, pa.string(), "", pa.string(), False),
        (0.0, pa.float32(), -0.0, pa.float32(), False),
        ([0.0, 1.0], pa.list_(pa.float32()), [0.0, 1.0], pa.list_(pa.float32()), True),
        ([0.0, 1.0], pa.list_(pa.float32()), [-0.0, 1.0], pa.list_(pa.float32()), False),
    ],
)
def test_types_are_alike_or_can_not_be_compared(
    expected: Any, kind: pa.DataType, held: Any, other_kind: pa.DataType, same: bool | None
) -> None:
    tables = [pa.table({"k": [1], "v": pa.array([value], of)}) for value, of in ((expected, kind), (held, other_kind))]
    found = other_rows(*tables, ["k"])
    assert (None if found is None else not found.rows.any()) is same


def test_a_key_that_comes_twice_or_is_null_can_not_be_compared() -> None:
    one, twice = pa.table({"k": [1]}), pa.table({"k": [1, 1]})
    null = pa.table({"k": pa.array([None], pa.int64())})
    assert other_rows(one, twice, ["k"]) is None
    assert other_rows(twice, one, ["k"]) is None
    assert other_rows(one, null, ["k"]) is None


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_wide_rows_are_not_copied_as_a_whole(is_shuffled: bool) -> None:
    """They may be in files that are larger than the memory, and a text of all rows longer than Arrow's may be."""
    mega = 1 << 20
    batches = [pa.record_batch({"k": [n], "v": [chr(97 + n) * mega]}) for n in range(16)]
    expected, held = (pa.Table.from_batches(order) for order in (batches, batches[::-1] if is_shuffled else batches))
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        found = other_rows(expected, held, ["k"])
    finally:
        pa.set_memory_pool(before)
    assert found is not None
    assert not found.rows.any()
    assert pool.max_memory() < 3 * mega
