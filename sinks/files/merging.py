"""Merges small files of log changes, so that a table's folder does not grow by a file for each epoch (`merge_small_files`).

A run of neighbouring files becomes one with their rows in their order: `e0000000001-e0000000040-log.parquet`. Only epochs that
are done are merged. No writer publishes a file of theirs any more. A file of MERGED_BYTES or more is left as it is.

Every crash between the steps is harmless, and a driver that was replaced does no further step:

1. The merged file is written in the driver's staging folder, and renamed into the table's folder.
2. The files that it was made of are renamed into the staging folder, and removed. Their rows are visible twice until then.

After a crash behind step 1, the next driver does step 2. The merged file's name says which epochs it has.
"""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tidemark.sinks.files.ledger import FilesLedger, sync_folder
from tidemark.sinks.files.parquet_file import merge_parquet, parquet_columns
from tidemark.state.failpoints import failpoint

MERGED_FILES = 32
"""The least number of files that are merged."""
MERGED_BYTES = 64 << 20
_LOG_FILE = re.compile(r"e(\d+)-(?:e(\d+)-)?log\.(?:parquet|jsonl)")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file with the log changes of the epochs `first` to `last`."""

    path: Path
    first: int
    last: int

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def is_merged(self) -> bool:
        return self.first < self.last


def merge_small_files(folder: Path, ledger: FilesLedger, before: int) -> None:
    """Merges a table's files of epochs before `before`, which are done, if there are enough. Raises OSError, SinkError."""
    files = [file for file in log_files(folder) if file.last < before]
    files = _alike(small_files(files)) if len(files) >= MERGED_FILES else []
    if len(files) < MERGED_FILES:
        return
    merged = f"e{files[0].first:010d}-e{files[-1].last:010d}-log{files[0].path.suffix}"
    temporary = ledger.staged(files[-1].last)
    try:
        with temporary.open("xb") as target:
            merge = merge_parquet if files[0].path.suffix == ".parquet" else _concatenate
            merge([file.path for file in files], target)
            target.flush()
            os.fsync(target.fileno())
        os.rename(temporary, folder / merged)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(folder)
    failpoint("files.merged")
    remove_merged(folder, ledger)


def remove_merged(folder: Path, ledger: FilesLedger) -> None:
    """Removes the files whose epochs are in a merged file. Raises OSError, also if the driver was replaced."""
    reached, removed = 0, False
    for file in log_files(folder):
        if file.last <= reached:
            temporary = ledger.staged(file.last)
            os.rename(file.path, temporary)  # fails without the staging folder
            temporary.unlink(missing_ok=True)
            removed = True
        elif file.is_merged:
            reached = file.last
    if removed:
        sync_folder(folder)


def log_files(folder: Path) -> list[LogFile]:
    """Returns the folder's files in the order of their epochs, a merged file before those that it was made of."""
    found = []
    for name in os.listdir(folder):
        match = _LOG_FILE.fullmatch(name)
        if match is not None:
            found.append(LogFile(folder / name, int(match[1]), int(match[2] or match[1])))
    return sorted(found, key=lambda file: (file.first, -file.last))


def small_files(files: Sequence[LogFile]) -> list[LogFile]:
    """Returns the newest of `files` that are to be merged together. A merged file is among them if the newer ones have as many
    bytes: so each row is written a few times only, and few files remain."""
    total, place = 0, len(files)
    for file in reversed(files):
        size = file.size
        if size >= MERGED_BYTES or (file.is_merged and size > total):
            break
        total, place = total + size, place - 1
    return list(files[place:])


def _alike(files: Sequence[LogFile]) -> list[LogFile]:
    """Returns the newest of `files` that have the same columns. Rows of JSON Lines may have any."""
    if not files or files[-1].path.suffix != ".parquet":
        return list(files)
    columns = parquet_columns(files[-1].path)
    place = len(files) - 1
    while place and parquet_columns(files[place - 1].path).equals(columns):
        place -= 1
    return list(files[place:])


def _concatenate(paths: Sequence[Path], target: BinaryIO) -> None:
    for path in paths:
        with path.open("rb") as source:
            shutil.copyfileobj(source, target, 1 << 20)
