"""A Delta table's log in a local folder, read without Spark: only so far that any change of it is noticed.

github.com/delta-io/delta/blob/master/PROTOCOL.md describes the files. If the folder has anything that is not described here,
such as commits that a catalog coordinates, only Spark can tell the table's newest version.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tidemark.state.seen_copy import TableLog

_OF_VERSION = re.compile(r"\d{20}\.(json|crc|checkpoint\..+|\d{20}\.compacted\.json)")
_VERSION = re.compile(r"\d{20}")
_POINTERS = ("_last_checkpoint", "_last_vacuum_info")


def read_log(folder: Path | None) -> TableLog | None:
    """Returns the state of the log in `folder`. None if only Spark can tell it, or if there is none."""
    if folder is None:
        return None
    try:
        names = sorted(_names(folder))
        version = max((int(number) for name in names for number in _VERSION.findall(name)), default=None)
        if version is None or any(not (name in _POINTERS or _OF_VERSION.fullmatch(name)) for name in names):
            return None
        commit = _commit_file(folder, version).read_bytes()
    except OSError:  # Spark says what is wrong
        return None
    files = "\n".join(name for name in names if not name.endswith(".crc"))
    return TableLog(version, _digest(commit), _digest(files.encode()))


def log_after_commit(folder: Path | None, version: int, application: str, epoch: int) -> TableLog | None:
    """Returns the state of the log if the newest version is `version` and its commit wrote the application's epoch, and changed
    nothing but rows. None otherwise."""
    log = read_log(folder)
    if folder is None or log is None or log.version != version:
        return None
    try:
        content = _commit_file(folder, version).read_bytes()
        actions = list(map(json.loads, content.splitlines()))
    except (OSError, ValueError):  # somebody has replaced the file: the next start asks Spark
        return None
    has_epoch = any(
        (action["txn"]["appId"], action["txn"]["version"]) == (application, epoch)
        for action in actions
        if "txn" in action
    )
    is_same = _digest(content) == log.commit
    return log if is_same and has_epoch and not any(map(_changes_table, actions)) else None


def _changes_table(action: Mapping[str, Any]) -> bool:
    return bool(action.keys() & {"metaData", "protocol"})


def _names(folder: Path) -> Iterator[str]:
    """Yields the names without those of Hadoop's checksums and temporary files. Empty folders are no files."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and not (entry.is_dir() and not os.listdir(entry.path)):
                yield entry.name


def _commit_file(folder: Path, version: int) -> Path:
    return folder / f"{version:020d}.json"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
