"""The files sink: change batches appended as Parquet or JSON Lines under `<path>/<database>.<table>/`.

A part's rows of one table are one file, named after epoch and part: `e0000000042-s17.parquet`. It is written under a
hidden name in the same folder, made durable and renamed, so that a reader sees a whole file or none, and a replay
replaces a file by its equal. When all files of a part stand, a mark in `<path>/_tidemark/<job uuid>/` says so: the
ledger. Names that start with a dot or an underscore are not data to Spark, Hive or Arrow.
"""

import contextlib
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from sinks.files_part import FilesPart, Format
from sinks.parts import Part, check_repeated_part, parts_of
from sinks.sink import Finding, JobIdentity, PartResult, Schemas, raise_problems
from state.change_batch import ChangeBatch, PartItem, meta_fields
from state.errors import JobFileError, SinkError
from state.store import CheckpointStore
from state.table import TableId, TableSchema

LEDGER_FOLDER = "_tidemark"
OWNER_FILE = "_tidemark.json"
TEMPORARY = re.compile(r"\..+\.tmp")
_PART_NAME = re.compile(r"[a-z][a-z0-9]*")
_MARK = re.compile(r"e(\d+)-[a-z][a-z0-9]*\.json")


def scheme_of(path: str) -> str:
    """Of a URI; empty for a plain path."""
    return urlsplit(path).scheme if "/" in path and ":" in path.partition("/")[0] else ""


def local_folder(path: str) -> Path:
    """The folder behind a job file's `path`: a plain path or a `file:` URI. Raises JobFileError for other schemes."""
    scheme = scheme_of(path)
    if not scheme:
        return Path(os.path.abspath(path))
    if scheme != "file":
        raise JobFileError(
            f"sink.path: {scheme}:// is not supported yet.",
            "Give a folder on a filesystem that the driver and all executors share.",
        )
    parts = urlsplit(path)
    if parts.netloc not in {"", "localhost"}:
        raise JobFileError(f"sink.path: {path} names a host.", "Write file:///folder with three slashes.")
    return Path(os.path.abspath(unquote(parts.path)))


def unwritable(root: Path) -> Iterator[Finding]:
    """A problem where neither `root` nor, before it is there, what it would be made in can be written to."""
    anchor = next(folder for folder in (root, *root.parents) if folder.exists())
    if not anchor.is_dir() or not os.access(anchor, os.W_OK | os.X_OK):
        yield Finding(None, f"{anchor} can't be written to.", "Give the job's user that right, or another sink.path.")


def table_folder_name(table: TableId) -> str:
    """`database.table`, with what would hide, part or confuse the two names percent-encoded."""
    return f"{_folder_safe(table.database)}.{_folder_safe(table.name)}"


def _folder_safe(name: str) -> str:
    safe = "".join(
        character if character.isalnum() or character in "_-$ " else quote(character, safe="").replace(".", "%2E")
        for character in name
    )
    return f"%{ord(safe[0]):02X}{safe[1:]}" if safe[:1] in {"_", " "} else safe


def part_file_name(epoch: int, part: str, extension: str) -> str:
    if not _PART_NAME.fullmatch(part):
        raise ValueError(f"not a part's name: {part!r}")
    return f"e{epoch:010d}-{part}.{extension}"


