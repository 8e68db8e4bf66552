"""A method that the KeySources of tests and benchmarks share."""

from collections.abc import Sequence

from tidemark.state.key_statistics import TableSize
from tidemark.state.position import Position
from tidemark.state.table import TableId


class SeesAll:
    """A mixin for a KeySource whose commits are visible at once, and which does not know how large tables are."""

    def size(self, table: TableId) -> TableSize:
        return TableSize(None, None)

    def sees(self, position: Position, unseen: Sequence[int]) -> bool:
        return True
