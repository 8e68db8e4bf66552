"""Rows have the same hash if, and only if, they have the same values."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.sinks.folded import row_hashes
from tidemark.sinks.folded.row_hashes import hashes_of

SEED = 0x5EED
CONSTANTS = [
    int(value.astype(np.int64)) for value in vars(row_hashes).values() if isinstance(value, np.uint64) and value > 1
]
"""The numbers that the loops mix into hashes, for NULL and otherwise."""
SOME_VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [0, 1, -1, 127, -128]),
    "int16": (pa.int16(), [0, 1, -1, 32767]),
    "int32": (pa.int32(), [0, 1, -1, 2**31 - 1]),
    "int64": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63), *CONSTANTS]),
    "float32": (pa.float32(), [0.0, -0.0, 1.5, float("inf"), float("nan")]),
    "float64": (pa.float64(), [0.0, -0.0, 0.1, 5e-324, float("-inf"), float("nan")]),
    "decimal": (pa.decimal128(38, 2), [Decimal(0), Decimal("0.01"), Decimal("-0.01"), Decimal(2**64), Decimal(-(2**64))]),
    "string": (pa.string(), ["", "\0", "\0\0", "N", "a", "a\0", "12345678", "123456780", "1234567\0", "ab" * 40]),
    "binary": (pa.binary(), [b"", b"\0", b"N", b"12345678", b"123456789"]),
    "date": (pa.date32(), [0, 1, -719_162]),
    "time": (pa.timestamp("us"), [0, 1, -1]),
    "zoned": (pa.timestamp("us", tz="UTC"), [0, 1, -1]),
    "list of floats": (pa.list_(pa.float32()), [[], [None], [0.0], [-0.0], [0.0, 0.0], [None, 0.0], [0.0, None]]),
    "list of numbers": (pa.list_(pa.int64()), [[], [None], *([number] for number in CONSTANTS)]),
    "list of texts": (pa.list_(pa.string()), [[], [None], [""], ["", ""], ["ab", ""], ["a", "b"], ["", "ab"]]),
}  # fmt: skip


@pytest.mark.parametrize("name", SOME_VALUES)
def test_different_values_have_different_hashes_and_equal_ones_the_same(name: str) -> None:
    kind, values = SOME_VALUES[name]
    array = pa.array([None, *values], kind)
    hashes = hashes_of([array], len(array), SEED)
    assert len(set(hashes.tolist())) == len(array)
    assert hashes_of([array], len(array), SEED + 1).tolist() != hashes.tolist()
    numbers = list(range(len(array))) * 3
    for start in (0, 1, 5, 9):
        places = numbers[start:]
        sliced = array.take(pa.array(numbers)).slice(start)
        assert hashes_of([sliced], len(places), SEED).tolist() == hashes[places].tolist()


def test_no_two_rows_have_the_same_hash_with_every_seed() -> None:
    """The first numbers of the two rows once made hashes that differed in the highest bit only, and the second ones took that
    away."""
    first, second = [123456789, 2344206079876579381], [42, 1625038255541977130]
    for seed in range(5):
        one, other = hashes_of([pa.array(first, pa.int64()), pa.array(second, pa.int64())], 2, SEED + seed).tolist()
        assert one != other


def test_values_belong_to_their_columns() -> None:
    one, other = pa.array(["ab", None, "b"]), pa.array(["", "ab", "a"])
    hashes = [*hashes_of([one, other], 3, SEED), *hashes_of([other, one], 3, SEED)]
    assert len(set(hashes)) == 6


def test_all_nan_are_one_value() -> None:
    for unsigned, floating in ((np.uint32, np.float32), (np.uint64, np.float64)):
        bits = np.array([np.nan, -np.nan], floating).view(unsigned)
        hashes = hashes_of([pa.array((bits | unsigned(1)).view(floating)), pa.array([1, 1])], 2, SEED)
        assert (
            hashes[0]
            == hashes[1]
            == hashes_of([pa.array([np.nan], pa.from_numpy_dtype(floating)), pa.array([1])], 1, SEED)
        )


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_texts_of_which_two_bits_differ_have_different_hashes(kind: pa.DataType) -> None:
    """DuckDB's own hash is the same for some of these."""
    text = b"0123456789abcdef" * 3
    texts = [text]
    for one in range(len(text)):
        for other in range(one):
            changed = bytearray(text)
            changed[one] ^= 64
            changed[other] ^= 64
            texts.append(bytes(changed))
            if kind == pa.binary():
                changed[one] ^= 192
                changed[other] ^= 192
                texts.append(bytes(changed))
    assert len(set(hashes_of([pa.array(texts, kind)], len(texts), SEED).tolist())) == len(texts)


@given(st.lists(st.tuples(st.none() | st.text(max_size=20), st.none() | st.integers(-3, 3)), max_size=30))
def test_rows_have_the_same_hash_as_often_as_they_are_the_same(rows: list[tuple[str | None, int | None]]) -> None:
    columns = [pa.array([row[0] for row in rows], pa.string()), pa.array([row[1] for row in rows], pa.int32())]
    hashes = hashes_of(columns, len(rows), SEED).tolist()
    assert len(set(hashes)) == len(set(rows))
    assert len(set(zip(hashes, rows, strict=True))) == len(set(rows))
