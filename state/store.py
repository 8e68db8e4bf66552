"""Where the checkpoint's files stand: small named blobs on storage that the driver and all executors share.

The one operation that carries the design is `create`: atomic create-if-absent. Whoever loses the race reads the
winner's file.
"""

import contextlib
import errno
import os
import uuid
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from state.errors import CheckpointError, JobFileError


class CheckpointStore(Protocol):
    """Names are relative paths with `/`. Implementations pickle, for they travel to executors."""

    def create(self, name: str, data: pa.Buffer | bytes) -> bool:
        """Writes `data` durably under `name` unless it exists. True if this call created it. Never half visible."""

    def read(self, name: str) -> pa.Buffer | None:
        """The content, or None where nothing has that name."""

    def list(self, prefix: str) -> list[str]:
        """Names directly inside the folder `prefix`, sorted; [] where there is no such folder."""

    def delete(self, name: str) -> None:
        """Removes `name`; no error where it is already gone."""


class LocalStore:
    """A folder of a local or shared POSIX filesystem (NFS included: link(2) is atomic there)."""

    def __init__(self, root: str) -> None:
        self.root = root

    def __reduce__(self) -> tuple[type["LocalStore"], tuple[str]]:
        return (LocalStore, (self.root,))

    def create(self, name: str, data: pa.Buffer | bytes) -> bool:
        target = Path(self.root, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
            except OSError as exc:
                if exc.errno in {errno.EPERM, errno.ENOTSUP, errno.EMLINK}:
                    raise CheckpointError(
                        f"{self.root} has no hard links, so that creating a file there is not atomic.",
                        "Put `checkpoint` on a POSIX filesystem.",
                    ) from exc
                raise
            _sync_folder(target.parent)
            return True
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()

    def read(self, name: str) -> pa.Buffer | None:
        try:
            with pa.memory_map(str(Path(self.root, name)), "r") as file:
                return file.read_buffer()
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> list[str]:
        try:
            names = os.listdir(Path(self.root, prefix))
        except FileNotFoundError:
            return []
        return sorted(f"{prefix}/{name}" for name in names if not name.startswith("."))

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            Path(self.root, name).unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_store(url: str) -> CheckpointStore:
    """The store behind a job file's `checkpoint`: a path or `file://` URL. Raises JobFileError for another scheme."""
    parts = urlsplit(url)
    if parts.scheme in {"", "file"}:
        return LocalStore(os.path.abspath(unquote(parts.path) if parts.scheme else url))
    raise JobFileError(
        f"checkpoint: {parts.scheme}:// is not supported yet.",
        "Give a path on a filesystem that the driver and all executors share.",
    )
