"""The folder for what of one table's comparison does not fit into the memory."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tidemark.state.errors import SinkError
from tidemark.state.table import TableId


def no_room(message: str, folder: Path | str, table: TableId) -> SinkError:
    """Returns the error for a folder that takes no more. It is about this table: others may need less."""
    return SinkError(message, f"Check that there is space in {folder} (TMPDIR).", table)


@contextmanager
def temporary_folder(table: TableId) -> Iterator[Path]:
    """Makes an empty folder inside of the one that TMPDIR names, and removes it at the end. Raises SinkError."""
    with ExitStack() as stack:
        try:
            path = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-reconcile-"))
        except OSError as error:
            message = f"A temporary folder can't be made: {error.strerror or error}."
            raise no_room(message, "the folder for temporary files", table) from error
        yield Path(path)
