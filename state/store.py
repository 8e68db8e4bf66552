"""Where the checkpoint's files stand: small named blobs on storage that the driver and all executors share.

The one operation that carries the design is `create`: atomic create-if-absent. Whoever loses the race reads the
winner's file.
"""

import contextlib
import errno
import os
import shutil
import stat
import uuid
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from state.errors import CheckpointError, JobFileError

_DEFAULT_RIGHTS = "system.posix_acl_default"


class CheckpointStore(Protocol):
    """Names are relative paths with `/`. Implementations pickle, for they travel to executors."""

    def create(self, name: str, data: pa.Buffer | bytes) -> bool:
        """Writes `data` durably under `name` unless it exists. True if this call created it. Never half visible."""

    def read(self, name: str) -> pa.Buffer | None:
        """The content, or None where nothing has that name."""

    def copy_to(self, name: str, target: Path) -> bool:
        """Makes the content of `name` the new file `target`, durable but for the folder's entry. False where nothing has
        that name. Raises OSError."""

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

    def copy_to(self, name: str, target: Path) -> bool:
        """Without copying, where a hard link would be the same file to everybody."""
        source = Path(self.root, name)
        try:
            with source.open("rb") as content:
                if not _link(content.fileno(), source, target):
                    _copy(content, target)
        except FileNotFoundError:
            if source.exists():
                raise
            return False
        return True

    def list(self, prefix: str) -> list[str]:
        try:
            names = os.listdir(Path(self.root, prefix))
        except FileNotFoundError:
            return []
        return sorted(f"{prefix}/{name}" for name in names if not name.startswith("."))

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            Path(self.root, name).unlink()


def _copy(content: IO[bytes], target: Path) -> None:
    with target.open("xb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())


def _link(descriptor: int, source: Path, target: Path) -> bool:
    """Not where another filesystem, or a file made there anew would have another group or other rights."""
    file, folder = os.fstat(descriptor), target.parent.stat()
    group = folder.st_gid if folder.st_mode & stat.S_ISGID else os.getegid()
    if file.st_gid != group or _has_default_rights(target.parent) or _has_default_rights(source.parent):
        return False
    try:
        os.link(source, target)
    except OSError as exc:
        if exc.errno not in {errno.EXDEV, errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EMLINK}:
            raise
        return False
    return True


def _has_default_rights(folder: Path) -> bool:
    try:
        return _DEFAULT_RIGHTS in os.listxattr(folder)
    except (AttributeError, OSError):  # a system or filesystem without them
        return False


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_store(url: str) -> CheckpointStore:
    """The store behind a job file's `checkpoint`. Raises JobFileError for storage where `create` can't be atomic."""
    parts = urlsplit(url)
    match parts.scheme:
        case "" | "file":
            return LocalStore(os.path.abspath(unquote(parts.path) if parts.scheme else url))
        case "s3" | "s3a":
            from state.object_store import S3Store  # most jobs need no fsspec

            return S3Store(url)
    raise JobFileError(
        f"checkpoint: {parts.scheme}:// can't hold it: Tidemark knows no way to create a file there only where none is, "
        "in one step that other executors can't cut in on.",
        "Give a path on a filesystem that the driver and all executors share, or s3a://bucket/folder.",
    )


def require_create_if_absent(store: CheckpointStore) -> None:
    """Tries it: some servers of S3's protocol do not know conditional puts, and overwrite. Raises CheckpointError."""
    name = f"probe-{uuid.uuid4()}"
    try:
        if not store.create(name, b"first") or store.create(name, b"second") or store.read(name) != b"first":
            raise CheckpointError(
                "The checkpoint's storage writes over a file that it was asked to create only where none is.",
                "Put `checkpoint` on storage with conditional puts (If-None-Match), or on a POSIX filesystem.",
            )
    finally:
        store.delete(name)
