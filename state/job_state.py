"""The state of a job: its facts, fixed before it reads its first row."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar

from tidemark.state.key_repair import KeyRepair
from tidemark.state.log_extent import KnownLog
from tidemark.state.log_range import PreparedXa
from tidemark.state.partitions import Partitions
from tidemark.state.position import Position
from tidemark.state.projection import TableProjection, outputs_of
from tidemark.state.reached import Reached
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
    """Tables that a later start found, or that come back to the job. Stored before anything of them is read, and never changed.

    `start`: the end of the log after they were found. From there on the log is read for them too. None of their splits is
    read before the job has reached it. `split_keys`: () in mode `incremental`. `partitions`, `conditions`: as in JobState.
    `back`: those of the tables that had left the job. `replaced`: those of them whose copies keep their rows until each split
    replaces what its range has; the copies of the others are emptied first. `left_files`: how many times tables had left the
    job before. `after_epoch`: the newest planned epoch then. `at_us`: when, microseconds since 1970. `restarts`: the job goes
    on from `start` without reading the log up to there, which the source may have lost. It had no other tables, or another
    server answers, whose log has up to `start` what the job had read.
    `server_identity`: of that server, "" for the same as before. If it was upgraded, `memberships` and `partitions` have what
    the new one says of the tables that go on. `version_offset`: what is added to the positions of the log
    after `start` in `_commit_version`, None for the same as before: versions never become smaller. `reached`: what the target
    has once the entry is taken in, if it was set back, else None. `rereads`: rows that contain everything before `start`, and
    are written once the log has been read up to there. `rolled_back_from`: the position up to which the copies have the log if
    a person rolled the job back: to `start`, or before another server answered, whose position it is. `rolled_back_log`: what
    the log before it is known by. `start_log`: what the log before `start` is known by, if the job has read it before.
    """

    start: Position
    schemas: tuple[TableSchema, ...]
    split_keys: tuple[SplitKey, ...]
    memberships: tuple[Membership, ...] = ()
    projections: tuple[TableProjection, ...] = ()
    partitions: Partitions | None = None
    conditions: tuple[TableCondition, ...] = ()
    back: tuple[TableId, ...] = ()
    left_files: int = 0
    after_epoch: int = 0
    at_us: int = 0
    restarts: bool = False
    server_identity: str = ""
    version_offset: int | None = None
    reached: Reached | None = None
    rereads: tuple[KeyRepair, ...] = ()
    replaced: tuple[TableId, ...] = ()
    rolled_back_from: Position | None = None
    rolled_back_log: KnownLog | None = None
    start_log: KnownLog | None = None

    @property
    def emptied(self) -> tuple[TableId, ...]:
        """The tables whose copies are emptied before their rows are read."""
        return tuple(table for table in self.back if table not in self.replaced)

    @property
    def watched_again(self) -> frozenset[TableId]:
        """The tables that go on at a server that was upgraded, whose catalogs say the same of them in another way."""
        if not self.server_identity or self.partitions is None:
            return frozenset()
        return frozenset(known.table for known in self.partitions.tables)

    def without(self, tables: Collection[TableId]) -> "Joined":
        """Returns the entry without these tables."""
        return replace(
            self,
            schemas=_but(tables, self.schemas),
            split_keys=_but(tables, self.split_keys),
            memberships=_but(tables, self.memberships),
            projections=tuple(p for p in self.projections if p.output.table not in tables),
            partitions=None if self.partitions is None else self.partitions.without(tables),
            conditions=_but(tables, self.conditions),
            back=tuple(table for table in self.back if table not in tables),
            rereads=_but(tables, self.rereads),
            replaced=tuple(table for table in self.replaced if table not in tables),
        )


@dataclass(frozen=True, slots=True)
class Left:
    """A table that has left the job. `version`: of its schema then. `why`: the error for which it was parked, "" if
    `source.exclude_tables` named it, or a signal asked for its rows. `at_us`: when, microseconds since 1970. `heals`: 0, or the
    table comes back by itself; how many times in a row it has left so without its copy having been complete in between, this
    time included. After many times it waits before it comes back. Without `why`: because the log was lost. `paused`: a signal
    has paused it, and only a signal brings it back; then `why` is ""."""

    table: TableId
    version: int
    why: str = ""
    at_us: int = 0
    heals: int = 0
    paused: bool = False

    @property
    def is_parked(self) -> bool:
        return bool(self.why)


@dataclass(frozen=True, slots=True)
class Altered:
    """A table that got or lost columns while the job followed it. Stored before the log is read so, and never changed.

    `schema`: the table's schema from then on, of the same version. It also fits the log before the change. All rows that the
    job had read are older than the new columns, and `Column.constant` says what these are in them. `at_us`: when, microseconds
    since 1970, by the clock of the driver then. `after_epoch`: the newest planned epoch then, None if an earlier version has
    stored this.
    """

    schema: TableSchema
    projection: TableProjection | None = None
    at_us: int = 0
    after_epoch: int | None = None

    def is_since(self, epoch: int, at_us: int) -> bool:
        """True if the table was altered after `epoch` was planned. `at_us`: when that was, for what an earlier version has
        stored. Drivers' clocks may differ, so the time counts only there."""
        return self.at_us >= at_us if self.after_epoch is None else self.after_epoch >= epoch


@dataclass(frozen=True, slots=True)
class CameBack:
    """A table that came back to the job. `start`, `at_us`: as in Joined. `version`: `_commit_version` of the emptying of its
    copy. `is_replaced`: the copy is not emptied, but replaced range by range. `after_epoch`: the last epoch that was planned
    before."""

    start: Position
    at_us: int
    version: int
    is_replaced: bool = False
    after_epoch: int = 0


