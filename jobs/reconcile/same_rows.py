"""Compares the rows of two tables by their keys. Pure.

Rows are taken as the same only if they have the same values, bit by bit. So what is the same needs no other look, and what is
not may still be the same by the rules of a copy's server.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Others:
    """`rows`: for each expected row, whether it is not held in the same way. `has_more_keys`: rows are held whose key is not
    expected."""

    rows: npt.NDArray[np.bool_]
    has_more_keys: bool


def other_rows(expected: pa.Table, held: pa.Table, key: Sequence[str]) -> Others | None:
    """Finds the rows of `expected` that `held` lacks, or has differently. Both have the same columns. None if that can't be
    told: a value of `expected` is none of the type that its column has in `held`, or a key comes twice. Only keys are copied as
    a whole: rows may be wide, and their values in files."""
    cast = as_held(expected, held.schema)
    if cast is None:
        return None
    expected = cast
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
    others = np.ones(expected.num_rows, np.bool_)
    for rows, one, other in _pairs(expected, held, left, right):
        others[rows] = ~_same(one, other)
    return Others(others, has_more_keys=len(right) < len(of_held))


def as_held(expected: pa.Table, held: pa.Schema) -> pa.Table | None:
    """Returns rows with the types that their copy has. None if a copy need not hold them unchanged there, or can't."""
    if not all(_are_alike(one.type, other.type) for one, other in zip(expected.schema, held, strict=True)):
        return None
    try:
        return expected.cast(held)
    except pa.ArrowInvalid:
        return None


def _pairs(
    expected: pa.Table, held: pa.Table, left: _Numbers, right: _Numbers
) -> Iterator[tuple[_Numbers, pa.RecordBatch, pa.RecordBatch]]:
    """Yields the expected rows `left` and the held rows `right` beside each other, as many at a time as one batch of each has.
    Before them, their numbers in `expected`."""
    of_expected, of_held = expected.to_batches(), held.to_batches()
    starts, other_starts = _starts(of_expected), _starts(of_held)
    batches = np.searchsorted(starts, left, "right") - 1
    other_batches = np.searchsorted(other_starts, right, "right") - 1
    together = batches * len(of_held) + other_batches
    order = np.argsort(together, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(together[order])) + 1):
        if len(part):
            i, j = batches[part[0]], other_batches[part[0]]
            one = _taken(of_expected[i], left[part] - starts[i])
            yield left[part], one, _taken(of_held[j], right[part] - other_starts[j])


def _starts(batches: Sequence[pa.RecordBatch]) -> _Numbers:
    return np.cumsum([0, *(batch.num_rows for batch in batches[:-1])])


def _taken(batch: pa.RecordBatch, rows: _Numbers) -> pa.RecordBatch:
    if np.all(np.diff(rows) == 1):
        return batch.slice(int(rows[0]), len(rows))
    return batch.take(pa.array(rows))


def _same(expected: pa.RecordBatch, held: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    same = np.ones(expected.num_rows, np.bool_)
    for one, other in zip(map(_bits, expected.columns), map(_bits, held.columns), strict=True):
        if not one.equals(other):
            same &= _equal(one, other)
    return same


def _are_alike(expected: pa.DataType, held: pa.DataType) -> bool:
    """True if a copy that holds such a value unchanged has it as a value of the type `held`. A float in a wider one may have
    got there as a text. Servers without time zones have times in UTC."""
    if pa.types.is_integer(held) or pa.types.is_decimal(held):
        is_truth = pa.types.is_boolean(expected) and pa.types.is_integer(held)
        return bool(is_truth or pa.types.is_integer(expected) or pa.types.is_decimal(expected))
    if pa.types.is_timestamp(expected) and pa.types.is_timestamp(held):
        return bool(expected.unit == held.unit and {expected.tz, held.tz} <= {None, "UTC"})
    return bool(expected == held)


def _numbered(one: pa.Table, other: pa.Table) -> _Numbers | None:
    """Returns a number for each row of both, the same for equal rows. None if there is a null."""
    both = pa.concat_tables([one, other])
    if any(column.null_count for column in both.columns):
        return None
    if both.num_columns == 1 and pa.types.is_signed_integer(both.schema.types[0]):
        integers: _Numbers = both.column(0).to_numpy().astype(np.int64)
        return integers
    numbers = np.zeros(both.num_rows, np.int64)
    for column in both.columns:
        coded = column.combine_chunks().dictionary_encode()
        pairs = numbers * len(coded.dictionary) + coded.indices.to_numpy().astype(np.int64)
        numbers = np.unique(pairs, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return numbers


def _are_unique(numbers: _Numbers) -> bool:
    return bool(np.all(numbers[1:] > numbers[:-1])) or len(np.unique(numbers)) == len(numbers)


def _bits(array: pa.Array) -> pa.Array:
    """Returns the values, floats as integers of the same bits, also in lists: 0 and -0 are two values."""
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
