"""The ledger and the fence of the files sink: a folder `<path>/_tidemark/<job uuid>/`.

    e0000000042-s17.json   the part is written (its row count)
    done.json              what the entries of older epochs said, which are removed
    owner-0000000007/      the staging folder of driver 7, with the files that its writers have not published yet

Everything is first written into the driver's staging folder and takes effect by a rename from there. A driver that takes over
creates its own staging folder, then moves those of earlier drivers away and removes them. From then on no rename of theirs
succeeds, whenever they wake.

A late writer of the same driver is refused in two ways. `done.json` says which epochs are done, and a writer looks after its
files are complete. If it froze behind that, its files are gone: they are removed after `done.json` was written.
"""

import contextlib
import json
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tidemark.sinks.fencing import late, require_order, require_owner, taken_over
from tidemark.sinks.sink import JobIdentity, Written
from tidemark.state.change_batch import LOG_PART
from tidemark.state.errors import SinkError
from tidemark.state.reached import Reached
from tidemark.state.remedies import START_OVER

LEDGER_FOLDER = "_tidemark"
_PART_NAME = re.compile(r"[a-z][a-z0-9]*")
_ENTRY = re.compile(r"e(\d+)-([a-z][a-z0-9]*)\.json")
_STAGED = re.compile(r"e(\d+)-.*\.tmp")
_OWNER = re.compile(r"owner-(\d+)")
_DONE = "done.json"
_RETIRED = "retired-"


def part_file_name(epoch: int, part: str, extension: str) -> str:
    if not _PART_NAME.fullmatch(part):
        raise ValueError(f"not the name of a part: {part!r}")
    return f"e{epoch:010d}-{part}.{extension}"


@dataclass(frozen=True, slots=True)
class Done:
    """The target's parts of the epochs before `before`. The other fields are those of `Reached`."""

    before: int = 0
    log_epoch: int = 0
    splits: int = 0


