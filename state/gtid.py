"""MySQL's GTID sets, as exact intervals and with tags (MySQL 8.3+).

Format: https://dev.mysql.com/doc/refman/8.4/en/replication-gtids-concepts.html
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemark.state.errors import DamagedLogError

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")
_TAG = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")

Source = tuple[str, str]
"""A server's uuid (lower case, with dashes) and a tag ("" for none)."""
Interval = tuple[int, int]
"""Half-open: [first, after the last)."""


def _merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _without(intervals: Iterable[Interval], others: Iterable[Interval]) -> tuple[Interval, ...]:
    for first, after in others:
        intervals = [
            piece
            for start, end in intervals
            for piece in ((start, min(end, first)), (max(start, after), end))
            if piece[0] < piece[1]
        ]
    return tuple(intervals)


@dataclass(frozen=True, slots=True)
class GtidSet:
    """A set of transactions. Sets are partially ordered: use `contains`, never compare."""

    intervals: dict[Source, tuple[Interval, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "GtidSet":
        """Reads `uuid[:tag]:1-3:7[:tag:1-2],uuid:…` as the server prints it. Raises DamagedLogError."""
        found: dict[Source, list[Interval]] = {}
        for part in filter(None, (p.strip() for p in text.replace("\n", "").split(","))):
            uuid, *items = part.split(":")
            if not _UUID.fullmatch(uuid) or not items:
                raise DamagedLogError(f"Not a GTID set: {text!r}.", "Give a set such as uuid:1-5 or uuid:tag:1-5.")
            tag = ""
            for item in items:
                if _TAG.fullmatch(item):
                    tag = item.lower()
                    continue
                first, _, last = item.partition("-")
                if (
                    not first.isdigit()
                    or (last and not last.isdigit())
                    or int(last or first) < int(first)
                    or first == "0"
                ):
                    raise DamagedLogError(f"Not a GTID set: {text!r}.", "Give a set such as uuid:1-5 or uuid:tag:1-5.")
                found.setdefault((normal_uuid(uuid), tag), []).append((int(first), int(last or first) + 1))
        return cls({source: _merged(intervals) for source, intervals in found.items()})

    @classmethod
    def parse_state(cls, text: str) -> "GtidSet":
        """Reads a state of MariaDB's log, such as @@gtid_binlog_state: `0-11-100,0-12-7` is domain, server and the number of
        the server's last transaction in the domain. The set has all smaller numbers too. Raises DamagedLogError."""
        found = dict[Source, tuple[Interval, ...]]()
        for part in filter(None, (part.strip() for part in text.strip("[]").split(","))):
            domain, server, number = _state_entry(part)
            found[f"{domain}-{server}", ""] = ((1, number + 1),)
        return cls(found)

    def state(self) -> str:
        """The text that `parse_state` reads."""
        entries = sorted(self.intervals.items())
        return ",".join(f"{source}-{intervals[-1][1] - 1}" for (source, _), intervals in entries)

    def __str__(self) -> str:
        parts = []
        for (uuid, tag), intervals in sorted(self.intervals.items()):
            ranges = ":".join(f"{a}-{b - 1}" if b - a > 1 else str(a) for a, b in intervals)
            parts.append(f"{uuid}:{tag}:{ranges}" if tag else f"{uuid}:{ranges}")
        return ",".join(parts)

    def contains(self, source: Source, number: int) -> bool:
        return any(start <= number < end for start, end in self.intervals.get(source, ()))

    def interval_of(self, source: Source, number: int) -> Interval | None:
        """Returns the interval that has the transaction, None if the set does not."""
        found = (each for each in self.intervals.get(source, ()) if each[0] <= number < each[1])
        return next(found, None)

    def ends(self) -> "GtidSet":
        """Returns the last transaction of each interval."""
        return GtidSet({source: tuple((b - 1, b) for _, b in each) for source, each in self.intervals.items()})

    def contains_all(self, other: "GtidSet") -> bool:
        return all(
            any(start <= a and b <= end for start, end in self.intervals.get(source, ()))
            for source, intervals in other.intervals.items()
            for a, b in intervals
        )

    def union(self, other: "GtidSet") -> "GtidSet":
        return GtidSet(
            {
                source: _merged((*self.intervals.get(source, ()), *other.intervals.get(source, ())))
                for source in {*self.intervals, *other.intervals}
            }
        )

    def common(self, other: "GtidSet") -> "GtidSet":
        """Returns the transactions that both sets have."""
        return self.minus(self.minus(other))

    def minus(self, other: "GtidSet") -> "GtidSet":
        """Returns the transactions of this set that `other` lacks."""
        left = {
            source: _without(intervals, other.intervals.get(source, ())) for source, intervals in self.intervals.items()
        }
        return GtidSet({source: intervals for source, intervals in left.items() if intervals})


def _state_entry(text: str) -> tuple[int, int, int]:
    numbers = text.split("-")
    if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
        raise DamagedLogError(f"Not a GTID of MariaDB: {text!r}.", "Check @@gtid_binlog_state of the source.")
    return int(numbers[0]), int(numbers[1]), int(numbers[2])


def normal_uuid(text: str) -> str:
    digits = text.replace("-", "").lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def is_gtid_set(text: str) -> bool:
    """True if `GtidSet.parse` reads the text, and it is not empty."""
    try:
        return bool(GtidSet.parse(text).intervals)
    except DamagedLogError:
        return False


def is_mariadb_position(text: str) -> bool:
    """True for a GTID position of MariaDB: `domain-server-number`, separated by commas."""
    return re.fullmatch(r"\s*\d+-\d+-\d+\s*(,\s*\d+-\d+-\d+\s*)*,?\s*", text, re.ASCII) is not None
