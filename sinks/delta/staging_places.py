"""Where tasks put staged files so that Spark can read them: in a folder, or in the bucket that has the checkpoint.

In a bucket, a file is written in memory and put there whole, as the checkpoint's own files are. Nothing of it is on a disk.
"""

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from tidemark.sinks.sink import JobIdentity
from tidemark.state.checkpoint.layout import FOR_SPARK_FOLDER
from tidemark.state.checkpoint.store import CheckpointStore, LocalStore, needing_room
from tidemark.state.errors import CheckpointError

if TYPE_CHECKING:  # most jobs need no fsspec
    from tidemark.state.checkpoint.object_store import S3Store

OBJECT_BYTES = 64 << 20
"""The size that ends a file of a bucket. The rows that come after it get another one."""


class NewFile(Protocol):
    """A file that is being written. `target`: what pyarrow writes to."""

    @property
    def target(self) -> Any: ...
    @property
    def is_full(self) -> bool: ...

    def keep(self) -> str:
        """Makes the written file visible to Spark. Returns the path by which Spark reads it."""


class StagingPlace(Protocol):
    """The place for the files of one attempt at an epoch. Pickled with the tasks. `scratch`: the folder for temporary files,
    None for the system's."""

    @property
    def scratch(self) -> str | None: ...
    @property
    def takes_files(self) -> bool:
        """Whether Spark reads published files of the checkpoint."""

    def new_file(self) -> NewFile: ...

    def published(self, name: str) -> str:
        """Returns the path by which Spark reads a published file of the checkpoint."""


@dataclass(frozen=True, slots=True)
class FolderPlace:
    """A folder. `checkpoint`: the one of the checkpoint, None if that is not in a folder."""

    folder: str
    checkpoint: str | None

    @property
    def scratch(self) -> str | None:
        return self.folder

    @property
    def takes_files(self) -> bool:
        return self.checkpoint is not None

    def new_file(self) -> NewFile:
        return _FileInFolder(f"{self.folder}/{uuid.uuid4().hex}.parquet")

    def published(self, name: str) -> str:
        assert self.checkpoint is not None, "no published files come"
        return str(Path(self.checkpoint, name))


@dataclass(frozen=True, slots=True)
class _FileInFolder:
    target: str

    @property
    def is_full(self) -> bool:
        return False

    def keep(self) -> str:
        return self.target


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A folder of the checkpoint in a bucket."""

    store: "S3Store"
    folder: str

    @property
    def scratch(self) -> str | None:
        """Returns the folder in which Spark's executor keeps temporary files itself."""
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
        return folder if os.path.isdir(folder) else None

    @property
    def takes_files(self) -> bool:
        return True

    def new_file(self) -> NewFile:
        return _FileInBucket(self.store, f"{self.folder}/{uuid.uuid4().hex}.parquet", pa.BufferOutputStream())

    def published(self, name: str) -> str:
        return f"{spark_url(self.store)}/{name}"


@dataclass(frozen=True, slots=True)
class _FileInBucket:
    store: "S3Store"
    name: str
    target: pa.BufferOutputStream

    @property
    def is_full(self) -> bool:
        return bool(self.target.tell() >= OBJECT_BYTES)

    def keep(self) -> str:
        self.store.create(self.name, self.target.getvalue())
        return f"{spark_url(self.store)}/{self.name}"


def spark_url(store: "S3Store") -> str:
    """Returns the checkpoint's URL for Hadoop, whose filesystem of S3 is s3a://."""
    return f"s3a://{store.url.partition('://')[2].strip('/')}"


@contextmanager
def staging_folder(store: CheckpointStore, job: JobIdentity, *, is_local: bool) -> Iterator[FolderPlace]:
    """Makes a folder for one attempt at an epoch, and removes it at the end: in the checkpoint, which may hold the rows anyway,
    or in the folder for temporary files if the checkpoint is on an object store.

    Nobody else may look into it. Executors of a cluster may run as another user, so there it has the rights of the
    checkpoint's other folders."""
    if not isinstance(store, LocalStore):
        folder, checkpoint = Path(tempfile.mkdtemp(prefix=_temporary_prefix(job))), None  # mode 700
    else:
        checkpoint = os.path.abspath(store.root)
        parent = Path(checkpoint, FOR_SPARK_FOLDER)
        folder = parent / uuid.uuid4().hex
        with needing_room(store.root):
            parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(0o700 if is_local else 0o777)
    try:
        yield FolderPlace(str(folder), checkpoint)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a task that Spark has given up may still write there


@contextmanager
def staging_objects(store: "S3Store", driver: str) -> Iterator[BucketPlace]:
    """Gives a place in the bucket for one attempt at an epoch, and empties it at the end. `driver`: a name for the places of
    one driver, whose attempts follow one another. What a task of an earlier attempt has put there late goes, too."""
    folder = f"{FOR_SPARK_FOLDER}/{driver}"
    try:
        yield BucketPlace(store, folder)
    finally:
        with contextlib.suppress(CheckpointError):  # the next attempt does it, or the next driver
            _remove_objects(store, folder)


def remove_staged(store: CheckpointStore, job: JobIdentity) -> None:
    """Removes what drivers before this one were staging when they were killed. The caller holds the job."""
    if isinstance(store, LocalStore):
        found = Path(store.root, FOR_SPARK_FOLDER).glob("*")
    else:
        for folder in store.list(FOR_SPARK_FOLDER):
            _remove_objects(store, folder)
        found = Path(tempfile.gettempdir()).glob(f"{_temporary_prefix(job)}*")
    for path in found:
        shutil.rmtree(path, ignore_errors=True)


def _remove_objects(store: CheckpointStore, folder: str) -> None:
    for name in store.list(folder):
        store.delete(name)


def _temporary_prefix(job: JobIdentity) -> str:
    return f"tidemark-{job.uuid}-"
