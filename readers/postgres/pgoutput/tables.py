"""The relations that the log described, and how they fit the job's tables.

A relation is a table of the job if it has the table's OID, whatever its name is at that point of the log.

The changes of a partition are those of the partitioned table in the log. Before the first of them the server describes the
partitioned table and, directly after it, the partition: the old row's columns are those of the partition's replica identity.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tidemark.readers.postgres.connect import quote_table
from tidemark.readers.postgres.pgoutput.arrays import UNFIT, UNWANTED, Tables
from tidemark.readers.postgres.pgoutput.messages import Identity, LoggedColumn, Relation
from tidemark.readers.postgres.pgoutput.walker import find_relation
from tidemark.state.errors import SchemaChangedError, TidemarkError
from tidemark.state.kernel import Int32s
from tidemark.state.remedies import LEAVE_OUT, START_OVER
from tidemark.state.table import TableId, TableSchema

TypeNames = Callable[[Collection[tuple[int, int]]], Mapping[tuple[int, int], str]]
"""See `LogSource.type_names`, of one range of the log."""

_FIRST_SIZE = 64


_Form: TypeAlias = tuple[Identity, tuple[LoggedColumn, ...]]


@dataclass(frozen=True, slots=True)
class Slot:
    """A wanted table with one form of its relation. `logged`: the part of the schema that its rows have."""

    schema: TableSchema
    logged: TableSchema


class KnownTables:
    """`wanted`: the tables whose rows are read. `arrays` are for the compiled loop; new relations replace them."""

    def __init__(self, wanted: Mapping[TableId, TableSchema], type_names: TypeNames) -> None:
        self._wanted = {schema.oid: schema for schema in wanted.values()}
        self.width = max([len(schema.captured) for schema in wanted.values()], default=1)
        self.slots: list[Slot] = []
        self._type_names = type_names
        self._known_types: dict[tuple[int, int], str] = {}
        self._described: set[int] = set()
        self._unfit: dict[int, TidemarkError] = {}
        self._unfit_partitions: dict[int, tuple[int, TidemarkError]] = {}
        self._newest: dict[int, tuple[_Form, int]] = {}
        empty = Tables(
            np.full(_FIRST_SIZE, -1, np.int64),
            np.empty(_FIRST_SIZE, np.int32),
            np.zeros(0, np.int32),
            np.zeros((0, 0), np.int32),
            np.zeros(0, np.int32),
            np.zeros(0, np.int32),
            np.zeros((0, 0), np.int32),
            np.zeros(0, np.uint8),
        )
        self.arrays = _with_slots(empty, max(1, len(wanted)), self.width)

    def forget(self) -> None:
        """Forgets all relations: on a new connection the server describes them again. Slots stay: rows refer to them."""
        self._described.clear()
        self._unfit.clear()
        self._unfit_partitions.clear()
        self.arrays.id[:] = -1

    def add(self, relation: Relation, follows: int | None = None) -> None:
        """Adds a relation. If it does not fit the job, the error is raised when rows of it come: it may be older than the
        job's start. `follows`: the relation that was described directly before."""
        schema = self._wanted.get(relation.id)
        slot = UNWANTED
        if schema is not None:
            try:
                slot = self._slot(relation, schema)
                self._unfit.pop(relation.id, None)
            except SchemaChangedError as error:
                self._unfit[relation.id] = error
                slot = UNFIT
            if any(root == relation.id for root, _ in self._unfit_partitions.values()):
                slot = UNFIT
        self._set_slot(relation.id, slot)
        if schema is None and follows is not None and (root := self._wanted.get(follows)) is not None:
            self._add_partition(relation, follows, root)

    def are_tables(self, relation_ids: Collection[int]) -> None:
        """Notes that the log has these relations as tables, by TRUNCATE: they are partitions of no table of the job."""
        for relation_id in relation_ids:
            root, _ = self._unfit_partitions.pop(relation_id, (None, None))
            if root is not None and self.unfit(root) is None:
                self._set_slot(root, self._newest[root][1])

    def _add_partition(self, relation: Relation, root_id: int, root: TableSchema) -> None:
        self._unfit_partitions.pop(relation.id, None)
        if relation.identity != "n" and not _is_identified(relation, root):
            self._unfit_partitions[relation.id] = root_id, _other_identity(relation, root)
            self._set_slot(root_id, UNFIT)

    def _set_slot(self, relation_id: int, slot: int) -> None:
        self._described.add(relation_id)
        if 2 * len(self._described) > len(self.arrays.id):
            self._rehash()
        index = int(find_relation(self.arrays, relation_id))
        if index < 0:
            index = -1 - index
            self.arrays.id[index] = relation_id
        self.arrays.slot[index] = slot

    def unfit(self, relation_id: int) -> TidemarkError | None:
        """Returns the error for rows of a relation that does not fit; None if it was not described."""
        of_partitions = (error for root, error in self._unfit_partitions.values() if root == relation_id)
        return self._unfit.get(relation_id) or next(of_partitions, None)

    def wanted_schema(self, relation_id: int) -> TableSchema | None:
        """Returns the schema of the job's table with this OID; None if there is none."""
        return self._wanted.get(relation_id)

    def _slot(self, relation: Relation, whole: TableSchema) -> int:
        form = (relation.identity, relation.columns)
        newest = self._newest.get(relation.id)
        if newest is not None and newest[0] == form:  # rows of older slots are emitted before those of the newest
            return newest[1]
        schema = whole.logged_with([column.name for column in relation.columns])
        if whole.present[: len(schema.present)] != schema.present:
            raise _changed(whole.table, "lacks a column in the log, but has a younger one: columns were renamed")
        self._check(relation, schema)
        slot = len(self.slots)
        self._newest[relation.id] = (form, slot)
        self.slots.append(Slot(whole, schema))
        count, longest = len(self.arrays.column_count), max(len(relation.columns), self.arrays.buffer.shape[1])
        if slot == count or longest > self.arrays.buffer.shape[1]:
            self.arrays = _with_slots(self.arrays, 2 * count if slot == count else count, longest)
        arrays = self.arrays
        buffers = {column.name: buffer for buffer, column in enumerate(schema.captured)}
        arrays.column_count[slot], arrays.buffer_count[slot] = len(relation.columns), len(buffers)
        arrays.buffer[slot, : len(relation.columns)] = [buffers.get(column.name, -1) for column in relation.columns]
        arrays.key_count[slot] = len(schema.key)
        arrays.key[slot, : len(schema.key)] = [buffers[name] for name in schema.key]
        arrays.identified[slot] = _is_identified(relation, schema)
        return slot

    def _check(self, relation: Relation, schema: TableSchema) -> None:
        """Raises SchemaChangedError."""
        table = schema.table
        logged = {column.name: column for column in relation.columns}
        known = {column.name for column in schema.columns}
        added = [name for name in logged if name not in known]
        if added:
            raise _changed(table, f"has a new column ({', '.join(added)})")
        missing = [column.name for column in schema.captured if column.name not in logged]
        if missing:
            raise _changed(
                table, f"has no column {', '.join(missing)} in the log: renamed, dropped, or not in the publication"
            )
        # Columns that are not captured count: one of them may have had a captured one's name for a time.
        if [column.name for column in schema.columns if column.name in logged] != list(logged):
            raise _changed(table, "has its columns in another order: they swapped names, or were added again")
        identity = [column.name for column in relation.columns if column.in_identity]
        if relation.identity == "d" and schema.key and identity and set(identity) != set(schema.key):
            raise _changed(
                table,
                f"has ({', '.join(identity)}) as its replica identity, but the job's key is ({', '.join(schema.key)})",
            )
        types = self._types({(c.type_oid, c.type_modifier) for c in relation.columns})
        for column in schema.captured:
            found = logged[column.name]
            now = types[found.type_oid, found.type_modifier]
            if now not in (column.source_type, *column.narrower):
                renamed = f"If the type was only renamed, give it back its name and run the job again. {LEAVE_OUT}"
                raise _changed(table, f"has {column.name} as {now}, which was {column.source_type}", renamed)

    def _types(self, wanted: Collection[tuple[int, int]]) -> Mapping[tuple[int, int], str]:
        unknown = [pair for pair in wanted if pair not in self._known_types]
        if unknown:
            self._known_types.update(self._type_names(unknown))
        return self._known_types

    def _rehash(self) -> None:
        old = self.arrays
        size = 2 * len(old.id)
        self.arrays = new = old._replace(id=np.full(size, -1, np.int64), slot=np.empty(size, np.int32))
        for i in np.flatnonzero(old.id != -1):
            index = -1 - int(find_relation(new, int(old.id[i])))
            new.id[index], new.slot[index] = old.id[i], old.slot[i]


