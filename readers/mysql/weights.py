"""Collation weights: bytes whose order is the server's order of strings, and which are equal iff the server says so.

The server computes them (WEIGHT_STRING). What is added here is the end: where a collation pads with spaces, a string
counts as followed by endless spaces, so 'a' equals 'a ' and is greater than 'a' with a tab behind it.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from readers.mysql.key_columns import KeyColumn, text_literal
from readers.mysql.key_text import encoder
from state.errors import SourceNotUsableError
from state.rank import bytes_rank

VALUES_A_QUERY = 500
CACHED_VALUES = 1 << 17
LEVELS = (1, 2, 3, 4)
"""MariaDB's multi-level collations put one level's weights behind the other's, without an end between them: each level
is asked for by itself. A level that the collation has not repeats its last one."""

_LESS, _END, _GREATER = b"\0", b"\1", b"\2"
_RUN_BYTES = 4
_LONGEST_RUN = (1 << 8 * _RUN_BYTES) - 1


@dataclass(frozen=True, slots=True)
class Collation:
    """How a column's strings are weighed on this server. `levels`: suffixes of WEIGHT_STRING's argument, one for each
    value it gives. `spaces`: per level, the weight of a space if strings are padded with it, else b""."""

    levels: tuple[str, ...]
    spaces: tuple[bytes, ...]

    def sql(self, value: str) -> list[str]:
        """Expressions to select; `rank` takes their values."""
        return [f"WEIGHT_STRING({value}{level})" for level in self.levels]

    def rank(self, weights: Sequence[bytes]) -> bytes:
        return b"".join(
            bytes_rank(padded(weight, space) if space else weight)
            for weight, space in zip(weights, self.spaces, strict=True)
        )


def padded(weight: bytes, space: bytes) -> bytes:
    """Orders as `weight` followed by endless `space`s does.

    Each run of spaces is written as one space and what follows it: a lesser unit (then longer runs are greater), the
    end, or a greater unit (then longer runs are less). The end counts as an endless run.
    """
    size = len(space)
    if len(weight) % size:
        raise ValueError(f"weights of {len(weight)} bytes are not made of units of {size}")
    end = len(weight)
    while end and weight[end - size : end] == space:
        end -= size
    if space not in weight[:end]:
        return weight[:end] + space + _END
    written = bytearray()
    at = 0
    while at < end:
        run_start = at
        while weight[at : at + size] == space:
            at += size
        unit = weight[at : at + size]
        run = (at - run_start) // size
        if run and unit < space:
            written += space + _LESS + run.to_bytes(_RUN_BYTES, "big")
        elif run:
            written += space + _GREATER + (_LONGEST_RUN - run).to_bytes(_RUN_BYTES, "big")
        written += unit
        at += size
    return bytes(written) + space + _END


class Weights:
    """Asks the server when a value is not known yet; the ranks of the CACHED_VALUES used last are kept.

    `query` runs one statement and gives its rows. `levels_apart`: on MariaDB, see LEVELS.
    """

    def __init__(self, query: Callable[[str], Sequence[Sequence[Any]]], *, levels_apart: bool) -> None:
        self._query = query
        self._levels = tuple(f" LEVEL {level}" for level in LEVELS) if levels_apart else ("",)
        self._collations: dict[str, Collation] = {}
        self._ranks: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def collation(self, column: KeyColumn) -> Collation:
        known = self._collations.get(column.collation)
        if known is None:
            known = self._collations[column.collation] = self._examine(column)
        return known

    def ranks(self, column: KeyColumn, values: Sequence[str]) -> list[bytes]:
        """Of distinct values as the copy has them, in their order."""
        name = column.collation
        missing = [value for value in values if (name, value) not in self._ranks]
        for first in range(0, len(missing), VALUES_A_QUERY):
            self._ask(column, missing[first : first + VALUES_A_QUERY])
        found = []
        for value in values:
            self._ranks.move_to_end((name, value))
            found.append(self._ranks[name, value])
        while len(self._ranks) > CACHED_VALUES:
            self._ranks.popitem(last=False)
        return found

    def _ask(self, column: KeyColumn, values: Sequence[str]) -> None:
        collation = self.collation(column)
        encode = encoder(column.charset)
        if encode is None:
            raise ValueError(f"{column.charset} has no exact encoder")
        literals = [_collated(column, encode(value).hex()) for value in values]
        selected = ", ".join(sql for literal in literals for sql in collation.sql(literal))
        (weights,) = self._query(f"SELECT {selected}")
        count = len(collation.levels)
        for i, value in enumerate(values):
            self._ranks[column.collation, value] = collation.rank(weights[i * count : (i + 1) * count])

    def _examine(self, column: KeyColumn) -> Collation:
        encode = encoder(column.charset)
        if encode is None:
            raise ValueError(f"{column.charset} has no exact encoder")
        letter, letter_space, space = (_collated(column, encode(text).hex()) for text in ("a", "a ", " "))
        levels = [f"WEIGHT_STRING({text}{level})" for level in self._levels for text in (letter_space, space)]
        ((pads, *weights),) = self._query(f"SELECT {letter} = {letter_space}, {', '.join(levels)}")
        kept = len(self._levels) if len(set(weights[::2])) > 1 else 1
        spaces = tuple(weights[1::2][:kept])
        if pads and any(len(weight) != 2 * len(space) for weight, space in zip(weights[::2], spaces, strict=False)):
            raise SourceNotUsableError(
                f"The server's collation {column.collation} weighs characters in a way that is not known.",
                "Name another split key (source.keys), and report this.",
            )
        return Collation(self._levels[:kept] if kept > 1 else ("",), spaces if pads else (b"",) * kept)


def _collated(column: KeyColumn, hexadecimal: str) -> str:
    return f"{text_literal(column.charset, hexadecimal)} COLLATE {column.collation}"
