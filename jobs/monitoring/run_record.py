"""The newest run of a job, as the checkpoint records it for `status` and `report`.

    history/run-0000000042   RunRecord, by the driver: replaced every HEARTBEAT_SECONDS, and when the run's
                             state changes

A run that was killed leaves a record without an end, whose heartbeat grows old. Losing the record never hurts the job.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tidemark.jobs.monitoring.ending import INTERRUPTED, Ending, ending_without_values
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.monitoring.history import Kept, loaded, warn_not_kept
from tidemark.jobs.monitoring.progress import JobProgress
from tidemark.jobs.monitoring.times import iso_time, time_text
from tidemark.state.checkpoint.codec import RUN
from tidemark.state.checkpoint.history import RunRecord
from tidemark.state.checkpoint.layout import JOB_FILE, Checkpoint
from tidemark.state.errors import TidemarkError
from tidemark.state.phase import Phase
from tidemark.state.run_state import RunState, after_event, after_progress

HEARTBEAT_SECONDS = 10.0
DEAD_AFTER_SECONDS = 60.0
"""A run whose last heartbeat is older than this is dead."""


def last_run(checkpoint: Checkpoint) -> RunRecord | None:
    """None if nothing is recorded. Logs a warning if the record is damaged."""
    return loaded(Kept(checkpoint.store, RUN))


def state_of(run: RunRecord, now_us: int) -> RunState:
    if run.exit_code is not None:
        return state_at_end(run.exit_code)
    if now_us - run.seen_us > DEAD_AFTER_SECONDS * 1e6 or _process_is_gone(run):
        return RunState.DEAD
    return run.state


def state_at_end(exit_code: int) -> RunState:
    return RunState.ENDED if exit_code in (0, INTERRUPTED) else RunState.FAILED


def short_text_of(run: RunRecord, now_us: int) -> str:
    """`STOPPED 2026-11-22 09:15:24, exit 3`, or `running since 2026-11-22 09:15:24: following`."""
    seen = time_text(run.seen_us)
    match state_of(run, now_us):
        case RunState.DEAD:
            return f"DEAD, last seen {seen}"
        case state if not state.is_over:
            return f"running since {time_text(run.started_us)}: {state.value}"
        case _:
            return f"{'ended' if run.exit_code == 0 else 'STOPPED'} {seen}, exit {run.exit_code}"


def text_of(run: RunRecord, now_us: int) -> str:
    """One line for people, with cause and remedy."""
    short, where = short_text_of(run, now_us), f"on {run.host}, process {run.process_id}"
    match state_of(run, now_us):
        case RunState.DEAD:
            return f"{short} {where}. Remedy: start the job again."
        case state if not state.is_over:
            return f"running since {time_text(run.started_us)} {where}: {state.value}"
        case _:
            return short if run.exit_code == 0 else f"{short}: {run.cause} Remedy: {run.remedy}"


def facts_of(run: RunRecord, now_us: int) -> dict[str, Any]:
    """Returns the field `run` of `status --json`."""
    return {
        "state": state_of(run, now_us).value,
        "host": run.host,
        "process_id": run.process_id,
        "started_at": iso_time(run.started_us),
        "seen_at": iso_time(run.seen_us),
        "exit_code": run.exit_code,
        "cause": run.cause or None,
        "remedy": run.remedy or None,
    }


def _process_is_gone(run: RunRecord) -> bool:
    """True if the run's process would be visible here, and is not there."""
    if not run.process_namespace or (run.host, run.process_namespace) != _here():
        return False
    try:
        os.kill(run.process_id, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


class RunRecorder:
    """Records the run of this process. Errors of the storage are logged once, not raised."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._store = checkpoint.store
        self._kept = Kept(checkpoint.store, RUN)
        host, namespace = _here()
        now_us = _now_us()
        self._record = RunRecord(host, namespace, os.getpid(), now_us, now_us)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._heart: threading.Thread | None = None
        self._warned = False
        self.ending = Ending(0, "", "")
        """The ending to record if nothing is raised."""

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, the job's lease is held. Records at the end how the run ended."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            self._end(ending_without_values(error))
            raise
        self._end(self.ending)

    def begin(self) -> None:
        """Records that the job runs, and keeps the record fresh. The job's state is durable. May be called again."""
        if self._heart is not None:
            return
        self._save()
        self._heart = threading.Thread(target=self._beat, name="tidemark heartbeat", daemon=True)
        self._heart.start()

    def moves(self, state: RunState) -> None:
        """Records the state of the run, at once if the job runs. The same one again changes nothing."""
        with self._lock:
            if state is self._record.state:
                return
            self._record = replace(self._record, state=state)
        if self._heart is not None:
            self._save()

    @property
    def state(self) -> RunState:
        return self._record.state

    def _beat(self) -> None:
        while not self._over.wait(HEARTBEAT_SECONDS):
            self._save()

    def _end(self, ending: Ending) -> None:
        self._over.set()
        if self._heart is not None:
            self._heart.join()
        state = state_at_end(ending.exit_code)
        self._record = replace(
            self._record, exit_code=ending.exit_code, cause=ending.cause, remedy=ending.remedy, state=state
        )
        with contextlib.suppress(OSError):
            if self._store.read(JOB_FILE) is None:
                return  # a first start that was refused leaves nothing behind
        self._save()

    def _save(self) -> None:
        with self._lock:
            self._record = replace(self._record, seen_us=_now_us())
            try:
                self._kept.save(self._record)
            except (OSError, TidemarkError) as error:
                if not self._warned:
                    warn_not_kept(error)
                self._warned = True


class RecordedEvents:
    """Passes events on, and records the states of the run that they lead to. Implements `events.Events`."""

    def __init__(self, events: Events, recorder: RunRecorder) -> None:
        self._events = events
        self._recorder = recorder

    def note(self, event: str, **facts: Any) -> None:
        self._recorder.moves(after_event(self._recorder.state, event))
        self._events.note(event, **facts)

    def progress(self, progress: JobProgress) -> None:
        self._recorder.moves(after_progress(self._recorder.state, Phase(progress.phase), paused=progress.paused))
        self._events.progress(progress)


def _here() -> tuple[str, str]:
    """Host name and process namespace."""
    try:
        return socket.gethostname(), os.readlink("/proc/self/ns/pid")
    except OSError:
        return socket.gethostname(), ""


def _now_us() -> int:
    return time.time_ns() // 1000
