"""The extent of a source's log: where it ends, how many bytes are between two positions, and where a range stops."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from tidemark.state.errors import DamagedLogError, LogPositionLostError
from tidemark.state.position import BinlogPosition, Position, WalPosition, binlog_position, wal_position
from tidemark.state.remedies import START_OVER

FILE_START_POS = 4
"""The offset of a binlog file's first event, after four magic bytes."""

MAX_RANGE_BYTES = 1 << 30
"""The longest range that is planned because the server decodes the log before it again and again."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One binlog file. It may have grown beyond `size_bytes` since."""

    name: str
    size_bytes: int


class LogExtent(Protocol):
    """The part of the log that the source had when it was asked."""

    @property
    def end(self) -> Position:
        """The end of the log: a bare position, without GTIDs."""

    @property
    def server_started_us(self) -> int | None:
        """When the server started, in microseconds since 1970, by its clock. None if its log itself tells whether it is the
        one that the job has read."""

    def require(self, position: Position) -> None:
        """Raises LogPositionLostError unless the log still contains everything after `position`."""

    def bytes_between(self, start: Position, end: Position) -> int:
        """The bytes of log between two positions, which must be in the log."""

    def stop_after(self, start: Position, batch_bytes: int, *, limit: Position) -> Position:
        """The position `batch_bytes` after `start`, but at most `limit` and the log's end. `start` must be in the log."""


@dataclass(frozen=True, slots=True)
class KnownLog:
    """Tells the log that the job has read from another one with the same positions: that of the same server, restored from an
    older copy and written since. No server is restored without a start.

    `server_started_us`: as in LogExtent, when the log was last known to be the same. `since`: from here on all commits were
    noted. `commit`, `commit_us`: the newest one, where its record starts and its time; None if there was none.
    """

    server_started_us: int
    since: Position
    commit: Position | None = None
    commit_us: int | None = None


class BinlogExtent:
    """A LogExtent of binlog files, oldest first. Raises DamagedLogError if there are none or their numbers don't ascend."""

    server_started_us = None

    def __init__(self, files: Iterable[LogFile]) -> None:
        self._files = tuple(files)
        numbers = [BinlogPosition(f.name, FILE_START_POS).file_number for f in self._files]
        if not numbers or any(a >= b for a, b in pairwise(numbers)):
            raise DamagedLogError(
                f"The source lists its binary logs as {[f.name for f in self._files]}.",
                "Correct the source's binlog index file, which names each file once, the oldest first, and restart the source. "
                "Then run the job again: it continues.",
            )
        self._index = {f.name: i for i, f in enumerate(self._files)}

    @property
    def end(self) -> BinlogPosition:
        return BinlogPosition(self._files[-1].name, self._files[-1].size_bytes)

    def require(self, position: Position) -> None:
        position = binlog_position(position)
        index = self._index.get(position.file)
        if index is None:
            raise LogPositionLostError(
                f"The source no longer has {position.file}, from which the job must continue ({position}). "
                f"It has {self._files[0].name} to {self._files[-1].name}.",
                f"Restore the file, or {START_OVER}. Keep binary logs longer (binlog_expire_logs_seconds).",
            )
        if position.pos > self._files[index].size_bytes:
            raise LogPositionLostError(
                f"The job must continue from {position}, but {position.file} ends at {self._files[index].size_bytes}. "
                "This is not the log that the job has read.",
                f"If the source's log was reset, or the server was restored or replaced: {START_OVER}.",
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
        return min(stop, limit, self.end, key=lambda position: position.order)


@dataclass(frozen=True, slots=True)
class WalExtent:
    """A LogExtent of PostgreSQL's log: from the first position that the job's slot keeps to the flushed end.

    `decoded_from`: the position from which the server decodes the log for every range. If it stays behind, ranges get longer,
    so that the whole costs at most about twice its decoding.
    """

    start: WalPosition
    end: WalPosition
    decoded_from: WalPosition | None = None
    server_started_us: int | None = None

    def require(self, position: Position) -> None:
        position = wal_position(position)
        if position.lsn < self.start.lsn:
            raise LogPositionLostError(
                f"The job must continue from {position}, but its replication slot starts at {self.start}. "
                "The slot was created again, or another client has advanced it.",
                f"Let no other client use the slot, and {START_OVER}.",
            )
        if position.lsn > self.end.lsn:
            raise LogPositionLostError(
                f"The job must continue from {position}, but the source's log ends at {self.end}. "
                "This is not the log that the job has read.",
                f"If the source was restored or failed over, {START_OVER}.",
            )

    def bytes_between(self, start: Position, end: Position) -> int:
        return wal_position(end).lsn - wal_position(start).lsn

    def stop_after(self, start: Position, batch_bytes: int, *, limit: Position) -> Position:
        begin = wal_position(start).lsn
        decoded_again = 0 if self.decoded_from is None else min(begin - self.decoded_from.lsn, MAX_RANGE_BYTES)
        stop = begin + max(batch_bytes, decoded_again)
        return WalPosition(min(stop, wal_position(limit).lsn, self.end.lsn))