@dataclass(frozen=True, slots=True)
class FilesSink:
    """Executors must see the same folder as the driver."""

    root: Path
    format: Format = "parquet"
    published: CheckpointStore | None = None
    """Where the splits' files are that it may be given, in its own format."""

    @classmethod
    def of(cls, path: str, file_format: Format, published: CheckpointStore | None = None) -> "FilesSink":
        """`path` as in the job file, absolute. Raises JobFileError for a scheme that is not supported yet."""
        return cls(local_folder(path), file_format, published)

    def check(self, schemas: Sequence[TableSchema], job: JobIdentity | None = None) -> list[Finding]:
        root = self.root
        findings = [finding for schema in schemas for finding in self._check_table(root, schema, job)]
        return [*findings, *unwritable(root)]

    def _check_table(self, root: Path, schema: TableSchema, job: JobIdentity | None) -> Iterator[Finding]:
        taken = {field.name for field in meta_fields(schema)}.intersection(column.name for column in schema.captured)
        if taken:
            names = ", ".join(sorted(taken))
            yield Finding(
                schema.table,
                f"Its column {names} has the name of a column that the files sink adds.",
                "Exclude that column (source.columns).",
            )
        folder = root / table_folder_name(schema.table)
        if not folder.exists():
            yield Finding(schema.table, f"will be written to the new folder {folder}")
            return
        owner = _owner(folder)
        if owner is None:
            if any(not name.startswith((".", "_")) for name in os.listdir(folder)):
                yield Finding(
                    schema.table,
                    f"{folder} holds files that no job wrote.",
                    "Empty that folder, or set another sink.path.",
                )
        elif job is None or owner.uuid != job.uuid:
            this = "this one has not started yet" if job is None else f"this is {job.name} ({job.uuid})"
            yield Finding(
                schema.table,
                f"{folder} belongs to job {owner.name} ({owner.uuid}); {this}.",
                "Set another sink.path; or, to begin anew, delete that folder.",
            )

    def prepare(self, job: JobIdentity, schemas: Sequence[TableSchema]) -> None:
        raise_problems(self.check(schemas, job))
        root = self.root
        try:
            self._marks(job).mkdir(parents=True, exist_ok=True)
            for schema in schemas:
                folder = root / table_folder_name(schema.table)
                folder.mkdir(exist_ok=True)
                _take(folder, job)
                for name in os.listdir(folder):
                    if TEMPORARY.fullmatch(name):
                        (folder / name).unlink(missing_ok=True)
        except OSError as exc:
            raise SinkError(
                f"{root} can't be prepared: {exc}.", "Give the job's user the right to write there."
            ) from exc

    def writer(self, job: JobIdentity) -> "FilesWriter":
        return FilesWriter(self, self._marks(job))

    def committed_before(self, job: JobIdentity, epoch: int) -> None:
        marks = self._marks(job)
        for name in os.listdir(marks) if marks.is_dir() else []:
            match = _MARK.fullmatch(name)
            if match is not None and int(match[1]) < epoch:
                (marks / name).unlink(missing_ok=True)

    def _marks(self, job: JobIdentity) -> Path:
        return self.root / LEDGER_FOLDER / job.uuid


@dataclass(frozen=True, slots=True)
class FilesWriter:
    sink: FilesSink
    marks: Path

    def write(self, items: Iterable[PartItem], schemas: Schemas) -> Iterator[PartResult]:
        for part in parts_of(items):
            yield self._write_part(part, schemas)

    def _write_part(self, part: Part, schemas: Schemas) -> PartResult:
        mark = self.marks / part_file_name(part.epoch, part.name, "json")
        recorded = self._recorded(part, mark)
        if recorded is None:
            file_name = part_file_name(part.epoch, part.name, self.sink.format)
            with FilesPart(self.sink.root, file_name, self.sink.format) as files:
                for item in part.content():
                    folder = self.sink.root / table_folder_name(item.table)
                    with self._storing(part):
                        if isinstance(item, ChangeBatch):
                            files.add(folder, schemas[item.table, item.schema_version], item.rows)
                        else:
                            assert self.sink.published is not None, "given files without their store"
                            files.take(folder, self.sink.published, item.name)
                recorded = self._recorded(part, mark)  # another attempt may have been faster
                if recorded is None:
                    with self._storing(part):
                        files.publish()
                        _write_whole(mark, {"row_count": part.row_count})
                    return PartResult(part.epoch, part.name, part.row_count, skipped=False)
        part.read_to_end()
        check_repeated_part(part, recorded)
        return PartResult(part.epoch, part.name, part.row_count, skipped=True)

    def _recorded(self, part: Part, mark: Path) -> int | None:
        with self._storing(part):
            return _recorded_row_count(mark)

    @contextlib.contextmanager
    def _storing(self, part: Part) -> Iterator[None]:
        """Around what this sink does on its filesystem, and not around the reader's part of the work."""
        try:
            yield
        except OSError as exc:
            raise SinkError(
                f"{part} could not be written to {self.sink.root}: {exc}.",
                "Look after that filesystem (space, rights, quota) and start the job again.",
            ) from exc


def _recorded_row_count(mark: Path) -> int | None:
    try:
        return int(json.loads(mark.read_text())["row_count"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as exc:
        raise SinkError(f"{mark} is damaged.", "Restore it, or begin anew with another sink.path.") from exc


def _owner(folder: Path) -> JobIdentity | None:
    try:
        content = json.loads((folder / OWNER_FILE).read_text())
        return JobIdentity(content["job_uuid"], content["job"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as exc:
        raise SinkError(f"{folder / OWNER_FILE} is damaged.", "Restore it, or empty the folder to begin anew.") from exc


def _take(folder: Path, job: JobIdentity) -> None:
    if _owner(folder) is None:
        _write_whole(folder / OWNER_FILE, {"job": job.name, "job_uuid": job.uuid}, replace=False)
    owner = _owner(folder)
    if owner is None or owner.uuid != job.uuid:
        raise SinkError(f"{folder} was taken by another job just now.", "Set another sink.path.")


def _write_whole(path: Path, content: dict[str, Any], *, replace: bool = True) -> None:
    """Durable and never half there. Without `replace` an existing file wins."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("x") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(temporary, path)
        else:
            try:
                os.link(temporary, path)
            except FileExistsError:
                return
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames in it durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
