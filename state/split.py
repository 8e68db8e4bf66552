"""Splits (one table and a half-open range of its key), and the reports of splits that were read."""

from dataclasses import dataclass
from typing import Literal

from tidemark.state.position import Position, WalPosition
from tidemark.state.table import TableId


@dataclass(frozen=True, slots=True)
class Bound:
    """A split boundary: a key, at which one split ends and the next one starts.

    `literals`: one for each split-key column, the server's own text, which only the server compares. MySQL and MariaDB: an
    SQL literal (`42`, `_utf8mb4 0x6162`, `'2024-02-29'`). PostgreSQL: the bare text, cast to its type where it is used.
    `encoded_key`: the same key as bytes whose order is the server's order (state/key_encoding.py), in hex. The gap filter
    compares these.
    """

    literals: tuple[str, ...]
    encoded_key: str


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys in [start, end); None is unbounded."""

    start: Bound | None
    end: Bound | None


@dataclass(frozen=True, slots=True)
class SharedSnapshot:
    """An exported snapshot of a PostgreSQL table, which other sessions can read while the exporting session lives.

    `name`: for SET TRANSACTION SNAPSHOT. `high`: contains the snapshot. `filenode`: the file with the rows.
    """

    name: str
    high: WalPosition
    taken_at_us: int
    filenode: int


@dataclass(frozen=True, slots=True)
class StageChunk:
    """Read the range under the snapshot and publish it for the attempt. No sink gets it yet.

    `base`: up to where the log had been read before the attempt. Its changes after that are withheld, and come after the rows.
    """

    attempt: int
    snapshot: SharedSnapshot
    base: Position | None = None
    kind: Literal["stage"] = "stage"


@dataclass(frozen=True, slots=True)
class ReleaseChunk:
    """Emit the rows that the attempt has staged for the range. Nothing is read from the source. `reader`: as in AsideRead,
    empty for pages."""

    attempt: int
    reader: str = ""
    kind: Literal["release"] = "release"


@dataclass(frozen=True, slots=True)
class AsideRead:
    """A table that a task has read beside the epochs (docs/adr/0084). `reader`: a name that no other task has. `chunk_count`:
    how many chunks it has staged, at least one."""

    reader: str
    chunk_count: int
    row_count: int


@dataclass(frozen=True, slots=True)
class Split:
    """One table and a half-open range of its key.

    `id`: unique in the job and never reused. `columns`: the split-key columns, a prefix of an index's columns; () for a
    table without a key. Such a table is one split, or is read in chunks of pages. Then `pages` is set, and the bounds are
    row addresses, `(page,0)` (docs/adr/0017). The same is true of chunks that were read beside the epochs: they are numbered as
    pages are (docs/adr/0084).
    """

    id: int
    table: TableId
    schema_version: int
    columns: tuple[str, ...]
    range: KeyRange
    pages: StageChunk | ReleaseChunk | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The facts of a published split.

    `high`: with GTIDs if MySQL has them, so that it is an anchor for later splits (docs/adr/0003); with the split's own
    snapshot for PostgreSQL. `low`: a bare position. The SELECT sees everything before it. It is as good as the high if
    nothing had to be replayed.
    `kind`: for a chunk `staged`, `expired` (its snapshot was gone, there are no rows) or `released`, else `read`.
    """

    split_id: int
    table: TableId
    schema_version: int
    high: Position
    row_count: int
    replayed_changes: int
    low: Position | None = None
    kind: Literal["read", "staged", "expired", "released"] = "read"
