"""Ranges of integer keys, which all databases order alike: the same range in a source and in a copy."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemark.state.split import Bound, KeyRange

_INTEGER = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True)
class IntegerRange:
    """The keys in [start, end) of columns that hold integers, compared one column after the other; None is unbounded."""

    columns: tuple[str, ...]
    start: tuple[int, ...] | None
    end: tuple[int, ...] | None

    @classmethod
    def of(cls, columns: tuple[str, ...], key_range: KeyRange) -> "IntegerRange | None":
        """Returns the range of integers, None if a bound is none."""
        start, end = _integers(key_range.start), _integers(key_range.end)
        if (start is None) != (key_range.start is None) or (end is None) != (key_range.end is None):
            return None
        return cls(columns, start, end)

    def contains(self, values: tuple[int, ...]) -> bool:
        return (self.start is None or values >= self.start) and (self.end is None or values < self.end)

    def condition(self, expression_of: Callable[[str], str]) -> str:
        """Returns the range as a condition in SQL. `expression_of`: of a column's name."""
        names = [expression_of(name) for name in self.columns]
        conditions = ["TRUE"]
        if self.start is not None:
            conditions.append(_from(names, self.start))
        if self.end is not None:
            conditions.append(f"NOT {_from(names, self.end)}")
            conditions.append(f"{names[0]} <= {self.end[0]}")  # lets the server end its walk through the key
        return " AND ".join(conditions)


def _integers(bound: Bound | None) -> tuple[int, ...] | None:
    if bound is None or not all(_INTEGER.fullmatch(text) for text in bound.literals):
        return None
    return tuple(int(text) for text in bound.literals)


def _from(names: Sequence[str], values: Sequence[int]) -> str:
    """Returns the condition that the columns are at or after the values."""
    (name, *names), (value, *values) = names, values
    if not names:
        return f"({name} >= {value})"
    return f"({name} >= {value} AND ({name} > {value} OR {_from(names, values)}))"
