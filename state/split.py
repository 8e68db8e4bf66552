"""Splits: one table and a half-open range of its key, and what is known of a split that was read."""

from dataclasses import dataclass
from typing import Literal

from state.position import Position, WalPosition
from state.table import TableId


@dataclass(frozen=True, slots=True)
class Bound:
    """A place in a table's key order: everything from this key on lies right of it.

    `literals`: one per split-key column, the server's own text, which only the server compares. MySQL and MariaDB: an
    SQL literal (`42`, `_utf8mb4 0x6162`, `'2024-02-29'`); PostgreSQL: the bare text, cast to its type where it is used.
    `rank`: the same place as bytes whose order is the server's order (see state/rank.py), in hex.
    The gap filter compares it.
    """

    literals: tuple[str, ...]
    rank: str


@dataclass(frozen=True, slots=True)
class KeyRange:
    """[start, end); None is unbounded."""

    start: Bound | None
    end: Bound | None


@dataclass(frozen=True, slots=True)
class SharedSnapshot:
    """A table as PostgreSQL had it at one moment, for several sessions to read, for as long as the session that exported
    it lives. `name`: for SET TRANSACTION SNAPSHOT; `high` carries the snapshot; `filenode`: of the file with the rows."""

    name: str
    high: WalPosition
    taken_at_us: int
    filenode: int


@dataclass(frozen=True, slots=True)
class Collect:
    """The range is read under the snapshot, and published for the generation; no sink gets it yet."""

    generation: int
    snapshot: SharedSnapshot
    kind: Literal["collect"] = "collect"


@dataclass(frozen=True, slots=True)
class Emit:
    """What the generation has of the range is the split's content."""

    generation: int
    kind: Literal["emit"] = "emit"


@dataclass(frozen=True, slots=True)
class Split:
    """`id` is unique in the job and never reused. `columns` are the split-key columns, a prefix of an index's columns;
    () for a table without a key. Such a table is one split, or is split by the pages that its rows are in: then `pages`
    is set, and the bounds are `(page,0)`, the rows' places (docs/adr/0017)."""

    id: int
    table: TableId
    schema_version: int
    columns: tuple[str, ...]
    range: KeyRange
    pages: Collect | Emit | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a published split. `high` carries GTIDs where MySQL has them: such a position is an anchor for
    later splits (docs/adr/0003); and a PostgreSQL split's own snapshot. `low`, a bare place: the SELECT sees all before
    it; as good as the high where nothing had to be replayed.

    `kind`: of a split by pages `collected`, `void` (its snapshot was gone, there are no rows) or `emitted`, else `read`."""

    split_id: int
    table: TableId
    schema_version: int
    high: Position
    row_count: int
    replayed_changes: int
    low: Position | None = None
    kind: Literal["read", "collected", "void", "emitted"] = "read"
