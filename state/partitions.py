"""PostgreSQL's tables, their storage files and their partitions, as a job has last seen them."""

from collections.abc import Collection
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
    column or a unique index does. `type_parts`: the labels of its enums and the attributes of its composite types: a
    name that begins with the column's number and never changes, and a text. Such values are copied as text, which these decide.
    """

    table: TableId
    oid: int
    partitions: tuple[Partition, ...] = ()
    filenode: int | None = None
    columns: str = ""
    type_parts: tuple[tuple[str, str], ...] = ()


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

    def without(self, tables: Collection[TableId]) -> "Partitions":
        """Returns those of all other tables."""
        return Partitions(self.ended_xid, tuple(known for known in self.tables if known.table not in tables))


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
