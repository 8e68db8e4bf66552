"""PostgreSQL after pg_upgrade: proves that the new server's log goes on where the job's ended (docs/adr/0070).

pg_upgrade writes the old server's next transaction id into template0 of the new one, where nothing changes it. If that is the
mark's, no transaction wrote anything on the old server after the job had read its log. It also creates the slots before
anybody can connect, so nothing was written on the new server before them. The mark's slot has a name that nobody else gives,
and it and the job's slot show whether somebody has advanced them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tidemark.readers.postgres.connect import Connection
from tidemark.readers.postgres.partitions.catalog import first_look, were_types_altered
from tidemark.readers.postgres.schema.identity import oids_of, require_same_tables
from tidemark.readers.postgres.slot.publication import memberships, published_later
from tidemark.readers.postgres.slot.slot import UntouchedSlot, untouched_slot
from tidemark.state.errors import LogPositionLostError, SchemaChangedError
from tidemark.state.job_state import Membership
from tidemark.state.partitions import Partition, Partitions, WatchedTable
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.table import TableId, TableSchema
from tidemark.state.upgrade_mark import Upgraded, UpgradeMark

_OPEN = "SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() AS s"
_AT_UPGRADE = "SELECT datfrozenxid::text::bigint FROM pg_database WHERE datname = 'template0'"
# Rows of catalogs that pg_upgrade wrote are older than the slots that it creates after them.
_ALTERED_SINCE = """
WITH RECURSIVE tree(root, oid) AS (
    SELECT r.oid, r.oid FROM pg_class AS r WHERE r.oid = ANY (%(oids)s::oid[])
    UNION ALL
    SELECT t.root, i.inhrelid FROM tree AS t JOIN pg_inherits AS i ON i.inhparent = t.oid
)
SELECT DISTINCT t.root::bigint FROM tree AS t CROSS JOIN LATERAL (
    SELECT a.xmin FROM pg_attribute AS a WHERE a.attrelid = t.oid AND a.attnum > 0
    UNION ALL SELECT i.xmin FROM pg_index AS i WHERE i.indrelid = t.oid AND i.indisunique
    UNION ALL SELECT h.xmin FROM pg_inherits AS h WHERE h.inhrelid = t.oid AND t.oid <> t.root
) AS part(xid)
WHERE age(part.xid) <= age(%(slot_xid)s::text::xid)"""


def next_xid(connection: Connection) -> int | None:
    """Returns the id (64 bits) of the server's next transaction, None while one that has an id is open."""
    with connection.cursor() as cursor:
        cursor.execute(_OPEN)
        ((oldest, following),) = cursor.fetchall()
    return int(following) if oldest == following else None


@dataclass(frozen=True, slots=True)
class UpgradedServer:
    """The server that answers instead of the job's. `schemas`: the job's tables as it has them."""

    connection: Connection
    slot: str
    publication: str
    schemas: Sequence[TableSchema]

    def proven(self, mark: UpgradeMark, known: Collection[TableSchema], before: Partitions) -> Upgraded:
        """`known`, `before`: the job's tables, and the last look at them on the old server. Raises LogPositionLostError, with
        the reason, if nothing is proven."""
        self._require_same_end(mark)
        marked = untouched_slot(self.connection, self.slot, mark.slot)
        if marked is None:
            raise _lost(f"its replication slots {self.slot} and {mark.slot} are not there as pg_upgrade creates them.")
        now, reasons = self._looked_at(known, before, marked)
        watched = {table.table: table for table in now.tables}
        published = memberships(self.connection, self.publication, list(watched))
        later = published_later(self.connection, self.publication, mark.slot, list(watched))
        reasons |= dict.fromkeys(
            (*later, *(table for table in watched if table not in published)), "It was published since."
        )
        return Upgraded(
            marked.start,
            tuple(Membership(table, published[table]) for table in watched if table not in reasons),
            now.without(reasons),
            tuple(sorted(reasons.items())),
        )

    def _require_same_end(self, mark: UpgradeMark) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(_AT_UPGRADE)
            rows = cursor.fetchall()
        if not rows or rows[0][0] != mark.next_xid % 2**32:
            raise _lost(
                "it was not made by pg_upgrade, or the old server had transactions after tidemark run JOB.yaml "
                "--before-upgrade."
            )

    def _looked_at(
        self, known: Collection[TableSchema], before: Partitions, marked: UntouchedSlot
    ) -> tuple[Partitions, dict[TableId, str]]:
        """Returns the tables as they are now, and why some of them may have changed since the upgrade: the log does not tell
        what rewrites a table."""
        now, reasons = Partitions(before.ended_xid, ()), dict[TableId, str]()
        looked = {watched.table: watched for watched in before.tables}
        found = {schema.table: schema for schema in self.schemas}
        for schema in known:
            try:
                if schema.table not in found or schema.oid is None:
                    raise _gone(schema.table)
                require_same_tables([found[schema.table]], [schema])
                look = first_look(self.connection, {schema.table: schema.oid})
            except SchemaChangedError as error:
                reasons[schema.table] = error.message
                continue
            now = now.plus(look)
            if schema.table not in looked or _stored(looked[schema.table]) != _stored(look.tables[0]):
                reasons[schema.table] = "Its rows are stored in other files."
        present = [schema for schema in known if schema.table not in reasons]
        altered = self._altered(oids_of(present), marked.catalog_xid)
        for schema in present:
            numbers = [column.number for column in schema.columns if column.number is not None]
            oid = schema.oid or 0
            if oid in altered or were_types_altered(self.connection, oid, numbers, marked.catalog_xid):
                reasons[schema.table] = "It was altered since."
        return now, reasons

    def _altered(self, oids: Mapping[TableId, int], slot_xid: int) -> frozenset[int]:
        with self.connection.cursor() as cursor:
            cursor.execute(_ALTERED_SINCE, {"oids": list(oids.values()), "slot_xid": slot_xid})
            return frozenset(int(oid) for (oid,) in cursor.fetchall())


def _stored(table: WatchedTable) -> tuple[int | None, list[tuple[int, int, str, int | None]]]:
    """Returns the facts of a table and its partitions that pg_upgrade keeps."""
    return table.filenode, [_kept(partition) for partition in table.partitions]


def _kept(partition: Partition) -> tuple[int, int, str, int | None]:
    return partition.oid, partition.parent_oid, partition.name, partition.filenode


def _gone(table: TableId) -> SchemaChangedError:
    return SchemaChangedError(f"{table} can't be copied any more.", START_OVER_NOW, table)


def _lost(reason: str) -> LogPositionLostError:
    return LogPositionLostError(f"It is not proven that its log has all changes: {reason}", START_OVER_NOW)
