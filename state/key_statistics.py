"""What a source says of a table's split key, or of its pages: the enumerator decides by it how the table is cut."""

from dataclasses import dataclass

from state.split import Bound


@dataclass(frozen=True, slots=True)
class IntegerKey:
    """Least and greatest value of a split key that is one integer column of at most 64 bits, unique on its own."""

    least: int
    greatest: int
    unsigned: bool


@dataclass(frozen=True, slots=True)
class KeyStatistics:
    """A table's split key as it stands now.

    `greatest` is the bound of the greatest key, None for an empty table. `integers` is None for any other kind of key
    and for an empty table. `row_estimate` and `average_row_bytes` are the server's guesses (None: it has none) and may
    be wrong by any factor.
    """

    greatest: Bound | None
    integers: IntegerKey | None
    row_estimate: int | None
    average_row_bytes: int | None


@dataclass(frozen=True, slots=True)
class PageStatistics:
    """A table without a key as it stands now: `page_count` pages, and `data_bytes` in them and outside of its rows.
    `row_estimate`: the server's guess, None where it has none."""

    page_count: int
    data_bytes: int
    row_estimate: int | None
