"""A table of the demo's shop."""

from dataclasses import dataclass

DATABASE = "shop"


@dataclass(frozen=True, slots=True)
class ShopTable:
    """One table.

    `share`: its share of all rows, in thousandths. `select`: the values of row number `i` (1, 2, …) of the sequence `n`.
    `after`: statements that follow the rows.
    """

    name: str
    key: tuple[str, ...]
    share: int
    columns: str
    select: str
    after: tuple[str, ...] = ()
