"""Places in a source's log. A position lies between two transactions, never inside one."""

import re
from dataclasses import dataclass
from typing import TypeAlias

from state.errors import CheckpointError, DamagedLogError
from state.gtid import GtidSet

_BINLOG_NAME = re.compile(r"(?P<base>.+)\.(?P<number>\d+)")
_POS_BITS = 40


@dataclass(frozen=True, slots=True)
class BinlogPosition:
    """After a transaction of a MySQL or MariaDB binlog, before the next one.

    `gtids` (MySQL with GTIDs) is exactly what the log holds up to here. `begun`: when the file was begun, by its first
    event, seconds since 1970; a file of the same name in another log (RESET, a restored or another server) was begun at
    another time. Both are additions, not part of the place: positions of one server are ordered by `order`, (file
    number, offset), and by nothing else.
    """

    file: str
    pos: int
    gtids: str | None = None
    begun: int | None = None

    @property
    def file_number(self) -> int:
        """The numeric suffix: binlog.1000000 comes after binlog.999999."""
        match = _BINLOG_NAME.fullmatch(self.file)
        if match is None:
            raise DamagedLogError(f"Not a binlog file name: {self.file!r}.", "Check log_bin on the source.")
        return int(match["number"])

    @property
    def order(self) -> tuple[int, ...]:
        return (self.file_number, self.pos)

    @property
    def version(self) -> int:
        """The order as one BIGINT, used as `_commit_version`: file number × 2^40 + offset."""
        if self.pos >> _POS_BITS or self.file_number >> (63 - _POS_BITS):
            raise DamagedLogError(
                f"{self} is beyond what a commit version can hold.", "Rotate the binary log: FLUSH BINARY LOGS."
            )
        return self.file_number << _POS_BITS | self.pos

    def gtid_set(self) -> GtidSet:
        """Raises ValueError where the position carries none."""
        if self.gtids is None:
            raise ValueError(f"{self} carries no GTID set")
        return GtidSet.parse(self.gtids)

    def __str__(self) -> str:
        return f"{self.file}:{self.pos}"


@dataclass(frozen=True, slots=True)
class WalPosition:
    """A place in PostgreSQL's log: before it are the transactions whose commit record starts before `lsn`.

    `snapshot`, pg_current_snapshot()'s text, is an addition: it stands in a split's high and says exactly what the split
    contains, for transactions become visible in another order than they are logged in.
    """

    lsn: int
    snapshot: str | None = None

    @property
    def order(self) -> tuple[int, ...]:
        return (self.lsn,)

    @property
    def version(self) -> int:
        """The LSN, used as `_commit_version`."""
        return self.lsn

    def __str__(self) -> str:
        return f"{self.lsn >> 32:X}/{self.lsn & 0xFFFFFFFF:X}"


Position: TypeAlias = BinlogPosition | WalPosition
"""All positions of a job are of one kind: its source's."""


def binlog_position(position: Position) -> BinlogPosition:
    """Raises CheckpointError where it is another kind of source's."""
    if isinstance(position, BinlogPosition):
        return position
    raise _of_another_source(position)


def wal_position(position: Position) -> WalPosition:
    """Raises CheckpointError where it is another kind of source's."""
    if isinstance(position, WalPosition):
        return position
    raise _of_another_source(position)


def _of_another_source(position: Position) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint's position {position} is not one of this kind of source.",
        "A checkpoint belongs to one source: give this job a checkpoint folder of its own.",
    )
