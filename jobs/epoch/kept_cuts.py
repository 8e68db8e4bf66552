"""Removes the plans and reports of old epochs. Each is a consistent cut to which the job can go back: the newest KEPT_PLANS
stay, and some of those of the time `checkpoints.keep`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tidemark.state.checkpoint.layout import KEPT_PLANS, Checkpoint
from tidemark.state.errors import CheckpointError

KEPT_OLDER = 100
"""At most so many are kept beside the newest KEPT_PLANS."""


@dataclass(slots=True)
class KeptCuts:
    checkpoint: Checkpoint
    keep_seconds: float
    _planned_us: dict[int, int] = field(default_factory=dict)

    def planned(self, epoch: int, at_us: int) -> None:
        """Tells when the newest epoch was planned, by the driver's clock."""
        self._planned_us[epoch] = at_us

    def forget_before(self, committed: int, planned: Iterable[int], now_us: int) -> None:
        """Removes what no restart can need of the epochs `planned`, once all up to `committed` are committed."""
        older = [epoch for epoch in planned if epoch < committed - KEPT_PLANS]
        surplus = self._surplus(older, now_us)
        self.checkpoint.forget_plans(surplus)
        for epoch in surplus:
            self._planned_us.pop(epoch, None)

    def _surplus(self, older: Sequence[int], now_us: int) -> list[int]:
        """Those that are too old, and the newest one if it is too near to the one before it. The others are at intervals
        already: few plans are looked at."""
        surplus = []
        for epoch in older:
            if 0 <= now_us - self._at_us(epoch) <= self.keep_seconds * 1e6:
                break
            surplus.append(epoch)
        left = older[len(surplus) :]
        if len(left) > 1 and self._at_us(left[-1]) - self._at_us(left[-2]) < self.keep_seconds * 1e6 / KEPT_OLDER:
            surplus.append(left[-1])
        return surplus

    def _at_us(self, epoch: int) -> int:
        """0 for an epoch whose plan can't be read: nothing depends on it."""
        if epoch not in self._planned_us:
            try:
                self._planned_us[epoch] = self.checkpoint.plan(epoch).planned_at_us
            except CheckpointError:
                self._planned_us[epoch] = 0
        return self._planned_us[epoch]
