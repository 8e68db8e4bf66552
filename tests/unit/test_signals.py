"""The settings by signals of the whole job follow from the answered signals alone."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.job_file import SMALL, load_text
from tidemark.conf.model import JobFile
from tidemark.jobs.signals.steering import SETTINGS, steered, with_setting
from tidemark.state.errors import JobFileError
from tidemark.state.signals import OF_THE_FILE, Answer, Signal, Steering, steering_of
from tidemark.state.table import TableId

KINDS = ["resnapshot", "pause", "resume", "stop-snapshot", "set"]
signals = st.builds(
    Signal,
    table=st.sampled_from([None, None, None, TableId("shop", "orders")]),
    at_us=st.integers(1, 1000),
    kind=st.sampled_from(KINDS),
    setting=st.sampled_from(SETTINGS),
    value=st.sampled_from(["1", "2", OF_THE_FILE]),
)
answers = st.one_of(st.none(), st.builds(Answer, accepted=st.booleans(), text=st.just(""), at_us=st.just(1)))
given_signals = st.lists(st.tuples(signals, answers), max_size=12)


@given(given_signals)
def test_the_newest_accepted_signal_counts(history: list[tuple[Signal, Answer | None]]) -> None:
    counted = [signal for signal, answer in history if answer is not None and answer.accepted and signal.table is None]
    expected: dict[str, str] = {}
    paused = stopped = False
    for signal in counted:
        paused = signal.kind == "pause" or (paused and signal.kind != "resume")
        stopped = signal.kind == "stop-snapshot" or (stopped and signal.kind != "resume")
        if signal.kind == "set":
            expected[signal.setting] = signal.value
    found = steering_of(history)
    assert (found.paused_us is not None, found.stopped_us is not None) == (paused, stopped)
    assert dict(found.settings) == {key: value for key, value in expected.items() if value != OF_THE_FILE}


@given(given_signals, given_signals)
def test_an_answer_adds_to_what_was_set_before(
    before: list[tuple[Signal, Answer | None]], after: list[tuple[Signal, Answer | None]]
) -> None:
    """So a driver that dies between two answers, and the one that goes on, find the same."""
    found = steering_of(before)
    for signal, answer in after:
        if answer is not None and answer.accepted:
            found = found.after(signal)
    assert found == steering_of([*before, *after])


@pytest.fixture
def job(tmp_path: Path) -> JobFile:
    return load_text(tmp_path, SMALL, "source.server_ids=5400-5409")


def test_settings_are_checked_as_those_of_the_job_file(job: JobFile) -> None:
    assert with_setting(job, "snapshot.parallelism", "2").snapshot.parallelism == 2
    limited = with_setting(job, "snapshot.max_rows_per_second", "5000")
    assert limited.snapshot.max_rows_per_second == 5000
    assert with_setting(limited, "snapshot.max_rows_per_second", "none").snapshot.max_rows_per_second is None
    assert with_setting(job, "log.max_batch_bytes", "8MiB").log.max_batch_bytes == 8 << 20
    assert with_setting(job, "log.max_batch_seconds", "2.5").log.max_batch_seconds == 2.5
    for key, value, reason in (
        ("snapshot.parallelism", "none", "must be a whole number, at least 1"),
        ("snapshot.parallelism", "0", "must be a whole number, at least 1"),
        ("snapshot.parallelism", "many", "must be a whole number, at least 1"),
        ("snapshot.parallelism", "{", "must be a whole number, at least 1"),
        ("snapshot.parallelism", "10", "server_ids has 10 ids, but 10 splits and the log reader need 11"),
        ("log.max_batch_bytes", "much", "must be"),
        ("sink.path", "/other", "can't change sink.path"),
        ("snapshot.unknown", "1", "can't change snapshot.unknown"),
    ):
        with pytest.raises(JobFileError, match=reason):
            with_setting(job, key, value)


def test_a_setting_that_does_not_fit_the_job_file_any_more_is_left_out(job: JobFile) -> None:
    steering = Steering(settings=(("snapshot.max_rows_per_second", "7"), ("snapshot.parallelism", "50")))
    found = steered(job, steering).snapshot
    assert (found.max_rows_per_second, found.parallelism) == (7, job.snapshot.parallelism)
    stopped = with_setting(job, "snapshot.parallelism", "3").model_copy(
        update={"snapshot": job.snapshot.model_copy(update={"interleave": False})}
    )
    assert not stopped.snapshot.interleave
    assert steered(stopped, Steering(stopped_us=1)).snapshot.interleave, "the log is followed"
