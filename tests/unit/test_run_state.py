"""The states of a run: no sequence of events leads to a move that the table does not allow."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tidemark.state.phase import Phase
from tidemark.state.run_state import NEXT, RunState, after_event, after_progress

Step = Callable[[RunState], RunState]
FROM_OUTSIDE = {RunState.DEAD}


def of_event(event: str) -> Step:
    return lambda now: after_event(now, event)


def of_progress(phase: Phase, paused: bool) -> Step:
    return lambda now: after_progress(now, phase, paused=paused)


STEPS = [
    of_event(event) for event in ("started", "resumed", "waiting", "stopping", "finished", "failed", "warning")
] + [of_progress(phase, paused) for phase in Phase for paused in (False, True)]


@given(st.lists(st.sampled_from(STEPS), max_size=12))
def test_events_in_any_order_make_only_allowed_moves(steps: list[Step]) -> None:
    now, was_stopping = RunState.STARTING, False
    for step in steps:
        then = step(now)
        assert then is now or then in NEXT[now]
        assert not (now.is_over and then is not now)
        was_stopping |= then is RunState.STOPPING
        assert not was_stopping or then is RunState.STOPPING or then.is_over
        now = then


def test_events_make_every_move_of_the_table() -> None:
    made = {(now, step(now)) for now in RunState for step in STEPS}
    allowed = {(now, then) for now, following in NEXT.items() for then in following - FROM_OUTSIDE}
    assert {(now, then) for now, then in made if now is not then} == allowed


def test_a_run_that_is_over_stays_so() -> None:
    over = {state for state in RunState if state.is_over}
    assert over == {RunState.ENDED, RunState.FAILED, RunState.DEAD}
