"""The protocol of sinks that Spark writes from files: tasks stage their rows as files, and only reports come back.

Such a sink is an `EpochSink`. Spark must be able to read what tasks write: in a folder that they share, or in the checkpoint's
object store. Where it can't, `EpochSink.write_epoch` gets the rows themselves.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from tidemark.sinks.sink import JobIdentity, Schemas
from tidemark.state.change_batch import PartEnd, PartItem
from tidemark.state.table import TableId

ItemHead: TypeAlias = Mapping[str, Any]
"""The columns of an item's row of TRANSPORT, without its rows."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A Parquet file with rows of one table. `path`: a local path, or an `s3a://` URL. `shape`: what the rows are, in the
    sink's words. `unfit`: columns with a value that can't be in a column by which the copy is partitioned, each with the
    reason."""

    table: TableId
    path: str
    row_count: int
    shape: str
    unfit: tuple[tuple[str, str], ...] = ()
    is_published: bool = False
    """It is a file of the checkpoint, in which no task has looked for unfit values."""


@dataclass(frozen=True, slots=True)
class StagedTask:
    """The report of one task. `heads`: those of all its items."""

    heads: tuple[ItemHead, ...]
    files: tuple[StagedFile, ...]

    @property
    def has_rows(self) -> bool:
        return any(head["database"] is not None for head in self.heads)


class PartStager(Protocol):
    """Pickled with the tasks. `takes_files`: the items may be published files of the checkpoint."""

    @property
    def takes_files(self) -> bool: ...

    def stage(self, items: Iterable[PartItem], schemas: Schemas) -> StagedTask:
        """Stages a task's items. Each attempt writes files of its own. Raises TidemarkError."""


@runtime_checkable
class StagesParts(Protocol):
    """An `EpochSink` that can also write an epoch whose tasks have staged their parts as files."""

    def staging(
        self, job: JobIdentity, *, is_local: bool, tell: Callable[[str], None]
    ) -> AbstractContextManager[PartStager] | None:
        """Returns a stager for one attempt at an epoch, None if Spark can't read what the tasks would write. `tell` gets the
        reason, once. The files are there inside the `with` block. `is_local`: the tasks run on this machine."""

    def write_staged(
        self, staged: Sequence[StagedTask], job: JobIdentity, schemas: Schemas, emptied: Collection[TableId] = ()
    ) -> list[PartEnd]:
        """Writes a whole epoch, as `EpochSink.write_epoch` does. `staged`: one report of each task."""
