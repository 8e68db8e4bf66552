"""The tables seen in the log: the arrays for the compiled loop, and the column plans of the wanted tables."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tidemark.readers.mysql.binlog.arrays import Tables
from tidemark.readers.mysql.binlog.row_walker import find_table
from tidemark.readers.mysql.binlog.table_map import plan_for, table_map, table_of
from tidemark.readers.mysql.decoding.columns import ColumnPlan
from tidemark.state.table import TableId, TableSchema

_FIRST_BUCKETS = 1024
_FIRST_BYTES = 1 << 16
_MAX_KEY = 16
"""The maximum number of columns in an index, on both servers."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A wanted table, and the column plan for one form of its TABLE_MAP. `logged`: the part of the schema that its rows
    have."""

    schema: TableSchema
    logged: TableSchema
    plan: ColumnPlan


class KnownTables:
    """`wanted`: the tables whose rows are read. `arrays` are for the compiled loop; they are replaced when they must grow."""

    def __init__(self, wanted: Mapping[TableId, TableSchema], *, mariadb: bool) -> None:
        self.wanted = wanted
        self.slots: list[Slot] = []
        self._by_form: dict[tuple[TableId, bytes], int] = {}
        self._mariadb = mariadb
        self._used_bytes = 0
        self._count = 0
        width = max([len(schema.columns) for schema in wanted.values()], default=1)
        self.width = width
        self.arrays = Tables(
            np.full(_FIRST_BUCKETS, -1, np.int64),
            np.empty(_FIRST_BUCKETS, np.int32),
            np.empty(_FIRST_BUCKETS, np.int64),
            np.empty(_FIRST_BUCKETS, np.int64),
            np.empty(_FIRST_BUCKETS, np.int64),
            np.empty(_FIRST_BYTES, np.uint8),
            np.zeros(1, np.int32),
            np.zeros((1, width), np.int32),
            np.zeros((1, width), np.int32),
            np.zeros((1, width), np.uint8),
            np.zeros(1, np.int32),
            np.zeros((1, _MAX_KEY), np.int32),
        )

    def forget(self) -> None:
        """Forgets all table ids: in a new file they may belong to other tables."""
        self.arrays.id[:] = -1
        self._used_bytes = 0
        self._count = 0

    def wanted_of(self, body: bytes) -> TableId | None:
        """The table of a row event, of any type. None if it is not wanted."""
        bucket = find_table(self.arrays, int.from_bytes(body[:6], "little"))
        slot = int(self.arrays.slot[bucket]) if bucket >= 0 else -1
        return self.slots[slot].schema.table if slot >= 0 else None

    def add(self, body: bytes, mark: int, charsets: Mapping[int, str]) -> None:
        """Adds a TABLE_MAP event. Raises SchemaChangedError, UnknownLogEventError."""
        table_id, table = table_of(body)
        schema = self.wanted.get(table)
        slot = -1 if schema is None else self._slot(body, schema, charsets)
        bucket = int(find_table(self.arrays, table_id))
        if bucket < 0:
            if 2 * (self._count + 1) > len(self.arrays.id):
                self._grow()
                bucket = int(find_table(self.arrays, table_id))
            bucket = -bucket - 1
            self._count += 1
        content = np.frombuffer(body, np.uint8, offset=6)
        arrays = self._with_bytes(len(content))
        arrays.id[bucket] = table_id
        arrays.slot[bucket] = slot
        arrays.mark[bucket] = mark
        arrays.start[bucket] = self._used_bytes
        arrays.size[bucket] = len(content)
        arrays.bytes[self._used_bytes : self._used_bytes + len(content)] = content
        self._used_bytes += len(content)

    def _slot(self, body: bytes, schema: TableSchema, charsets: Mapping[int, str]) -> int:
        form = (schema.table, body[6:])
        known = self._by_form.get(form)
        if known is not None:
            return known
        found = table_map(body, mariadb=self._mariadb)
        logged, plan = plan_for(found, schema, charsets)
        for number, slot in enumerate(self.slots):
            if slot.schema is schema and slot.logged == logged and _same(slot.plan, plan):
                self._by_form[form] = number
                return number
        self.slots.append(Slot(schema, logged, plan))
        self._by_form[form] = len(self.slots) - 1
        self._write_plans()
        return len(self.slots) - 1

    def _write_plans(self) -> None:
        count = len(self.slots)
        column_count = np.zeros(count, np.int32)
        code = np.zeros((count, self.width), np.int32)
        meta = np.zeros((count, self.width), np.int32)
        wanted = np.zeros((count, self.width), np.uint8)
        key_count = np.zeros(count, np.int32)
        key = np.zeros((count, _MAX_KEY), np.int32)
        for i, slot in enumerate(self.slots):
            column_count[i] = slot.plan.column_count
            code[i, : slot.plan.column_count] = slot.plan.code
            meta[i, : slot.plan.column_count] = slot.plan.meta
            wanted[i, : slot.plan.column_count] = slot.plan.wanted
            names = [column.name for column in slot.logged.columns]
            indexes = [names.index(name) for name in slot.schema.key]
            key_count[i] = len(indexes)
            key[i, : len(indexes)] = indexes
        self.arrays = self.arrays._replace(
            column_count=column_count, code=code, meta=meta, wanted=wanted, key_count=key_count, key=key
        )

    def _with_bytes(self, size: int) -> Tables:
        if self._used_bytes + size > len(self.arrays.bytes):
            larger = np.empty(2 * (self._used_bytes + size), np.uint8)
            larger[: self._used_bytes] = self.arrays.bytes[: self._used_bytes]
            self.arrays = self.arrays._replace(bytes=larger)
        return self.arrays

    def _grow(self) -> None:
        old = self.arrays
        buckets = 2 * len(old.id)
        new = old._replace(
            id=np.full(buckets, -1, np.int64),
            slot=np.empty(buckets, np.int32),
            mark=np.empty(buckets, np.int64),
            start=np.empty(buckets, np.int64),
            size=np.empty(buckets, np.int64),
        )
        for i in np.flatnonzero(old.id != -1):
            bucket = -int(find_table(new, int(old.id[i]))) - 1
            new.id[bucket], new.slot[bucket], new.mark[bucket] = old.id[i], old.slot[i], old.mark[i]
            new.start[bucket], new.size[bucket] = old.start[i], old.size[i]
        self.arrays = new


def _same(one: ColumnPlan, other: ColumnPlan) -> bool:
    same_codes = np.array_equal(one.code, other.code) and np.array_equal(one.meta, other.meta)
    return same_codes and one.outputs == other.outputs
