"""A source's estimates of its tables."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """The server's estimates; None where it has none. They may be wrong by any factor."""

    row_estimate: int | None
    average_row_bytes: int | None
    data_bytes: int | None
