"""A filesystem without space: what was begun is removed, and the error says what to do."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.change_parts import ORDERS, snapshot_part
from tidemark.sinks.files.part import FilesPart
from tidemark.state.change_batch import ChangeBatch
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import CheckpointError


def test_files_that_can_t_be_written_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = snapshot_part(1, 1, ORDERS, [(1, "Ada", None, 0, None)])
    rows = next(item.rows for item in items if isinstance(item, ChangeBatch))
    staged = [tmp_path / "first", tmp_path / "second"]
    names, make = iter(staged), Path.open

    def full(path: Path, *arguments: Any, **more: Any) -> Any:
        make(path, *arguments, **more).close()
        return open("/dev/full", "wb")

    def write() -> None:
        with FilesPart(lambda: next(names), "e1", "parquet") as part:
            for folder in ("one", "two"):
                part.add(tmp_path / folder, ORDERS, rows)
            part.complete()

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write()
    assert "complete" in [entry.name for entry in caught.traceback]  # it is not that of closing the file once more
    assert not any(path.exists() for path in staged)


def test_a_checkpoint_on_a_full_filesystem_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left") as caught:
        LocalStore(str(tmp_path)).create("job", b"1")
    assert "Make room" in caught.value.remedy
    assert not list(tmp_path.iterdir())
