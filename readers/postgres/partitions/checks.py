"""Detects rows that came, went or changed outside the log: with a partition, or when a table was rewritten.

The log lacks such changes, so a job that follows it must not go on. Partitions:

    attached    accepted if it had no rows before: it was created as a partition, or none of its rows is older
    removed     its rows are gone
    rewritten   taken as TRUNCATE, unless a row from before is still there (VACUUM FULL), or the log has the TRUNCATE. The log
                names no subtransactions: if an earlier transaction in it truncated the table, the table is read again

A table that is not partitioned may have been rewritten with other rows (SET UNLOGGED, load, SET LOGGED), unless

    a row from before is still there: VACUUM FULL and CLUSTER keep the transaction ids of rows, ALTER TABLE does not
    the log has the TRUNCATE, and no other command of its transaction may have rewritten the table after it
    it is published by its name, and its columns were not altered: the server refuses SET UNLOGGED of such a table

All queries use one snapshot. Rows are read through the partitioned table, which the role may SELECT from, with the
partition's bounds as a condition. The proof of each answer: docs/adr/0015-partitions-are-compared.md.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg2
import psycopg2.errors

from tidemark.readers.postgres.connect import (
    LOCK_TIMEOUT,
    Connection,
    end_limit_of_lock_waits,
    error_code,
    error_text,
    limit_lock_waits,
    quote_table,
)
from tidemark.readers.postgres.partitions.catalog import Attached, Differences, differences, look, were_types_altered
from tidemark.readers.postgres.pgoutput.stream import peek_query
from tidemark.readers.postgres.schema.identity import (
    require_same_shape,
    require_same_types,
    require_same_values,
    types_altered,
    was_rewritten,
)
from tidemark.readers.postgres.schema.table_facts import read_tables
from tidemark.readers.postgres.slot.publication import has_column_list
from tidemark.readers.postgres.slot.slot import SlotSource, require_slot, slot_extent
from tidemark.readers.postgres.snapshot.locks import kept_locked
from tidemark.state.errors import PartitionsChangedError, RowsAttachedError, SchemaChangedError, SourceNotUsableError
from tidemark.state.partitions import Partition, PartitionLook, Partitions, WatchedTable
from tidemark.state.remedies import START_OVER, START_OVER_NOW
from tidemark.state.table import TableId, TableSchema

# ATTACH writes all inherited columns. So an inherited column that the attaching transaction wrote before it attached was
# created as inherited. pg_attribute's row for ctid is never changed after CREATE TABLE.
_ORIGINS = """
SELECT i.inhrelid::bigint, i.xmin::text::bigint, i.cmin::text::bigint, i.xmax <> '0'::xid,
       a.xmin::text::bigint, a.cmin::text::bigint,
       EXISTS (SELECT FROM pg_attribute AS b WHERE b.attrelid = i.inhrelid AND b.attnum > 0 AND b.attinhcount > 0
               AND b.xmin = i.xmin AND b.xmax = '0'::xid AND b.cmin::text::bigint < i.cmin::text::bigint)
FROM pg_inherits AS i JOIN pg_attribute AS a ON a.attrelid = i.inhrelid AND a.attnum = -1
WHERE i.inhrelid = ANY (%s::oid[])"""
_STORAGES = """
SELECT c.oid::bigint, c.relkind = 'r' AND c.relpersistence = 'p', c.xmin::text::bigint, c.cmin::text::bigint,
       c.xmax <> '0'::xid, pg_get_partition_constraintdef(c.oid)
FROM pg_class AS c WHERE c.oid = ANY (%s::oid[])"""
_PUBLISHED_BY_NAME = """
SELECT EXISTS (SELECT FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid
               WHERE p.pubname = %s AND r.prrelid = %s::oid)"""
_TRUNCATING = """
SELECT DISTINCT p.xid::text::bigint FROM ({peek}) AS p
WHERE get_byte(p.data, 0) = 84 AND EXISTS (SELECT FROM generate_series(7, length(p.data) - 3, 4) AS g(at)
                                           WHERE substring(p.data FROM g.at FOR 4) = oidsend({oid}::oid))"""


@dataclass(frozen=True, slots=True)
class Origin:
    """When a relation was created and attached: transaction (or subtransaction) and command. `born_attached`: created by
    CREATE TABLE … PARTITION OF. `disturbed`: the attaching command's number was overwritten."""

    attached_xid: int
    attached_command: int
    disturbed: bool
    created_xid: int
    created_command: int
    born_attached: bool


