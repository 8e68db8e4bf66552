"""What an epoch will read, and what the enumerator must remember to plan the next one.

A PlanRecord is written before Spark logs the epoch's offset. Its size depends on the number of tables and on the
splits of this one epoch, never on the number of splits of a table: reports stand in files of their own
(readers/gap_filter.py).
"""

from dataclasses import dataclass
from typing import Literal

from state.job_state import Mode
from state.log_range import NOTHING_READ, LogRange, LogTotals, PreparedXa
from state.partitions import KeptPartitions
from state.phase import Phase
from state.position import Position
from state.split import Bound, SharedSnapshot, Split
from state.table import TableId


@dataclass(frozen=True, slots=True)
class Untouched:
    """Nothing of the table is planned yet, and nobody has asked for its key's ends."""

    kind: Literal["untouched"] = "untouched"


@dataclass(frozen=True, slots=True)
class Stepping:
    """Cut by arithmetic: the next split is [next_start, next_start + step), the last one ends at `until`.

    `next_start` None is the table's beginning; the split that starts there ends at `origin` + step.
    """

    origin: int
    next_start: int | None
    until: int
    step: int
    unsigned: bool
    kind: Literal["stepping"] = "stepping"


@dataclass(frozen=True, slots=True)
class Walking:
    """Cut by walking the key's index, `rows` rows at a time, from `next_start` (None: the beginning) to `until`."""

    next_start: Bound | None
    until: Bound
    rows: int
    kind: Literal["walking"] = "walking"


@dataclass(frozen=True, slots=True)
class Collecting:
    """Cut by pages, `pages` a split, up to `until`, behind which one open range comes last. `next_start` is the next
    split's first page, None once all are planned. Nothing of `generation` counts before all of it is there."""

    generation: int
    snapshot: SharedSnapshot
    next_start: int | None
    until: int
    pages: int
    kind: Literal["collecting"] = "collecting"


@dataclass(frozen=True, slots=True)
class Emitting:
    """Everything of `generation` is there, and is handed out by the same cuts."""

    generation: int
    next_start: int
    until: int
    pages: int
    kind: Literal["emitting"] = "emitting"


@dataclass(frozen=True, slots=True)
class Exhausted:
    """All splits of the table are planned."""

    kind: Literal["exhausted"] = "exhausted"


Cursor = Untouched | Stepping | Walking | Collecting | Emitting | Exhausted


@dataclass(frozen=True, slots=True)
class TableState:
    """One table of the snapshot. `columns` () has no key. `estimated_rows`: the server's guess when the first split was
    planned. `done_*` count committed splits: those by pages when they are collected. `lost_generations`: of such
    splits. `passed`: the log had passed all its highs when other tables joined; before any do, the phase tells."""

    table: TableId
    schema_version: int
    columns: tuple[str, ...]
    cursor: Cursor = Untouched()
    estimated_rows: int | None = None
    planned_splits: int = 0
    done_splits: int = 0
    done_rows: int = 0
    lost_generations: int = 0
    passed: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotWork:
    """One Spark task each: the splits of a task are read in sequence on one connection.

    `anchor` is the greatest high so far, or the job's start (docs/adr/0003).
    """

    tasks: tuple[tuple[Split, ...], ...]
    anchor: Position
    kind: Literal["snapshot"] = "snapshot"


@dataclass(frozen=True, slots=True)
class LogWork:
    """One Spark task. The gap filter is needed in phase CATCH_UP only."""

    range: LogRange
    kind: Literal["log"] = "log"


@dataclass(frozen=True, slots=True)
class Plan:
    """Epochs count from 1; epoch 0 is the empty beginning. `bytes_behind`: how much log there was, at planning, after
    the state's position."""

    epoch: int
    phase: Phase
    work: SnapshotWork | LogWork
    bytes_behind: int | None = None


@dataclass(frozen=True, slots=True)
class AwaitedSplits:
    """The planned epoch must bring the reports of the splits [first_id, end_id)."""

    first_id: int
    end_id: int
    kind: Literal["splits"] = "splits"


@dataclass(frozen=True, slots=True)
class AwaitedLog:
    """The planned epoch must bring the report of this range. `size_bytes`: how much log it is, at planning."""

    range: LogRange
    size_bytes: int
    kind: Literal["log"] = "log"


@dataclass(frozen=True, slots=True)
class EnumeratorState:
    """`epoch` is the last planned one; `awaited` is what it must bring, None once that is absorbed.

    `position`, `prepared`: where the next log range starts. It is the job's start, not the least high, until the log is
    read: an XA transaction prepared in between may be committed after all highs.
    `last_high`: the greatest high, None before the first report, and where the log has passed it when tables join.
    `batch_bytes`: how much log an epoch takes at most. `joined`: how many of JobState.joined the log has come to.
    """

    mode: Mode
    phase: Phase
    epoch: int
    tables: tuple[TableState, ...]
    next_split_id: int
    splits_per_task: int
    position: Position
    prepared: tuple[PreparedXa, ...]
    last_high: Position | None
    batch_bytes: int
    awaited: AwaitedSplits | AwaitedLog | None
    joined: int = 0
    totals: LogTotals = NOTHING_READ


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """The content of a plan file: the plan and the state after it was made. Resuming needs nothing else but what the
    epoch brought. `planned_at_us`: when, by the driver's clock, microseconds since 1970. `partitions`: as they were seen
    before the plan was made, None where no table is partitioned; `warnings`: of them."""

    plan: Plan
    state: EnumeratorState
    planned_at_us: int = 0
    partitions: KeptPartitions | None = None
    warnings: tuple[str, ...] = ()
