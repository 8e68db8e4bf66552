"""What a job did, for people to look at: bounded however long it runs. Nothing is decided by it.

Epochs are kept twice: the newest ones each, and all of them in at most MOST_STRETCHES stretches of equally many. The
splits of a table are likewise drawn together, neighbours in the key, when they become many.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from state.split import Bound, Report, Split
from state.table import TableId

RECENT_EPOCHS = 300
MOST_STRETCHES = 400
MOST_TABLES = 200
"""Tables whose splits are kept."""
MOST_SPLIT_STRETCHES = 1000
"""Of all tables together, as long as that leaves each of them LEAST_SPLIT_STRETCHES."""
LEAST_SPLIT_STRETCHES = 8
MOST_EVENTS = 200
LONGEST_TEXT = 400
LONGEST_KEY = 80


@dataclass(frozen=True, slots=True)
class EpochStretch:
    """Epochs in a row, as a rule one. Times are microseconds since 1970 by the driver's clock. Amounts are sums, lags
    the greatest. `seconds`: from planning to written, of those epochs for which it was measured."""

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
    """`whole`: of `epochs_each` epochs, the last one perhaps of fewer."""

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
        while len(whole) > MOST_STRETCHES:
            each *= 2
            whole = _regrouped(whole, each)
        return EpochHistory(recent, tuple(whole), each)


def _fits(last: EpochStretch, following: EpochStretch, each: int) -> bool:
    return following.last_epoch - last.first_epoch < each


def _regrouped(stretches: list[EpochStretch], each: int) -> list[EpochStretch]:
    grouped: list[EpochStretch] = []
    for stretch in stretches:
        if grouped and _fits(grouped[-1], stretch, each):
            grouped[-1] = grouped[-1].joined(stretch)
        else:
            grouped.append(stretch)
    return grouped


Place = tuple[int, ...]
"""A position's `order`."""


@dataclass(frozen=True, slots=True)
class SplitStretch:
    """Splits that are neighbours in the key, as a rule one. `start`, `end`: the key's text, None is unbounded.
    `low`: the least, None where a split has none; `least_high`, `high`: the least and the greatest."""

    start: str | None
    end: str | None
    splits: int
    rows: int
    replayed: int
    low: Place | None
    least_high: Place
    high: Place

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
    """In the order in which they were planned: the open end first, then as the key rises."""

    table: TableId
    stretches: tuple[SplitStretch, ...]
    splits_each: int = 1

    def plus(self, splits: Iterable[SplitStretch], most: int) -> "TableSplits":
        stretches, each = _drawn_together([*self.stretches, *splits], self.splits_each), self.splits_each
        while len(stretches) > most and each < sum(stretch.splits for stretch in stretches):
            each *= 2
            stretches = _drawn_together(stretches, each)
        return TableSplits(self.table, tuple(stretches), each)


def _drawn_together(stretches: list[SplitStretch], each: int) -> list[SplitStretch]:
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
    """Of the splits of epochs up to `last_epoch`."""

    last_epoch: int = 0
    tables: tuple[TableSplits, ...] = ()

    def plus(self, epoch: int, read: Iterable[tuple[Split, Report]], table_count: int) -> "SplitHistory":
        """With an epoch's splits; `table_count`: of the whole job."""
        most = max(LEAST_SPLIT_STRETCHES, MOST_SPLIT_STRETCHES // max(1, table_count))
        tables = {known.table: known for known in self.tables}
        found: dict[TableId, list[SplitStretch]] = {}
        emitted = [(split, report) for split, report in read if report.kind in {"read", "emitted"}]
        for split, report in sorted(emitted, key=lambda pair: pair[0].id):
            found.setdefault(split.table, []).append(_stretch(split, report))
        for table, splits in found.items():
            if table in tables or len(tables) < MOST_TABLES:
                tables[table] = tables.get(table, TableSplits(table, ())).plus(splits, most)
        return SplitHistory(epoch, tuple(tables.values()))


def _stretch(split: Split, report: Report) -> SplitStretch:
    high = report.high.order
    return SplitStretch(
        start=_key_text(split.range.start),
        end=_key_text(split.range.end),
        splits=1,
        rows=report.row_count,
        replayed=report.replayed_changes,
        low=None if report.low is None else report.low.order,
        least_high=high,
        high=high,
    )


def _key_text(bound: Bound | None) -> str | None:
    return None if bound is None else ", ".join(bound.literals)[:LONGEST_KEY]


@dataclass(frozen=True, slots=True)
class JobEvent:
    """`at_us`: microseconds since 1970 by the driver's clock. `facts`: names and what they are, as text."""

    at_us: int
    name: str
    facts: tuple[tuple[str, str], ...]

    def fact(self, name: str) -> str | None:
        return dict(self.facts).get(name)


@dataclass(frozen=True, slots=True)
class EventHistory:
    """`begun`: the first one of all, which stays; `events`: the newest."""

    begun: JobEvent | None = None
    events: tuple[JobEvent, ...] = ()

    def plus(self, event: JobEvent) -> "EventHistory":
        event = replace(event, facts=tuple((name, text[:LONGEST_TEXT]) for name, text in event.facts))
        return EventHistory(event if self.begun is None else self.begun, (*self.events, event)[-MOST_EVENTS:])
