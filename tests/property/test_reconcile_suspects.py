"""Suspects of a comparison while source and copy move: no correct row is a difference, every wrong one is."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from tidemark.jobs.reconcile.suspects import DIFFERENCES, LOOKS, MAX_LOOKS, MAX_MOVES, QUIET_LOOKS, Suspect, Verdict

Row = str | None


def judged(suspect: Suspect, looks: list[tuple[Row, Row]], *, quiet: bool = False) -> Verdict:
    """The verdict after these looks, or an earlier final one."""
    for expected, held in looks:
        verdict = suspect.look(expected, held, quiet=quiet)
        if verdict is not Verdict.PENDING:
            return verdict
    return Verdict.PENDING


@st.composite
def correct_looks(draw: st.DrawFn) -> list[tuple[Row, Row]]:
    """Looks at a correct copy of a row whose every change gives it a new value, or deletes or inserts it. Times are counted in
    changes. The copy lags, but not behind the source's time at the look before. The copy may be ahead of the source's read."""
    count = draw(st.integers(2, MAX_LOOKS + 2))
    times = list(accumulate(draw(st.lists(st.integers(0, 3), min_size=count + 1, max_size=count + 1))))
    absent = draw(st.none() | st.integers(0, times[-1]))
    values: list[Row] = [None if time == absent else str(time) for time in range(times[-1] + 1)]
    copied, looks = draw(st.integers(0, times[0])), []
    for i in range(count):
        least = times[i - 1] if i else 0
        copied = max(copied, draw(st.integers(least, times[i + 1])))
        looks.append((values[times[i]], values[copied]))
    return looks


@given(correct_looks())
def test_a_correct_row_is_never_a_difference(looks: list[tuple[Row, Row]]) -> None:
    (expected, held), *later = looks
    assert judged(Suspect(expected, held), later) not in DIFFERENCES


@given(correct_looks())
def test_a_correct_row_that_rests_is_equal_after_two_looks(looks: list[tuple[Row, Row]]) -> None:
    """The second one, because the copy may have been ahead of the source's read at the first."""
    (expected, held), *later = looks
    last = later[-1][0]
    resting = [*later[:1], (last, later[-1][1]), (last, last), (last, last)]
    assert judged(Suspect(expected, held), resting) in {Verdict.EQUAL}


@given(
    st.sampled_from([(None, "old"), ("new", None), ("new", "old")]),
    st.booleans(),
    st.lists(st.integers(0, 2), min_size=LOOKS, max_size=LOOKS),
)
def test_a_row_of_the_copy_that_does_not_move_is_a_difference(
    rows: tuple[Row, Row], quiet: bool, versions: list[int]
) -> None:
    """Also if the source's row changes all the time."""
    expected, held = rows
    looks = [(None if expected is None else f"{expected} {0 if quiet else version}", held) for version in versions]
    needed = QUIET_LOOKS if quiet else LOOKS
    suspect = Suspect(looks[0][0], held)
    assert judged(suspect, looks[: needed - 1], quiet=quiet) is Verdict.PENDING
    kind = {(True, False): Verdict.SURPLUS, (False, True): Verdict.MISSING}.get(
        (expected is None, held is None), Verdict.DIFFERENT
    )
    assert suspect.look(*looks[needed - 1], quiet=quiet) is kind


def test_a_stale_row_is_found_though_the_source_had_it_once() -> None:
    """The copy has stayed at a value from before the first look."""
    suspect = Suspect("3", "1")
    assert judged(suspect, [("3", "1")] * LOOKS) is Verdict.DIFFERENT


def test_a_row_that_changes_at_every_look_is_not_judged() -> None:
    looks = [(f"{2 * i + 1}", f"{2 * i}") for i in range(1, MAX_MOVES + 1)]
    assert judged(Suspect("1", "0"), looks[:-1]) is Verdict.PENDING
    assert judged(Suspect("1", "0"), looks) is Verdict.MOVING


def test_no_row_is_looked_at_for_ever() -> None:
    """The copy's row is one that the source had, but not when it was looked at."""
    looks: list[tuple[Row, Row]] = [("2", "1")] * (MAX_LOOKS - 1)
    assert judged(Suspect("1", "1"), [("2", "0"), *looks[:-1]]) is Verdict.PENDING
    assert judged(Suspect("1", "1"), [("2", "0"), *looks]) is Verdict.MOVING


def test_the_copy_at_the_first_look_may_be_of_any_time() -> None:
    """It lagged behind, and the row was deleted and inserted again in the meantime."""
    suspect = Suspect(None, "1")
    assert suspect.look("2", "2", quiet=False) is Verdict.EQUAL
    suspect = Suspect("2", "1")
    assert judged(suspect, [("3", "1")] * (QUIET_LOOKS - 1), quiet=True) is Verdict.PENDING
