import pytest

from benchmarks.planning import measure


@pytest.mark.parametrize("gap", [1, 1000], ids=["arithmetic", "walked"])
def test_planning_memory_does_not_grow_with_the_number_of_splits(gap: int) -> None:
    measure(2_000, gap)  # what is made once and kept
    small, large = measure(5_000, gap), measure(20_000, gap)
    assert small.split_count == 5_000
    assert large.split_count == 20_000
    assert large.largest_plan_bytes <= small.largest_plan_bytes * 1.1
    assert large.peak_python_bytes < small.peak_python_bytes + (1 << 20)
    assert large.peak_python_bytes < 8 << 20
    assert large.finished_splits_bytes < 40 * large.split_count
