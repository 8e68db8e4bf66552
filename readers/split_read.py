"""What a split reader hands out."""

from dataclasses import dataclass

import pyarrow as pa

from state.split import Report


@dataclass(frozen=True, slots=True)
class SplitRead:
    """To be published. `rows` are the captured columns, in any order; `taken_at_us`: when, by the source's clock.
    `commit_version`: of the rows, where that of the high may lie after changes that the rows lack."""

    report: Report
    rows: pa.Table
    taken_at_us: int
    commit_version: int | None = None
