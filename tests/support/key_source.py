"""What the KeySources of tests have in common."""

from state.key_statistics import PageStatistics
from state.split import SharedSnapshot
from state.table import TableId


class WithoutPages:
    """Part of a KeySource whose tables can't be read by pages."""

    def pages(self, table: TableId) -> PageStatistics | None:
        return None

    def share_snapshot(self, table: TableId) -> SharedSnapshot:
        raise AssertionError(f"{table} has no pages")

    def is_shared(self, table: TableId, snapshot: SharedSnapshot) -> bool:
        raise AssertionError(f"{table} has no pages")

    def release_snapshot(self, table: TableId) -> None:
        raise AssertionError(f"{table} has no pages")
