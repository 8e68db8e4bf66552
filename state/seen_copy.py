"""A note of a copy in Delta Lake, so that the next run need not ask Spark (docs/adr/0072)."""

from dataclasses import dataclass

from tidemark.state.table import TableId


@dataclass(frozen=True, slots=True)
class TableLog:
    """The state of a Delta table's log in a local folder. `version`: the newest one. `commit`: the SHA-256 of its file.
    `files`: the SHA-256 of the names of the log's files."""

    version: int
    commit: str
    files: str


@dataclass(frozen=True, slots=True)
class SeenCopy:
    """A copy in which the job's checks have found no problem. `table_id`: Delta's. `epoch`: the job's last one in the copy, 0
    without one. `log`: when nothing but the job's own commits followed the checks. `checked`: the SHA-256 of all else that the
    checks depend on."""

    table: TableId
    table_id: str
    epoch: int
    log: TableLog
    checked: str
