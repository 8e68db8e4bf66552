"""Compares expected rows with the state that a copy folds to."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from tidemark.sinks.comparing import Key, Pair
from tidemark.sinks.folded.hashing import literal
from tidemark.sinks.folded.state import FoldedState
from tidemark.state.copied_range import CopiedRange


class Staging(Protocol):
    def __call__(self, table: str, batches: Iterable[pa.RecordBatch]) -> int:
        """Creates a table of the state's database with the rows as the sink writes them (`hashing.change_kinds`). Returns their
        number."""


@dataclass(slots=True)
class FoldedComparison:
    """A `tidemark.sinks.comparing.CopyComparison`. `number`: several may be open at a time, each with tables of its own.
    `refresh` is called after rows were staged: it may take in what the copy got meanwhile. `wanted`: a table of the keys that
    surplus rows are looked for among; None: all."""

    state: FoldedState
    number: int
    stage_rows: Staging
    refresh: Callable[[], None]
    wanted: str | None = None
    row_count: int = 0

    @property
    def _staged(self) -> str:
        return f"staged{self.number}"

    @property
    def _seen(self) -> str:
        return f"seen{self.number}"

    def stage(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.row_count = self.stage_rows(self._staged, batches)
        self.state.execute(f"DELETE FROM {self._staged} WHERE {self.state.no_key}")
        self.refresh()

    def take(self, hashed: Iterable[pa.Table]) -> None:
        """Stages rows that `RowHashing` has hashed. The copy was read since."""
        self.state.create(self._staged)
        for table in hashed:
            self.state.insert(self._staged, table)
        self.state.execute(f"DELETE FROM {self._staged} WHERE {self.state.no_key}")

    def differing(self) -> list[Pair]:
        state = self.state
        held = state.rows(f"SEMI JOIN {self._staged} USING ({state.key_list}) WHERE {self._between_ends()}")
        differs = " OR ".join(f"s.{name} IS DISTINCT FROM c.{name}" for name in state.hashes)
        return self._pairs(
            f"SELECT {self._texts('s')}, {self._digest('s')}, CASE WHEN c.o IS NOT NULL THEN {self._digest('c')} END "
            f"FROM {self._staged} s LEFT JOIN ({held}) c USING ({state.key_list}) WHERE c.o IS NULL OR {differs}"
        )

    def _between_ends(self) -> str:
        """Returns a condition that the staged rows meet, with which few blocks of the state are read."""
        ((least, greatest),) = self.state.execute(f"SELECT min(k0), max(k0) FROM {self._staged}")
        if least is None or "\0" in f"{least}{greatest}":
            return "TRUE"
        return f"k0 BETWEEN {_literal(least)} AND {_literal(greatest)}"

    def surplus(self, within: CopiedRange | None, limit: int) -> list[Pair]:
        condition = ""
        if within is not None:
            assert within.integers is not None, "only integers are ordered alike"
            condition = f"WHERE {within.integers.condition(self.state.key_column)}"
        return self._unexpected(self._staged, condition, limit)

    def keep(self, hashed: pa.Table) -> None:
        """Keeps the keys of rows that `RowHashing` has hashed."""
        self.take([hashed])
        self.keep_keys()
        self.clear()

    def keep_keys(self) -> None:
        keys = f"SELECT {self.state.key_list} FROM {self._staged}"
        self.state.execute(f"CREATE TABLE IF NOT EXISTS {self._seen} AS {keys} LIMIT 0")
        self.state.execute(f"INSERT INTO {self._seen} {keys}")

    def surplus_of_all(self, limit: int) -> list[Pair]:
        found = self._unexpected(self._seen, "", limit)
        self._forget_keys()
        return found

    def clear(self) -> None:
        self.state.execute(f"DROP TABLE IF EXISTS {self._staged}")

    def close(self) -> None:
        self.clear()
        self._forget_keys()

    def _forget_keys(self) -> None:
        self.state.execute(f"DROP TABLE IF EXISTS {self._seen}")

    def _unexpected(self, expected: str, condition: str, limit: int) -> list[Pair]:
        key_list = self.state.key_list
        among = "" if self.wanted is None else f"SEMI JOIN {self.wanted} USING ({key_list})"
        held = self.state.rows(f"{among} {condition}")
        return self._pairs(
            f"SELECT {self._texts('c')}, NULL, {self._digest('c')} "
            f"FROM ({held}) c ANTI JOIN {expected} USING ({key_list}) LIMIT {limit}"
        )

    def _pairs(self, query: str) -> list[Pair]:
        return [Pair(_key(row[:-2]), row[-2], row[-1]) for row in self.state.execute(query)]

    def _texts(self, alias: str) -> str:
        return ", ".join(f"CAST({alias}.{name} AS VARCHAR)" for name in self.state.keys)

    def _digest(self, alias: str) -> str:
        return f"concat_ws(',', {', '.join(f'coalesce({alias}.{name}, 0)' for name in self.state.hashes)})"


def _literal(value: Any) -> str:
    return literal(value) if isinstance(value, str) else str(value)


def _key(values: tuple[Any, ...]) -> Key:
    return tuple(values)