@dataclass(frozen=True, slots=True)
class JobState:
    """The facts of a job. Stored before the first split or log range is read, and never changed; tables join and leave.

    `start`: the position from which the log is read. In modes with a snapshot it is taken before the first split is read,
    and with GTIDs it is the first anchor. `prepared`: the XA transactions open at `start`.
    `server_identity`: the server's own text (such as server_uuid). Every later connection must return the same. It is another
    one after a failover that the job followed (Joined).
    `split_keys`: the tables to snapshot, in order; () in mode `incremental`.
    `memberships`: of PostgreSQL tables, else ().
    `schemas`: the tables as the source has them. `projections`: of tables whose columns the job file changes, what sinks
    get instead.
    `partitions`: PostgreSQL's tables and partitions before the first split or log range was read, None for other sources.
    `conditions`: of the tables that `snapshot.where` names, () in mode `incremental`.
    `lists`: the sink gets arrays of PostgreSQL as lists. False for sinks that take their texts, and for jobs of an earlier
    version, whose copies have texts.
    `schemas`, `split_keys`, `memberships`, `projections`, `partitions` and `conditions` also contain the tables of `joined`,
    after the first ones. None of them contains the tables of `left`, which have left the job.
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
    left: tuple[Left, ...] = ()
    lists: bool = False

    @property
    def came_back(self) -> dict[TableId, CameBack]:
        """The tables that came back to the job."""
        return {
            table: CameBack(
                joined.start,
                joined.at_us,
                joined.start.version_before + self.version_offset(count),
                is_replaced=table in joined.replaced,
                after_epoch=joined.after_epoch,
            )
            for count, joined in enumerate(self.joined, 1)
            for table in joined.back
        }

    def version_offset(self, count: int | None = None) -> int:
        """Returns the number that is added to the log's positions in `_commit_version` once the first `count` entries of
        `joined` are taken in; None: all."""
        offsets = [joined.version_offset for joined in self.joined[:count] if joined.version_offset is not None]
        return offsets[-1] if offsets else 0

    @property
    def moved_at_us(self) -> int:
        """When the job went on at another server last, microseconds since 1970; 0: never."""
        return max((joined.at_us for joined in self.joined if joined.server_identity), default=0)

    @property
    def left_tables(self) -> frozenset[TableId]:
        return frozenset(left.table for left in self.left)

    @property
    def outputs(self) -> tuple[TableSchema, ...]:
        """All tables as sinks get them."""
        return outputs_of(self.schemas, self.projections)

    def with_joined(self, joined: Joined) -> "JobState":
        return replace(
            self,
            server_identity=joined.server_identity or self.server_identity,
            schemas=(*self.schemas, *joined.schemas),
            split_keys=(*self.split_keys, *joined.split_keys),
            memberships=(
                *_but([member.table for member in joined.memberships], self.memberships),
                *joined.memberships,
            ),
            projections=(*self.projections, *joined.projections),
            joined=(*self.joined, joined),
            left=_but([schema.table for schema in joined.schemas], self.left),
            partitions=(
                joined.partitions
                if self.partitions is None
                else self.partitions.without(joined.watched_again).plus(joined.partitions)
            ),
            conditions=(*self.conditions, *joined.conditions),
        )

    def without(self, leaving: Sequence[Left]) -> "JobState":
        """Returns the job after these tables have left it."""
        tables = frozenset(left.table for left in leaving)
        return replace(
            self,
            schemas=_but(tables, self.schemas),
            split_keys=_but(tables, self.split_keys),
            memberships=_but(tables, self.memberships),
            projections=tuple(p for p in self.projections if p.output.table not in tables),
            joined=tuple(joined.without(tables) for joined in self.joined),
            partitions=None if self.partitions is None else self.partitions.without(tables),
            conditions=_but(tables, self.conditions),
            left=(*_but(tables, self.left), *leaving),
        )

    def with_altered(self, altered: Altered) -> "JobState":
        """Returns the job with the altered table, unless that has left the job since, even if it came back."""
        new = altered.schema
        if not any((schema.table, schema.version) == (new.table, new.version) for schema in self.schemas):
            return self
        projections = [p for p in self.projections if p.output.table != new.table]
        return replace(
            self,
            schemas=tuple(new if schema.table == new.table else schema for schema in self.schemas),
            projections=(*projections, *([] if altered.projection is None else [altered.projection])),
        )

    def reread_rows(self, signal: int) -> int:
        """How many changes have been made of the rows that a signal has had read again, so far."""
        return sum(reread.rows for joined in self.joined for reread in joined.rereads if reread.signal == signal)

    def restarts_after(self, count: int) -> bool:
        """True if the job goes on from the start of a later entry of `joined` than the first `count`."""
        return any(joined.restarts for joined in self.joined[count:])

    def schemas_after(self, count: int) -> tuple[TableSchema, ...]:
        """The schemas of the first tables and of the first `count` entries of `joined`."""
        later = {schema.table for joined in self.joined[count:] for schema in joined.schemas}
        return tuple(schema for schema in self.schemas if schema.table not in later)


class _OfTable(Protocol):
    @property
    def table(self) -> TableId: ...


_Fact = TypeVar("_Fact", bound=_OfTable)


def _but(tables: Collection[TableId], facts: Iterable[_Fact]) -> tuple[_Fact, ...]:
    """Returns the facts of all other tables."""
    return tuple(fact for fact in facts if fact.table not in tables)
