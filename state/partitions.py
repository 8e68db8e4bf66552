"""PostgreSQL's tables, their storage files and their partitions, as a job has last seen them."""

from dataclasses import dataclass

from tidemark.state.table import TableId


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition at any level. `attached_xid`: the transaction (32 bits) that attached it to `parent_oid`. `filenode`: the
    file with its rows, None if it is partitioned itself."""

    oid: int
    parent_oid: int
    name: str
    attached_xid: int
    filenode: int | None


@dataclass(frozen=True, slots=True)
class WatchedTable:
    """A table of the job. `partitions`: of all levels, ordered by oid; () for a table that is not partitioned.

    `filenode`: its storage file, which a rewrite replaces; None if it is partitioned. `columns`: a text that changes when a
    column or a unique index does.
    """

    table: TableId
    oid: int
    partitions: tuple[Partition, ...] = ()
    filenode: int | None = None
    columns: str = ""


@dataclass(frozen=True, slots=True)
class Partitions:
    """Some tables and their partitions, read after every transaction with an id (64 bits) below `ended_xid` had ended."""

    ended_xid: int
    tables: tuple[WatchedTable, ...]

    def plus(self, other: "Partitions | None") -> "Partitions":
        """Adds the tables of `other` that are not among these."""
        known = {table.oid for table in self.tables}
        more = () if other is None else tuple(table for table in other.tables if table.oid not in known)
        if other is None or not more:
            return self
        return Partitions(min(self.ended_xid, other.ended_xid), (*self.tables, *more))


@dataclass(frozen=True, slots=True)
class PartitionLook:
    """The tables and partitions now. `warnings`: changes after which the job file lets the job continue."""

    now: Partitions
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptPartitions:
    """The `Partitions` of a plan. Their tables are in the checkpoint's file partitions/`name`."""

    name: str
    ended_xid: int
