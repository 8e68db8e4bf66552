"""What a job is, fixed before it reads its first row."""

from dataclasses import dataclass
from typing import Literal

from state.log_range import PreparedXa
from state.position import Position
from state.table import TableId, TableSchema

Mode = Literal["full", "incremental", "full+incremental"]


@dataclass(frozen=True, slots=True)
class SplitKey:
    """How a table is split: by these columns, () for a table without a key."""

    table: TableId
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Membership:
    """A PostgreSQL table in the job's publication; `text` stays the same as long as it was never taken out."""

    table: TableId
    text: str


@dataclass(frozen=True, slots=True)
class JobState:
    """Durable before the first split or the first log range is read, and never changed.

    `start`: where the log is read from; in modes with a snapshot no split has been read yet when it is taken, and with
    GTIDs it is the first anchor. `prepared`: XA transactions open at `start`. `server_identity` is the server's own
    text (server_uuid) that every later connection must show again. `split_keys` are the tables to snapshot, in order;
    () in mode `incremental`. `memberships`: of PostgreSQL tables, else ().
    """

    job_uuid: str
    job_name: str
    mode: Mode
    server_identity: str
    start: Position
    prepared: tuple[PreparedXa, ...]
    created_at_us: int
    schemas: tuple[TableSchema, ...]
    split_keys: tuple[SplitKey, ...]
    memberships: tuple[Membership, ...] = ()
