"""What PostgreSQL's snapshots contain: `covers(transaction)`, for many transactions and snapshots at once.

A snapshot is the text of pg_current_snapshot(): `xmin:xmax:xip,…`, 64-bit transaction ids. It contains what is below
xmin, and what is below xmax but not in xip (docs: "pg_snapshot Components"). The log names a transaction by the low
32 bits of its id; of all ids with these bits it means the one nearest to xmax, since the server keeps less than 2^31
between any two ids that are still told apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

_WRAP = 1 << 32
_HALF = 1 << 31
_FIRST_NORMAL_XID = 3


@dataclass(frozen=True, slots=True)
class SnapshotWatermarks:
    """Snapshots by index. `in_progress`: index × 2^32 + (id - xmin) of every id in an xip, rising."""

    xmins: Int64s
    xmaxs: Int64s
    in_progress: Int64s

    @classmethod
    def of(cls, snapshots: Sequence[str]) -> "SnapshotWatermarks":
        """Raises ValueError for a text that is no snapshot."""
        xmins, xmaxs, in_progress = [], [], []
        for index, text in enumerate(snapshots):
            xmin, xmax, running = _parsed(text)
            xmins.append(xmin)
            xmaxs.append(xmax)
            in_progress += [index * _WRAP + xid - xmin for xid in running]
        return cls(np.array(xmins, np.int64), np.array(xmaxs, np.int64), np.array(in_progress, np.int64))

    def covered(self, snapshot_index: Int64s, xids: Int64s) -> npt.NDArray[np.bool_]:
        """Is transaction `xids[i]` (32 bits) in snapshot `snapshot_index[i]`? Raises ValueError for an id that no
        transaction has."""
        if len(xids) and (xids.min() < _FIRST_NORMAL_XID or xids.max() >= _WRAP):
            raise ValueError(f"transaction ids from {xids.min()} to {xids.max()}")
        xmins, xmaxs = self.xmins[snapshot_index], self.xmaxs[snapshot_index]
        below = (xmaxs - xids) & (_WRAP - 1)  # how far below xmax, if it is
        past = (below > 0) & (below <= _HALF)
        after_xmin = xmaxs - below - xmins
        places = snapshot_index * _WRAP + after_xmin
        running = np.zeros(len(xids), np.bool_)
        if len(self.in_progress):
            found = np.searchsorted(self.in_progress, places).clip(max=len(self.in_progress) - 1)
            running = (after_xmin >= 0) & (self.in_progress[found] == places)
        return past & ~running


def _parsed(text: str) -> tuple[int, int, list[int]]:
    parts = text.split(":")
    try:
        xmin, xmax = int(parts[0]), int(parts[1])
        running = [int(xid) for xid in parts[2].split(",")] if parts[2] else []
    except (IndexError, ValueError):
        raise ValueError(f"not a snapshot: {text!r}") from None
    rising = [xmin - 1, *running, xmax]
    within = _FIRST_NORMAL_XID <= xmin <= xmax < 1 << 63 and xmax - xmin < _HALF
    if len(parts) != 3 or not within or any(a >= b for a, b in pairwise(rising)):
        raise ValueError(f"not a snapshot: {text!r}")
    return xmin, xmax, running
