"""Signals: requests to a job, given while it runs or not, and the answers to them. What signals of the whole job have set
follows from them alone (`steering_of`), so it is as durable as they are."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from tidemark.state.split import KeyRange
from tidemark.state.table import TableId

SignalKind = Literal["resnapshot", "repair", "pause", "resume", "stop-snapshot", "set", "accept-server", "refused"]
OF_THE_FILE = "default"
"""The value of a `set` that goes back to what the job file says."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row of a signal table. `table`: as `database.table`. `digest`: of what the row asked for when it was seen first."""

    table: str
    id: str
    digest: str


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The rows that a signal table had when the job first looked at it. They are no signals. `ids`: with the rows' digests."""

    table: str
    ids: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Signal:
    """A request. `table` None: it is about the whole job. `at_us`: when it was given, microseconds since 1970.

    `resnapshot`: the table's rows are to be read again: all of them, or a part (`is_partial`): those with `keys`, those with
    keys from `span[0]` to `span[1]`, or those that the condition `where` takes in the source. A key is as the user wrote it.
    `repair`: those with `keys` are to be read, which are in `ranges` and `whole`. A key has the texts that the copy's server
    shows. Of a range in `whole` all rows are written, also with other keys.
    `pause`: the job plans no more epochs, or the table leaves it.
    `resume`: ends `pause` and `stop-snapshot`, of the job or of the table, which comes back if it has left. `stop-snapshot`: no
    more splits are planned, of the job or of the table.
    `set`: `setting`, a key of the job file, gets `value`, as the user wrote it.
    `accept-server`: the job goes on at the server with the identifier `value` if that one answers (docs/adr/0070).
    `refused`: a row of the signal table that asks for nothing that can be done. `setting`: its type. `value`: why.
    `row`: of the signal table; None if a command gave the signal.
    """

    table: TableId | None
    at_us: int
    kind: SignalKind = "resnapshot"
    setting: str = ""
    value: str = ""
    keys: tuple[tuple[str, ...], ...] = ()
    ranges: tuple[KeyRange, ...] = ()
    whole: tuple[KeyRange, ...] = ()
    span: tuple[tuple[str, ...], ...] = ()
    where: str = ""
    row: SourceRow | None = None

    @property
    def is_partial(self) -> bool:
        """True if only some rows of the table are read again, while it stays in the job."""
        return bool(self.kind == "repair" or self.keys or self.span or self.where)

    def __str__(self) -> str:
        if self.kind == "refused":
            return self.setting or "no type"
        if self.kind == "repair":
            return f"repair {self.table}, {len(self.keys):,} {'key' if len(self.keys) == 1 else 'keys'}"
        if self.is_partial:
            part = f"where {self.where}" if self.where else "keys " + "..".join(",".join(key) for key in self.span)
            more = f"{len(self.keys):,} {'key' if len(self.keys) == 1 else 'keys'}"
            return f"{self.kind} {self.table}, {more if self.keys else part}"
        if self.kind == "accept-server":
            return f"{self.kind} {self.value}"
        more = f"{self.setting}={self.value}" if self.kind == "set" else "" if self.table is None else str(self.table)
        return f"{self.kind} {more}".rstrip()


NOT_PAUSED = "It was not paused."
"""The answer to a `resume` that has nothing to do."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The job's answer. `accepted` False: it did nothing, and `text` says why. `at_us`: microseconds since 1970."""

    accepted: bool
    text: str
    at_us: int


@dataclass(frozen=True, slots=True)
class Steering:
    """The settings by the accepted signals. `paused_us`: since when the job is paused, None if it is not;
    `stopped_us`: the same for the reading of splits. `stopped_tables`: the tables of which no splits are planned, sorted.
    `settings`: values by key of the job file, sorted, as the user wrote them."""

    paused_us: int | None = None
    stopped_us: int | None = None
    stopped_tables: tuple[TableId, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()

    def after(self, signal: Signal) -> "Steering":
        """Returns the steering once this signal is accepted too."""
        if signal.table is not None:
            return self if signal.is_partial else self._after_table(signal.table, signal.kind)
        match signal.kind:
            case "pause":
                return self if self.paused_us is not None else replace(self, paused_us=signal.at_us)
            case "stop-snapshot":
                return self if self.stopped_us is not None else replace(self, stopped_us=signal.at_us)
            case "resume":
                return replace(self, paused_us=None, stopped_us=None)
            case "set":
                settings = dict(self.settings)
                settings.pop(signal.setting, None)
                if signal.value != OF_THE_FILE:
                    settings[signal.setting] = signal.value
                return replace(self, settings=tuple(sorted(settings.items())))
            case _:
                return self

    def _after_table(self, table: TableId, kind: SignalKind) -> "Steering":
        stopped = set(self.stopped_tables)
        match kind:
            case "stop-snapshot":
                stopped.add(table)
            case "resume" | "resnapshot":
                stopped.discard(table)
            case _:
                return self
        return replace(self, stopped_tables=tuple(sorted(stopped, key=str)))


UNSTEERED = Steering()


def steering_of(signals: Iterable[tuple[Signal, Answer | None]]) -> Steering:
    """Returns what the signals, oldest first, have set. Those that are not answered yet, or were refused, have set nothing."""
    steering = UNSTEERED
    for signal, answer in signals:
        if answer is not None and answer.accepted:
            steering = steering.after(signal)
    return steering
