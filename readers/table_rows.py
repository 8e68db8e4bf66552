"""The protocol of what reads a table that is no source. `mysql/snapshot/table_rows.py` and `postgres/snapshot/table_rows.py`
implement it."""

from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa

from tidemark.conf.reconnect import Reconnect
from tidemark.state.table import TableSchema

ONCE = Reconnect(attempts=0)
"""A copy that can't be read so is compared by its server, so nobody waits for a connection."""


class TableRows(Protocol):
    """Reads a table that is no source: a copy. Its rows are those that are committed when a read starts."""

    @property
    def schema(self) -> TableSchema:
        """The table as a source would have it, with the columns that were asked for."""

    def read(self, condition: str) -> pa.Table:
        """Returns the rows that fulfil `condition`, in SQL, where a row is named `c`, as the schema has them. Raises
        TidemarkError, also for a value that its Arrow type can't hold."""

    def pass_on(self, condition: str, names: Sequence[str], take: Callable[[pa.RecordBatch], None]) -> None:
        """Gives the same rows to `take` as they arrive, with these columns only, in the order of the schema. Raises
        TidemarkError as `read` does, and what `take` raises. Then nothing can be read any more."""
