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

    def __str__(self) -> str:
        parts = []
        for (uuid, tag), intervals in sorted(self.intervals.items()):
            ranges = ":".join(f"{a}-{b - 1}" if b - a > 1 else str(a) for a, b in intervals)
            parts.append(f"{uuid}:{tag}:{ranges}" if tag else f"{uuid}:{ranges}")
        return ",".join(parts)

    def contains(self, source: Source, number: int) -> bool:
        return any(start <= number < end for start, end in self.intervals.get(source, ()))

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

    def with_transactions(self, source: Source, numbers: Iterable[int]) -> "GtidSet":
        """Returns this set and the transactions `numbers` of `source`."""
        return self.union(GtidSet({source: _merged((n, n + 1) for n in numbers)}))


def normal_uuid(text: str) -> str:
    digits = text.replace("-", "").lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
