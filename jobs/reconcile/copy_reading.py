"""Reads a copy that is a table of a database as the source is read, and finds the rows that may differ.

That costs less than letting the copy's server compare: it reads each row once, and writes none. What differs here may still be
right, so the server decides on it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from tidemark.jobs.reconcile.same_rows import Others, other_rows
from tidemark.jobs.sources import table_rows
from tidemark.readers.table_rows import TableRows
from tidemark.sinks.comparing import ComparesTable, CopyComparison
from tidemark.state.copied_range import CopiedRange
from tidemark.state.errors import TidemarkError
from tidemark.state.table import TableSchema

MAX_USELESS = 3
"""After so many ranges, one after the other, in which more than half of the rows may differ, the server compares all others."""
MAX_MORE_ROWS = 10_000
"""If the copy has so many rows more than the source in a range, they are not read."""


@dataclass(slots=True)
class CopyReading:
    """`key`, `names`: the copied columns. `connect`: reads the copy by another connection."""

    copy: ComparesTable
    rows: TableRows
    key: Sequence[str]
    names: Sequence[str]
    connect: Callable[[], AbstractContextManager[TableRows]]
    useless: int = 0

    def others(self, expected: pa.Table, within: CopiedRange | None) -> Others | None:
        """Returns the expected rows that may differ in the copy. None if the server is to compare the range: the copy has other
        keys there, or rows that can't be compared here."""
        if self.useless == MAX_USELESS:
            return None
        limit = expected.num_rows + MAX_MORE_ROWS
        try:
            held = self.rows.read(f"{self.copy.condition(within)} LIMIT {limit}")
        except TidemarkError:  # if it matters, the server meets it again
            self.useless = MAX_USELESS
            return None
        names = list(self.names)
        found = None if held.num_rows == limit else other_rows(expected.select(names), held.select(names), self.key)
        is_useful = found is not None and 2 * np.count_nonzero(found.rows) <= expected.num_rows
        self.useless = 0 if is_useful else self.useless + 1
        return None if found is None or found.has_more_keys else found


@contextmanager
def copy_reading(copy: CopyComparison, output: TableSchema) -> Iterator[CopyReading | None]:
    """None if the copy is no table, or has columns that can't be read so."""
    names = [column.name for column in output.captured]
    with ExitStack() as stack:
        reading = None
        if isinstance(copy, ComparesTable):
            of_copy = copy.copy_table
            connect = partial(table_rows, of_copy.endpoint, of_copy.tls, of_copy.table, names)
            try:
                rows = stack.enter_context(connect())
            except TidemarkError:  # if it matters, the comparison's own session meets it again
                pass
            else:
                if {column.name for column in rows.schema.captured} == set(names):
                    reading = CopyReading(copy, rows, output.key, names, connect)
        yield reading
