"""A run's knowledge of the job's copies, which it may tell the next run, so that this one need not ask Spark.

A copy is known once Spark has looked at it and found no problem, and its log was the same before and after. It stays known as
long as nothing but the run's own epochs follows. Anything else, and the next run asks Spark. docs/adr/0072 has the reasons.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from tidemark.sinks.delta.local_log import log_after_commit, read_log
from tidemark.sinks.delta.locations import LastEpoch
from tidemark.state.seen_copy import SeenCopy, TableLog
from tidemark.state.table import TableId


@dataclass(slots=True)
class SeenCopies:
    """One per opened job. `versions`: the newest version of each Delta table that the run has seen. `partitions`: the columns
    by which each was partitioned when the run first wrote it."""

    versions: dict[TableId, int] = field(default_factory=dict)
    partitions: dict[TableId, frozenset[str]] = field(default_factory=dict)
    _looks: dict[TableId, SeenCopy] = field(default_factory=dict)
    _known: dict[TableId, SeenCopy] = field(default_factory=dict)

    def forget(self, table: TableId) -> None:
        """To be called before Spark looks at the copy, and when somebody else has written to it."""
        self._looks.pop(table, None)
        self._known.pop(table, None)

    def look(self, table: TableId, before: TableLog | None, table_id: str, checked: str) -> None:
        """Spark has found no problem in the copy. `before`: its log before Spark's look. `checked`: as in SeenCopy."""
        if before is not None:
            self._looks[table] = SeenCopy(table, table_id, 0, before, checked)

    def end_look(self, table: TableId, last: LastEpoch, folder: Path | None) -> None:
        """Spark has told the copy's last epoch, which fits the checkpoint. `folder`: of the log."""
        seen = self._looks.pop(table, None)
        if seen is not None and seen.log.version == last.newest and seen.log == read_log(folder) and not last.set_back:
            self._known[table] = replace(seen, epoch=last.epoch)

    def know(self, copy: SeenCopy) -> None:
        """The copy is as an earlier run has seen it."""
        self._known[copy.table] = copy
        self.versions[copy.table] = copy.log.version

    def commit(self, table: TableId, version: int, folder: Path | None, application: str, epoch: int) -> None:
        """The run has made the copy's version `version`, right after the one that it looked at."""
        known = self._known.pop(table, None)
        if known is not None and known.log.version == version - 1:
            log = log_after_commit(folder, version, application, epoch)
            if log is not None:
                self._known[table] = replace(known, epoch=epoch, log=log)

    def known(self) -> tuple[SeenCopy, ...]:
        return tuple(copy for _, copy in sorted(self._known.items()))
