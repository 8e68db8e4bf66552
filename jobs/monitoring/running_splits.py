"""Splits that the running epoch has read so far, counted by the names of their published files."""

import time
from collections import Counter

from tidemark.readers.snapshot.publish import published_name
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.plan import SnapshotWork

LIST_SECONDS = 1.0
"""The least time between two listings of the checkpoint."""


class RunningSplits:
    """Counts for one epoch after the other."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._store, self._checkpoint = checkpoint.store, checkpoint
        self._epoch = 0
        self._tables: dict[str, str] = {}
        self._found: dict[str, int] = {}
        self._listed_at = 0.0

    def count(self, epoch: int) -> dict[str, int]:
        """The number of published splits of a planned epoch, by table. Empty if the epoch reads the log."""
        if epoch != self._epoch:
            self._epoch, self._tables, self._found, self._listed_at = epoch, self._planned(epoch), {}, 0.0
        if self._tables and time.monotonic() >= self._listed_at + LIST_SECONDS:
            folders = {name.partition("/")[0] for name in self._tables}
            there = {name for folder in sorted(folders) for name in self._store.list(folder)}
            self._found = dict(Counter(table for name, table in self._tables.items() if name in there))
            self._listed_at = time.monotonic()
        return self._found

    def _planned(self, epoch: int) -> dict[str, str]:
        """Name of the published file → table."""
        work = self._checkpoint.plan(epoch).plan.work
        if not isinstance(work, SnapshotWork):
            return {}
        return {published_name(epoch, split): str(split.table) for task in work.tasks for split in task}
