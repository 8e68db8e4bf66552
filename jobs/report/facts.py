"""The facts of a report, read from the job's checkpoint: while the job runs, after it ended or was killed."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from tidemark.conf.model import JobFile
from tidemark.enumerator.enumerator import SplitsRead
from tidemark.jobs.monitoring.history import Kept, filled, stretch_of, with_splits
from tidemark.jobs.monitoring.progress import JobProgress, TableProgress, read_progress
from tidemark.jobs.monitoring.run_record import last_run
from tidemark.jobs.recovered_state import read_outcome, recover_state, required_state
from tidemark.state.checkpoint.codec import EPOCHS, EVENTS, SPLITS, Codec
from tidemark.state.checkpoint.history import EpochHistory, EventHistory, PositionOrder, RunRecord, SplitHistory
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError
from tidemark.state.job_state import JobState
from tidemark.state.plan import EnumeratorState
from tidemark.state.position import BinlogPosition

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableFacts:
    """`key`: the columns that identify a row. `split_by`: the columns by whose ranges the table is split. Both may be ()."""

    progress: TableProgress
    key: tuple[str, ...]
    split_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """`progress` None: no epoch is planned yet. `watermarks`: the method of the newest start. `notes`: the parts of the
    history that are missing. `run`: the newest run, if it is recorded."""

    state: JobState
    progress: JobProgress | None
    tables: tuple[TableFacts, ...]
    epochs: EpochHistory
    splits: SplitHistory
    last_high: PositionOrder | None
    events: EventHistory
    watermarks: str | None
    notes: tuple[str, ...]
    run: RunRecord | None = None


def read_facts(job: JobFile) -> ReportFacts:
    """Raises CheckpointError if the job was never started or its checkpoint is damaged."""
    checkpoint = Checkpoint.at(job.checkpoint)
    state = required_state(checkpoint, job)
    notes: list[str] = []
    epochs = _kept(checkpoint, EPOCHS, notes) or EpochHistory()
    splits = _kept(checkpoint, SPLITS, notes) or SplitHistory()
    events = _kept(checkpoint, EVENTS, notes) or EventHistory()
    committed = checkpoint.committed_epoch()
    progress = read_progress(checkpoint, job, state, committed)
    now = recover_state(checkpoint, job, state, committed=committed)
    if progress is not None:
        epochs, splits = _up_to_now(checkpoint, state, committed, now, epochs, splits)
    starts = [event.fact("watermarks") for event in (events.first, *events.events) if event is not None]
    return ReportFacts(
        state=state,
        progress=progress,
        tables=_tables(state, progress),
        epochs=epochs,
        splits=splits,
        last_high=None if now.last_high is None else now.last_high.order,
        events=events,
        watermarks=next((method for method in reversed(starts) if method is not None), None),
        notes=tuple(notes),
        run=last_run(checkpoint),
    )


def _up_to_now(
    checkpoint: Checkpoint,
    state: JobState,
    committed: int,
    now: EnumeratorState,
    epochs: EpochHistory,
    splits: SplitHistory,
) -> tuple[EpochHistory, SplitHistory]:
    """Adds the epochs that were committed after the history was saved. A running job may remove files while they are read."""
    try:
        epochs = filled(epochs, checkpoint, committed)
        if committed and now.epoch == committed:
            record = checkpoint.plan(committed)
            if committed > epochs.last_epoch:
                epochs = epochs.plus(stretch_of(record, now, None))
            outcome = read_outcome(checkpoint, record, state)
            if isinstance(outcome, SplitsRead) and committed > splits.last_epoch:
                splits = with_splits(splits, record, outcome, len(now.tables))
    except CheckpointError:
        if max(checkpoint.plan_epochs(), default=0) == now.epoch:
            raise
    return epochs, splits


def _kept(checkpoint: Checkpoint, codec: Codec[T], notes: list[str]) -> T | None:
    try:
        return Kept(checkpoint.store, codec).load()
    except CheckpointError as error:
        notes.append(f"{error.message} Its content is not shown. The job itself does not need it.")
        return None


def _tables(state: JobState, progress: JobProgress | None) -> tuple[TableFacts, ...]:
    split_by = {key.table: key.columns for key in state.split_keys}
    told = {} if progress is None else {table.table: table for table in progress.tables}
    return tuple(
        TableFacts(
            told.get(str(schema.table), TableProgress(str(schema.table), 0, None, 0, None, complete=False)),
            schema.key,
            split_by.get(schema.table, ()),
        )
        for schema in state.schemas
    )


class LogScale:
    """Log positions as bytes since the job's start. A binlog file counts only up to its greatest known position, so the real
    distance between files may be greater."""

    def __init__(self, state: JobState, places: Iterable[PositionOrder]) -> None:
        start = state.start
        self._file = start.file if isinstance(start, BinlogPosition) else None
        known: dict[int, int] = {}
        for place in (start.order, *places):
            if len(place) == 2:
                known[place[0]] = max(known.get(place[0], 0), place[1])
        self._begins: dict[int, int] = {}
        total = 0
        for number in sorted(known):
            self._begins[number] = total
            total += known[number]
        self._zero = 0
        self._zero = self.bytes_since_start(start.order)

    def bytes_since_start(self, place: PositionOrder) -> int:
        """Raises KeyError for a position in a file that was not in `places`."""
        at = place[0] if len(place) == 1 else self._begins[place[0]] + place[1]
        return at - self._zero

    def text(self, place: PositionOrder) -> str:
        if self._file is None:
            return f"{place[0] >> 32:X}/{place[0] & 0xFFFFFFFF:X}"
        base, _, number = self._file.rpartition(".")
        return f"{base}.{place[0]:0{len(number)}d}:{place[1]}"
