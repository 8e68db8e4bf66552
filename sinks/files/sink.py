"""The files sink: change batches appended as Parquet or JSON Lines, in a folder of `sink.path` for each table.

A part's rows of one table are one file, named after epoch and part: `e0000000042-s17.parquet`. It is written in the driver's
staging folder, fsynced and renamed. So a reader sees a whole file or none, and a replay replaces a file by an equal one. When
all files of a part exist, an entry in `<path>/_tidemark/<job uuid>/` records the part (sinks/files/ledger.py). Files of log
changes may be merged later (sinks/files/merging.py).
Spark, Hive and Arrow ignore names that start with a dot or an underscore.
"""

import contextlib
import functools
import json
import os
import re
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from tidemark.conf.tables import FOLDER_TEMPLATE, TableName, TableTemplate
from tidemark.sinks.comparing import Comparisons, Key
from tidemark.sinks.files.ledger import FilesLedger, damaged, part_file_name, write_whole
from tidemark.sinks.files.merging import MERGED_FILES, merge_small_files, remove_merged
from tidemark.sinks.files.part import FilesPart, Format
from tidemark.sinks.parts import Part, check_repeated_part, parts_of
from tidemark.sinks.sink import (
    Finding,
    JobIdentity,
    PartResult,
    Schemas,
    Written,
    no_mark,
    raise_problems,
    reserved_name_findings,
)
from tidemark.state.change_batch import LOG_PART, ChangeBatch, PartItem
from tidemark.state.checkpoint.store import CheckpointStore
from tidemark.state.errors import JobFileError, LostCopyError, SinkError
from tidemark.state.integer_range import IntegerRange
from tidemark.state.remedies import ONE_NAME
from tidemark.state.table import TableId, TableSchema

_CHECK_FILESYSTEM = "Check that filesystem (space, permissions, quota), then start the job again."
_ANOTHER_PATH = "Set another sink.path, or delete that folder."
OWNER_FILE = "_tidemark.json"
MAX_NAME_BYTES = 255
TEMPORARY = re.compile(r"\..+\.tmp")


def scheme_of(path: str) -> str:
    """Returns a URI's scheme; "" for a plain path."""
    return urlsplit(path).scheme if "/" in path and ":" in path.partition("/")[0] else ""


def local_folder(path: str) -> Path:
    """Returns the folder of a job file's `path`, a plain path or a `file:` URI. Raises JobFileError for other schemes."""
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
    """Yields a problem if `root` can't be written to or, while it does not exist, can't be created."""
    anchor = next(folder for folder in (root, *root.parents) if folder.exists())
    if not anchor.is_dir() or not os.access(anchor, os.W_OK | os.X_OK):
        yield Finding(
            None, f"{anchor} can't be written to.", "Give the job's user write permission, or set another sink.path."
        )


def folder_problems(copies: TableTemplate, schemas: Sequence[TableSchema]) -> Iterator[Finding]:
    """Yields problems of the names of the tables' folders."""
    tables_of = defaultdict[str, list[TableId]](list)
    for table in (schema.table for schema in schemas):
        name = table_folder_name(table, copies)
        tables_of[name].append(table)
        if not _parts_of_name(table, copies)[-1]:
            text = f"sink.rename leaves nothing of the name of {table}."
            yield Finding(table, text, "Correct sink.rename.")
        elif len(name.encode()) > MAX_NAME_BYTES:
            text = f"The name of its folder would have {len(name.encode())} bytes, and may have {MAX_NAME_BYTES}."
            yield Finding(table, text, "Give it another name by sink.rename, or leave it out: source.exclude_tables.")
    for tables in tables_of.values():
        if len(tables) > 1:
            text = f"{' and '.join(sorted(map(str, tables)))} would be written into one folder."
            yield Finding(None, text, ONE_NAME)


def table_folder_name(table: TableId, copies: TableTemplate = FOLDER_TEMPLATE) -> str:
    """Returns `database.table`, or what the job file makes of it. Characters that would hide the folder or make the two names
    ambiguous are percent-encoded."""
    return ".".join(map(_folder_safe, _parts_of_name(table, copies)))


def _parts_of_name(table: TableId, copies: TableTemplate) -> list[str]:
    schema, name = copies.target(TableName(table.database, table.name))
    return [name] if schema is None else [schema, name]


def _folder_safe(name: str) -> str:
    safe = "".join(
        character if character.isalnum() or character in "_-$ " else quote(character, safe="").replace(".", "%2E")
        for character in name
    )
    return f"%{ord(safe[0]):02X}{safe[1:]}" if safe[:1] in {"_", " "} else safe


