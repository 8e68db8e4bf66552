"""PostgreSQL's snapshots as watermarks: which of many transactions do many snapshots contain?

A snapshot is the text of pg_current_snapshot(): `xmin:xmax:xip,…`, 64-bit transaction ids. It contains the ids below xmin,
and those below xmax that are not in xip (docs: "pg_snapshot Components"). The log has only the low 32 bits of an id. It
means the id with these bits that is nearest to xmax, since the server keeps ids in use less than 2^31 apart.
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
    """Snapshots by index. `in_progress`: index × 2^32 + (id - xmin) of every id in an xip, ascending."""

    xmins: Int64s
    xmaxs: Int64s
    in_progress: Int64s

    @classmethod
    def of(cls, snapshots: Sequence[str]) -> "SnapshotWatermarks":
        """Reads snapshots. Raises ValueError for a text that is none."""
        xmins, xmaxs, in_progress = [], [], []
        for index, text in enumerate(snapshots):
            xmin, xmax, running = _parsed(text)
            xmins.append(xmin)
            xmaxs.append(xmax)
            in_progress += [index * _WRAP + xid - xmin for xid in running]
        return cls(np.array(xmins, np.int64), np.array(xmaxs, np.int64), np.array(in_progress, np.int64))

    def covered(self, snapshot_index: Int64s, xids: Int64s) -> npt.NDArray[np.bool_]:
        """Tells for each i whether transaction `xids[i]` (32 bits) is in snapshot `snapshot_index[i]`. Raises ValueError for an
        id that no transaction can have."""
        if len(xids) and (xids.min() < _FIRST_NORMAL_XID or xids.max() >= _WRAP):
            raise ValueError(f"transaction ids from {xids.min()} to {xids.max()}")
        xmins, xmaxs = self.xmins[snapshot_index], self.xmaxs[snapshot_index]
        below = (xmaxs - xids) & (_WRAP - 1)  # the distance below xmax, if it is below
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
