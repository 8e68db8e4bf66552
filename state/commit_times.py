"""Notes when transactions were committed, so that GTIDs that a server has given again are noticed."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tidemark.state.errors import CheckpointError
from tidemark.state.gtid import GtidSet, Source
from tidemark.state.remedies import RESTORE_CHECKPOINT

MAX_TIMES = 100
"""A position notes no more times than these: the newest ones."""


@dataclass(frozen=True, slots=True)
class CommitTimes:
    """When transactions were committed, in microseconds since 1970, by the clock of the server on which they began: by source
    and number. Only of the last transaction of each interval of a GTID set, or the last one before it whose time is known: a
    server that gives numbers again gives the last ones again."""

    times: Mapping[Source, Mapping[int, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> "CommitTimes":
        """Reads `uuid:7=1700000000000000,uuid:tag:7=…`; for MariaDB `domain-server-7=…`. Raises CheckpointError."""
        found = dict[Source, dict[int, int]]()
        for part in (text or "").split(",") if text else ():
            gtid, _, time_us = part.partition("=")
            name, _, number = gtid.rpartition(":" if ":" in gtid else "-")
            if not name or not number.isdigit() or not time_us.isdigit():
                raise CheckpointError(f"Not the time of a transaction: {part!r}.", RESTORE_CHECKPOINT)
            source, _, tag = name.partition(":")
            found.setdefault((source, tag), {})[int(number)] = int(time_us)
        return cls(found)

    def text(self) -> str | None:
        """Returns the text that `parse` reads, with the newest MAX_TIMES of them. None if there are none. Equal times have one
        text."""
        newest = sorted(self, key=lambda time: (-time[2], time))[:MAX_TIMES]
        return ",".join(f"{_gtid(source, number)}={time_us}" for source, number, time_us in sorted(newest)) or None

    def __iter__(self) -> Iterator[tuple[Source, int, int]]:
        """Source, number and time of each."""
        for source, times in self.times.items():
            for number, time_us in times.items():
                yield source, number, time_us

    def __bool__(self) -> bool:
        return any(self.times.values())

    def after(self, read: "CommitTimes", gtids: GtidSet) -> "CommitTimes":
        """The times once the transactions were read, of which `read` has the times of their own intervals. `gtids`: all
        transactions now."""
        times = dict(self.times)
        for source, more in read.times.items():
            intervals, last = gtids.intervals.get(source, ()), dict[int, int]()
            known = {**times.get(source, {}), **more}
            starts = [start for start, _ in intervals]
            for number in sorted(known):
                i = bisect_right(starts, number) - 1
                if i >= 0 and number < intervals[i][1]:
                    last[i] = number
            times[source] = {number: known[number] for number in last.values()}
        return CommitTimes(times)


def _gtid(source: Source, number: int) -> str:
    server, tag = source
    if server.count("-") > 1:
        return f"{server}:{tag}:{number}" if tag else f"{server}:{number}"
    return f"{server}-{number}"
