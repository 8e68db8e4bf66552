"""Tables as the commands print them."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

_WIDTH = 160
"""Columns of the output where there is no terminal."""


def console() -> Console:
    drawn = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    return drawn if drawn.is_terminal else Console(highlight=False, markup=False, emoji=False, width=_WIDTH)


def table_of(headings: Iterable[str]) -> Table:
    drawn = Table(box=None, pad_edge=False)
    for heading in headings:
        drawn.add_column(heading, overflow="fold")
    return drawn
