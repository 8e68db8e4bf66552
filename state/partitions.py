"""What partitioned tables of PostgreSQL consist of, as a job has last looked at them."""

from dataclasses import dataclass

from state.table import TableId


@dataclass(frozen=True, slots=True)
class Partition:
    """A relation below a partitioned table. `attached_xid`: the transaction (32 bits) that attached it to `parent_oid`.
    `filenode`: of its rows' storage; None where it is partitioned itself."""

    oid: int
    parent_oid: int
    name: str
    attached_xid: int
    filenode: int | None


@dataclass(frozen=True, slots=True)
class PartitionedTable:
    """`partitions` of all levels, ordered by oid."""

    table: TableId
    oid: int
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class Partitions:
    """When they were looked at every transaction with an id (64 bits) below `ended_xid` had ended."""

    ended_xid: int
    tables: tuple[PartitionedTable, ...]

    def plus(self, other: "Partitions | None") -> "Partitions":
        """With those tables of `other` that are not among these."""
        known = {table.oid for table in self.tables}
        more = () if other is None else tuple(table for table in other.tables if table.oid not in known)
        if other is None or not more:
            return self
        return Partitions(min(self.ended_xid, other.ended_xid), (*self.tables, *more))


@dataclass(frozen=True, slots=True)
class PartitionLook:
    """`warnings`: changes that the job file says to go on after."""

    now: Partitions
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptPartitions:
    """Of a plan: its `Partitions`, whose tables stand in the checkpoint's file partitions/`name`."""

    name: str
    ended_xid: int
