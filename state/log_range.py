"""Which part of the log an epoch reads, and what reading it found."""

from dataclasses import dataclass

from state.position import BinlogPosition, Position


@dataclass(frozen=True, slots=True)
class PreparedXa:
    """An XA transaction that was prepared but not yet committed or rolled back: its rows stand in (start, end]."""

    xid: str
    start: BinlogPosition
    end: BinlogPosition


@dataclass(frozen=True, slots=True)
class LogRange:
    """The transactions after `start`, up to the first transaction boundary at or after `stop`, whose additions don't count.

    The plan fixes both, and the log does not change, so that every reading of a range gives the same changes: a retry,
    a speculative attempt or a restart emits what the first attempt emitted. The stop lies at or before the log's end
    at planning.
    """

    start: Position
    stop: Position
    prepared: tuple[PreparedXa, ...] = ()


@dataclass(frozen=True, slots=True)
class LogReport:
    """`end` is the boundary where the next range starts. Counts are of the captured tables' changes."""

    end: Position
    prepared: tuple[PreparedXa, ...]
    emitted_changes: int
    filtered_changes: int
    transactions: int
    end_timestamp_us: int | None
    """When the last transaction was committed, by the source's clock, microseconds since 1970."""
