"""Ranges of integer keys, which all databases order alike: the same range in a source and in a copy."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

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
        """Returns the range of integers, None if a bound is not an integer."""
        start, end = _integers(key_range.start), _integers(key_range.end)
        if (start is None) != (key_range.start is None) or (end is None) != (key_range.end is None):
            return None
        return cls(columns, start, end)

    @classmethod
    def from_text(cls, text: str) -> "IntegerRange":
        """Returns the range of which `text` is the property of this name."""
        columns, start, end = json.loads(text)
        return cls(tuple(columns), None if start is None else tuple(start), None if end is None else tuple(end))

    @property
    def text(self) -> str:
        return json.dumps([self.columns, self.start, self.end])

    def contains(self, values: tuple[int, ...]) -> bool:
        return (self.start is None or values >= self.start) and (self.end is None or values < self.end)

    def condition(
        self,
        expression_of: Callable[[str], str],
        *,
        by_rows: bool = False,
        literal_of: Callable[[str, int], str] = lambda _, value: str(value),
    ) -> str:
        """Returns the range as a condition in SQL. `expression_of`: of a column's name. `by_rows`: rows are compared, for which
        PostgreSQL reads just the range of an index. MySQL and MariaDB do so for the other form. `literal_of`: of a value that
        is compared with the column of a name."""
        start, end = (
            None if bound is None else [literal_of(name, n) for name, n in zip(self.columns, bound, strict=True)]
            for bound in (self.start, self.end)
        )
        return range_condition([expression_of(name) for name in self.columns], start, end, by_rows=by_rows)


def range_condition(
    names: Sequence[str], start: Sequence[str] | None, end: Sequence[str] | None, *, by_rows: bool
) -> str:
    """Returns the condition that rows of expressions are in [start, end), given as literals."""
    conditions = ["TRUE"]
    for values, last, operator in ((start, ">=", ">"), (end, "<", "<")):
        if values is not None and by_rows:
            conditions.append(f"({', '.join(names)}) {last} ({', '.join(values)})")
        elif values is not None:
            conditions.append(_compared(names, values, operator, last))
            # A server that reads no ranges for OR reads the key between these.
            conditions += [f"{names[0]} {operator}= {values[0]}"] if len(names) > 1 else []
    return " AND ".join(conditions)


def _integers(bound: Bound | None) -> tuple[int, ...] | None:
    if bound is None or not all(_INTEGER.fullmatch(text) for text in bound.literals):
        return None
    return tuple(int(text) for text in bound.literals)


def united(ranges: Iterable[IntegerRange]) -> list[IntegerRange]:
    """Returns as few ranges as possible with the same keys, in the order of the keys. `ranges`: disjoint ones of the same
    columns."""
    found: list[IntegerRange] = []
    for after in sorted(ranges, key=lambda item: (item.start is not None, item.start or ())):
        if found and found[-1].end is not None and found[-1].end == after.start:
            found[-1] = replace(found[-1], end=after.end)
        else:
            found.append(after)
    return found


def _compared(names: Sequence[str], values: Sequence[str], operator: str, last: str) -> str:
    """Returns the condition that the columns come after the values, or before them. `last`: the operator of the last column."""
    (name, *others), (value, *rest) = names, values
    if not others:
        return f"{name} {last} {value}"
    return f"({name} {operator} {value} OR ({name} = {value} AND {_compared(others, rest, operator, last)}))"