def _with_slots(arrays: Tables, count: int, longest: int) -> Tables:
    """Returns a copy with room for `count` slots of up to `longest` columns."""
    return arrays._replace(
        column_count=np.resize(arrays.column_count, count),
        buffer=_enlarged(arrays.buffer, count, longest),
        buffer_count=np.resize(arrays.buffer_count, count),
        key_count=np.resize(arrays.key_count, count),
        key=_enlarged(arrays.key, count, longest),
        identified=np.resize(arrays.identified, count),
    )


def _enlarged(array: Int32s, rows: int, columns: int) -> Int32s:
    larger = np.zeros((rows, columns), np.int32)
    larger[: array.shape[0], : array.shape[1]] = array
    return larger


def _is_identified(relation: Relation, schema: TableSchema) -> bool:
    if relation.identity == "f":
        return True
    covered = {column.name for column in relation.columns if column.in_identity}
    return bool(schema.key) and covered.issuperset(schema.key)


def _other_identity(partition: Relation, schema: TableSchema) -> SchemaChangedError:
    identity = ", ".join(column.name for column in partition.columns if column.in_identity)
    return SchemaChangedError(
        f"Partition {partition.table} of {schema.table} has ({identity}) as its replica identity, but the job's key is "
        f"({', '.join(schema.key)}): the log does not say which keys were changed.",
        f"ALTER TABLE {quote_table(partition.table)} REPLICA IDENTITY DEFAULT. Then {START_OVER}.",
        schema.table,
    )


def _changed(table: TableId, how: str, remedy: str = LEAVE_OUT) -> SchemaChangedError:
    """The log keeps what it has: to undo the change in the table does not help."""
    return SchemaChangedError(f"{table} {how}.", remedy, table)
