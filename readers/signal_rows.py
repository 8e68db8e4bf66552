"""Rows of a signal table, as the modules `signal_rows` of MySQL and PostgreSQL read them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tidemark.state.errors import SourceNotUsableError
from tidemark.state.table import TableId

MAX_ROWS = 1_000
"""A signal table with more rows is not read: each look reads all of them."""
MAX_CHARACTERS = 16_384
"""Longer data is cut off after one character more."""
QUERY_SECONDS = 10
"""The server ends a look that takes longer."""
LOCK_SECONDS = 2
"""How long a look waits for somebody who alters the table."""

COLUMNS = ("id", "type", "data")


@dataclass(frozen=True, slots=True)
class SignalRow:
    """A row of a signal table, as text. `data` is cut off after MAX_CHARACTERS + 1."""

    id: str | None
    type: str | None
    data: str | None


def require_columns(table: TableId, found: Iterable[tuple[str, str]], allowed: Collection[str]) -> None:
    """Raises SourceNotUsableError unless the table has the columns, with types that have no code of users. `found`: names and
    types."""
    types = {name: type_ for name, type_ in found if name in COLUMNS}
    for name in COLUMNS:
        if name not in types:
            raise unusable(table, f"it has no column {name}")
        if types[name] not in allowed:
            raise unusable(table, f"its column {name} has type {types[name]}, and must be text, a number or JSON")


def require_few(table: TableId, rows: Collection[object]) -> None:
    """Raises SourceNotUsableError if there are more than MAX_ROWS."""
    if len(rows) > MAX_ROWS:
        raise unusable(
            table, f"it has more than {MAX_ROWS:,} rows; DELETE those that tidemark signal JOB.yaml list shows"
        )


def unusable(table: TableId, why: str) -> SourceNotUsableError:
    return SourceNotUsableError(
        f"The signal table {table} can't be read: {why}.",
        "Make it a table with the columns id, type and data, which the job's account may SELECT (signals.table).",
    )