@dataclass(frozen=True, slots=True)
class EarlierRows:
    """SQL conditions for a leaf's rows that were, or may have been, written before the relation was attached. `certain`: true
    for such rows. `in_doubt`: true for rows that are such if their transaction is a subtransaction of the attaching one."""

    certain: str
    in_doubt: str | None = None


def earlier_rows(edge: Origin, leaf: Origin) -> EarlierRows | None:
    """Returns the conditions for rows that `leaf` had when `edge` (the leaf, or a relation above it) was attached; None if it
    had none."""
    xid, command = edge.attached_xid, edge.attached_command
    if edge.born_attached:
        return None
    if edge.disturbed:
        return EarlierRows("true")
    if leaf.created_xid == xid:  # no other transaction could see it before
        before = f"cmin::text::bigint < {command}"
        between = f"{before} AND cmin::text::bigint > {leaf.created_command}"
        return EarlierRows(f"xmin = '{xid}'::xid AND {before}", f"{_is_younger(xid)} AND {between}")
    if command == 0:  # its first write: rows of earlier transactions have older ids
        return EarlierRows(f"NOT ({_is_younger(xid)} OR xmin = '{xid}'::xid)")
    return EarlierRows(f"NOT (xmin = '{xid}'::xid AND cmin::text::bigint >= {command})")


def earlier_than(ended_xid: int) -> str:
    """Returns a condition for rows of transactions with an id (64 bits) below `ended_xid`."""
    return f"NOT {_is_younger((ended_xid - 1) % 2**32)}"


def _is_younger(xid: int) -> str:
    """Returns a condition for rows of a later transaction than `xid`. age() of an id 2^31 or more ids back is negative."""
    return f"(age(xmin) >= 0 AND age(xmin) < age('{xid}'::xid))"


LOOK_SECONDS = 10
"""How long the look waits for a table that another session has locked."""


def look_again(
    connection: Connection,
    slot_source: SlotSource,
    known: Partitions,
    schemas: Mapping[TableId, TableSchema],
    *,
    keeps_removed: bool,
) -> PartitionLook:
    """Compares tables and partitions with `known`. Raises PartitionsChangedError if a partition brought or took rows,
    SchemaChangedError if a table is another one or was rewritten, TableLockedError if another session keeps one from being read
    for LOOK_SECONDS. `keeps_removed`: a partition's rows that are gone are a warning instead."""
    checks, looked_at = _Checks(connection, slot_source, keeps_removed), list[TableId]()
    limit_lock_waits(connection, LOOK_SECONDS)
    try:
        with _snapshot(connection):
            now = look(connection, known)
            for before, after in zip(known.tables, now.tables, strict=True):
                looked_at.append(after.table)
                with _may_be_unreadable(after.table):
                    checks.compare(schemas[after.table], before, after, known.ended_xid)
    except psycopg2.Error as error:
        if error_code(error) != LOCK_TIMEOUT or not looked_at:
            raise
        raise kept_locked(connection, looked_at[-1:], error_text(error)) from error
    finally:
        if not connection.closed:
            end_limit_of_lock_waits(connection)
    return PartitionLook(now, tuple(checks.warnings))


@contextmanager
def _may_be_unreadable(table: TableId) -> Iterator[None]:
    """Raises SourceNotUsableError if the role may not read the table any more. It concerns the table alone."""
    try:
        yield
    except psycopg2.errors.InsufficientPrivilege as error:
        raise SourceNotUsableError(
            f"{table} was altered, and the role may not read its rows: {error_text(error)}.",
            f"GRANT SELECT ON {quote_table(table)} TO the role of source.url.",
            table,
        ) from error