@dataclass(frozen=True, slots=True)
class FilesSink:
    """A `PartSink`. Executors must see the same folder as the driver."""

    root: Path
    format: Format = "parquet"
    published: CheckpointStore | None = None
    """The store of the splits' files that the writer may get, in the sink's format."""
    merge_small_files: bool = False
    copies: TableTemplate = FOLDER_TEMPLATE

    @classmethod
    def of(
        cls,
        path: str,
        file_format: Format,
        published: CheckpointStore | None = None,
        *,
        merge_small_files: bool = False,
        copies: TableTemplate = FOLDER_TEMPLATE,
    ) -> "FilesSink":
        """`path` is the job file's, absolute. Raises JobFileError for a scheme that is not supported yet."""
        return cls(local_folder(path), file_format, published, merge_small_files, copies)

    def folder(self, table: TableId) -> Path:
        return self.root / table_folder_name(table, self.copies)

    def check(
        self, schemas: Sequence[TableSchema], job: JobIdentity | None = None, written: Collection[TableId] = ()
    ) -> list[Finding]:
        findings = [finding for schema in schemas for finding in reserved_name_findings(schema)]
        names = list(folder_problems(self.copies, schemas))
        if not names:
            findings += [finding for schema in schemas for finding in self._check_table(schema, job, written)]
        return [*findings, *names, *unwritable(self.root)]

    def _check_table(
        self, schema: TableSchema, job: JobIdentity | None, written: Collection[TableId]
    ) -> Iterator[Finding]:
        folder = self.folder(schema.table)
        owner = _owner(folder) if folder.exists() else None
        if owner is None and schema.table in written:
            yield no_mark(schema.table, folder, "sink.path")
        elif not folder.exists():
            yield Finding(schema.table, f"will be written to the new folder {folder}")
        elif owner is None:
            if not folder.is_dir() or any(not name.startswith((".", "_")) for name in os.listdir(folder)):
                yield Finding(
                    schema.table,
                    f"{folder} has files that no job wrote.",
                    "Empty that folder, or set another sink.path.",
                )
        elif job is None or owner.uuid != job.uuid:
            this = "this one has not started yet" if job is None else f"this is {job.name} ({job.uuid})"
            yield Finding(
                schema.table,
                f"{folder} belongs to job {owner.name} ({owner.uuid}); {this}.",
                _ANOTHER_PATH,
            )
        elif (other := _table_of(folder)) not in {None, schema.table}:
            text = f"{folder} is the copy of another table of this job: {other}."
            yield Finding(schema.table, text, "Exclude this table (source.exclude_tables), or delete that folder.")

    def prepare(self, job: JobIdentity, schemas: Sequence[TableSchema], written: Collection[TableId] = ()) -> None:
        raise_problems(self.check(schemas, job, written), [schema.table for schema in schemas])
        root, ledger = self.root, FilesLedger.of(self.root, job)
        try:
            ledger.take_over()
            device = ledger.staging.stat().st_dev
            for schema in schemas:
                folder = self.folder(schema.table)
                folder.mkdir(exist_ok=True)
                if folder.stat().st_dev != device:
                    raise SinkError(
                        f"{folder} and {root} are on two filesystems: no file can be moved into it as a whole.",
                        "Let all of sink.path be on one filesystem.",
                    )
                _claim(folder, job, schema.table)
                for name in os.listdir(folder):
                    if TEMPORARY.fullmatch(name):
                        (folder / name).unlink(missing_ok=True)
                remove_merged(folder, ledger)
        except OSError as exc:
            if not isinstance(exc, NotADirectoryError):  # no driver does that
                ledger.require_owner()
            raise SinkError(f"{root} can't be prepared: {exc}.", _CHECK_FILESYSTEM) from exc

    def writer(self, job: JobIdentity) -> "FilesWriter":
        return FilesWriter(self, FilesLedger.of(self.root, job))

    def comparable(self, schema: TableSchema) -> AbstractContextManager[Comparisons]:
        """See `tidemark.sinks.comparing.ComparableSink`."""
        from tidemark.sinks.files.comparing import comparable_files

        return comparable_files(self.folder(schema.table), schema, self.format)

    def keys_within(self, schema: TableSchema, within: IntegerRange, limit: int) -> list[Key]:
        """See `tidemark.sinks.comparing.ComparableSink`."""
        from tidemark.sinks.files.comparing import keys_in_files

        return keys_in_files(self.folder(schema.table), schema, self.format, within, limit)

    def written(self, job: JobIdentity) -> Written:
        return FilesLedger.of(self.root, job).written()

    def lacks(self, job: JobIdentity, epoch: int) -> bool:
        """See `tidemark.sinks.sink.ProvesAbsence`. A driver may have died after it made files visible, and before it recorded
        them. Without the ledger nobody can tell."""
        ledger, name = FilesLedger.of(self.root, job), part_file_name(epoch, LOG_PART, self.format)
        if not ledger.folder.is_dir():
            return False
        try:
            ledger.take_over()
            is_visible = any((folder / name).exists() for folder in self._folders(job))
            return not is_visible and ledger.written().last_epoch < epoch
        except OSError as exc:
            ledger.require_owner()
            raise SinkError(f"{self.root} can't be read: {exc}.", _CHECK_FILESYSTEM) from exc

    def committed_before(self, job: JobIdentity, epoch: int) -> None:
        ledger = FilesLedger.of(self.root, job)
        try:
            before = ledger.forget_before(epoch)
            # A folder gets a file for an epoch at most: there is nothing to merge more often than that.
            if self.merge_small_files and epoch // MERGED_FILES > before // MERGED_FILES:
                for folder in self._folders(job):
                    merge_small_files(folder, ledger, epoch)
        except OSError as exc:
            ledger.require_owner()
            raise SinkError(f"{self.root} can't be written to: {exc}.", _CHECK_FILESYSTEM) from exc

    def _folders(self, job: JobIdentity) -> list[Path]:
        """The folders of the job's tables."""
        with os.scandir(self.root) as entries:
            folders = [Path(entry.path) for entry in entries if entry.is_dir() and entry.name[0] not in "._"]
        owners = ((folder, _owner(folder)) for folder in sorted(folders))
        return [folder for folder, owner in owners if owner is not None and owner.uuid == job.uuid]


