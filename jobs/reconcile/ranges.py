"""The ranges of a table: as the enumerator divides it into splits."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidemark.conf.model import JobFile
from tidemark.enumerator.splitting import next_ranges
from tidemark.sinks.comparing import IntegerRange
from tidemark.state.key_source import KeySource
from tidemark.state.plan import Exhausted, TableState
from tidemark.state.split import Bound, KeyRange, Split
from tidemark.state.table import Column, TableSchema, arrow_type_of

RANGES_AT_ONCE = 16
_INTEGER = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True)
class Range:
    """A range of a table. `in_copy`: the same range in the copy, None if the copy may order its keys differently."""

    number: int
    split: Split
    in_copy: IntegerRange | None

    @property
    def is_whole(self) -> bool:
        return self.split.range == KeyRange(None, None)


def ranges_of(
    source: KeySource, job: JobFile, schema: TableSchema, output: TableSchema, columns: tuple[str, ...]
) -> Iterator[Range]:
    """Yields the ranges of a table, which together have all its keys. `columns`: its split key."""
    table, number = TableState(schema.table, schema.version, columns), 0
    by_integers = same_integers(job, schema, output, columns)
    while not isinstance(table.cursor, Exhausted):
        found, table = next_ranges(table, source, split_rows=job.snapshot.split_rows, count=RANGES_AT_ONCE)
        for key_range in found:
            split = Split(number, schema.table, schema.version, columns, key_range)
            yield Range(number, split, in_copy(columns, key_range) if by_integers else None)
            number += 1


def same_integers(job: JobFile, schema: TableSchema, output: TableSchema, columns: tuple[str, ...]) -> bool:
    """True if the split key is part of the copy's key and holds the same integers there: all databases order them alike."""
    if not columns or job.transform(schema.table.database, schema.table.name) is not None:
        return False
    if not set(columns) <= set(output.key):
        return False
    return all(_holds_integers(output.column(name)) for name in columns)


def _holds_integers(column: Column) -> bool:
    """PostgreSQL's numeric may be NaN: its bound would be one of a range that the copy is not known to have."""
    if column.made or column.source_type.startswith("numeric"):
        return False
    kind = arrow_type_of(column.arrow_type)
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0))


def in_copy(columns: tuple[str, ...], key_range: KeyRange) -> IntegerRange | None:
    """Returns the range of integers, None if a bound is none."""
    start, end = _integers(key_range.start), _integers(key_range.end)
    if (start is None) != (key_range.start is None) or (end is None) != (key_range.end is None):
        return None
    return IntegerRange(columns, start, end)


def _integers(bound: Bound | None) -> tuple[int, ...] | None:
    if bound is None or not all(_INTEGER.fullmatch(text) for text in bound.literals):
        return None
    return tuple(int(text) for text in bound.literals)
