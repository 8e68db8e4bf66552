"""The ranges of a table: as the enumerator divides it into splits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tidemark.conf.model import JobFile
from tidemark.enumerator.splitting import next_ranges
from tidemark.jobs.tables.integer_keys import same_integers
from tidemark.state.copied_range import CopiedRange
from tidemark.state.integer_range import IntegerRange
from tidemark.state.key_order import SourceKind
from tidemark.state.key_source import KeySource
from tidemark.state.plan import Exhausted, TableState
from tidemark.state.split import KeyRange, Split
from tidemark.state.table import TableSchema

RANGES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Range:
    """A range of a table. `in_copy`: the same range in the copy, None if the copy may order its keys differently."""

    number: int
    split: Split
    in_copy: CopiedRange | None

    @property
    def is_whole(self) -> bool:
        return self.split.range == KeyRange(None, None)

    @property
    def is_open(self) -> bool:
        """True for the range from the greatest key on that the table had when it was divided: rows are inserted there."""
        return self.split.range.start is not None and self.split.range.end is None

    def narrowed(self, key_range: KeyRange, kind: SourceKind) -> "Range":
        """Returns a part of the range, with the same number. `kind`: of the source."""
        of = self.in_copy
        in_copy = None if of is None else CopiedRange.of(of.columns, of.orders, key_range, kind)
        return replace(self, split=replace(self.split, range=key_range), in_copy=in_copy)


def ranges_of(
    source: KeySource,
    job: JobFile,
    schema: TableSchema,
    output: TableSchema,
    columns: tuple[str, ...],
    orders: Mapping[str, str] | None = None,
) -> Iterator[Range]:
    """Yields the ranges of a table, which together have all its keys. `columns`: its split key. `orders`: the orders of these
    columns if the copy is known to have them, too. Integers have the same order everywhere."""
    table, number = TableState(schema.table, schema.version, columns), 0
    by_integers = same_integers(job, schema, output, columns)
    while not isinstance(table.cursor, Exhausted):
        found, table = next_ranges(table, source, split_rows=job.snapshot.split_rows, count=RANGES_AT_ONCE)
        for key_range in found:
            in_copy = None
            if by_integers:
                integers = IntegerRange.of(columns, key_range)
                in_copy = None if integers is None else CopiedRange.of_integers(integers)
            elif orders is not None:
                in_copy = CopiedRange.of(columns, tuple(orders.values()), key_range, job.source.url.kind)
            yield Range(number, Split(number, schema.table, schema.version, columns, key_range), in_copy)
            number += 1
