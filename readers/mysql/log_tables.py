"""The tables of a log that were met: what the compiled loop knows of each, and the plans of those that are wanted."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from readers.mysql.columns import ColumnPlan
from readers.mysql.log_arrays import Tables
from readers.mysql.log_row_walker import find_table
from readers.mysql.log_table_map import TableMap, key_is_primary, plan_for, table_map, table_of
from state.errors import SchemaChangedError
from state.table import TableId, TableSchema

_FIRST_PLACES = 1024
_FIRST_BYTES = 1 << 16
_GREATEST_KEY = 16
"""Columns of an index, on both servers."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A wanted table in one form that its TABLE_MAPs had."""

    schema: TableSchema
    plan: ColumnPlan


class KnownTables:
    """`wanted`: the tables whose rows count. `arrays` go to the loop; they are replaced when they have to grow."""

    def __init__(self, wanted: Mapping[TableId, TableSchema], *, mariadb: bool) -> None:
        self.wanted = wanted
        self.slots: list[Slot] = []
        self._by_form: dict[tuple[TableId, bytes], int] = {}
        self._mariadb = mariadb
        self._lost_index: set[TableId] = set()
        self._used_bytes = 0
        self._count = 0
        width = max([len(schema.columns) for schema in wanted.values()], default=1)
        self.width = width
        self.arrays = Tables(
            np.full(_FIRST_PLACES, -1, np.int64),
            np.empty(_FIRST_PLACES, np.int32),
            np.empty(_FIRST_PLACES, np.int64),
            np.empty(_FIRST_PLACES, np.int64),
            np.empty(_FIRST_PLACES, np.int64),
            np.empty(_FIRST_BYTES, np.uint8),
            np.zeros(1, np.int32),
            np.zeros((1, width), np.int32),
            np.zeros((1, width), np.int32),
            np.zeros(1, np.int32),
            np.zeros((1, _GREATEST_KEY), np.int32),
        )

    def forget(self) -> None:
        """A new file: ids may mean other tables."""
        self.arrays.id[:] = -1
        self._used_bytes = 0
        self._count = 0

    def is_wanted(self, body: bytes) -> bool:
        """Of a row event of any kind: is its table, whose TABLE_MAP was seen, a wanted one?"""
        place = find_table(self.arrays, int.from_bytes(body[:6], "little"))
        return place >= 0 and bool(self.arrays.slot[place] >= 0)

    def add(self, body: bytes, mark: int, charsets: Mapping[int, str]) -> None:
        """Takes in a TABLE_MAP event. Raises SchemaChangedError, UnknownLogEventError."""
        table_id, table = table_of(body)
        schema = self.wanted.get(table)
        slot = -1 if schema is None else self._slot(body, schema, charsets)
        place = int(find_table(self.arrays, table_id))
        if place < 0:
            if 2 * (self._count + 1) > len(self.arrays.id):
                self._grow()
                place = int(find_table(self.arrays, table_id))
            place = -place - 1
            self._count += 1
        content = np.frombuffer(body, np.uint8, offset=6)
        arrays = self._with_bytes(len(content))
        arrays.id[place] = table_id
        arrays.slot[place] = slot
        arrays.mark[place] = mark
        arrays.start[place] = self._used_bytes
        arrays.size[place] = len(content)
        arrays.bytes[self._used_bytes : self._used_bytes + len(content)] = content
        self._used_bytes += len(content)

    def lose_index(self, table: TableId) -> None:
        """An index of a wanted table is gone. Harmless, unless it was the unique key that the job goes by."""
        self._lost_index.add(table)
        self._by_form = {form: slot for form, slot in self._by_form.items() if form[0] != table}
        self.forget()  # so that the next TABLE_MAP is looked at again

    def _slot(self, body: bytes, schema: TableSchema, charsets: Mapping[int, str]) -> int:
        form = (schema.table, body[6:])
        known = self._by_form.get(form)
        if known is not None:
            return known
        found = table_map(body, mariadb=self._mariadb)
        plan = plan_for(found, schema, charsets)
        self._check_lost_index(found, schema)
        for number, slot in enumerate(self.slots):
            if slot.schema is schema and _same(slot.plan, plan):
                self._by_form[form] = number
                return number
        self.slots.append(Slot(schema, plan))
        self._by_form[form] = len(self.slots) - 1
        self._write_plans()
        return len(self.slots) - 1

    def _check_lost_index(self, found: TableMap, schema: TableSchema) -> None:
        if schema.table in self._lost_index and schema.key and not key_is_primary(found, schema):
            raise SchemaChangedError(
                f"An index of {schema.table} was dropped, and its key ({', '.join(schema.key)}) is not the primary key: "
                "it may no longer be unique.",
                "Start the job anew with a key that is unique: source.keys.",
            )

    def _write_plans(self) -> None:
        count = len(self.slots)
        column_count = np.zeros(count, np.int32)
        code = np.zeros((count, self.width), np.int32)
        meta = np.zeros((count, self.width), np.int32)
        key_count = np.zeros(count, np.int32)
        key = np.zeros((count, _GREATEST_KEY), np.int32)
        for i, slot in enumerate(self.slots):
            column_count[i] = slot.plan.column_count
            code[i, : slot.plan.column_count] = slot.plan.code
            meta[i, : slot.plan.column_count] = slot.plan.meta
            names = [column.name for column in slot.schema.columns]
            places = [names.index(name) for name in slot.schema.key]
            key_count[i] = len(places)
            key[i, : len(places)] = places
        self.arrays = self.arrays._replace(
            column_count=column_count, code=code, meta=meta, key_count=key_count, key=key
        )

    def _with_bytes(self, size: int) -> Tables:
        if self._used_bytes + size > len(self.arrays.bytes):
            larger = np.empty(2 * (self._used_bytes + size), np.uint8)
            larger[: self._used_bytes] = self.arrays.bytes[: self._used_bytes]
            self.arrays = self.arrays._replace(bytes=larger)
        return self.arrays

    def _grow(self) -> None:
        old = self.arrays
        places = 2 * len(old.id)
        new = old._replace(
            id=np.full(places, -1, np.int64),
            slot=np.empty(places, np.int32),
            mark=np.empty(places, np.int64),
            start=np.empty(places, np.int64),
            size=np.empty(places, np.int64),
        )
        for i in np.flatnonzero(old.id != -1):
            place = -int(find_table(new, int(old.id[i]))) - 1
            new.id[place], new.slot[place], new.mark[place] = old.id[i], old.slot[i], old.mark[i]
            new.start[place], new.size[place] = old.start[i], old.size[i]
        self.arrays = new


def _same(one: ColumnPlan, other: ColumnPlan) -> bool:
    same_codes = np.array_equal(one.code, other.code) and np.array_equal(one.meta, other.meta)
    return same_codes and one.outputs == other.outputs
