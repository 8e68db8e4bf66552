"""The questions that the enumerator asks a source: the ends of a table's key and split boundaries, and, where the source can
share snapshots, the number of pages of a table without a key.

The database orders and compares keys. The enumerator never does: it passes bounds on as it got them.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tidemark.state.key_statistics import KeyStatistics, PageStatistics, TableSize
from tidemark.state.position import Position
from tidemark.state.split import Bound, SharedSnapshot
from tidemark.state.table import TableId


class KeySource(Protocol):
    """Implemented by the readers. `columns` is never empty. The enumerator does not catch the source's errors."""

    def describe(self, table: TableId, columns: tuple[str, ...]) -> KeyStatistics:
        """Returns the ends of the key. Must be cheap."""

    def next_bounds(
        self,
        table: TableId,
        columns: tuple[str, ...],
        *,
        after: Bound | None,
        until: Bound | None,
        rows: int,
        count: int,
    ) -> Sequence[Bound]:
        """Returns at most `count` split boundaries, strictly ascending, after `after` and before `until` (None: no limit).

        Between two of them, and between `after` (or the table's beginning) and the first, there are `rows` rows, or more if
        rows share the last key. If there are fewer than `count`, no further boundary exists before `until`.
        """

    def size(self, table: TableId) -> TableSize:
        """Returns the size of a table without a key. It is asked often, and may be as old as this object."""

    def sees(self, position: Position, unseen: Sequence[int]) -> bool:
        """Tells whether every split that is read from now on will contain the log up to `position`. `unseen`: transactions
        before it that SELECTs did not see when the log was read (LogReport.unseen)."""


@runtime_checkable
class SharesSnapshots(KeySource, Protocol):
    """A KeySource that can export a snapshot, so that a table without a key is read by page ranges (docs/adr/0017)."""

    def pages(self, table: TableId) -> PageStatistics | None:
        """Returns None if the table's rows can't be read by page ranges."""

    def share_snapshot(self, table: TableId) -> SharedSnapshot:
        """Exports a snapshot of a table that has pages. It is kept until it is released or the table's next one is taken."""

    def is_shared(self, table: TableId, snapshot: SharedSnapshot) -> bool:
        """Tells whether the snapshot is still kept."""

    def release_snapshot(self, table: TableId) -> None:
        """Ends the table's snapshot, if one is kept."""