@dataclass(frozen=True, slots=True)
class FilesLedger:
    """The ledger of one job, for one of its drivers. Methods raise OSError unless they say more."""

    folder: Path
    job: JobIdentity

    @classmethod
    def of(cls, root: Path, job: JobIdentity) -> "FilesLedger":
        return cls(root / LEDGER_FOLDER / job.uuid, job)

    @property
    def staging(self) -> Path:
        return self.folder / f"owner-{self.job.owner:010d}"

    def staged(self, epoch: int) -> Path:
        """The name of a new file of this epoch in the staging folder."""
        return self.staging / f"e{epoch:010d}-{uuid.uuid4().hex}.tmp"

    # Owners

    def take_over(self) -> None:
        """Makes the job's driver the owner. Raises JobHeldError if a later one is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.staging.mkdir(exist_ok=True)
        sync_folder(self.folder)
        # Every driver creates its folder before it lists those of others: of two, at least one sees the other.
        owners = self._owners()
        if (greatest := max(owners)) > self.job.owner:
            _remove(self.staging)
            raise taken_over(self.job, greatest, self.folder)
        for number, folder in owners.items():
            if number < self.job.owner:
                with contextlib.suppress(FileNotFoundError):  # another driver that takes over has moved it
                    os.rename(folder, self.folder / f"{_RETIRED}{uuid.uuid4().hex}")
        for name in os.listdir(self.folder):
            if name.startswith(_RETIRED):
                with contextlib.suppress(FileNotFoundError):
                    _remove(self.folder / name)
        sync_folder(self.folder)
        for name in os.listdir(self.staging):
            (self.staging / name).unlink(missing_ok=True)

    def require_owner(self) -> None:
        """Raises JobHeldError or SinkError unless the job's driver is the owner."""
        if not self.staging.exists():
            require_owner(self.job, max(self._owners(), default=None), self.folder)

    def _owners(self) -> dict[int, Path]:
        matches = [_OWNER.fullmatch(name) for name in (os.listdir(self.folder) if self.folder.is_dir() else [])]
        return {int(match[1]): self.folder / match[0] for match in matches if match is not None}

    # Parts

    def recorded(self, epoch: int, part: str) -> int | None:
        """The part's row count, None if the ledger does not have it. Raises SinkError for a damaged entry."""
        found = _read(self._entry(epoch, part), {"row_count"})
        return None if found is None else found["row_count"]

    def record(self, epoch: int, part: str, row_count: int) -> None:
        self._write(self._entry(epoch, part), epoch, {"row_count": row_count})

    def require_next(self, epoch: int, part: str, after: Reached | None, written: Written) -> None:
        """Raises SinkError for a part that comes too late or too early. `written`: from before `recorded` was asked."""
        if epoch < (done := self._done()).before:
            raise late(epoch, done.before - 1, self.folder)
        if part == LOG_PART:
            require_order(epoch, after, written, self.folder)

    def written(self) -> Written:
        done, entries = self._done(), list(self._entries())
        new = [(epoch, part) for epoch, part in entries if epoch >= done.before]
        log_epoch = max((epoch for epoch, part in new if part == LOG_PART), default=done.log_epoch)
        splits = {done.before - 1: done.splits} if done.splits and log_epoch == done.log_epoch else {}
        for epoch, part in new:
            if part != LOG_PART and epoch > log_epoch:
                splits[epoch] = splits.get(epoch, 0) + 1
        newest = max((epoch for epoch, part in new if part != LOG_PART), default=0)
        parts = frozenset(part for epoch, part in new if epoch == newest and part != LOG_PART)
        return Written(log_epoch, splits, newest=parts if newest in splits else frozenset())

    def forget_before(self, epoch: int) -> int:
        """Takes the entries of earlier epochs, which are committed, together in `done.json`. Then no writer publishes files of
        them any more. Returns the epoch before which that was so already."""
        done = self._done()
        if epoch <= done.before:
            return done.before
        old = [(of, part) for of, part in self._entries() if done.before <= of < epoch]
        log_epoch = max((of for of, part in old if part == LOG_PART), default=done.log_epoch)
        splits = sum(part != LOG_PART and of > log_epoch for of, part in old)
        if log_epoch == done.log_epoch:
            splits += done.splits
        self._write(self.folder / _DONE, epoch, asdict(Done(epoch, log_epoch, splits)))
        for name in os.listdir(self.staging):
            match = _STAGED.fullmatch(name)
            if match is not None and int(match[1]) < epoch:
                (self.staging / name).unlink(missing_ok=True)
        for of, part in list(self._entries()):
            if of < epoch:
                self._entry(of, part).unlink(missing_ok=True)
        return done.before

    def _entry(self, epoch: int, part: str) -> Path:
        return self.folder / part_file_name(epoch, part, "json")

    def _entries(self) -> Iterator[tuple[int, str]]:
        for name in os.listdir(self.folder) if self.folder.is_dir() else []:
            match = _ENTRY.fullmatch(name)
            if match is not None:
                yield int(match[1]), match[2]

    def _done(self) -> Done:
        found = _read(self.folder / _DONE, {field.name for field in fields(Done)})
        return Done() if found is None else Done(**found)

    def _write(self, path: Path, epoch: int, content: dict[str, Any]) -> None:
        write_whole(path, content, self.staged(epoch))


def _read(path: Path, names: set[str]) -> dict[str, int] | None:
    """The numbers that the file has under these names, None if there is no such file."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as exc:
        raise damaged(path) from exc
    if not isinstance(content, dict) or content.keys() != names or any(type(v) is not int for v in content.values()):
        raise damaged(path)
    return content


def damaged(path: Path) -> SinkError:
    return SinkError(f"{path} is damaged.", f"Restore it from a copy, or {START_OVER}.")


def write_whole(path: Path, content: dict[str, Any], temporary: Path, *, replace: bool = True) -> None:
    """Writes a file durably and atomically. Without `replace` an existing file is kept."""
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
    """Makes renames in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Removes a staging folder. Nobody creates files in it any more but a writer that is just doing so: its file stays."""
    for name in os.listdir(folder):
        (folder / name).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:
        if not os.listdir(folder):
            raise
