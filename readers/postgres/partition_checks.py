"""Did rows come or go with a partition? Then the log lacks them, and a job that follows it must not go on.

    attached    no row may have been there before: it was created as a partition, or none of its rows is older
    removed     its rows went
    rewritten   TRUNCATE, unless a row is there that was there before (VACUUM FULL), or the log has the TRUNCATE

All is asked in one snapshot. Rows are read through the partitioned table, which the role may SELECT from; the partition's
own bounds keep the others out. How each answer is proven: docs/adr/0015-partitions-are-compared.md.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from readers.postgres.connect import Connection, quote_table
from readers.postgres.log_source import NEW_JOB
from readers.postgres.log_stream import peek_query
from readers.postgres.partitions import Attached, Differences, differences, look
from readers.postgres.slot import LogPlace, require_slot, slot_places
from state.errors import PartitionsChangedError
from state.partitions import Partition, PartitionedTable, PartitionLook, Partitions
from state.table import TableId

# A column that is inherited, and was last written by the attaching transaction before it attached, was created so: ATTACH
# writes all of them. pg_attribute's row of ctid is as CREATE TABLE wrote it.
_ORIGINS = """
SELECT i.inhrelid::bigint, i.xmin::text::bigint, i.cmin::text::bigint, i.xmax <> '0'::xid,
       a.xmin::text::bigint, a.cmin::text::bigint,
       EXISTS (SELECT FROM pg_attribute AS b WHERE b.attrelid = i.inhrelid AND b.attnum > 0 AND b.attinhcount > 0
               AND b.xmin = i.xmin AND b.xmax = '0'::xid AND b.cmin::text::bigint < i.cmin::text::bigint)
FROM pg_inherits AS i JOIN pg_attribute AS a ON a.attrelid = i.inhrelid AND a.attnum = -1
WHERE i.inhrelid = ANY (%s::oid[])"""
_STORAGES = """
SELECT c.oid::bigint, c.xmin::text::bigint, c.relkind = 'r' AND c.relpersistence = 'p',
       pg_get_partition_constraintdef(c.oid)
FROM pg_class AS c WHERE c.oid = ANY (%s::oid[])"""
_TRUNCATING = """
SELECT DISTINCT p.xid::text::bigint FROM ({peek}) AS p
WHERE get_byte(p.data, 0) = 84 AND EXISTS (SELECT FROM generate_series(7, length(p.data) - 3, 4) AS g(at)
                                           WHERE substring(p.data FROM g.at FOR 4) = oidsend({oid}::oid))"""


@dataclass(frozen=True, slots=True)
class Origin:
    """When a relation was created and when it was attached: transaction (or subtransaction) and command. `born_attached`:
    by CREATE TABLE … PARTITION OF. `disturbed`: the number of the attaching command was overwritten."""

    attached_xid: int
    attached_command: int
    disturbed: bool
    created_xid: int
    created_command: int
    born_attached: bool


@dataclass(frozen=True, slots=True)
class EarlierRows:
    """SQL conditions on a leaf's rows. `certain`: written before the relation was attached, or maybe so. `in_doubt`: so if
    their transaction is a subtransaction of the attaching one."""

    certain: str
    in_doubt: str | None = None


def earlier_rows(edge: Origin, leaf: Origin) -> EarlierRows | None:
    """Those in `leaf` that were there when `edge`, the leaf or what it is a part of, was attached; None: there were none."""
    xid, command = edge.attached_xid, edge.attached_command
    if edge.born_attached:
        return None
    if edge.disturbed:
        return EarlierRows("true")
    if leaf.created_xid == xid:  # nobody else saw it before
        before = f"cmin::text::bigint < {command}"
        between = f"{before} AND cmin::text::bigint > {leaf.created_command}"
        return EarlierRows(f"xmin = '{xid}'::xid AND {before}", f"{_is_younger(xid)} AND {between}")
    if command == 0:  # its first write, so younger ids were given out when it was about to attach
        return EarlierRows(f"NOT ({_is_younger(xid)} OR xmin = '{xid}'::xid)")
    return EarlierRows(f"NOT (xmin = '{xid}'::xid AND cmin::text::bigint >= {command})")


def earlier_than(ended_xid: int) -> str:
    """Rows of transactions with an id (64 bits) below it."""
    return f"NOT {_is_younger((ended_xid - 1) % 2**32)}"


def _is_younger(xid: int) -> str:
    """Of a row's transaction. age() of one that is 2^31 ids old or older is negative."""
    return f"(age(xmin) >= 0 AND age(xmin) < age('{xid}'::xid))"


def look_again(connection: Connection, place: LogPlace, known: Partitions, *, keeps_removed: bool) -> PartitionLook:
    """`keeps_removed`: where rows went a warning says so. Raises PartitionsChangedError."""
    checks = _Checks(connection, place, keeps_removed)
    with _snapshot(connection):
        now = look(connection, known)
        for before, after in zip(known.tables, now.tables, strict=True):
            changes = differences(before, after)
            if changes != Differences():
                checks.check(after, changes, known.ended_xid)
    return PartitionLook(now, tuple(checks.warnings))


