"""Plans: what an epoch will read, and the enumerator's state from which the next epoch is planned.

A PlanRecord is durable before anything of its epoch runs. Its size depends on the number of tables and on the splits of
this one epoch, never on the number of splits of a table: reports have files of their own (readers/log/gap_filter.py).
"""

from dataclasses import dataclass
from typing import Literal

from tidemark.state.job_state import Mode
from tidemark.state.key_repair import KeyRepair
from tidemark.state.log_extent import KnownLog
from tidemark.state.log_range import NOTHING_READ, LogRange, LogTotals, PreparedXa
from tidemark.state.partitions import KeptPartitions
from tidemark.state.phase import Phase
from tidemark.state.position import Position
from tidemark.state.reached import Reached
from tidemark.state.split import Bound, SharedSnapshot, Split
from tidemark.state.table import TableId


@dataclass(frozen=True, slots=True)
class Untouched:
    """No split of the table is planned yet, and the source was not asked for the ends of its key."""

    kind: Literal["untouched"] = "untouched"


@dataclass(frozen=True, slots=True)
class Stepping:
    """Split boundaries by arithmetic: the next split is [next_start, next_start + step), the last one ends at `until`.

    `next_start` None: the beginning of the table. The split that starts there ends at `origin` + step.
    """

    origin: int
    next_start: int | None
    until: int
    step: int
    unsigned: bool
    kind: Literal["stepping"] = "stepping"


@dataclass(frozen=True, slots=True)
class Walking:
    """Split boundaries from the key's index, every `rows` rows, from `next_start` (None: the beginning) to `until`."""

    next_start: Bound | None
    until: Bound
    rows: int
    kind: Literal["walking"] = "walking"


@dataclass(frozen=True, slots=True)
class Staging:
    """A table without a key whose chunks are being staged: `pages` pages a chunk up to page `until`, then one open range.

    `next_start` is the first page of the next chunk, None once all are planned. No chunk of `attempt` is released before
    all of them are staged. `base`: up to where the log had been read before the attempt.
    """

    attempt: int
    snapshot: SharedSnapshot
    next_start: int | None
    until: int
    pages: int
    base: Position | None = None
    kind: Literal["staging"] = "staging"


@dataclass(frozen=True, slots=True)
class Aside:
    """A table without a key that one task reads beside the epochs, because it can't be cut (docs/adr/0084).

    `base`: up to where the log had been read before. The rows contain it.
    """

    attempt: int
    base: Position
    kind: Literal["aside"] = "aside"


@dataclass(frozen=True, slots=True)
class Releasing:
    """All chunks of `attempt` are staged. They are released with the same boundaries, from page `next_start` on. `reader`: as
    in AsideRead, empty for pages."""

    attempt: int
    next_start: int
    until: int
    pages: int
    reader: str = ""
    kind: Literal["releasing"] = "releasing"


@dataclass(frozen=True, slots=True)
class Exhausted:
    """All splits of the table are planned."""

    kind: Literal["exhausted"] = "exhausted"


Cursor = Untouched | Stepping | Walking | Staging | Aside | Releasing | Exhausted


@dataclass(frozen=True, slots=True)
class Withheld:
    """The changes of a table that wait in the checkpoint for the table's rows (docs/adr/0062): those of the log epochs after
    `after_epoch`. `files`: how many of these epochs had any. `log_bytes`: the size of the log that these epochs read."""

    after_epoch: int
    files: int = 0
    log_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TableState:
    """One table of the snapshot.

    `columns`: the split key, () without one. `estimated_rows`: the server's estimate when the first split was planned.
    `done_splits`, `done_rows`: of committed splits; chunks count when they are staged. `failed_attempts`: how often the
    chunks of a table without a key were discarded, or its read beside the epochs. `passed`: the log had passed all highs of
    the table when other tables joined the job. Before that, the phase tells. `first_split`: the table's splits have this id
    or greater ones; those of an earlier stay in the job have smaller ones. `withheld`: set while a table is read whose rows
    must all be of one moment; the log goes on meanwhile.
    """

    table: TableId
    schema_version: int
    columns: tuple[str, ...]
    cursor: Cursor = Untouched()
    estimated_rows: int | None = None
    planned_splits: int = 0
    done_splits: int = 0
    done_rows: int = 0
    failed_attempts: int = 0
    passed: bool = False
    first_split: int = 0
    withheld: Withheld | None = None


