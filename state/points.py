"""Points: keys whose rows are read again while the log is caught up with (docs/adr/0016)."""

from dataclasses import dataclass

from state.position import WalPosition
from state.table import TableId


@dataclass(frozen=True, slots=True)
class PointReading:
    """Keys of one table, read in one transaction, whose snapshot `high` carries: it decides about changes of these keys.

    `keys`: texts, equal for equal keys. A point counts for changes after its place in the log: `versions` are
    `_commit_version`s, `seqs` are `_seq`s. No key is there twice, places rise.
    """

    table: TableId
    high: WalPosition
    keys: tuple[str, ...]
    versions: tuple[int, ...]
    seqs: tuple[int, ...]
