"""Places in a source's log. A position is a transaction boundary, always."""

import re
from dataclasses import dataclass

from state.errors import DamagedLogError
from state.gtid import GtidSet

_BINLOG_NAME = re.compile(r"(?P<base>.+)\.(?P<number>\d+)")
_POS_BITS = 40


@dataclass(frozen=True, slots=True)
class BinlogPosition:
    """After a transaction of a MySQL or MariaDB binlog, before the next one.

    `gtids` (MySQL with GTIDs) is exactly what the log holds up to here. It is an addition, not part of the place:
    positions of one server are ordered by `order`, (file number, offset), and by nothing else.
    """

    file: str
    pos: int
    gtids: str | None = None

    @property
    def file_number(self) -> int:
        """The numeric suffix: binlog.1000000 comes after binlog.999999."""
        match = _BINLOG_NAME.fullmatch(self.file)
        if match is None:
            raise DamagedLogError(f"Not a binlog file name: {self.file!r}.", "Check log_bin on the source.")
        return int(match["number"])

    @property
    def order(self) -> tuple[int, int]:
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
class BinlogWatermark:
    """What a read of a MySQL or MariaDB table contains once it is normalised: the log's prefix up to `high`.

    A split's rows are exact at its high, so set inclusion and the order of positions say the same there
    (docs/adr/0002). On the way to it, lows are sets: see readers/mysql/watermark.py.
    """

    high: BinlogPosition

    def covers(self, commit: BinlogPosition) -> bool:
        """Is the transaction that ends at `commit` contained?"""
        return commit.order <= self.high.order
