"""A `tidemark.sinks.mirror.target.ComparingSql` for MySQL and MariaDB."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tidemark.sinks.mirror.mysql import types
from tidemark.sinks.mirror.mysql.rows import key_literal
from tidemark.sinks.mirror.target import TargetName, TargetTable
from tidemark.sinks.mirror.value_ranges import Floats, Shapes, Vectors
from tidemark.state.copied_range import CopiedRange

_IN_HEXADECIMAL = (Shapes, Vectors)

IDLE_SECONDS = 24 * 3600
"""The session waits while tasks compare the ranges of a large table."""


class Runner(Protocol):
    def execute(self, sql: str, arguments: tuple[object, ...] = (), *, doing: str = "") -> int: ...


class TemporaryTables(Protocol):
    def create_temporary(self, columns: str) -> str: ...
    def drop_temporary(self, table: str) -> None: ...


class MySqlComparing:
    """Values are compared by the bytes of their text. A FLOAT's text has six digits, so it becomes a DOUBLE first, by a
    multiplication: an addition would lose the sign of -0."""

    lookup = "STRAIGHT_JOIN"

    def __init__(
        self, runner: Runner, tables: TemporaryTables, dialect: types.MySqlDialect, existing: TargetTable
    ) -> None:
        self._runner, self._tables = runner, tables
        self._held: Mapping[str, object] = {
            dialect.same_column(column.name): column.value_range for column in existing.columns
        }
        self._same_column = dialect.same_column

    def quoted(self, name: str) -> str:
        return types.quoted(name)

    def full_name(self, target: TargetName) -> str:
        return types.full_name(target)

    def prepare(self) -> None:
        """Keeps the session, and so the temporary tables, while suspects are judged. Texts of values depend only on the
        session's time zone, which is UTC."""
        self._runner.execute(f"SET SESSION wait_timeout = {IDLE_SECONDS}")

    def create(self, columns: Sequence[str]) -> str:
        return self._tables.create_temporary(", ".join(f"t.{types.quoted(name)}" for name in columns))

    def indexed(self, table: str, key: Sequence[str]) -> None:
        self.add_index(table, key)

    def add_index(self, table: str, key: Sequence[str]) -> None:
        self._runner.execute(f"ALTER TABLE {table} ADD INDEX ({', '.join(map(types.quoted, key))})")

    def drop(self, table: str) -> None:
        self._tables.drop_temporary(table)

    def within(self, alias: str, keys: CopiedRange) -> str:
        return keys.condition(lambda name: f"{alias}.{types.quoted(name)}", key_literal)

    def same_value(self, staged: str, copied: str, column: str) -> str:
        return f"{copied}.{types.quoted(column)} = {staged}.{types.quoted(column)}"

    def differs(self, columns: Sequence[str]) -> str:
        same = " AND ".join(f"{self._bytes('s', name)} <=> {self._bytes('c', name)}" for name in columns)
        return f"NOT ({same})"

    def digest(self, alias: str, columns: Sequence[str]) -> str:
        """Hashes each value first: the whole row may be longer than max_allowed_packet, and CONCAT would return NULL."""
        hashed = ", ".join(f"IFNULL(SHA2({self._bytes(alias, name)}, 256), '-')" for name in columns)
        return f"SHA2(CONCAT_WS(',', {hashed}), 256)"

    def text(self, alias: str, column: str) -> str:
        name = f"{alias}.{types.quoted(column)}"
        match self._held[self._same_column(column)]:
            case Floats():
                return f"CONCAT({name} * 1e0)"
            case value_range if isinstance(value_range, _IN_HEXADECIMAL):
                return f"HEX({name})"
            case _:
                return f"CONCAT({name})"

    def text_read(self, alias: str, column: str) -> str:
        return f"CONCAT({alias}.{types.quoted(column)})"

    def _bytes(self, alias: str, column: str) -> str:
        return f"CAST({self.text(alias, column)} AS BINARY)"
