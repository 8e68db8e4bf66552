"""Positions in a source's log. A position is a boundary between two transactions, never inside one."""

import re
from dataclasses import dataclass
from typing import TypeAlias

from tidemark.state.errors import CheckpointError, DamagedLogError
from tidemark.state.gtid import GtidSet

_BINLOG_NAME = re.compile(r"(?P<base>.+)\.(?P<number>\d+)")
_POS_BITS = 40


@dataclass(frozen=True, slots=True)
class BinlogPosition:
    """A boundary between two transactions of a MySQL or MariaDB binlog. A bare position has only `file` and `pos`.

    `gtids` (MySQL with GTIDs): exactly the GTIDs that the log contains up to here. `begun`: when the file was created, by
    its first event, seconds since 1970. A file of the same name in another log (after RESET, or of a restored or another
    server) was created at another time. `gtid_state` (MariaDB): the last transaction of each server in each domain up to here,
    as in @@gtid_binlog_state. `unlogged` (MySQL with GTIDs): those that the server has executed and its log never had, because
    it was made from a backup that has them. `times`: when the last transactions up to here were committed, as CommitTimes has
    it; MariaDB: when their statements began, to the second. Other transactions may have the same GTIDs, in another topology or
    after a crash. `last_at`: one time for all of them, seconds since 1970, as earlier versions noted it (MySQL: the greatest
    one; MariaDB: that of the last one). Positions of one server are ordered by `order`, (file number, offset), and by nothing
    else.
    """

    file: str
    pos: int
    gtids: str | None = None
    begun: int | None = None
    gtid_state: str | None = None
    last_at: int | None = None
    unlogged: str | None = None
    times: str | None = None

    @property
    def file_number(self) -> int:
        """The number at the end of the name: binlog.1000000 comes after binlog.999999."""
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
                f"{self} does not fit into a commit version.", "Rotate the binary log: FLUSH BINARY LOGS."
            )
        return self.file_number << _POS_BITS | self.pos

    @property
    def version_before(self) -> int:
        """The greatest `_commit_version` that a change before this position can have. Changes have that of their
        transaction's end."""
        return self.version

    def gtid_set(self) -> GtidSet:
        """Raises ValueError if the position has no GTIDs."""
        if self.gtids is None:
            raise ValueError(f"{self} has no GTID set")
        return GtidSet.parse(self.gtids)

    def __str__(self) -> str:
        return f"{self.file}:{self.pos}"


@dataclass(frozen=True, slots=True)
class WalPosition:
    """A position in PostgreSQL's log, after the transactions whose commit record starts before `lsn`. A bare position has no
    `snapshot`.

    `snapshot`: the text of pg_current_snapshot(), in a split's high. It says exactly which transactions the split contains:
    transactions do not become visible in the order in which they are logged.
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

    @property
    def version_before(self) -> int:
        """The greatest `_commit_version` that a change before this position can have."""
        return self.lsn - 1

    def __str__(self) -> str:
        return f"{self.lsn >> 32:X}/{self.lsn & 0xFFFFFFFF:X}"


Position: TypeAlias = BinlogPosition | WalPosition
"""All positions of a job are of one kind: its source's."""


def is_known_elsewhere(position: Position) -> bool:
    """True if the log of a server that was promoted can have the same position: not on MySQL without GTIDs."""
    return not isinstance(position, BinlogPosition) or not (position.gtids is None and position.gtid_state is None)


def binlog_position(position: Position) -> BinlogPosition:
    """Raises CheckpointError for a position of another kind of source."""
    if isinstance(position, BinlogPosition):
        return position
    raise _of_another_source(position)


def wal_position(position: Position) -> WalPosition:
    """Raises CheckpointError for a position of another kind of source."""
    if isinstance(position, WalPosition):
        return position
    raise _of_another_source(position)


def _of_another_source(position: Position) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint's position {position} belongs to another kind of source.",
        "A checkpoint belongs to one source: give this job a checkpoint folder of its own.",
    )
