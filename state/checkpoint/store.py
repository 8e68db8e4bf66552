"""Stores for the checkpoint's files: named blobs on storage that the driver and all executors share.

Everything depends on `create`, an atomic create-if-absent. If two processes create the same file, one of them wins, and
the other reads the winner's file.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from tidemark.state.errors import CheckpointError, JobFileError

_DEFAULT_RIGHTS = "system.posix_acl_default"

_BUCKET_AND_FOLDER = re.compile(r"s3a?://(arn:[\w:-]+|[\w.-]+)(/[^/]+)*/?")
"""The form of a URL. In another form, the bucket lists its objects under other names than the store gives them."""


LEFTOVER_SECONDS = 3600.0
"""The least age of a file that counts as left by a killed process."""
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")


class CheckpointStore(Protocol):
    """Names are relative paths with `/`. Implementations must pickle: executors get them."""

    def create(self, name: str, data: pa.Buffer | bytes) -> bool:
        """Writes `data` durably under `name` unless it exists. Returns whether this call created it. Never visible in part."""

    def read(self, name: str) -> pa.Buffer | None:
        """Returns the content, or None if there is no such file."""

    def read_end(self, name: str, byte_count: int) -> pa.Buffer | None:
        """Returns the last `byte_count` bytes of the content, or all if it has fewer, or None if there is no such file. Only
        these are fetched."""

    def exists(self, name: str) -> bool:
        """Whether there is such a file. Its content is not fetched."""

    def copy_to(self, name: str, target: Path) -> bool:
        """Copies `name` to the new local file `target`, durably except for its directory entry. Returns False if there is no
        such file. Raises OSError."""

    def list(self, prefix: str) -> list[str]:
        """Returns the names directly in the folder `prefix`, sorted; [] if there is no such folder."""

    def delete(self, name: str) -> None:
        """Removes `name`. No error if it does not exist."""


class LocalStore:
    """A folder of a local or shared POSIX filesystem (NFS included: link(2) is atomic there)."""

    def __init__(self, root: str) -> None:
        self.root = root

    def __reduce__(self) -> tuple[type["LocalStore"], tuple[str]]:
        return (LocalStore, (self.root,))

    def create(self, name: str, data: pa.Buffer | bytes) -> bool:
        with needing_room(self.root):
            return self._created(name, data)

    def _created(self, name: str, data: pa.Buffer | bytes) -> bool:
        target = Path(self.root, name)
        _make_folder(target.parent)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        created = False
        try:
            with temporary.open("xb") as file, contextlib.suppress(FileExistsError):
                with contextlib.suppress(OSError):  # a filesystem without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                self._link(temporary, target)
                created = True
            _sync_folder(target.parent)  # of another creator, too: it may have been killed before it did so
            return created
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()

    def _link(self, temporary: Path, target: Path) -> None:
        try:
            os.link(temporary, target)
        except OSError as exc:
            if exc.errno in {errno.EPERM, errno.ENOTSUP, errno.EMLINK}:
                raise CheckpointError(
                    f"{self.root} has no hard links, so creating a file there is not atomic.",
                    "Put `checkpoint` on a POSIX filesystem.",
                ) from exc
            raise

    def remove_leftovers(self) -> None:
        """Removes files that processes were writing when they were killed. A living process has its file locked, also while it
        is frozen. Files of the last LEFTOVER_SECONDS stay: the locks of other machines may not be seen here."""
        root = Path(self.root)
        folders = [root, *(path for path in root.glob("*") if path.is_dir())]
        for path in (path for folder in folders for path in folder.glob(".*.tmp") if _TEMPORARY.fullmatch(path.name)):
            with contextlib.suppress(OSError):  # it is locked, or its writer has removed it
                if time.time() - path.stat().st_mtime < LEFTOVER_SECONDS:
                    continue
                with path.open("r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()

    def read(self, name: str) -> pa.Buffer | None:
        try:
            with pa.memory_map(str(Path(self.root, name)), "r") as file:
                return file.read_buffer()
        except FileNotFoundError:
            return None

    def read_end(self, name: str, byte_count: int) -> pa.Buffer | None:
        data = self.read(name)
        return None if data is None else data.slice(max(0, data.size - byte_count))

    def exists(self, name: str) -> bool:
        try:
            Path(self.root, name).stat()  # Path.exists takes any error for a file that is not there
        except FileNotFoundError:
            return False
        return True

    def copy_to(self, name: str, target: Path) -> bool:
        """Links instead of copying if a hard link has the same owner and rights as a copy."""
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


@contextlib.contextmanager
def needing_room(root: str) -> Iterator[None]:
    """Raises CheckpointError for a filesystem that is full, or a quota that is. `root`: the folder that is written."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise
        raise CheckpointError(
            f"The checkpoint {root} can't be written: {exc.strerror}.",
            "Make room there, then run the job again: it continues.",
        ) from exc


def _copy(content: IO[bytes], target: Path) -> None:
    with target.open("xb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())


def _link(descriptor: int, source: Path, target: Path) -> bool:
    """Makes a hard link. Returns False on another filesystem, or if a new file there would have another group or rights."""
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
    except (AttributeError, OSError):  # a system or filesystem that has none
        return False


def _make_folder(folder: Path) -> None:
    """Creates the folder durably, with those above it."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_store(url: str) -> CheckpointStore:
    """Returns the store for a job file's `checkpoint`. Raises JobFileError for storage where `create` can't be atomic, and
    for a URL of S3 that names no bucket."""
    parts = urlsplit(url)
    match parts.scheme:
        case "" | "file":
            return LocalStore(os.path.abspath(unquote(parts.path) if parts.scheme else url))
        case "s3" | "s3a":
            from tidemark.state.checkpoint.object_store import S3Store  # most jobs need no fsspec

            if not _BUCKET_AND_FOLDER.fullmatch(url):
                raise JobFileError(f"checkpoint: {url} is not a folder of a bucket.", "Write s3a://bucket/folder.")
            return S3Store(url)
    raise JobFileError(
        f"checkpoint: {parts.scheme}:// is not supported: Tidemark can't create a file there atomically and only if it does "
        "not exist yet.",
        "Give a path on a filesystem that the driver and all executors share, or s3a://bucket/folder.",
    )


def require_writable_folder(store: CheckpointStore) -> None:
    """Raises CheckpointError if the store is a folder that can't be written to, or created. Writes nothing."""
    if not isinstance(store, LocalStore):
        return
    root = Path(store.root)
    anchor = next(folder for folder in (root, *root.parents) if folder.exists())
    if not anchor.is_dir() or not os.access(anchor, os.W_OK | os.X_OK):
        raise CheckpointError(
            f"The checkpoint {store.root} can't be written: {anchor} is {'read-only' if anchor.is_dir() else 'no folder'}.",
            "Give the job's user write permission, or name another folder as `checkpoint`.",
        )


def remove_leftovers(store: CheckpointStore) -> None:
    """Removes files that processes were writing when they were killed. An object storage has none."""
    if isinstance(store, LocalStore):
        store.remove_leftovers()


def require_create_if_absent(store: CheckpointStore) -> None:
    """Tests `create`: some S3-compatible servers ignore the condition and overwrite. Raises CheckpointError."""
    name = f"probe-{uuid.uuid4()}"
    try:
        if not store.create(name, b"first") or store.create(name, b"second") or store.read(name) != b"first":
            raise CheckpointError(
                "The checkpoint's storage overwrote a file that it was asked to create only if there is none.",
                "Put `checkpoint` on storage with conditional puts (If-None-Match), or on a POSIX filesystem.",
            )
    finally:
        store.delete(name)
