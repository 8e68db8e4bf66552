"""The output of a split reader."""

from dataclasses import dataclass

import pyarrow as pa

from tidemark.state.split import Report


@dataclass(frozen=True, slots=True)
class SplitRead:
    """A split's rows and report, to be published. `rows`: the captured columns, rows in any order. `taken_at_us`: the time of
    the read by the source's clock, microseconds since 1970. `commit_version`: that of the rows; None: the high's. It is set
    where the high's may be after changes that the rows lack."""

    report: Report
    rows: pa.Table
    taken_at_us: int
    commit_version: int | None = None
