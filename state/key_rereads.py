"""Key re-reads: keys whose rows were read again because of a split key move (docs/adr/0016)."""

from dataclasses import dataclass

from tidemark.state.position import WalPosition
from tidemark.state.table import TableId


@dataclass(frozen=True, slots=True)
class KeyReread:
    """Keys of one table that were read in one transaction. The snapshot in `high` decides about later changes of these keys.

    `keys`: texts, equal for equal keys, without repeats. `versions` and `seqs`: the `_commit_version` and `_seq` of the
    split key move of each key, ascending. The snapshot decides about changes after that.
    """

    table: TableId
    high: WalPosition
    keys: tuple[str, ...]
    versions: tuple[int, ...]
    seqs: tuple[int, ...]
