"""Tells which of a job's numbered records count: `joined`, `left`, `altered` and `again` of the checkpoint.

A record's name has its number and the number of the driver that wrote it. A driver may freeze before it writes a record, and
write it when another driver has taken the job over. So each driver notes at its take-over how many records there were (Cut).
What an earlier driver adds later does not count, for nobody who reads the checkpoint (docs/adr/0064).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Cut:
    """`driver` took the job over, and found that many records. `counts`: by folder."""

    driver: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Again:
    """This epoch is begun again: its plan is made, or its log read, once more. What earlier attempts at it have written no
    longer counts (docs/adr/0092)."""

    epoch: int


def counting(folder: str, names: Iterable[str], cut: Cut) -> list[str]:
    """Returns those of a folder's files that count, in the order of their numbers. Of two with one number, the later driver's
    does: it did not see the other one, or the other one did not count."""
    found = dict[int, tuple[int, str]]()
    for name in names:
        number, driver = number_and_driver(name)
        found[number] = max(found.get(number, (-1, "")), (driver, name))
    count = cut.counts.get(folder, 0)
    return [name for number, (driver, name) in sorted(found.items()) if number <= count or driver >= cut.driver]


def number_and_driver(name: str) -> tuple[int, int]:
    """Returns them for the name of a record's file."""
    number, _, driver = name.rpartition("/")[2].partition("-")
    return int(number), int(driver)
