"""The protocol of sinks that Spark writes from files: tasks stage their rows as files, and only reports come back.

Such a sink is an `EpochSink`. Its driver and its tasks must see one folder. Where they don't, `EpochSink.write_epoch` gets the
rows themselves.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    """A Parquet file with rows of one table. `shape`: what they are, in the sink's words. `unfit`: columns with a value that
    can't be in a column by which the copy is partitioned, each with the reason."""

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
    """Pickled with the tasks."""

    def stage(self, items: Iterable[PartItem], schemas: Schemas) -> StagedTask:
        """Stages a task's items. Each attempt writes files of its own. Raises TidemarkError."""


@runtime_checkable
class StagesParts(Protocol):
    """An `EpochSink` that can also write an epoch whose tasks have staged their parts as files."""

    def staging(self, job: JobIdentity, *, is_local: bool) -> AbstractContextManager[PartStager] | None:
        """Returns a stager for one attempt at an epoch, None if there is no folder that driver and tasks surely share. The
        files are there inside the `with` block. `is_local`: the tasks run on this machine."""

    def write_staged(
        self, staged: Sequence[StagedTask], job: JobIdentity, schemas: Schemas, emptied: Collection[TableId] = ()
    ) -> list[PartEnd]:
        """Writes a whole epoch, as `EpochSink.write_epoch` does. `staged`: one report of each task."""
