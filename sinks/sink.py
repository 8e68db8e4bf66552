"""What every sink offers: a driver's side that checks and prepares, and a way to write. A PartSink's writer runs on executors
and writes part by part; an EpochSink has Spark write, and gets an epoch at a time on the driver, its rows staying on executors.

A part (a split, or an epoch's log) takes effect whole and once: its rows and the ledger's entry for
(job uuid, epoch, part) become durable together, and a part that the ledger holds is read to its end and left out.
Two attempts at one part may run at the same time; one takes effect.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from state.change_batch import PartEnd, PartItem
from state.errors import SinkError
from state.table import TableId, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Schemas: TypeAlias = Mapping[tuple[TableId, int], TableSchema]
"""By table and schema version."""


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """`uuid` is made at a job's first start and kept in its checkpoint: the ledger goes by it, people by the name."""

    uuid: str
    name: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Of `Sink.check`: a problem if it has a `remedy`, else what the job will do in the target."""

    table: TableId | None
    text: str
    remedy: str | None = None

    @property
    def is_problem(self) -> bool:
        return self.remedy is not None


@dataclass(frozen=True, slots=True)
class PartResult:
    """A part that is durable in the sink. `skipped`: it was before this attempt came."""

    epoch: int
    part: str
    row_count: int
    skipped: bool


class SinkBusyError(SinkError):
    """The sink could not take a part now, and holds nothing of it: the same part may be written again."""


class PartWriter(Protocol):
    def write(self, items: Iterable[PartItem], schemas: Schemas) -> Iterator[PartResult]:
        """Writes one Spark partition: whole parts, one after the other. A result is given once its part is durable.

        Raises SinkError; SinkBusyError where writing the part again may succeed. After an error, and when the iterator
        is closed before its end, nothing of the unfinished part takes effect.
        """


class Sink(Protocol):
    """The driver's side. Holds no connection between calls."""

    def check(self, schemas: Sequence[TableSchema], job: JobIdentity | None = None) -> list[Finding]:
        """What the job would create, and what does not fit. Writes nothing. `job` is None before a first start.

        Raises SinkError where the target can't be asked, JobFileError where the sink's section can't be used.
        """

    def prepare(self, job: JobIdentity, schemas: Sequence[TableSchema]) -> None:
        """Creates what is missing and takes the tables for this job. Repeats harmlessly. Raises SinkError with every problem.

        Called by the one driver that holds the job's lease, before the first epoch of a start.
        """

    def committed_before(self, job: JobIdentity, epoch: int) -> None:
        """Epochs before `epoch` are committed and will not be written again: the ledger may forget them."""


class PartSink(Sink, Protocol):
    """Pickles, secrets included, for `writer` is called on executors."""

    def writer(self, job: JobIdentity) -> PartWriter: ...


@runtime_checkable
class EpochSink(Sink, Protocol):
    """Stays on the driver. The ledger's entries are those of its target's own transactions."""

    def write_epoch(self, batch: "DataFrame", job: JobIdentity, schemas: Schemas) -> list[PartEnd]:
        """Writes a whole epoch, rows of TRANSPORT, and returns the ends of its parts once all are durable; what an earlier
        attempt made durable is left out. `batch` may be read again, at a price. Raises SinkError."""


def raise_problems(findings: Sequence[Finding]) -> None:
    """One SinkError that names every problem among `findings`, if there is any."""
    problems = [finding for finding in findings if finding.remedy is not None]
    if not problems:
        return
    texts = [f"{finding.table}: {finding.text}" if finding.table else finding.text for finding in problems]
    remedies = dict.fromkeys(str(finding.remedy) for finding in problems)
    raise SinkError(" ".join(texts), " ".join(remedies))
