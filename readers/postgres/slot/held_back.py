"""A slot that is held back: its restart_lsn does not move.

For every range of the log, and for every advance, the server decodes all log from restart_lsn on. It can't move past the
first write of the oldest open transaction, nor, for some seconds, past what was written since the server last noted its open
transactions. So while it stays behind, ranges get longer (state/log_extent.py) and advances rarer.
"""

from dataclasses import dataclass

from tidemark.readers.postgres.connect import Connection
from tidemark.readers.postgres.slot.open_transactions import describe
from tidemark.state.log_extent import WalExtent
from tidemark.state.position import WalPosition

ADVANCE_SECONDS = 5.0
"""The least time between two advances."""
WORK_SHARE = 20
"""The time between two advances, as a multiple of what the last one took."""
WORTHWHILE_BYTES = 64 << 20
WORTH_SAYING_BYTES = 256 << 20


@dataclass(slots=True)
class AdvancePace:
    """Decides when the slot is advanced. Times are of one monotonic clock."""

    next_at: float = 0.0

    def is_due(self, extent: WalExtent | None, reached: WalPosition, *, now: float) -> bool:
        """`reached`: where the slot would be. The server sends all from the slot's position on again with each range. So an
        advance that is as long as the log between restart_lsn and that position does not wait."""
        if now >= self.next_at or extent is None or extent.decoded_from is None:
            return now >= self.next_at
        held_bytes = extent.start.lsn - extent.decoded_from.lsn
        return reached.lsn - extent.start.lsn >= max(held_bytes, WORTHWHILE_BYTES)

    def advanced(self, *, began: float, ended: float) -> None:
        self.next_at = ended + max(ADVANCE_SECONDS, WORK_SHARE * (ended - began))


@dataclass(frozen=True, slots=True)
class HeldBack:
    """`holder`: the transaction, for comparison. `warning`: names it, and how to end it."""

    holder: str
    warning: str


def held_back_by(connection: Connection, slot: str, decoded_again_bytes: int) -> HeldBack | None:
    """Returns the oldest open transaction, if the server decodes that much again for each range."""
    if decoded_again_bytes < WORTH_SAYING_BYTES:
        return None
    oldest = next(iter(describe(connection)), None)
    if oldest is None:
        return None
    return HeldBack(
        oldest.text,
        f"For each range of the log the server decodes {decoded_again_bytes >> 20} MiB again that the job has read: the slot "
        f"{slot} can't move past the first write of the oldest open transaction, that of {oldest.text}. {oldest.ending}.",
    )
