"""The history of a job, in its checkpoint's folder, for `status` and `report`. Losing it never hurts the job.

    history/epochs-0000000007   EpochHistory, by the planner
    history/splits-0000000003   SplitHistory, by the planner
    history/events-0000000002   EventHistory, by the driver
    history/run-0000000042      RunRecord, by the driver (run_record.py)

Each is one bounded value that is written whole, under the next number. Then the file before it is removed.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Generic, TypeVar

from tidemark.conf.redaction import redact, redact_values
from tidemark.enumerator.enumerator import Outcome, SplitsRead
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.monitoring.progress import JobProgress
from tidemark.state.checkpoint.codec import EPOCHS, EVENTS, SPLITS, Codec
from tidemark.state.checkpoint.history import EpochHistory, EpochStretch, EventHistory, JobEvent, SplitHistory
from tidemark.state.checkpoint.layout import Checkpoint, history_file, history_files, number_of_history_file
from tidemark.state.checkpoint.store import CheckpointStore
from tidemark.state.errors import JobHeldError, TidemarkError
from tidemark.state.plan import AwaitedLog, EnumeratorState, PlanRecord, SnapshotWork
from tidemark.state.remedies import ONE_DRIVER

SAVE_SECONDS = 5.0
"""The least time between two saves while epochs follow each other."""
MAX_SHARE = 0.02
"""The largest share of the run's time that saving may take."""

T = TypeVar("T")


class Kept(Generic[T]):
    """Reads and replaces the newest of the files `history/<kind>-…`."""

    def __init__(self, store: CheckpointStore, codec: Codec[T]) -> None:
        self._store = store
        self._codec = codec
        self._number: int | None = None

    def load(self) -> T | None:
        """None where there is none. Raises CheckpointError for a damaged one."""
        while names := self._names():
            data = self._store.read(names[-1])
            if data is not None:
                return self._codec.decode(data, names[-1])
        return None

    def save(self, value: T) -> None:
        """Raises OSError, or JobHeldError if another driver saves, too."""
        names = self._names() if self._number is None else [self._name(self._number)]
        number = number_of_history_file(names[-1]) + 1 if names else 1
        if not self._store.create(self._name(number), self._codec.encode(value)):
            raise JobHeldError(f"Another driver wrote {self._name(number)}.", ONE_DRIVER)
        self._number = number
        for name in names:
            self._store.delete(name)

    def _names(self) -> list[str]:
        return history_files(self._store, self._codec.kind)

    def _name(self, number: int) -> str:
        return history_file(self._codec.kind, number)


class EpochRecorder:
    """Records the outcome of committed epochs, for the planner. Errors of the storage are logged, not raised."""

    def __init__(self, checkpoint: Checkpoint, table_count: int) -> None:
        self._checkpoint = checkpoint
        self._kept_epochs, self._kept_splits = Kept(checkpoint.store, EPOCHS), Kept(checkpoint.store, SPLITS)
        self._table_count = table_count
        self._epochs: EpochHistory | None = None
        self._splits = SplitHistory()
        self._unsaved_epochs = self._unsaved_splits = False
        self._save_after = 0.0

    def add(self, record: PlanRecord, outcome: Outcome, after: EnumeratorState) -> None:
        """Adds a committed epoch. `after` is the state that includes it. An epoch that is already recorded is ignored."""
        if self._epochs is None:
            self._splits = loaded(self._kept_splits) or SplitHistory()
            self._epochs = filled(loaded(self._kept_epochs) or EpochHistory(), self._checkpoint, record.plan.epoch)
        if outcome.epoch > self._epochs.last_epoch:
            self._epochs, self._unsaved_epochs = self._epochs.plus(stretch_of(record, after, outcome.seconds)), True
        if isinstance(outcome, SplitsRead) and outcome.epoch > self._splits.last_epoch:
            self._splits = with_splits(self._splits, record, outcome, self._table_count)
            self._unsaved_splits = True

    def save(self, *, at_once: bool) -> None:
        """Saves, unless the last save was a short time ago and `at_once` is False."""
        began = time.monotonic()
        if not (self._unsaved_epochs or self._unsaved_splits) or (began < self._save_after and not at_once):
            return
        try:
            if self._unsaved_epochs and self._epochs is not None:
                self._kept_epochs.save(self._epochs)
            if self._unsaved_splits:
                self._kept_splits.save(self._splits)
        except (OSError, TidemarkError) as error:
            warn_not_kept(error)
        self._unsaved_epochs = self._unsaved_splits = False
        ended = time.monotonic()
        self._save_after = ended + max(SAVE_SECONDS, (ended - began) / MAX_SHARE)