@dataclass(frozen=True, slots=True)
class SnapshotWork:
    """The splits of an epoch, by Spark task. A task reads its splits one after the other, on one connection.

    `anchor` is the greatest high so far, or the job's start position (docs/adr/0003).
    """

    tasks: tuple[tuple[Split, ...], ...]
    anchor: Position
    kind: Literal["snapshot"] = "snapshot"


@dataclass(frozen=True, slots=True)
class Backfill:
    """A table whose rows are all written: its changes that were withheld are emitted."""

    table: TableId
    withheld: Withheld


@dataclass(frozen=True, slots=True)
class LogWork:
    """A range of the log, read by one Spark task. The gap filter is needed in phases SNAPSHOT and CATCH_UP.

    `after`: what the target must have before it takes the range. None in plans of older versions, which did not say.
    `rereads`: rows that are written before the changes of the range, which reaches their highs. `backfills`: changes that were
    withheld and come before those of the range.
    """

    range: LogRange
    kind: Literal["log"] = "log"
    after: Reached | None = None
    empties: tuple[TableId, ...] = ()
    rereads: tuple[KeyRepair, ...] = ()
    backfills: tuple[Backfill, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of an epoch. Epochs count from 1. `bytes_behind`: how much log there was after the state's position when the
    plan was made."""

    epoch: int
    phase: Phase
    work: SnapshotWork | LogWork
    bytes_behind: int | None = None


@dataclass(frozen=True, slots=True)
class AwaitedSplits:
    """The planned epoch must end with the reports of the splits [first_id, end_id)."""

    first_id: int
    end_id: int
    kind: Literal["splits"] = "splits"


@dataclass(frozen=True, slots=True)
class AwaitedLog:
    """The planned epoch must end with the report of this range. `size_bytes`: how much log it was at planning."""

    range: LogRange
    size_bytes: int
    kind: Literal["log"] = "log"


@dataclass(frozen=True, slots=True)
class EnumeratorState:
    """The enumerator's state after an epoch was planned.

    `epoch`: the last planned one. `awaited`: what it must read, None once that is absorbed.
    `position`, `prepared`: where the next log range starts. Until the log is read this is the job's start position, not
    the least high: an XA transaction prepared in between may be committed after all highs.
    `last_high`: the greatest high. None before the first report, and again when tables join after the log has passed it.
    `unseen`: transactions of the log before `position` that SELECTs may not see yet. `batch_bytes`: how much log an epoch reads
    at most. `joined`: how many of JobState.joined are taken in.
    `empties`: tables that came back to the job. The next epoch empties their copies, then their splits are read. Tables whose
    copies are replaced range by range are not among them.
    `rereads`: rows that were read again. The next epoch of the log begins with them.
    `key_rereads`: the epochs that have a file of key re-reads in the checkpoint, ascending, since the log last passed all
    highs. Plans of earlier versions do not have them.
    `reached`: what the target has once the planned epoch is written, None until the first log epoch of a job that an older
    version started.
    `known_log`: what the log before `position` is known by. None before the first epoch, and again when the job goes on from
    another log's position.
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
    reached: Reached | None = None
    unseen: tuple[int, ...] = ()
    empties: tuple[TableId, ...] = ()
    rereads: tuple[KeyRepair, ...] = ()
    key_rereads: tuple[int, ...] = ()
    known_log: KnownLog | None = None


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """The content of a plan file: the plan, and the enumerator's state after it was made. A restart needs nothing else but
    the reports of the epoch.

    `planned_at_us`: by the driver's clock, microseconds since 1970. `partitions`: PostgreSQL's tables and partitions before the
    plan was made, None for other sources. `warnings`: about them.
    """

    plan: Plan
    state: EnumeratorState
    planned_at_us: int = 0
    partitions: KeptPartitions | None = None
    warnings: tuple[str, ...] = ()
