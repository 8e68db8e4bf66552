"""Methods that the KeySources of tests share."""

from collections.abc import Sequence

from tidemark.state.key_statistics import PageStatistics
from tidemark.state.position import Position
from tidemark.state.split import SharedSnapshot
from tidemark.state.table import TableId


class WithoutPages:
    """A mixin for a KeySource whose tables can't be read by pages, and whose commits are visible at once."""

    def sees(self, position: Position, unseen: Sequence[int]) -> bool:
        return True

    def pages(self, table: TableId) -> PageStatistics | None:
        return None

    def share_snapshot(self, table: TableId) -> SharedSnapshot:
        raise AssertionError(f"{table} has no pages")

    def is_shared(self, table: TableId, snapshot: SharedSnapshot) -> bool:
        raise AssertionError(f"{table} has no pages")

    def release_snapshot(self, table: TableId) -> None:
        raise AssertionError(f"{table} has no pages")
