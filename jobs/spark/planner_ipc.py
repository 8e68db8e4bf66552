"""Messages from the driver to the planner, which is another process, as files in the run's private folder."""

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PlannerIpc:
    path: Path

    def ask_to_stop(self) -> None:
        (self.path / "stop").touch()

    def is_stop_asked(self) -> bool:
        return (self.path / "stop").exists()

    def note_written(self, epoch: int) -> None:
        """Tells that the sink has all of the epoch now."""
        written = self.path / "written"
        unfinished = written.with_suffix(".part")
        unfinished.write_text(f"{epoch} {time.monotonic()}")
        os.replace(unfinished, written)

    def written_at(self, epoch: int) -> float | None:
        """The time at which the epoch was written, by time.monotonic(), which all processes of a machine share. None if not
        known."""
        try:
            written_epoch, at = (self.path / "written").read_text().split()
        except FileNotFoundError:
            return None
        return float(at) if int(written_epoch) == epoch else None
