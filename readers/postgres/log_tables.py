"""The relations that the log described: what the compiled loop knows of each, and how they fit the job's tables."""

from collections.abc import Callable, Collection, Mapping

import numpy as np

from readers.postgres.log_arrays import Tables
from readers.postgres.log_messages import Relation
from readers.postgres.log_walker import find_relation
from state.errors import SchemaChangedError, TidemarkError
from state.table import TableId, TableSchema

TypeNames = Callable[[Collection[tuple[int, int]]], Mapping[tuple[int, int], str]]
"""See `LogSource.type_names`."""

_FIRST_PLACES = 64


class KnownTables:
    """`wanted`: the tables whose rows count. `arrays` go to the loop; they are replaced when relations come."""

    def __init__(self, wanted: Mapping[TableId, TableSchema], type_names: TypeNames) -> None:
        self.wanted = wanted
        self.width = max([len(schema.captured) for schema in wanted.values()], default=1)
        self.slots: list[TableSchema] = []
        self._type_names = type_names
        self._known_types: dict[tuple[int, int], str] = {}
        self._relations: dict[int, Relation] = {}
        self._slot_of: dict[int, int] = {}
        self._unfit: dict[int, TidemarkError] = {}
        self._forms: list[Relation] = []
        self._write()

    def forget(self) -> None:
        """A new connection: all relations are described again. Slots stay, rows may refer to them."""
        self._relations.clear()
        self._slot_of.clear()
        self._unfit.clear()
        self._write()

    def add(self, relation: Relation) -> None:
        """Takes in a relation. That it does not fit the job is raised when rows of it come, not before: it may be of a
        time before the job's start."""
        self._relations[relation.id] = relation
        self._unfit.pop(relation.id, None)
        schema = self.wanted.get(relation.table)
        if schema is None:
            self._slot_of[relation.id] = -1
        else:
            try:
                self._slot_of[relation.id] = self._slot(relation, schema)
            except SchemaChangedError as error:
                self._slot_of.pop(relation.id, None)
                self._unfit[relation.id] = error
        self._write()

    def unfit(self, relation_id: int) -> TidemarkError | None:
        """Why rows of a relation that was described have no slot."""
        return self._unfit.get(relation_id)

    def wanted_table(self, relation_id: int) -> TableId | None:
        """The job's table that the relation is, None where it is none of them."""
        relation = self._relations.get(relation_id)
        return relation.table if relation is not None and relation.table in self.wanted else None

    def _slot(self, relation: Relation, schema: TableSchema) -> int:
        self._check(relation, schema)
        for number, (form, known) in enumerate(zip(self._forms, self.slots, strict=True)):
            if known is schema and form.columns == relation.columns and form.identity == relation.identity:
                return number
        self._forms.append(relation)
        self.slots.append(schema)
        return len(self.slots) - 1

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

    def _write(self) -> None:
        places = _FIRST_PLACES
        while places < 2 * len(self._relations):
            places *= 2
        ids, slots = np.full(places, -1, np.int64), np.full(places, -1, np.int32)
        count = max(1, len(self.slots))
        longest = max([len(form.columns) for form in self._forms], default=1)
        column_count, plane_count = np.zeros(count, np.int32), np.zeros(count, np.int32)
        place = np.full((count, longest), -1, np.int32)
        key_count, key = np.zeros(count, np.int32), np.zeros((count, self.width), np.int32)
        identified = np.zeros(count, np.uint8)
        for slot, (form, schema) in enumerate(zip(self._forms, self.slots, strict=True)):
            planes = {column.name: plane for plane, column in enumerate(schema.captured)}
            column_count[slot], plane_count[slot] = len(form.columns), len(planes)
            place[slot, : len(form.columns)] = [planes.get(column.name, -1) for column in form.columns]
            key_count[slot] = len(schema.key)
            key[slot, : len(schema.key)] = [planes[name] for name in schema.key]
            identified[slot] = _is_identified(form, schema)
        self.arrays = Tables(ids, slots, column_count, place, plane_count, key_count, key, identified)
        for relation, slot in self._slot_of.items():
            found = -1 - int(find_relation(self.arrays, relation))
            ids[found], slots[found] = relation, slot


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
