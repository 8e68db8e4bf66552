"""How far the source's log reaches, how much of it lies between two places, and where a range stops."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from state.errors import DamagedLogError, LogPositionLostError
from state.position import BinlogPosition, Position, WalPosition, binlog_position, wal_position

FILE_START_POS = 4
"""A binlog file's first event stands behind four magic bytes."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One binlog file; `size_bytes` may have grown since."""

    name: str
    size_bytes: int


class LogExtent(Protocol):
    """What the source has of its log at one moment."""

    @property
    def end(self) -> Position:
        """Where it ends. Additions to the place are not known."""

    def require(self, place: Position) -> None:
        """Raises LogPositionLostError unless the log still holds what comes after `place`."""

    def bytes_between(self, start: Position, end: Position) -> int:
        """How much log lies between; both must be in the log."""

    def stop_after(self, start: Position, batch_bytes: int, *, limit: Position) -> Position:
        """The place `batch_bytes` further on, but not beyond `limit` nor the log's end. `start` must be in the log."""


class BinlogExtent:
    """A LogExtent of files, oldest first. Raises DamagedLogError if there is none or their numbers don't rise."""

    def __init__(self, files: Iterable[LogFile]) -> None:
        self._files = tuple(files)
        numbers = [BinlogPosition(f.name, FILE_START_POS).file_number for f in self._files]
        if not numbers or any(a >= b for a, b in pairwise(numbers)):
            raise DamagedLogError(
                f"The source lists its binary logs as {[f.name for f in self._files]}.",
                "Check log_bin on the source, and that its binlog index file is intact.",
            )
        self._index = {f.name: i for i, f in enumerate(self._files)}

    @property
    def end(self) -> BinlogPosition:
        return BinlogPosition(self._files[-1].name, self._files[-1].size_bytes)

    def require(self, place: Position) -> None:
        place = binlog_position(place)
        index = self._index.get(place.file)
        if index is None:
            raise LogPositionLostError(
                f"The source no longer has {place.file}, from which the job must go on ({place}); "
                f"it has {self._files[0].name} to {self._files[-1].name}.",
                "Bring the file back, or start the job over with an empty checkpoint and an empty target; "
                "keep binary logs longer (binlog_expire_logs_seconds).",
            )
        if place.pos > self._files[index].size_bytes:
            raise LogPositionLostError(
                f"The job must go on from {place}, but {place.file} ends at {self._files[index].size_bytes}: "
                "the source's log is not the one that the job has read.",
                "If the source was restored or its log reset, start the job over with an empty checkpoint and an empty target.",
            )

    def bytes_between(self, start: Position, end: Position) -> int:
        start, end = binlog_position(start), binlog_position(end)
        between = self._files[self._index[start.file] : self._index[end.file]]
        return sum(f.size_bytes for f in between) - start.pos + end.pos

    def stop_after(self, start: Position, batch_bytes: int, *, limit: Position) -> Position:
        start, limit = binlog_position(start), binlog_position(limit)
        remaining = batch_bytes
        at = start.pos
        for file in self._files[self._index[start.file] :]:
            if at + remaining <= file.size_bytes:
                stop = BinlogPosition(file.name, at + remaining)
                break
            remaining -= max(0, file.size_bytes - at)
            at = FILE_START_POS
        else:
            stop = self.end
        return min(stop, limit, self.end, key=lambda place: place.order)


@dataclass(frozen=True, slots=True)
class WalExtent:
    """A LogExtent of PostgreSQL's log, from what the job's slot keeps to what is flushed."""

    start: WalPosition
    end: WalPosition

    def require(self, place: Position) -> None:
        place = wal_position(place)
        if place.lsn < self.start.lsn:
            raise LogPositionLostError(
                f"The job must go on from {place}, but its replication slot begins at {self.start}: it was created anew, "
                "or moved on by somebody else.",
                "Start the job over with an empty checkpoint and an empty target; let nobody else use the slot.",
            )
        if place.lsn > self.end.lsn:
            raise LogPositionLostError(
                f"The job must go on from {place}, but the source's log ends at {self.end}: it is not the log that the "
                "job has read.",
                "If the source was restored or failed over, start the job over with an empty checkpoint.",
            )

    def bytes_between(self, start: Position, end: Position) -> int:
        return wal_position(end).lsn - wal_position(start).lsn

    def stop_after(self, start: Position, batch_bytes: int, *, limit: Position) -> Position:
        stop = wal_position(start).lsn + batch_bytes
        return WalPosition(min(stop, wal_position(limit).lsn, self.end.lsn))
