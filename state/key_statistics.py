"""A source's statistics of a table's split key or pages, by which the enumerator chooses split boundaries."""

from dataclasses import dataclass

from tidemark.state.split import Bound


@dataclass(frozen=True, slots=True)
class IntegerKey:
    """The least and greatest value of a split key that is a single unique integer column of at most 64 bits."""

    least: int
    greatest: int
    unsigned: bool


@dataclass(frozen=True, slots=True)
class KeyStatistics:
    """The present ends of a table's split key.

    `greatest`: the greatest key, None for an empty table. `integers`: None for any other kind of key and for an empty
    table. `row_estimate` and `average_row_bytes`: the server's estimates (None: it has none). They may be wrong by any
    factor.
    """

    greatest: Bound | None
    integers: IntegerKey | None
    row_estimate: int | None
    average_row_bytes: int | None


@dataclass(frozen=True, slots=True)
class TableSize:
    """The server's estimates of a table's size; None where it has none. They may be wrong by any factor."""

    row_estimate: int | None
    data_bytes: int | None


@dataclass(frozen=True, slots=True)
class PageStatistics:
    """The present size of a table without a key: `page_count` pages, and `data_bytes` in them and in out-of-line values.
    `row_estimate`: the server's estimate, None if it has none."""

    page_count: int
    data_bytes: int
    row_estimate: int | None
