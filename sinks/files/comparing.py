"""Compares expected rows with the files of a copy.

The rows go through the sink's own writing into a file, and that file is read as those of the copy are. So an expected value is
exactly what the sink would have written.
"""

import contextlib
import itertools
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from tidemark.sinks.comparing import Comparisons, Key
from tidemark.sinks.files.folding import Folding
from tidemark.sinks.files.part import Format
from tidemark.sinks.folded.comparing import FoldedComparison
from tidemark.sinks.folded.state import FoldedState
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
