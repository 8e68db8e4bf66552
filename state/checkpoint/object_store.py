"""The checkpoint's files as objects of an S3 bucket, through fsspec and s3fs (`pip install tidemark-cdc[s3]`).

Account, region and endpoint come from the usual settings of S3 tools (AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_ENDPOINT_URL,
the machine's role), on the driver and on every executor.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa

from tidemark.state.errors import CheckpointError, JobFileError

SINGLE_PUT_BYTES = 5 << 30
MAX_CONFLICTS = 8
_EXISTS, _CONFLICT = 412, 409


class S3Store:
    """A folder of a bucket; `url` is `s3://bucket/folder` or `s3a://…`. `create` is a conditional put (If-None-Match: *): the
    server decides who was first. Raises CheckpointError if the server can't be reached or fails."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._folder = url.partition("://")[2].strip("/")

    def __reduce__(self) -> tuple[type["S3Store"], tuple[str]]:
        return (S3Store, (self.url,))

    def create(self, name: str, data: pa.Buffer | bytes) -> bool:
        writer = uuid.uuid4().hex
        body = bytes(data)
        with self._explained():
            for conflicts in range(MAX_CONFLICTS):
                try:
                    self._files.pipe_file(
                        self._path(name), body, mode="create", chunksize=SINGLE_PUT_BYTES, Metadata={"writer": writer}
                    )
                except OSError as error:
                    status = _status(error)
                    if status == _EXISTS:  # it may be our own: a put is sent again if its answer was lost
                        return self._writer_of(name) == writer
                    if status != _CONFLICT or conflicts == MAX_CONFLICTS - 1:
                        raise
                    time.sleep(0.05 * 2**conflicts)
                else:
                    return True
        raise AssertionError("unreachable")

    def read(self, name: str) -> pa.Buffer | None:
        with self._explained():
            try:
                return pa.py_buffer(self._files.cat_file(self._path(name)))
            except FileNotFoundError as error:
                if _lacks_bucket(error):
                    raise
                return None

    def read_end(self, name: str, byte_count: int) -> pa.Buffer | None:
        with self._explained():
            try:
                size = int(self._files.info(self._path(name))["size"])
                part = self._files.cat_file(self._path(name), start=max(0, size - byte_count), end=size)
            except FileNotFoundError:
                return None
        return pa.py_buffer(part)

    @contextmanager
    def opened(self, name: str) -> Iterator[Any]:
        """Opens a file for reading. Only what is read is fetched. Raises FileNotFoundError. The reader's errors are its own."""
        with self._explained():
            try:
                file = self._files.open(self._path(name), "rb", cache_type="none")
            except FileNotFoundError:
                file = None
        if file is None:
            raise FileNotFoundError(name)
        with file:
            yield _Reading(file, self._explained)

    def exists(self, name: str) -> bool:
        with self._explained():
            bucket, key, _ = self._files.split_path(self._path(name))
            try:
                self._files.call_s3("head_object", Bucket=bucket, Key=key)
            except FileNotFoundError:
                return False
        return True

    def copy_to(self, name: str, target: Path) -> bool:
        data = self.read(name)
        if data is None:
            return False
        with target.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return True

    def list(self, prefix: str) -> list[str]:
        """One request for each thousand names. s3fs would list the folder above an empty one, too."""
        names: set[str] = set()
        with self._explained():
            bucket, folder, _ = self._files.split_path(self._path(prefix))
            asked = {"Bucket": bucket, "Prefix": f"{folder}/", "Delimiter": "/"}
            while True:
                page = self._files.call_s3("list_objects_v2", **asked)
                paths = [entry["Key"] for entry in page.get("Contents", ())]
                paths += [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
                names.update(path.removeprefix(f"{folder}/").rstrip("/") for path in paths)
                if not page.get("IsTruncated"):
                    break
                asked["ContinuationToken"] = page["NextContinuationToken"]
        return sorted(f"{prefix}/{name}" for name in names if name and not name.startswith("."))

    def delete(self, name: str) -> None:
        with self._explained():
            self._files.rm_file(self._path(name))

    def _writer_of(self, name: str) -> str | None:
        try:
            writer: str | None = self._files.metadata(self._path(name)).get("writer")
        except FileNotFoundError:  # another writer's, which has been removed since
            return None
        return writer

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    @property
    def _files(self) -> Any:
        """The process's filesystem object, which fsspec caches. One that sends several requests at a time asks for each file's
        size before it reads it."""
        return fsspec.filesystem("s3", use_listings_cache=False, max_concurrency=1)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            from aiohttp import ClientError  # such as of an answer that was cut
            from botocore.exceptions import BotoCoreError

            yield
        except ImportError as exc:
            raise JobFileError(
                f"checkpoint: {self.url} needs packages that are not installed ({exc}).",
                "pip install 'tidemark-cdc[s3]', where the driver runs and in the executors' Python.",
            ) from exc
        except (OSError, BotoCoreError, ClientError) as exc:
            raise CheckpointError(
                f"{_what_failed(self.url, exc)}: {exc}.",
                "Check the bucket, and the account, region and endpoint in the environment of driver and executors.",
            ) from exc


class _Reading:
    """An open file whose requests are `explained`, and what its reader makes of the content is not."""

    def __init__(self, file: Any, explained: Callable[[], AbstractContextManager[None]]) -> None:
        self._file, self._explained = file, explained

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, byte_count: int = -1) -> bytes:
        with self._explained():
            content: bytes = self._file.read(byte_count)
        return content


def _what_failed(url: str, error: Exception) -> str:
    from botocore.exceptions import (
        EndpointConnectionError,
        HTTPClientError,
        NoCredentialsError,
        PartialCredentialsError,
    )

    match error:
        case FileNotFoundError():
            gone = "The bucket" if _lacks_bucket(error) else "A file"
            return f"{gone} of the checkpoint {url} does not exist there"
        case PermissionError():
            return f"The account may not use the checkpoint {url}"
        case NoCredentialsError() | PartialCredentialsError():
            return f"There is no account for the checkpoint {url}"
        case EndpointConnectionError() | HTTPClientError():
            return f"The checkpoint {url} can't be reached"
        case _:
            return f"The checkpoint {url} can't be used"


def _status(error: OSError) -> int | None:
    """Returns the server's HTTP status."""
    status: int | None = _answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


def _lacks_bucket(error: FileNotFoundError) -> bool:
    code: str | None = _answer(error).get("Error", {}).get("Code")
    return code == "NoSuchBucket"


def _answer(error: OSError) -> dict[str, Any]:
    """Returns the server's answer, which s3fs translates to the errors of a local filesystem."""
    answer: dict[str, Any] = getattr(error.__cause__, "response", {})
    return answer