@dataclass(frozen=True, slots=True)
class _Checks:
    connection: Connection
    slot_source: SlotSource
    keeps_removed: bool
    warnings: list[str] = field(default_factory=list)

    def compare(self, schema: TableSchema, before: WatchedTable, after: WatchedTable, ended_xid: int) -> None:
        changes = differences(before, after)
        if changes != Differences():
            self.check(after, changes, ended_xid, altered=before.columns != after.columns)
        require_same_types(schema, before, after)
        self.check_new_types(schema, before, after, ended_xid)
        facts = None
        if before.columns != after.columns:
            facts = read_tables(self.connection, [after.table])[after.table]
            listed = has_column_list(self.connection, self.slot_source.publication, schema)
            require_same_shape(schema, facts, all_logged=not listed)
        if before.filenode != after.filenode:
            self.check_rewritten(before, after, ended_xid)
        if facts is not None:
            require_same_values(schema, facts)

    def check(self, root: WatchedTable, changes: Differences, ended_xid: int, *, altered: bool) -> None:
        """`altered`: the table's columns or unique indexes were altered."""
        storages = self._storages(root, [*(a.leaf for a in changes.attached), *changes.rewritten])
        origins = self._origins({p.oid for a in changes.attached for p in (a.leaf, *a.edges)})
        for partition in changes.removed:
            self._rows_are_gone(_removed(root.table, partition))
        for attached in changes.attached:
            self._check_attached(storages[attached.leaf.oid], attached, origins)
        new = {attached.leaf.oid for attached in changes.attached}
        emptied = [p for p in changes.rewritten if p.oid in new or not storages[p.oid].has(earlier_than(ended_xid))]
        logged = self._truncations(root.oid) if emptied else set()
        for partition in emptied:
            written_xid = storages[partition.oid].written_xid
            if written_xid in logged:
                if altered or storages[partition.oid].is_altered():
                    raise was_rewritten(root.table)
                continue
            later = [xid for xid in logged if not _began_before(xid, ended_xid % 2**32)]
            if not self.keeps_removed and any(_began_before(xid, written_xid) for xid in later):
                raise _perhaps_truncated(root.table, partition)
            self._rows_are_gone(_emptied(root.table, partition))

    def check_rewritten(self, before: WatchedTable, after: WatchedTable, ended_xid: int) -> None:
        """Raises SchemaChangedError unless it is known that the rows of the table are those that the log has."""
        if before.columns == after.columns and self._is_published_by_name(after.oid):
            return
        whole = Partition(after.oid, 0, str(after.table), 0, after.filenode)
        storage = self._storages(after, [whole])[after.oid]
        try:
            has_earlier = storage.has(earlier_than(ended_xid))
        except psycopg2.errors.InsufficientPrivilege as error:  # on xmin: it may SELECT the copied columns only
            raise was_rewritten(after.table) from error
        if has_earlier:
            return
        if (
            storage.written_xid not in self._truncations(after.oid)
            or before.columns != after.columns
            or storage.is_altered()
        ):
            raise was_rewritten(after.table)

    def check_new_types(self, schema: TableSchema, before: WatchedTable, after: WatchedTable, ended_xid: int) -> None:
        """Raises SchemaChangedError if the log may have values of added columns with the names that labels or attributes had
        before they were renamed."""
        old, new = ({int(name.split()[0]) for name, _ in table.type_parts} for table in (before, after))
        numbers = [c.number for c in schema.captured if c.added and c.number is not None and c.number in new - old]
        if numbers and were_types_altered(self.connection, after.oid, numbers, ended_xid):
            raise types_altered(schema, numbers)

    def _is_published_by_name(self, oid: int) -> bool:
        with self.connection.cursor() as cursor:
            cursor.execute(_PUBLISHED_BY_NAME, (self.slot_source.publication, oid))
            ((found,),) = cursor.fetchall()
        return bool(found)

    def _rows_are_gone(self, error: PartitionsChangedError) -> None:
        if not self.keeps_removed:
            raise error
        self.warnings.append(f"{error.message} The copy keeps the rows that it has (source.partitions_removed).")

    def _check_attached(self, storage: "_Storage", attached: Attached, origins: dict[int, Origin]) -> None:
        leaf = attached.leaf
        for edge in attached.edges:
            earlier = earlier_rows(origins[edge.oid], origins[leaf.oid])
            if earlier is None:
                continue
            if storage.has(earlier.certain) or (
                earlier.in_doubt is not None and self._is_so(storage, earlier.in_doubt)
            ):
                raise _attached_with_rows(storage.root, leaf)

    def _is_so(self, storage: "_Storage", in_doubt: str) -> bool:
        """Excludes rows whose transaction id is in the log: the log names top-level transactions, not subtransactions."""
        return storage.has(in_doubt) and storage.has(
            f"{in_doubt} AND xmin::text::bigint NOT IN ({self._peek('xid::text::bigint')})"
        )

    def _truncations(self, oid: int) -> set[int]:
        """Returns the ids of transactions in the log that truncated the whole table."""
        query = _TRUNCATING.format(peek=self._peek("xid, data"), oid=oid)
        with self.connection.cursor() as cursor:
            cursor.execute(query)
            return {int(xid) for (xid,) in cursor.fetchall()}

    def _peek(self, columns: str) -> str:
        """Returns a query for the log up to its end, which includes all that this snapshot sees."""
        extent = slot_extent(self.connection, self.slot_source.slot)
        require_slot(self.connection, self.slot_source, extent.start)
        return peek_query(self.slot_source.slot, self.slot_source.publication, extent.end, columns=columns)

    def _origins(self, oids: Iterable[int]) -> dict[int, Origin]:
        with self.connection.cursor() as cursor:
            cursor.execute(_ORIGINS, (list(oids),))
            return {int(oid): Origin(*facts) for oid, *facts in cursor.fetchall()}

    def _storages(self, root: WatchedTable, leaves: Sequence[Partition]) -> dict[int, "_Storage"]:
        """Raises PartitionsChangedError for a leaf whose changes are in no log."""
        with self.connection.cursor() as cursor:
            cursor.execute(_STORAGES, ([leaf.oid for leaf in leaves],))
            rows = {int(row[0]): row for row in cursor.fetchall()}
        for leaf in leaves:
            if not rows[leaf.oid][1]:
                raise _unlogged(root.table, leaf)
        return {
            oid: _Storage(self.connection, root.table, oid, int(xid), int(command), disturbed, bounds or "true")
            for oid, _, xid, command, disturbed, bounds in rows.values()
        }