def loaded(kept: Kept[T]) -> T | None:
    """None, with a logged warning, if it can't be read: it starts again, since nothing depends on it."""
    try:
        return kept.load()
    except OSError as error:
        warn_not_kept(error)
    except TidemarkError as error:
        logging.getLogger("tidemark").warning("the job's history starts again: %s", redact(error.message))
    return None


def filled(epochs: EpochHistory, checkpoint: Checkpoint, before: int) -> EpochHistory:
    """Adds the epochs after the last recorded one, up to `before`, from the plans that still exist: after a kill the newest
    epochs were not saved. Their durations are not known."""
    missing = [epoch for epoch in checkpoint.plan_epochs() if epochs.last_epoch < epoch <= before]
    for record, following in pairwise(map(checkpoint.plan, missing)):
        if following.plan.epoch == record.plan.epoch + 1:
            epochs = epochs.plus(stretch_of(record, following.state, None))
    return epochs


def with_splits(splits: SplitHistory, record: PlanRecord, outcome: SplitsRead, table_count: int) -> SplitHistory:
    assert isinstance(record.plan.work, SnapshotWork)
    planned = {split.id: split for task in record.plan.work.tasks for split in task}
    read = [(planned[report.split_id], report) for report in outcome.reports]
    return splits.plus(outcome.epoch, read, table_count)


def stretch_of(record: PlanRecord, after: EnumeratorState, seconds: float | None) -> EpochStretch:
    """A committed epoch as the difference between `after` and the state with which it was planned."""
    before, begin_us = record.state, record.planned_at_us
    end_us = begin_us + round((seconds or 0.0) * 1e6)
    transactions = after.totals.transactions - before.totals.transactions
    commit_us = after.totals.newest_commit_us if transactions else None
    return EpochStretch(
        first_epoch=record.plan.epoch,
        last_epoch=record.plan.epoch,
        phase=record.plan.phase.value,
        begin_us=begin_us,
        end_us=end_us,
        seconds=0.0 if seconds is None else round(seconds, 3),
        measured=int(seconds is not None),
        rows=max(0, _rows(after) - _rows(before)),  # rows of an attempt that was given up are counted from 0 again
        changes=_changes(after) - _changes(before),
        filtered_changes=after.totals.filtered_changes - before.totals.filtered_changes,
        transactions=transactions,
        log_bytes=before.awaited.size_bytes if isinstance(before.awaited, AwaitedLog) else 0,
        reconnects=after.totals.reconnects - before.totals.reconnects,
        lag_seconds=None if commit_us is None else round(max(0, end_us - commit_us) / 1e6, 3),
        lag_bytes=record.plan.bytes_behind,
    )


def _rows(state: EnumeratorState) -> int:
    return sum(table.done_rows for table in state.tables)


def _changes(state: EnumeratorState) -> int:
    return sum(table.inserts + table.updates + table.deletes for table in state.totals.changes)


class KeptEvents:
    """Passes events on and also keeps them in the history, once this process holds the job. Implements `events.Events`."""

    def __init__(self, events: Events, store: CheckpointStore) -> None:
        self._events = events
        self._kept = Kept(store, EVENTS)
        self._history: EventHistory | None = None
        self._early: list[JobEvent] = []

    def note(self, event: str, **facts: Any) -> None:
        self._events.note(event, **facts)
        self._keep(event, facts, begins=event in {"started", "resumed"})

    def progress(self, progress: JobProgress) -> None:
        self._events.progress(progress)

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Keeps an error that is raised inside, too, and lets it pass."""
        try:
            yield
        except Exception as error:
            text = str(error) if isinstance(error, TidemarkError) else type(error).__name__
            self._keep("error", {"text": text}, begins=False)
            raise
        except KeyboardInterrupt:
            self._keep("interrupted", {}, begins=False)
            raise

    def _keep(self, name: str, facts: Mapping[str, Any], *, begins: bool) -> None:
        told = [
            (fact, str(redact_values(value))) for fact, value in facts.items() if not isinstance(value, (list, dict))
        ]
        event = JobEvent(time.time_ns() // 1000, name, tuple(told))
        if self._history is None and not begins:
            self._early.append(event)
            return
        try:
            if self._history is None:
                self._history = loaded(self._kept) or EventHistory()
            for one in (*self._early, event):
                self._history = self._history.plus(one)
            self._early = []
            self._kept.save(self._history)
        except (OSError, TidemarkError) as error:
            warn_not_kept(error)


def warn_not_kept(error: Exception) -> None:
    logging.getLogger("tidemark").warning("the history is not kept: %s", redact(str(error)))
