"""What the enumerator asks of a source: where a table's key begins and ends, where to cut it, and how many pages a table
without a key has.

The database orders and compares keys, the enumerator never does: it passes bounds on as it got them.
"""

from collections.abc import Sequence
from typing import Protocol

from state.key_statistics import KeyStatistics, PageStatistics
from state.split import Bound, SharedSnapshot
from state.table import TableId


class KeySource(Protocol):
    """Implemented by the readers. `columns` is never empty. The source's errors pass through the enumerator
    unchanged."""

    def describe(self, table: TableId, columns: tuple[str, ...]) -> KeyStatistics:
        """One cheap look at the key's ends."""

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
        """At most `count` bounds, strictly increasing, all right of `after` and left of `until` (None: no limit).

        Between each and the one before it (the first: `after`, or the table's beginning) lie `rows` rows, or as many
        more as share the last key. Fewer than `count`: beyond the last one there is no place to cut before `until`.
        """

    def pages(self, table: TableId) -> PageStatistics | None:
        """None where the table's rows can't be read by the pages that they are in."""

    def share_snapshot(self, table: TableId) -> SharedSnapshot:
        """Of a table that has pages. It is held until another one of this table is taken, or it is released."""

    def is_shared(self, table: TableId, snapshot: SharedSnapshot) -> bool:
        """Is it still held?"""

    def release_snapshot(self, table: TableId) -> None:
        """Nothing, where none is held."""
