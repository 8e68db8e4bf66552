"""The record of a job's newest run: running, ended, failed, dead; and never in the job's way."""

import logging
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tidemark.jobs.monitoring import run_record
from tidemark.jobs.monitoring.ending import INTERRUPTION
from tidemark.jobs.monitoring.run_record import DEAD_AFTER_SECONDS, RunRecorder, last_run, state_of, text_of
from tidemark.state.checkpoint.history import RunRecord
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import SourceNotUsableError
from tidemark.state.run_state import RunState

AT_US = 1_790_000_124_000_000  # 2026-09-21 14:15:24
RECORD = RunRecord("etl-1", "", 77, AT_US - 60_000_000, AT_US)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    checkpoint = Checkpoint.at(str(tmp_path))
    checkpoint.store.create("job", b"there is a job")
    return checkpoint


def newest(checkpoint: Checkpoint) -> RunRecord:
    found = last_run(checkpoint)
    assert found is not None
    return found


def test_a_run_without_a_heartbeat_is_dead() -> None:
    late_us = AT_US + int(DEAD_AFTER_SECONDS * 1e6)
    assert text_of(RECORD, late_us) == "running since 2026-09-21 14:14:24 on etl-1, process 77: starting"
    dead = "DEAD, last seen 2026-09-21 14:15:24 on etl-1, process 77. Remedy: start the job again."
    assert text_of(RECORD, late_us + 1) == dead
    failed = replace(RECORD, exit_code=3, cause="No grant.", remedy="Grant it.")
    assert text_of(failed, late_us + 1) == "STOPPED 2026-09-21 14:15:24, exit 3: No grant. Remedy: Grant it."
    assert text_of(replace(RECORD, exit_code=0), late_us + 1) == "ended 2026-09-21 14:15:24, exit 0"


def test_a_process_of_this_machine_that_is_gone_is_dead_at_once() -> None:
    host, namespace = run_record._here()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = replace(RECORD, host=host, process_namespace=namespace)
    assert state_of(replace(here, process_id=gone.pid), AT_US) is RunState.DEAD
    assert state_of(replace(here, process_id=1), AT_US) is RunState.STARTING
    assert state_of(replace(here, process_id=gone.pid, host="another"), AT_US) is RunState.STARTING


def test_a_running_job_keeps_its_record_fresh_and_ends_it(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_record, "HEARTBEAT_SECONDS", 0.01)
    recorder = RunRecorder(checkpoint)
    with recorder.recording():
        recorder.begin()
        first = newest(checkpoint)
        assert state_of(first, time.time_ns() // 1000) is RunState.STARTING
        deadline = time.monotonic() + 20
        while newest(checkpoint).seen_us == first.seen_us:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        recorder.ending = INTERRUPTION
    assert (newest(checkpoint).exit_code, newest(checkpoint).cause) == (130, "interrupted; the state is safe.")
    assert len(checkpoint.store.list("history")) == 1


@pytest.mark.parametrize(
    ("error", "exit_code", "cause"),
    [
        (SourceNotUsableError("No grant.", "Grant it."), 3, "No grant."),
        (ValueError("a value of a row"), 1, "unexpected: ValueError."),
        (KeyboardInterrupt(), 130, "interrupted; the state is safe."),
    ],
)
def test_an_error_is_recorded_without_values_of_rows(
    error: BaseException, exit_code: int, cause: str, checkpoint: Checkpoint
) -> None:
    with pytest.raises(type(error)), RunRecorder(checkpoint).recording():
        raise error
    assert (newest(checkpoint).exit_code, newest(checkpoint).cause) == (exit_code, cause)


def test_a_first_start_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(str(tmp_path / "checkpoint"))
    with pytest.raises(SourceNotUsableError), RunRecorder(checkpoint).recording():
        raise SourceNotUsableError("No grant.", "Grant it.")
    assert not (tmp_path / "checkpoint").exists()


def test_storage_that_fails_is_told_once_and_does_not_hurt(
    checkpoint: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "history").write_text("no folder")
    recorder = RunRecorder(checkpoint)
    with caplog.at_level(logging.WARNING), recorder.recording():
        recorder.begin()
    assert caplog.text.count("is not kept") == 1
