"""What a job is, fixed before it reads its first row."""

from dataclasses import dataclass, replace
from typing import Literal

from state.log_range import PreparedXa
from state.partitions import Partitions
from state.position import Position
from state.projection import TableProjection, outputs_of
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
class Joined:
    """Tables that a later start found. Durable before anything of them is read, and never changed.

    `start`: the log's end once they were found; from there on the log is read for them too, and no split of theirs is read
    before the job has come there. `split_keys`: () in mode `incremental`. `partitions`: as in JobState.
    """

    start: Position
    schemas: tuple[TableSchema, ...]
    split_keys: tuple[SplitKey, ...]
    memberships: tuple[Membership, ...] = ()
    projections: tuple[TableProjection, ...] = ()
    partitions: Partitions | None = None


@dataclass(frozen=True, slots=True)
class JobState:
    """Durable before the first split or the first log range is read, and never changed; only tables may join.

    `start`: where the log is read from; in modes with a snapshot no split has been read yet when it is taken, and with
    GTIDs it is the first anchor. `prepared`: XA transactions open at `start`. `server_identity` is the server's own
    text (server_uuid) that every later connection must show again. `split_keys` are the tables to snapshot, in order;
    () in mode `incremental`. `memberships`: of PostgreSQL tables, else (). `schemas` are the source's; `projections`, of
    the tables whose columns the job file changes, say what sinks get instead. `partitions`: of PostgreSQL's partitioned
    tables before the first split or log range was read, None where there are none. All five hold the tables of `joined`
    too, behind the first ones.
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
    projections: tuple[TableProjection, ...] = ()
    joined: tuple[Joined, ...] = ()
    partitions: Partitions | None = None

    @property
    def outputs(self) -> tuple[TableSchema, ...]:
        """All tables as sinks get them."""
        return outputs_of(self.schemas, self.projections)

    def with_joined(self, joined: Joined) -> "JobState":
        return replace(
            self,
            schemas=(*self.schemas, *joined.schemas),
            split_keys=(*self.split_keys, *joined.split_keys),
            memberships=(*self.memberships, *joined.memberships),
            projections=(*self.projections, *joined.projections),
            joined=(*self.joined, joined),
            partitions=joined.partitions if self.partitions is None else self.partitions.plus(joined.partitions),
        )

    def schemas_after(self, count: int) -> tuple[TableSchema, ...]:
        """Of the first tables and of those of the first `count` that joined."""
        later = {schema.table for joined in self.joined[count:] for schema in joined.schemas}
        return tuple(schema for schema in self.schemas if schema.table not in later)
