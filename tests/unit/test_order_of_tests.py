"""Tests that share a Spark session begin a worker's share of the tests."""

from typing import Any

import pytest

from tests.support.order import _shared_out


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_each_group_is_in_one_share(workers: int) -> None:
    first: list[Any] = ["a"] * 3
    second: list[Any] = ["b"] * 2
    others: list[Any] = list(range(10))
    ordered = _shared_out([first, second], others, workers)
    assert sorted(map(str, ordered)) == sorted(map(str, [*first, *second, *others]))
    assert [item for item in ordered if isinstance(item, int)] == others
    shares, left = [], ordered
    for worker in range(workers):  # as pytest-xdist divides the list
        size = len(left) // (workers - worker)
        shares.append(left[:size])
        left = left[size:]
    assert shares[0][:3] == first
    assert shares[1 % workers][0 if workers > 1 else 3 :][:2] == second
