"""The output of a split reader."""

from dataclasses import dataclass, replace

import pyarrow as pa

from tidemark.state.position import Position
from tidemark.state.split import Report

_FIRST_SEQ = 1 << 30
"""No transaction has so many changes that their `_seq` reaches this."""
_SEQS_OF_A_VERSION = 4096
"""How many `_seq` there are for what Tidemark itself adds to a table while its schema has one version."""
MAX_REREADS = _SEQS_OF_A_VERSION - 2
"""How many times rows of a table can be read again at one position of the log."""


def emptying_seq(schema_version: int) -> int:
    """`_seq` of the TRUNCATE that empties the copy of a table that comes back to the job with this version of its schema.

    Its `_commit_version` may be that of the table's last change before, or of the rows of an earlier stay in the job."""
    return _FIRST_SEQ + _SEQS_OF_A_VERSION * schema_version


def rows_seq(schema_version: int) -> int:
    """`_seq` of all rows of splits. Their `_commit_version` may be that of a TRUNCATE that they contain."""
    return emptying_seq(schema_version) + 1


def reread_seq(schema_version: int, number: int) -> int:
    """`_seq` of rows that a signal has had read again. `number`: how many times rows of the table were read again at the
    same position before, less than MAX_REREADS. What was read last wins: between two reads there may be a change that is in
    no log."""
    if number >= MAX_REREADS:
        raise ValueError(f"rows were read again {number} times at one position")
    return rows_seq(schema_version) + 1 + number


@dataclass(frozen=True, slots=True)
class SplitRead:
    """A split's rows and report, to be published. `rows`: the captured columns, rows in any order. `taken_at_us`: the time
    of the read by the source's clock, microseconds since 1970. `commit_version`: that of the rows; None: the high's. It is
    set where the high's may be after changes that the rows lack. `seq`: `_seq` of the rows; None: that of rows of splits."""

    report: Report
    rows: pa.Table
    taken_at_us: int
    commit_version: int | None = None
    seq: int | None = None

    def after(self, position: Position) -> "SplitRead":
        """Returns the read of a split that was planned when the log had been read up to `position`. Its rows come after all
        changes that were emitted before, such as a TRUNCATE, and before every change that they lack."""
        return self if self.commit_version is None else replace(self, commit_version=position.version_before)

    def shifted(self, version_offset: int) -> "SplitRead":
        """Returns the read with greater commit versions."""
        if not version_offset:
            return self
        version = self.report.high.version if self.commit_version is None else self.commit_version
        return replace(self, commit_version=version + version_offset)