@dataclass(frozen=True, slots=True)
class FilesWriter:
    """A `PartWriter`."""

    sink: FilesSink
    ledger: FilesLedger

    def write(self, items: Iterable[PartItem], schemas: Schemas) -> Iterator[PartResult]:
        for part in parts_of(items):
            yield self._write_part(part, schemas)

    def _write_part(self, part: Part, schemas: Schemas) -> PartResult:
        with self._storing(part):
            self.ledger.require_owner()
            recorded = self.ledger.recorded(part.epoch, part.name)
        if recorded is None:
            file_name = part_file_name(part.epoch, part.name, self.sink.format)
            staged = functools.partial(self.ledger.staged, part.epoch)
            tables = dict[Path, TableId]()
            with FilesPart(staged, file_name, self.sink.format) as files:
                for item in part.content():
                    folder = self.sink.folder(item.table)
                    tables[folder] = item.table
                    with self._storing(part):
                        if isinstance(item, ChangeBatch):
                            files.add(folder, schemas[item.table, item.schema_version], item.rows)
                        else:
                            assert self.sink.published is not None, "published files need their store"
                            files.add_file(folder, self.sink.published, item.name)
                with self._storing(part):
                    files.complete()
                    written = self.ledger.written()
                    recorded = self.ledger.recorded(part.epoch, part.name)  # another attempt may have finished first
                    if recorded is None:
                        self.ledger.require_next(part.epoch, part.name, part.after, written)
                        _require_folders({folder: tables[folder] for folder in files.folders})
                        files.publish()
                        self.ledger.record(part.epoch, part.name, part.row_count)
                if recorded is None:
                    return PartResult(part.epoch, part.name, part.row_count, skipped=False)
        part.read_to_end()
        check_repeated_part(part, recorded)
        return PartResult(part.epoch, part.name, part.row_count, skipped=True)

    @contextlib.contextmanager
    def _storing(self, part: Part) -> Iterator[None]:
        """Turns errors of the sink's filesystem into SinkErrors. Errors of the reader must not be raised inside."""
        try:
            yield
        except OSError as exc:
            self.ledger.require_owner()
            if isinstance(exc, FileNotFoundError):  # the driver has removed what late writers left
                self.ledger.require_next(part.epoch, part.name, None, self.ledger.written())
            raise SinkError(
                f"{part} could not be written to {self.sink.root}: {exc}.",
                _CHECK_FILESYSTEM,
            ) from exc


def _require_folders(tables: Mapping[Path, TableId]) -> None:
    """Raises LostCopyError if somebody has removed the folder of a table, before any file is visible. It is an error of this
    table alone, unless all of `tables` have lost theirs."""
    gone = [folder for folder in tables if not folder.is_dir()]
    if gone:
        table = tables[gone[0]]
        lost = no_mark(table, gone[0], "sink.path")
        is_alone = len(tables) == 1 or len(gone) < len(tables)
        raise LostCopyError(f"{table}: {lost.text}", str(lost.remedy), table if is_alone else None)


def _owner(folder: Path) -> JobIdentity | None:
    try:
        content = _mark(folder)
        return None if content is None else JobIdentity(content["job_uuid"], content["job"])
    except KeyError as exc:
        raise damaged(folder / OWNER_FILE) from exc


def _table_of(folder: Path) -> TableId | None:
    """Returns the table whose copy a job's folder is. None if an earlier version, which had only names that tell it, has
    claimed it."""
    content = _mark(folder)
    return None if content is None or "table" not in content else TableId(*content["table"])


def _mark(folder: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads((folder / OWNER_FILE).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as exc:
        raise damaged(folder / OWNER_FILE) from exc
    return content


def _claim(folder: Path, job: JobIdentity, table: TableId) -> None:
    if _owner(folder) is None:
        path = folder / OWNER_FILE
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        mark = {"job": job.name, "job_uuid": job.uuid, "table": [table.database, table.name]}
        write_whole(path, mark, temporary, replace=False)
    owner = _owner(folder)
    if owner is None or owner.uuid != job.uuid:
        raise SinkError(f"{folder} was claimed by another job just now.", _ANOTHER_PATH)
    if (other := _table_of(folder)) not in {None, table}:
        raise SinkError(
            f"{folder} is the folder of {other}, too: the filesystem takes the names of both for one.",
            ONE_NAME,
            table,
        )
