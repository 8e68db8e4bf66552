"""Compares expected rows with the files of a copy.

The rows go through the sink's own writing into a file, and that file is read as those of the copy are. So an expected value is
exactly what the sink would have written.
"""

import contextlib
import itertools
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from tidemark.sinks.comparing import Comparisons, Key
from tidemark.sinks.files.folding import Folding
from tidemark.sinks.files.part import Format
from tidemark.sinks.folded.comparing import FoldedComparison
from tidemark.sinks.folded.state import FoldedState
from tidemark.state.integer_range import IntegerRange
from tidemark.state.table import TableSchema


@contextlib.contextmanager
def comparable_files(folder: Path, schema: TableSchema, file_format: Format) -> Iterator[Comparisons]:
    """See `ComparableSink.comparable`. The files are folded once; later comparisons take new ones in."""
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-reconcile-") as temporary,
        FoldedState.opened(schema, str(folder), Path(temporary)) as state,
    ):
        folding = Folding(state, folder, file_format)
        numbers = itertools.count()

        def compared(
            keys: Collection[Key] | None = None,
        ) -> contextlib.AbstractContextManager[FoldedComparison]:
            return contextlib.closing(FoldedComparison(state, next(numbers), folding.stage, folding.refresh))

        yield compared


def keys_in_files(
    folder: Path, schema: TableSchema, file_format: Format, within: IntegerRange, limit: int
) -> list[Key]:
    """Returns the keys that the copy has in a range, at most `limit`. Reads the columns of the key, of all files. Raises
    SinkError."""
    key = replace(schema, columns=tuple(column for column in schema.columns if column.name in schema.key))
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-keys-") as temporary,
        FoldedState.opened(key, str(folder), Path(temporary)) as state,
    ):
        Folding(state, folder, file_format, within).refresh()
        texts = ", ".join(f"CAST({name} AS VARCHAR)" for name in state.keys)
        return state.execute(f"SELECT {texts} FROM ({state.rows('')}) LIMIT {limit}")
