"""Signals: requests to a job, given while it runs or not, and the answers to them."""

from dataclasses import dataclass
from typing import Literal

from tidemark.state.table import TableId


@dataclass(frozen=True, slots=True)
class Signal:
    """`resnapshot`: the table's rows are to be read again. `at_us`: when it was given, microseconds since 1970."""

    table: TableId
    at_us: int
    kind: Literal["resnapshot"] = "resnapshot"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the job did. `accepted` False: nothing, and `text` says why. `at_us`: microseconds since 1970."""

    accepted: bool
    text: str
    at_us: int