@dataclass(frozen=True, slots=True)
class _Storage:
    """A leaf's rows. `written_xid`, `written_command`: the transaction that last wrote its row in pg_class, as TRUNCATE and
    ALTER TABLE do, and the number of the command in it. `disturbed`: another transaction wrote it later, and has not ended or
    was rolled back. The number of the command may be that one's then."""

    connection: Connection
    root: TableId
    oid: int
    written_xid: int
    written_command: int
    disturbed: bool
    bounds: str

    def is_altered(self) -> bool:
        """Returns True if the transaction that wrote the row in pg_class had written rows of the leaf before: a TRUNCATE would
        have removed them, ALTER TABLE writes them with its own command's number or a lower one. Also True if that can't be told
        for a row of that transaction."""
        if self.disturbed:
            return self.has(f"xmin = '{self.written_xid}'::xid")
        return self.has(f"xmin = '{self.written_xid}'::xid AND cmin::text::bigint <= {self.written_command}")

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


def _removed(table: TableId, partition: Partition) -> PartitionsChangedError:
    return PartitionsChangedError(
        f"Partition {partition.name} of {table} was detached or dropped: its rows are gone, and the log does not say so.",
        f"If the copy is to keep them, run with source.partitions_removed: keep. Otherwise {START_OVER}. Next time, DELETE "
        "the rows and run the job before the partition is removed.",
        table,
    )


def _emptied(table: TableId, partition: Partition) -> PartitionsChangedError:
    return PartitionsChangedError(
        f"Partition {partition.name} of {table} was truncated, or all its rows were rewritten (pg_repack, ALTER TABLE): rows "
        "may be gone, and the log does not say so.",
        "If it was truncated and the copy is to keep the rows, or if only pg_repack, VACUUM FULL or CLUSTER rewrote them, run "
        "once with --set source.partitions_removed=keep. If it was UNLOGGED for a time, or ALTER TABLE changed values, the "
        f"log lacks changes: {START_OVER}. TRUNCATE of the partitioned table itself and DELETE are followed.",
        table,
    )


def _began_before(xid: int, later_xid: int) -> bool:
    """True if PostgreSQL gave out `later_xid` after `xid`: a subtransaction's id is greater than its transaction's. Ids have 32
    bits: 0 follows the greatest one."""
    return 0 < (later_xid - xid) % 2**32 < 2**31


def _perhaps_truncated(table: TableId, partition: Partition) -> SchemaChangedError:
    return SchemaChangedError(
        f"Partition {partition.name} of {table} was truncated, or all its rows were rewritten, perhaps when a transaction "
        "truncated the table itself after a savepoint: that can't be seen in the log.",
        START_OVER_NOW,
        table,
    )


def _attached_with_rows(table: TableId, partition: Partition) -> RowsAttachedError:
    return RowsAttachedError(
        f"Partition {partition.name} of {table} was attached with rows, or it can't be proven that it had none: such rows are "
        "in no log.",
        f"ALTER TABLE {quote_table(table)} DETACH PARTITION {partition.name}, create an empty one by CREATE TABLE … PARTITION "
        f"OF, and run the job again; then INSERT the rows into {table}. Or {START_OVER}.",
        table,
    )


def _unlogged(table: TableId, partition: Partition) -> PartitionsChangedError:
    return PartitionsChangedError(
        f"Partition {partition.name} of {table} is unlogged or a foreign table: its changes are in no log.",
        f"Detach it, and run the job again. If the job has read it as an ordinary table, {START_OVER}.",
        table,
    )
