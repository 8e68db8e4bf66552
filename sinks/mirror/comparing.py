"""Compares expected rows with a copy, inside the target's server and by its own types.

The rows go through the mirror's own writing (bad values, encoding, the server's conversion) into a temporary table that has
the column types of the copy. So an expected value is exactly what the mirror would have written. Two statements compare it with
the copy: one finds rows that are missing or differ, one finds rows of the copy that are not expected. Keys are equal if the
copy's primary key takes them as equal. No value but keys and hashes leaves the server, and nothing but temporary tables is
written.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidemark.sinks.comparing import CopyTable, Key, Pair
from tidemark.sinks.mirror.bad_values import ValueGate
from tidemark.sinks.mirror.ordering import orders_alike
from tidemark.sinks.mirror.target import ComparingRows, ComparingSql, Session, TargetName, TargetTable
from tidemark.state.copied_range import CopiedRange
from tidemark.state.errors import SinkError
from tidemark.state.table import TableSchema


@dataclass(slots=True)
class MirrorComparison:
    """A `tidemark.sinks.comparing.CopyComparison` and `ComparesTable`. Its transactions write only temporary tables."""

    session: Session
    sql: ComparingSql
    rows: ComparingRows
    gate: ValueGate
    schema: TableSchema
    target: TargetName
    existing: TargetTable
    copy_table: CopyTable
    deleted: str | None = None
    """The copy's column that is true in rows which the source has deleted."""
    _stage: str | None = None
    _seen: str | None = None
    _indexed: bool = False
    row_count: int = field(default=0)
    """The rows that are staged, without those that the mirror rejects."""

    def stage(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.clear()
        self.row_count, self._indexed = 0, False
        self._stage = self.sql.create(self._names)
        for batch in batches:
            passed, _ = self.gate.passed(batch.select(self._names))
            if passed.num_rows:
                self.rows.load(self._stage, passed)
                self.row_count += passed.num_rows

    def differing(self) -> list[Pair]:
        first = self.sql.quoted(self.schema.key[0])
        held = f"CASE WHEN c.{first} IS NOT NULL THEN {self.sql.digest('c', self._names)} END"
        found = self.session.query(
            f"SELECT {self._key_texts('s')}, {self.sql.digest('s', self._names)}, {held} "
            f"FROM {self._staged} s LEFT JOIN {self._copy} c ON {self._same_key} AND {self._is_there} "
            f"WHERE c.{first} IS NULL OR {self.sql.differs(self._names)}"
        )
        return [Pair(_key(row[:-2]), _text(row[-2]), _text(row[-1])) for row in found]

    def surplus(self, within: CopiedRange | None, limit: int) -> list[Pair]:
        if not self._indexed:
            self.sql.indexed(self._staged, self.schema.key)
            self._indexed = True
        return self._unexpected(self._staged, "TRUE" if within is None else self.sql.within("c", within), limit)

    def orders_alike(self, orders: Mapping[str, str]) -> bool:
        alike = orders_alike(self.session, self.target, self.existing, orders)
        self._end()
        return alike

    def condition(self, within: CopiedRange | None) -> str:
        return self._is_there if within is None else f"{self._is_there} AND {self.sql.within('c', within)}"

    def keep_keys(self) -> None:
        if self._seen is None:
            self._seen = self.sql.create(self.schema.key)
            self.sql.add_index(self._seen, self.schema.key)
        names = ", ".join(map(self.sql.quoted, self.schema.key))
        self.session.execute(
            f"INSERT INTO {self._seen} ({names}) SELECT {names} FROM {self._staged}", doing="keeping keys"
        )

    def surplus_of_all(self, limit: int) -> list[Pair]:
        if self._seen is None:
            self._seen = self.sql.create(self.schema.key)
        found = self._unexpected(self._seen, "TRUE", limit)
        self.forget_keys()
        return found

    def surplus_among(self, keys: pa.RecordBatch, limit: int) -> list[Pair] | None:
        key, first = self.schema.key, self.sql.quoted(self.schema.key[0])
        if self._seen is None:
            self._seen = self.sql.create(key)
            self._end()
        try:
            among = self.sql.create(key)
            self.rows.load(among, keys)
        except SinkError:  # if it matters, the server meets it again
            self.session.rollback()
            return None
        self.sql.indexed(among, key)
        found = None
        if self._has_texts(among, keys):
            same_key = " AND ".join(self.sql.same_value("a", "c", name) for name in key)
            found = self.session.query(
                f"SELECT {self._key_texts('c')}, {self.sql.digest('c', self._names)} "
                f"FROM {among} a {self.sql.lookup} {self._copy} c ON {same_key} LEFT JOIN {self._seen} s ON {self._same_key} "
                f"WHERE s.{first} IS NULL AND {self._is_there} LIMIT {limit}"
            )
        self.sql.drop(among)
        self._end()
        return None if found is None else [Pair(_key(row[:-1]), None, _text(row[-1])) for row in found]

    def _has_texts(self, table: str, keys: pa.RecordBatch) -> bool:
        """Returns whether a table has the texts of these keys unchanged. Other values are the same in any column that can hold
        them."""
        texts = [name for name in self.schema.key if pa.types.is_string(keys.schema.field(name).type)]
        if not texts:
            return True
        held = self.session.query(f"SELECT {', '.join(self.sql.text_read('s', name) for name in texts)} FROM {table} s")
        return Counter(held) == Counter(zip(*(keys.column(name).to_pylist() for name in texts), strict=True))

    def forget_keys(self) -> None:
        if self._seen is not None:
            self.sql.drop(self._seen)
            self._seen = None
        self._end()

    def clear(self) -> None:
        """Drops the staged rows and ends the transaction."""
        if self._stage is not None:
            self.sql.drop(self._stage)
            self._stage = None
        self._end()

    def close(self) -> None:
        self.clear()
        self.forget_keys()

    def _end(self) -> None:
        self.session.end_transaction("comparing")

    @property
    def _names(self) -> list[str]:
        return [column.name for column in self.schema.captured]

    @property
    def _staged(self) -> str:
        assert self._stage is not None, "nothing is staged"
        return self._stage

    @property
    def _copy(self) -> str:
        return self.sql.full_name(self.target)

    @property
    def _is_there(self) -> str:
        return "TRUE" if self.deleted is None else f"c.{self.sql.quoted(self.deleted)} IS NOT TRUE"

    def _unexpected(self, expected: str, condition: str, limit: int) -> list[Pair]:
        first = self.sql.quoted(self.schema.key[0])
        found = self.session.query(
            f"SELECT {self._key_texts('c')}, {self.sql.digest('c', self._names)} "
            f"FROM {self._copy} c LEFT JOIN {expected} s ON {self._same_key} "
            f"WHERE s.{first} IS NULL AND {self._is_there} AND {condition} LIMIT {limit}"
        )
        return [Pair(_key(row[:-1]), None, _text(row[-1])) for row in found]

    def _key_texts(self, alias: str) -> str:
        return ", ".join(self.sql.text(alias, name) for name in self.schema.key)

    @property
    def _same_key(self) -> str:
        return " AND ".join(self.sql.same_value("s", "c", name) for name in self.schema.key)


def _key(values: Sequence[Any]) -> Key:
    return tuple(_text(value) or "" for value in values)


def _text(value: Any) -> str | None:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"0x{bytes(value).hex()}"
    return None if value is None else str(value)
