"""The history of a job, for people: `status` and `report` show it, and nothing depends on it. Its size is bounded.

Epochs are kept twice: the newest ones one by one, and all of them in at most MAX_STRETCHES stretches with the same number
of epochs each. When a table has many splits, neighbours in the key are merged in the same way.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tidemark.state.run_state import RunState
from tidemark.state.split import Bound, Report, Split
from tidemark.state.table import TableId

RECENT_EPOCHS = 300
MAX_STRETCHES = 400
MAX_TABLES = 200
"""The number of tables whose splits are kept."""
MAX_SPLIT_STRETCHES = 1000
"""For all tables together, but at least MIN_SPLIT_STRETCHES for each."""
MIN_SPLIT_STRETCHES = 8
MAX_EVENTS = 200
MAX_TEXT_LENGTH = 400


@dataclass(frozen=True, slots=True)
class EpochStretch:
    """One epoch, or several consecutive ones.

    `begin_us`, `end_us`: microseconds since 1970 by the driver's clock. `seconds`: from planned to written, the sum over the
    `measured` epochs. Other numbers are sums; lags are the greatest.
    """

    first_epoch: int
    last_epoch: int
    phase: str
    begin_us: int
    end_us: int
    seconds: float = 0.0
    measured: int = 0
    rows: int = 0
    changes: int = 0
    filtered_changes: int = 0
    transactions: int = 0
    log_bytes: int = 0
    reconnects: int = 0
    lag_seconds: float | None = None
    lag_bytes: int | None = None

    def joined(self, later: "EpochStretch") -> "EpochStretch":
        return EpochStretch(
            first_epoch=self.first_epoch,
            last_epoch=later.last_epoch,
            phase=later.phase,
            begin_us=self.begin_us,
            end_us=later.end_us,
            seconds=round(self.seconds + later.seconds, 3),
            measured=self.measured + later.measured,
            rows=self.rows + later.rows,
            changes=self.changes + later.changes,
            filtered_changes=self.filtered_changes + later.filtered_changes,
            transactions=self.transactions + later.transactions,
            log_bytes=self.log_bytes + later.log_bytes,
            reconnects=self.reconnects + later.reconnects,
            lag_seconds=max((lag for lag in (self.lag_seconds, later.lag_seconds) if lag is not None), default=None),
            lag_bytes=max((lag for lag in (self.lag_bytes, later.lag_bytes) if lag is not None), default=None),
        )


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """`recent`: the newest epochs. `whole`: all epochs, `epochs_each` in a stretch; the last one may have fewer."""

    recent: tuple[EpochStretch, ...] = ()
    whole: tuple[EpochStretch, ...] = ()
    epochs_each: int = 1

    @property
    def last_epoch(self) -> int:
        return self.recent[-1].last_epoch if self.recent else 0

    def plus(self, epoch: EpochStretch) -> "EpochHistory":
        recent = (*self.recent, epoch)[-RECENT_EPOCHS:]
        whole, each = [*self.whole], self.epochs_each
        if whole and _fits(whole[-1], epoch, each):
            whole[-1] = whole[-1].joined(epoch)
        else:
            whole.append(epoch)
        while len(whole) > MAX_STRETCHES:
            each *= 2
            whole = _regrouped(whole, each)
        return EpochHistory(recent, tuple(whole), each)


def _fits(last: EpochStretch, later: EpochStretch, each: int) -> bool:
    return later.last_epoch - last.first_epoch < each


def _regrouped(stretches: list[EpochStretch], each: int) -> list[EpochStretch]:
    grouped: list[EpochStretch] = []
    for stretch in stretches:
        if grouped and _fits(grouped[-1], stretch, each):
            grouped[-1] = grouped[-1].joined(stretch)
        else:
            grouped.append(stretch)
    return grouped


PositionOrder = tuple[int, ...]
"""The `order` of a position."""


@dataclass(frozen=True, slots=True)
class SplitStretch:
    """One split, or several neighbours in the key.

    `start`, `end`: digests of the boundaries, which neighbours share; None is unbounded.
    `low`: the least low, None if a split has none. `least_high` and `high`: the least and the greatest high.
    """

    start: str | None
    end: str | None
    splits: int
    rows: int
    replayed: int
    low: PositionOrder | None
    least_high: PositionOrder
    high: PositionOrder

    def joined(self, later: "SplitStretch") -> "SplitStretch":
        return SplitStretch(
            start=self.start,
            end=later.end,
            splits=self.splits + later.splits,
            rows=self.rows + later.rows,
            replayed=self.replayed + later.replayed,
            low=None if self.low is None or later.low is None else min(self.low, later.low),
            least_high=min(self.least_high, later.least_high),
            high=max(self.high, later.high),
        )


@dataclass(frozen=True, slots=True)
class TableSplits:
    """The splits of a table in the order of planning: the open end first, then ascending by key."""

    table: TableId
    stretches: tuple[SplitStretch, ...]
    splits_each: int = 1

    def plus(self, splits: Iterable[SplitStretch], most: int) -> "TableSplits":
        stretches, each = _merged([*self.stretches, *splits], self.splits_each), self.splits_each
        while len(stretches) > most and each < sum(stretch.splits for stretch in stretches):
            each *= 2
            stretches = _merged(stretches, each)
        return TableSplits(self.table, tuple(stretches), each)


def _merged(stretches: list[SplitStretch], each: int) -> list[SplitStretch]:
    found: list[SplitStretch] = []
    for stretch in stretches:
        last = found[-1] if found else None
        if last and last.end is not None and last.end == stretch.start and last.splits + stretch.splits <= each:
            found[-1] = last.joined(stretch)
        else:
            found.append(stretch)
    return found


@dataclass(frozen=True, slots=True)
class SplitHistory:
    """The splits of the epochs up to `last_epoch`."""

    last_epoch: int = 0
    tables: tuple[TableSplits, ...] = ()

    def plus(self, epoch: int, read: Iterable[tuple[Split, Report]], table_count: int) -> "SplitHistory":
        """Adds an epoch's splits. `table_count`: the number of tables of the job."""
        most = max(MIN_SPLIT_STRETCHES, MAX_SPLIT_STRETCHES // max(1, table_count))
        tables = {known.table: known for known in self.tables}
        found: dict[TableId, list[SplitStretch]] = {}
        emitted = [(split, report) for split, report in read if report.kind in {"read", "released"}]
        for split, report in sorted(emitted, key=lambda pair: pair[0].id):
            found.setdefault(split.table, []).append(_stretch(split, report))
        for table, splits in found.items():
            if table in tables or len(tables) < MAX_TABLES:
                tables[table] = tables.get(table, TableSplits(table, ())).plus(splits, most)
        return SplitHistory(epoch, tuple(tables.values()))


def _stretch(split: Split, report: Report) -> SplitStretch:
    high = report.high.order
    return SplitStretch(
        start=_boundary(split.range.start),
        end=_boundary(split.range.end),
        splits=1,
        rows=report.row_count,
        replayed=report.replayed_changes,
        low=None if report.low is None else report.low.order,
        least_high=high,
        high=high,
    )


def _boundary(bound: Bound | None) -> str | None:
    """A digest, because the history outlives plans, and keys are values of rows."""
    return None if bound is None else hashlib.blake2b(bound.encoded_key.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of a run. `at_us`: microseconds since 1970 by the driver's clock. `facts`: names and values as text."""

    at_us: int
    name: str
    facts: tuple[tuple[str, str], ...]

    def fact(self, name: str) -> str | None:
        return dict(self.facts).get(name)


@dataclass(frozen=True, slots=True)
class EventHistory:
    """`first`: the first event of the job, which is always kept. `events`: the newest."""

    first: JobEvent | None = None
    events: tuple[JobEvent, ...] = ()

    def plus(self, event: JobEvent) -> "EventHistory":
        event = replace(event, facts=tuple((name, text[:MAX_TEXT_LENGTH]) for name, text in event.facts))
        return EventHistory(event if self.first is None else self.first, (*self.events, event)[-MAX_EVENTS:])


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The newest run. `seen_us`: its last heartbeat, or its end. Times are microseconds since 1970 by the driver's clock.
    `exit_code` None: the run has not ended. `state`: what its driver says; it can't say that it is dead. `process_namespace`:
    where `process_id` is valid, "" if not known."""

    host: str
    process_namespace: str
    process_id: int
    started_us: int
    seen_us: int
    exit_code: int | None = None
    cause: str = ""
    remedy: str = ""
    state: RunState = RunState.STARTING
