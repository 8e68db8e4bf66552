"""Ranges around keys of a copy."""

from hypothesis import given
from hypothesis import strategies as st

from tidemark.jobs.reconcile.key_ranges import joined
from tidemark.state.split import Bound, KeyRange


def bound(n: int) -> Bound:
    """Only the literal tells which key it is: PostgreSQL encodes the same key in several ways."""
    return Bound((str(n),), f"{n % 3:02x}")


def ranges_around(wanted: set[int], held: set[int]) -> list[KeyRange]:
    """For each key the range up to the key after the next one of those that the source has."""
    found = []
    for key in wanted:
        following = sorted(other for other in held if other >= key)[1:2]
        found.append(KeyRange(bound(key), bound(following[0]) if following else None))
    return found


def keys_in(ranges: list[KeyRange]) -> set[int]:
    found = set[int]()
    for each in ranges:
        assert each.start is not None
        end = 100 if each.end is None else int(each.end.literals[0])
        found |= set(range(int(each.start.literals[0]), end))
    return found


@given(st.sets(st.integers(0, 30), min_size=1), st.sets(st.integers(0, 30)))
def test_ranges_that_follow_each_other_are_read_as_one(wanted: set[int], held: set[int]) -> None:
    ranges = ranges_around(wanted, held)
    found = joined(ranges)
    assert keys_in(found) == keys_in(ranges)
    ends = {each.end for each in found}
    assert not any(each.start in ends for each in found)
    if wanted <= held:
        assert sum(len(keys_in([each])) for each in found) == len(keys_in(ranges))


def test_a_burst_of_new_rows_is_one_range() -> None:
    burst = set(range(50, 80))
    (found,) = joined(ranges_around(burst, set(range(90))))
    assert found == KeyRange(bound(50), bound(80))