@dataclass(frozen=True, slots=True)
class _Checks:
    connection: Connection
    place: LogPlace
    keeps_removed: bool
    warnings: list[str] = field(default_factory=list)

    def check(self, root: PartitionedTable, changes: Differences, ended_xid: int) -> None:
        storages = self._storages(root, [*(a.leaf for a in changes.attached), *changes.rewritten])
        origins = self._origins({p.oid for a in changes.attached for p in (a.leaf, *a.edges)})
        for partition in changes.removed:
            self._rows_went(_gone(root.table, partition))
        for attached in changes.attached:
            self._check_attached(storages[attached.leaf.oid], attached, origins)
        new = {attached.leaf.oid for attached in changes.attached}
        emptied = [p for p in changes.rewritten if p.oid in new or not storages[p.oid].has(earlier_than(ended_xid))]
        logged = self._truncations(root.oid) if emptied else set()
        for partition in emptied:
            if storages[partition.oid].written_xid not in logged:
                self._rows_went(_emptied(root.table, partition))

    def _rows_went(self, error: PartitionsChangedError) -> None:
        if not self.keeps_removed:
            raise error
        self.warnings.append(f"{error.message} The copy keeps those that it has: source.partitions_removed.")

    def _check_attached(self, storage: "_Storage", attached: Attached, origins: dict[int, Origin]) -> None:
        leaf = attached.leaf
        for edge in attached.edges:
            earlier = earlier_rows(origins[edge.oid], origins[leaf.oid])
            if earlier is None:
                continue
            if storage.has(earlier.certain) or (
                earlier.in_doubt is not None and self._is_so(storage, earlier.in_doubt)
            ):
                raise _came(storage.root, leaf)

    def _is_so(self, storage: "_Storage", in_doubt: str) -> bool:
        """Not of rows whose transaction the log names: those of subtransactions it does not."""
        return storage.has(in_doubt) and storage.has(
            f"{in_doubt} AND xmin::text::bigint NOT IN ({self._peek('xid::text::bigint')})"
        )

    def _truncations(self, oid: int) -> set[int]:
        """Transactions that truncated the table as a whole, which the log says."""
        query = _TRUNCATING.format(peek=self._peek("xid, data"), oid=oid)
        with self.connection.cursor() as cursor:
            cursor.execute(query)
            return {int(xid) for (xid,) in cursor.fetchall()}

    def _peek(self, columns: str) -> str:
        """Up to where the log has all that this snapshot sees."""
        kept_from, end = slot_places(self.connection, self.place.slot)
        require_slot(self.connection, self.place, kept_from)
        return peek_query(self.place.slot, self.place.publication, end, columns=columns)

    def _origins(self, oids: Iterable[int]) -> dict[int, Origin]:
        with self.connection.cursor() as cursor:
            cursor.execute(_ORIGINS, (list(oids),))
            return {int(oid): Origin(*facts) for oid, *facts in cursor.fetchall()}

    def _storages(self, root: PartitionedTable, leaves: Sequence[Partition]) -> dict[int, "_Storage"]:
        """Raises PartitionsChangedError for one whose changes are in no log."""
        with self.connection.cursor() as cursor:
            cursor.execute(_STORAGES, ([leaf.oid for leaf in leaves],))
            rows = {int(row[0]): row for row in cursor.fetchall()}
        for leaf in leaves:
            if not rows[leaf.oid][2]:
                raise _unlogged(root.table, leaf)
        return {
            oid: _Storage(self.connection, root.table, oid, int(written), bounds or "true")
            for oid, written, _, bounds in rows.values()
        }


@dataclass(frozen=True, slots=True)
class _Storage:
    """A leaf's rows. `written_xid`: of its row in pg_class, which TRUNCATE writes."""

    connection: Connection
    root: TableId
    oid: int
    written_xid: int
    bounds: str

    def has(self, condition: str) -> bool:
        with self.connection.cursor() as cursor:
            cursor.execute(
                f"SELECT EXISTS (SELECT FROM {quote_table(self.root)} "
                f"WHERE tableoid = {self.oid} AND ({self.bounds}) AND {condition})"
            )
            ((found,),) = cursor.fetchall()
        return bool(found)


@contextmanager
def _snapshot(connection: Connection) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            if not connection.closed:
                cursor.execute("ROLLBACK")


def _gone(table: TableId, partition: Partition) -> PartitionsChangedError:
    return PartitionsChangedError(
        f"Partition {partition.name} of {table} was detached or dropped: its rows went, and the log does not say so.",
        f"If the copy is to keep them, run with source.partitions_removed: keep. If not: {NEW_JOB} Rows that are to "
        "go from the copy too must be deleted, and the job run, before their partition goes.",
    )


def _emptied(table: TableId, partition: Partition) -> PartitionsChangedError:
    return PartitionsChangedError(
        f"Partition {partition.name} of {table} was truncated, or all its rows were written anew (pg_repack, ALTER TABLE): "
        "rows may have gone, and the log does not say so.",
        "If none went, or the copy is to keep them, run once with --set source.partitions_removed=keep. If not: "
        f"{NEW_JOB} TRUNCATE of the partitioned table itself is followed, and so is DELETE.",
    )


def _came(table: TableId, partition: Partition) -> PartitionsChangedError:
    return PartitionsChangedError(
        f"Partition {partition.name} of {table} was attached with rows, or in a way that does not show that it had none: "
        "such rows are in no log.",
        f"ALTER TABLE {table} DETACH PARTITION {partition.name}, create an empty one by CREATE TABLE … PARTITION OF, and run "
        f"the job again; INSERT the rows into {table}. Or: {NEW_JOB}",
    )


def _unlogged(table: TableId, partition: Partition) -> PartitionsChangedError:
    return PartitionsChangedError(
        f"Partition {partition.name} of {table} is unlogged or a foreign table: its changes are in no log.",
        f"Detach it, and run the job again. If the job has known it as an ordinary table: {NEW_JOB}",
    )
