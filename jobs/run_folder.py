"""A run's private folder on the driver's machine, by which the driver tells the planner, a process of its own."""

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path

    def ask_to_stop(self) -> None:
        (self.path / "stop").touch()

    def is_stop_asked(self) -> bool:
        return (self.path / "stop").exists()

    def note_written(self, epoch: int) -> None:
        """The sink holds all of the epoch now."""
        written = self.path / "written"
        unfinished = written.with_suffix(".part")
        unfinished.write_text(f"{epoch} {time.monotonic()}")
        os.replace(unfinished, written)

    def written_at(self, epoch: int) -> float | None:
        """When it was, by time.monotonic(), which counts alike in all processes of a machine; None if it is not known."""
        try:
            written_epoch, at = (self.path / "written").read_text().split()
        except FileNotFoundError:
            return None
        return float(at) if int(written_epoch) == epoch else None
