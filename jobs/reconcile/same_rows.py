"""Compares the rows of two tables by their keys. Pure.

Rows are taken as the same only if they have the same values, bit by bit. So what is the same needs no other look, and what is
not may still be the same by the rules of a copy's server.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Others:
    """`rows`: the numbers of the expected rows that are not held in the same way. `has_more_keys`: rows are held whose key is
    not expected."""

    rows: npt.NDArray[np.int64]
    has_more_keys: bool


def other_rows(expected: pa.Table, held: pa.Table, key: Sequence[str]) -> Others | None:
    """Finds the rows of `expected` that `held` lacks, or has differently. Both have the same columns. None if that can't be
    told: a value of `expected` is none of the type that its column has in `held`, or a key comes twice."""
    if not all(_are_alike(one.type, other.type) for one, other in zip(expected.schema, held.schema, strict=True)):
        return None
    try:
        expected = expected.cast(held.schema).combine_chunks()
    except pa.ArrowInvalid:
        return None
    held = held.combine_chunks()
    numbers = _numbered(expected.select(key), held.select(key))
    if numbers is None:
        return None
    of_expected, of_held = numbers[: expected.num_rows], numbers[expected.num_rows :]
    if not _are_unique(of_expected) or not _are_unique(of_held):
        return None
    if np.array_equal(of_expected, of_held):
        left = right = np.arange(expected.num_rows)
    else:
        _, left, right = np.intersect1d(of_expected, of_held, assume_unique=True, return_indices=True)
        expected, held = expected.take(pa.array(left)), held.take(pa.array(right))
    same = np.ones(len(left), np.bool_)
    for name in expected.column_names:
        one, other = (_bits(table[name]) for table in (expected, held))
        if not one.equals(other):
            same &= _equal(one, other)
    are_held = np.zeros(len(of_expected), np.bool_)
    are_held[left[same]] = True
    return Others(np.flatnonzero(~are_held), has_more_keys=len(right) < len(of_held))


def _are_alike(expected: pa.DataType, held: pa.DataType) -> bool:
    """True if a copy that holds such a value unchanged has it as a value of the type `held`. A float in a wider one may have
    got there as a text. Servers without time zones have times in UTC."""
    if pa.types.is_integer(held) or pa.types.is_decimal(held):
        is_truth = pa.types.is_boolean(expected) and pa.types.is_integer(held)
        return bool(is_truth or pa.types.is_integer(expected) or pa.types.is_decimal(expected))
    if pa.types.is_timestamp(expected) and pa.types.is_timestamp(held):
        return bool(expected.unit == held.unit and {expected.tz, held.tz} <= {None, "UTC"})
    return bool(expected == held)


def _numbered(one: pa.Table, other: pa.Table) -> npt.NDArray[np.int64] | None:
    """Returns a number for each row of both, the same for equal rows. None if there is a null."""
    both = pa.concat_tables([one, other])
    if any(column.null_count for column in both.columns):
        return None
    if both.num_columns == 1 and pa.types.is_signed_integer(both.schema.types[0]):
        integers: npt.NDArray[np.int64] = both.column(0).to_numpy().astype(np.int64)
        return integers
    numbers = np.zeros(both.num_rows, np.int64)
    for column in both.columns:
        coded = column.combine_chunks().dictionary_encode()
        pairs = numbers * len(coded.dictionary) + coded.indices.to_numpy().astype(np.int64)
        numbers = np.unique(pairs, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return numbers


def _are_unique(numbers: npt.NDArray[np.int64]) -> bool:
    return bool(np.all(numbers[1:] > numbers[:-1])) or len(np.unique(numbers)) == len(numbers)


def _bits(column: pa.ChunkedArray) -> pa.Array:
    """Returns the values, floats as integers of the same bits, also in lists: 0 and -0 are two values."""
    array = column.combine_chunks()
    kind = _without_floats(array.type)
    return array if kind == array.type else array.view(kind)


def _without_floats(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_without_floats(kind.value_type))
    if pa.types.is_float32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_float64(kind) else kind


def _equal(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    if pa.types.is_nested(one.type):  # which Arrow compares only as a whole
        return np.array([a == b for a, b in zip(one, other, strict=True)], np.bool_)
    equal = pc.fill_null(pc.equal(one, other), False)
    nulls = pc.and_(one.is_null(), other.is_null())
    return np.asarray(pc.or_(equal, nulls).to_numpy(zero_copy_only=False), np.bool_)
