"""A `tidemark.sinks.mirror.target.ComparingSql` for PostgreSQL."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Protocol

from tidemark.sinks.mirror.postgres import types
from tidemark.sinks.mirror.postgres.rows import key_literal
from tidemark.sinks.mirror.target import TargetName
from tidemark.sinks.mirror.value_ranges import EnumOfPostgres
from tidemark.state.copied_range import CopiedRange

_NUMBERS = itertools.count(1)


class Runner(Protocol):
    def execute(self, sql: str, arguments: tuple[object, ...] = (), *, doing: str = "") -> int: ...


class PostgresComparing:
    """Rows are compared by their text: it differs for 1.0 and 1.00, for 0 and -0, and for NULL and ''.

    `enums`: of the copy's columns. Staged rows have texts there: the source may have labels that the copy will get later."""

    lookup = "JOIN"

    def __init__(self, runner: Runner, target: TargetName, enums: Mapping[str, EnumOfPostgres]) -> None:
        self._runner, self._target, self._enums = runner, target, enums

    def quoted(self, name: str) -> str:
        return types.quoted(name)

    def full_name(self, target: TargetName) -> str:
        return types.full_name(target)

    def prepare(self) -> None:
        """Keeps the session while other ones read. A query with a LIMIT is to find the same rows again: a scan of a large table
        would begin where the last one ended."""
        self._runner.execute(
            "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name = 'idle_session_timeout'"
        )  # since PostgreSQL 14
        self._runner.execute("SET extra_float_digits = 3")
        self._runner.execute("SET synchronize_seqscans = off")

    def create(self, columns: Sequence[str]) -> str:
        name = types.quoted(f"tidemark_compared_{next(_NUMBERS)}")
        listed = ", ".join(
            f"{n}::text AS {n}" if c in self._enums else n
            for c, n in zip(columns, map(types.quoted, columns), strict=True)
        )
        self._runner.execute(
            f"CREATE TEMPORARY TABLE {name} AS SELECT {listed} FROM {types.full_name(self._target)} WITH NO DATA",
            doing="creating a temporary table",
        )
        return f"pg_temp.{name}"

    def indexed(self, table: str, key: Sequence[str]) -> None:
        self.add_index(table, key)
        self._runner.execute(f"ANALYZE {table}")

    def add_index(self, table: str, key: Sequence[str]) -> None:
        self._runner.execute(f"CREATE INDEX ON {table} ({', '.join(map(types.quoted, key))})")

    def drop(self, table: str) -> None:
        self._runner.execute(f"DROP TABLE {table}")

    def within(self, alias: str, keys: CopiedRange) -> str:
        return keys.condition(lambda name: f"{alias}.{types.quoted(name)}", key_literal, by_rows=True)

    def same_value(self, staged: str, copied: str, column: str) -> str:
        name, enum = types.quoted(column), self._enums.get(column)
        if enum is None:
            return f"{copied}.{name} = {staged}.{name}"
        same_text = f"{staged}.{name} = {copied}.{name}::text"
        if enum.in_array:
            return same_text
        labels = f"unnest(enum_range(CAST(NULL AS {enum.full_name})))"
        label = f"SELECT l FROM {labels} l WHERE l::text = {staged}.{name}"
        return f"{same_text} AND {copied}.{name} = ({label})"  # either one is found by an index

    def differs(self, columns: Sequence[str]) -> str:
        return f"{_row('s', columns)} IS DISTINCT FROM {_row('c', columns)}"

    def digest(self, alias: str, columns: Sequence[str]) -> str:
        return f"encode(sha256(convert_to({_row(alias, columns)}, 'UTF8')), 'hex')"

    def text(self, alias: str, column: str) -> str:
        return f"{alias}.{types.quoted(column)}::text"

    def text_read(self, alias: str, column: str) -> str:
        """Calls the type's output function. A cast adds the netmask of an `inet`."""
        return f"concat({alias}.{types.quoted(column)})"


def _row(alias: str, columns: Sequence[str]) -> str:
    return f"ROW({', '.join(f'{alias}.{types.quoted(name)}' for name in columns)})::text"
