"""The relations that the log described: what the compiled loop knows of each, and how they fit the job's tables."""

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

import numpy as np

from readers.kernel import Int32s
from readers.postgres.log_arrays import UNFIT, UNWANTED, Tables
from readers.postgres.log_messages import Identity, LoggedColumn, Relation
from readers.postgres.log_walker import find_relation
from state.errors import SchemaChangedError, TidemarkError
from state.table import TableId, TableSchema

TypeNames = Callable[[Collection[tuple[int, int]]], Mapping[tuple[int, int], str]]
"""See `LogSource.type_names`."""

_FIRST_PLACES = 64


_Form: TypeAlias = tuple[TableId, Identity, tuple[LoggedColumn, ...]]


class KnownTables:
    """`wanted`: the tables whose rows count. `arrays` go to the loop; they are replaced when relations come."""

    def __init__(self, wanted: Mapping[TableId, TableSchema], type_names: TypeNames) -> None:
        self.wanted = wanted
        self.width = max([len(schema.captured) for schema in wanted.values()], default=1)
        self.slots: list[TableSchema] = []
        self._type_names = type_names
        self._known_types: dict[tuple[int, int], str] = {}
        self._relations: dict[int, Relation] = {}
        self._unfit: dict[int, TidemarkError] = {}
        self._newest: dict[TableId, tuple[_Form, int]] = {}
        empty = Tables(
            np.full(_FIRST_PLACES, -1, np.int64),
            np.empty(_FIRST_PLACES, np.int32),
            np.zeros(0, np.int32),
            np.zeros((0, 0), np.int32),
            np.zeros(0, np.int32),
            np.zeros(0, np.int32),
            np.zeros((0, 0), np.int32),
            np.zeros(0, np.uint8),
        )
        self.arrays = _with_slots(empty, max(1, len(wanted)), self.width)

    def forget(self) -> None:
        """A new connection: all relations are described again. Slots stay, rows may refer to them."""
        self._relations.clear()
        self._unfit.clear()
        self.arrays.id[:] = -1

    def add(self, relation: Relation) -> None:
        """Takes in a relation. That it does not fit the job is raised when rows of it come, not before: it may be of a
        time before the job's start."""
        self._relations[relation.id] = relation
        self._unfit.pop(relation.id, None)
        schema = self.wanted.get(relation.table)
        slot = UNWANTED
        if schema is not None:
            try:
                slot = self._slot(relation, schema)
            except SchemaChangedError as error:
                self._unfit[relation.id] = error
                slot = UNFIT
        if 2 * len(self._relations) > len(self.arrays.id):
            self._rehash()
        place = int(find_relation(self.arrays, relation.id))
        if place < 0:
            place = -1 - place
            self.arrays.id[place] = relation.id
        self.arrays.slot[place] = slot

    def unfit(self, relation_id: int) -> TidemarkError | None:
        """Why rows of a relation that was described have no slot."""
        return self._unfit.get(relation_id)

    def wanted_schema(self, relation_id: int) -> TableSchema | None:
        """Of the job's table that the relation is, None where it is none of them."""
        relation = self._relations.get(relation_id)
        return None if relation is None else self.wanted.get(relation.table)

    def _slot(self, relation: Relation, schema: TableSchema) -> int:
        form = (relation.table, relation.identity, relation.columns)
        newest = self._newest.get(relation.table)
        if newest is not None and newest[0] == form:  # an older slot's rows are handed out before the newest one's
            return newest[1]
        self._check(relation, schema)
        slot = len(self.slots)
        self._newest[relation.table] = (form, slot)
        self.slots.append(schema)
        count, longest = len(self.arrays.column_count), max(len(relation.columns), self.arrays.place.shape[1])
        if slot == count or longest > self.arrays.place.shape[1]:
            self.arrays = _with_slots(self.arrays, 2 * count if slot == count else count, longest)
        arrays = self.arrays
        planes = {column.name: plane for plane, column in enumerate(schema.captured)}
        arrays.column_count[slot], arrays.plane_count[slot] = len(relation.columns), len(planes)
        arrays.place[slot, : len(relation.columns)] = [planes.get(column.name, -1) for column in relation.columns]
        arrays.key_count[slot] = len(schema.key)
        arrays.key[slot, : len(schema.key)] = [planes[name] for name in schema.key]
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
        types = self._types({(c.type_oid, c.type_modifier) for c in relation.columns})
        for column in schema.captured:
            found = logged[column.name]
            now = types[found.type_oid, found.type_modifier]
            if now != column.source_type:
                raise _changed(table, f"has {column.name} as {now}, which was {column.source_type}")

    def _types(self, wanted: Collection[tuple[int, int]]) -> Mapping[tuple[int, int], str]:
        unknown = [pair for pair in wanted if pair not in self._known_types]
        if unknown:
            self._known_types.update(self._type_names(unknown))
        return self._known_types

    def _rehash(self) -> None:
        old = self.arrays
        places = 2 * len(old.id)
        self.arrays = new = old._replace(id=np.full(places, -1, np.int64), slot=np.empty(places, np.int32))
        for i in np.flatnonzero(old.id != -1):
            place = -1 - int(find_relation(new, int(old.id[i])))
            new.id[place], new.slot[place] = old.id[i], old.slot[i]


def _with_slots(arrays: Tables, count: int, longest: int) -> Tables:
    """Room for `count` slots of up to `longest` columns, with what is there."""
    return arrays._replace(
        column_count=np.resize(arrays.column_count, count),
        place=_enlarged(arrays.place, count, longest),
        plane_count=np.resize(arrays.plane_count, count),
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


def _changed(table: TableId, how: str) -> SchemaChangedError:
    return SchemaChangedError(
        f"{table} {how}.",
        "Undo the change, or start the job anew with another checkpoint directory and an empty target.",
    )
