"""Compares expected rows with the files of a copy.

The rows go through the sink's own writing into a file, and that file is read as those of the copy are. So an expected value is
exactly what the sink would have written.
"""

import contextlib
import itertools
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemark.sinks.comparing import Comparisons, IntegerRange, Key, Pair
from tidemark.sinks.files.folding import Folding
from tidemark.sinks.files.part import Format, open_table_file
from tidemark.state.table import TableSchema


@contextlib.contextmanager
def comparable_files(folder: Path, schema: TableSchema, file_format: Format) -> Iterator[Comparisons]:
    """See `ComparableSink.comparable`. The files are folded once; later comparisons take new ones in."""
    with tempfile.TemporaryDirectory(prefix="tidemark-reconcile-") as temporary:
        folding = Folding(schema, folder, Path(temporary), file_format)
        folding.open()
        try:
            numbers = itertools.count()
            yield lambda: contextlib.closing(FilesComparison(folding, next(numbers)))
        finally:
            folding.close()


@dataclass(slots=True)
class FilesComparison:
    """A `tidemark.sinks.comparing.CopyComparison`. `number`: several may be open at a time, each with tables of its own."""

    folding: Folding
    number: int
    row_count: int = 0

    @property
    def _staged(self) -> str:
        return f"staged{self.number}"

    @property
    def _seen(self) -> str:
        return f"seen{self.number}"

    def stage(self, batches: Iterable[pa.RecordBatch]) -> None:
        folding = self.folding
        path = folding.temporary / f"{self._staged}.{folding.file_format}"
        path.unlink(missing_ok=True)
        file = open_table_file(folding.file_format, path, folding.schema)
        self.row_count = 0
        try:
            for batch in batches:
                file.write([batch])
                self.row_count += batch.num_rows
        finally:
            file.close()
        folding.load(self._staged, [path])
        path.unlink()
        no_key = " OR ".join(f"{name} IS NULL" for name in folding.keys)
        folding.execute(f"DELETE FROM {self._staged} WHERE {no_key}")
        folding.refresh()

    def differing(self) -> list[Pair]:
        folding = self.folding
        held = folding.rows(f"SEMI JOIN {self._staged} USING ({folding.key_list})")
        differs = " OR ".join(f"s.{name} IS DISTINCT FROM c.{name}" for name in folding.hashes)
        return self._pairs(
            f"SELECT {self._texts('s')}, {self._digest('s')}, CASE WHEN c.o IS NOT NULL THEN {self._digest('c')} END "
            f"FROM {self._staged} s LEFT JOIN ({held}) c USING ({folding.key_list}) WHERE c.o IS NULL OR {differs}"
        )

    def surplus(self, within: IntegerRange | None, limit: int) -> list[Pair]:
        folding = self.folding
        condition = "" if within is None else f"WHERE {within.condition(folding.key_column)}"
        return self._unexpected(self._staged, folding.rows(condition), limit)

    def keep_keys(self) -> None:
        keys = f"SELECT {self.folding.key_list} FROM {self._staged}"
        self.folding.execute(f"CREATE TABLE IF NOT EXISTS {self._seen} AS {keys} LIMIT 0")
        self.folding.execute(f"INSERT INTO {self._seen} {keys}")

    def surplus_of_all(self, limit: int) -> list[Pair]:
        found = self._unexpected(self._seen, self.folding.rows(""), limit)
        self._forget_keys()
        return found

    def clear(self) -> None:
        self.folding.execute(f"DROP TABLE IF EXISTS {self._staged}")

    def close(self) -> None:
        self.clear()
        self._forget_keys()

    def _forget_keys(self) -> None:
        self.folding.execute(f"DROP TABLE IF EXISTS {self._seen}")

    def _unexpected(self, expected: str, held: str, limit: int) -> list[Pair]:
        return self._pairs(
            f"SELECT {self._texts('c')}, NULL, {self._digest('c')} "
            f"FROM ({held}) c ANTI JOIN {expected} USING ({self.folding.key_list}) LIMIT {limit}"
        )

    def _pairs(self, query: str) -> list[Pair]:
        return [Pair(_key(row[:-2]), row[-2], row[-1]) for row in self.folding.execute(query)]

    def _texts(self, alias: str) -> str:
        return ", ".join(f"CAST({alias}.{name} AS VARCHAR)" for name in self.folding.keys)

    def _digest(self, alias: str) -> str:
        return f"md5(concat_ws(',', {', '.join(f'coalesce({alias}.{name}, 0)' for name in self.folding.hashes)}))"


def _key(values: tuple[Any, ...]) -> Key:
    return tuple(values)
