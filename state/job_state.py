"""The state of a job: its facts, fixed before it reads its first row."""

from dataclasses import dataclass, replace
from typing import Literal

from tidemark.state.log_range import PreparedXa
from tidemark.state.partitions import Partitions
from tidemark.state.position import Position
from tidemark.state.projection import TableProjection, outputs_of
from tidemark.state.table import TableId, TableSchema

Mode = Literal["full", "incremental", "full+incremental"]


@dataclass(frozen=True, slots=True)
class SplitKey:
    """The columns that a table is split by, () for a table without a key."""

    table: TableId
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableCondition:
    """A table's `snapshot.where`."""

    table: TableId
    where: str


@dataclass(frozen=True, slots=True)
class Membership:
    """A PostgreSQL table in the job's publication. `text` changes if the table is removed and added again."""

    table: TableId
    text: str


@dataclass(frozen=True, slots=True)
class Joined:
    """Tables that a later start found. Stored before anything of them is read, and never changed.

    `start`: the end of the log after they were found. From there on the log is read for them too. None of their splits is
    read before the job has reached it. `split_keys`: () in mode `incremental`. `partitions`, `conditions`: as in JobState.
    """

    start: Position
    schemas: tuple[TableSchema, ...]
    split_keys: tuple[SplitKey, ...]
    memberships: tuple[Membership, ...] = ()
    projections: tuple[TableProjection, ...] = ()
    partitions: Partitions | None = None
    conditions: tuple[TableCondition, ...] = ()


@dataclass(frozen=True, slots=True)
class JobState:
    """The facts of a job. Stored before the first split or log range is read, and never changed; tables may only be added.

    `start`: the position from which the log is read. In modes with a snapshot it is taken before the first split is read,
    and with GTIDs it is the first anchor. `prepared`: the XA transactions open at `start`.
    `server_identity`: the server's own text (such as server_uuid). Every later connection must return the same.
    `split_keys`: the tables to snapshot, in order; () in mode `incremental`.
    `memberships`: of PostgreSQL tables, else ().
    `schemas`: the tables as the source has them. `projections`: of tables whose columns the job file changes, what sinks
    get instead.
    `partitions`: PostgreSQL's tables and partitions before the first split or log range was read, None for other sources.
    `conditions`: of the tables that `snapshot.where` names, () in mode `incremental`.
    `schemas`, `split_keys`, `memberships`, `projections`, `partitions` and `conditions` also contain the tables of `joined`,
    after the first ones.
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
    conditions: tuple[TableCondition, ...] = ()

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
            conditions=(*self.conditions, *joined.conditions),
        )

    def schemas_after(self, count: int) -> tuple[TableSchema, ...]:
        """The schemas of the first tables and of the first `count` entries of `joined`."""
        later = {schema.table for joined in self.joined[count:] for schema in joined.schemas}
        return tuple(schema for schema in self.schemas if schema.table not in later)
