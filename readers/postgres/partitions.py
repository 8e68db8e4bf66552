"""Partitioned tables: what they consist of, and how that differs from what they consisted of before.

Only catalogs are read, in one query and without locks on the partitions: not pg_partition_tree(), which takes one on each
and waits for whoever rewrites a partition.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from readers.postgres.connect import Connection
from state.partitions import Partition, PartitionedTable, Partitions
from state.table import TableId

_ROOTS = """
SELECT n.nspname, c.relname, c.oid::bigint FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind = 'p' AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::name[], %s::name[])) ORDER BY 1, 2"""
_ENDED = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_TREE = """
WITH RECURSIVE tree(root, oid, parent, attached) AS (
    SELECT i.inhparent, i.inhrelid, i.inhparent, i.xmin FROM pg_inherits AS i
    WHERE i.inhparent = ANY (%(roots)s::oid[]) AND NOT i.inhdetachpending
    UNION ALL
    SELECT t.root, i.inhrelid, i.inhparent, i.xmin
    FROM tree AS t JOIN pg_inherits AS i ON i.inhparent = t.oid AND NOT i.inhdetachpending
)
SELECT t.root::bigint, c.oid::bigint, t.parent::bigint, n.nspname || '.' || c.relname, t.attached::text::bigint,
       CASE WHEN c.relkind <> 'p' THEN c.relfilenode::bigint END
FROM tree AS t JOIN pg_class AS c ON c.oid = t.oid JOIN pg_namespace AS n ON n.oid = c.relnamespace
UNION ALL
SELECT c.oid::bigint, NULL, NULL, NULL, NULL, NULL FROM pg_class AS c WHERE c.oid = ANY (%(roots)s::oid[])
ORDER BY 1, 2"""


def find_partitions(connection: Connection, tables: Sequence[TableId]) -> Partitions | None:
    """Of those tables that are partitioned; None where none is."""
    with connection.cursor() as cursor:
        cursor.execute(_ROOTS, ([t.database for t in tables], [t.name for t in tables]))
        roots = tuple(PartitionedTable(TableId(row[0], row[1]), int(row[2]), ()) for row in cursor.fetchall())
    return look(connection, Partitions(0, roots)) if roots else None


def look(connection: Connection, known: Partitions) -> Partitions:
    """The tables of `known` as they are now; one that is gone is left as it was."""
    found: defaultdict[int, list[Partition]] = defaultdict(list)
    there = set()
    with connection.cursor() as cursor:
        cursor.execute(_ENDED)  # before the catalogs are read: what it says is seen by them
        ((ended_xid,),) = cursor.fetchall()
        cursor.execute(_TREE, {"roots": [table.oid for table in known.tables]})
        for root, oid, *rest in cursor.fetchall():
            there.add(root)
            if oid is not None:
                found[root].append(Partition(oid, *rest))
    tables = [PartitionedTable(t.table, t.oid, tuple(found[t.oid])) if t.oid in there else t for t in known.tables]
    return Partitions(ended_xid, tuple(tables))


@dataclass(frozen=True, slots=True)
class Attached:
    """A leaf with those of the relations on its way up to the root (itself among them, lowest first) that are not
    attached as they were before."""

    leaf: Partition
    edges: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class Differences:
    """Of the leaves, which are what has rows. `rewritten`: their storage is another one than before, and for an attached
    leaf than when it was created. A leaf that was detached and attached again is both removed and attached."""

    attached: tuple[Attached, ...] = ()
    removed: tuple[Partition, ...] = ()
    rewritten: tuple[Partition, ...] = ()


def differences(before: PartitionedTable, now: PartitionedTable) -> Differences:
    if before == now:
        return Differences()
    old, new = _ways(before), _ways(now)
    kept = {oid for oid, way in new.items() if oid in old and _edges(old[oid]) == _edges(way)}
    old_edges = {_edge(partition) for partition in before.partitions}
    attached = [
        Attached(way[0], tuple(p for p in way if _edge(p) not in old_edges))
        for oid, way in new.items()
        if oid not in kept
    ]
    removed = [way[0] for oid, way in old.items() if oid not in kept]
    first_filenodes = {oid: old[oid][0].filenode if oid in old else oid for oid in new}
    rewritten = [way[0] for oid, way in new.items() if way[0].filenode != first_filenodes[oid]]
    return Differences(tuple(attached), tuple(removed), tuple(rewritten))


def _ways(table: PartitionedTable) -> Mapping[int, tuple[Partition, ...]]:
    """Of each leaf, by its oid, the way up to the table."""
    by_oid = {partition.oid: partition for partition in table.partitions}
    ways = {}
    for leaf in table.partitions:
        if leaf.filenode is None:
            continue
        way = [leaf]
        while (above := by_oid.get(way[-1].parent_oid)) is not None:
            way.append(above)
        ways[leaf.oid] = tuple(way)
    return ways


def _edge(partition: Partition) -> tuple[int, int, int]:
    return partition.oid, partition.parent_oid, partition.attached_xid


def _edges(way: tuple[Partition, ...]) -> list[tuple[int, int, int]]:
    return [_edge(partition) for partition in way]
