"""The protocol of sinks, and what a sink needs of the rest of a job.

Every sink checks and prepares its target on the driver. There are two kinds of writing. A `PartSink` has a writer that runs on
executors and writes part by part. An `EpochSink` lets Spark write: it gets a whole epoch on the driver, as a DataFrame.

A part (a split, or an epoch's range of the log) takes effect whole and once. Its rows and the ledger's entry for (job uuid,
epoch, part) become durable together. A part that the ledger has is read to its end and skipped. Two attempts at one part may
run at the same time; one of them takes effect. A part of a driver that was replaced, or of an epoch that is not next, is
refused (`tidemark.sinks.fencing`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from tidemark.conf.tables import FOLDER_TEMPLATE, TableTemplate, setting_of
from tidemark.state.change_batch import PartEnd, PartItem, meta_fields
from tidemark.state.errors import LostCopyError, SinkError, SinkUnavailableError
from tidemark.state.reached import Reached
from tidemark.state.remedies import ANOTHER_KEY, START_OVER
from tidemark.state.sink_identity import SinkSetting
from tidemark.state.table import TableId, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Schemas: TypeAlias = Mapping[tuple[TableId, int], TableSchema]
"""Schemas by table and schema version."""


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """A job in the ledger. `uuid` is created at the job's first start and kept in its checkpoint. `name` is for people.
    `owner` is the number of the driver that runs it, greater than that of each earlier one; 0 in checks before it has one."""

    uuid: str
    name: str
    owner: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of `Sink.check`. With a `remedy` it is a problem, else a note: a warning, or what the job will create.
    `is_lost_copy`: a problem as in LostCopyError."""

    table: TableId | None
    text: str
    remedy: str | None = None
    is_lost_copy: bool = False

    @property
    def is_problem(self) -> bool:
        return self.remedy is not None


@dataclass(frozen=True, slots=True)
class BadValues:
    """The number of values of a column in a part that the target could not hold, and the policy that was applied to them
    (`sink.on_bad_value`)."""

    table: TableId
    column: str
    policy: str
    count: int

    def __str__(self) -> str:
        done = {
            "null": "NULL was written",
            "text": "another text was written",
            "reject": "their rows are in tidemark_rejects",
        }
        return f"{self.table}: values of column {self.column} that the target can't hold: {self.count}; {done[self.policy]}."


def added_up(found: Iterable[BadValues]) -> list[BadValues]:
    """Returns one for each table, column and policy, in their order."""
    counts: Counter[tuple[TableId, str, str]] = Counter()
    for bad in found:
        counts[bad.table, bad.column, bad.policy] += bad.count
    return [BadValues(table, column, policy, count) for (table, column, policy), count in sorted(counts.items())]


@dataclass(frozen=True, slots=True)
class PartResult:
    """A part that is durable in the sink. `skipped`: it was durable before this attempt."""

    epoch: int
    part: str
    row_count: int
    skipped: bool
    bad_values: tuple[BadValues, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """The parts of a job that a target has, by the target's own record. `log_epoch`: the last epoch of the log, 0 before the
    first one. `splits`: how many splits it has of each later epoch. `begun`: a later epoch of the log of which it has only
    some tables, else 0. `newest`: the parts that it has of the newest epoch in `splits`."""

    log_epoch: int = 0
    splits: Mapping[int, int] = field(default_factory=dict)
    begun: int = 0
    newest: frozenset[str] = frozenset()

    def parts(self, epoch: int) -> frozenset[str]:
        """Returns the splits' parts that the target has of an epoch, if that is the newest one with splits."""
        return self.newest if epoch == max(self.splits, default=0) else frozenset()

    def before(self, epoch: int) -> Reached:
        """Returns what the target has of earlier epochs."""
        return Reached(self.log_epoch, sum(count for of, count in self.splits.items() if self.log_epoch < of < epoch))

    @property
    def last_epoch(self) -> int:
        return max(self.log_epoch, self.begun, *self.splits)


@dataclass(frozen=True, slots=True)
class SparkNeeds:
    """A sink's requirements of a Spark session. `missing_packages_remedy` is for a Spark that can't download the packages."""

    settings: "SparkSettings"
    missing_packages_remedy: str


class SparkSettings(Protocol):
    def __call__(self, given: Mapping[str, str], *, submitted: bool) -> dict[str, str]:
        """Returns the settings to add to `given`. `submitted`: spark-submit has already chosen the session's jars."""


@dataclass(frozen=True, slots=True)
class SinkNeeds:
    """A sink's requirements of the rest of a job. They follow from the job file alone.

    `display_name` is for people and has no secrets. `needs_key`: the sink finds rows by key, so every table must have one.
    `appends_keyless`: but it takes tables without one, of which it only appends rows.
    `published_format`: the format in which splits are published; "parquet" if the sink takes a split's file unchanged. A sink
    that Spark writes takes its rows, too, where Spark can't read the checkpoint's files.
    `takes_lists`: the sink stores arrays as lists; else it gets PostgreSQL's as the server's text.
    `holds`: what a copy is: `rows`, one for each key, or all `changes`. Rows that were read again come before the changes of
    an epoch for the one, and among them for the other. None: no rows are read again by key. Otherwise `comparable_sink` knows
    the sink, too.
    `commits_tables`: each table of an epoch has a commit of its own, and a commit that is repeated is skipped. So a table may
    leave the job although an epoch is half written: the others have the same changes in it without that table.
    """

    display_name: str
    needs_key: bool = False
    appends_keyless: bool = False
    published_format: Literal["arrow", "parquet"] = "arrow"
    spark: SparkNeeds | None = None
    takes_lists: bool = False
    holds: Literal["rows", "changes"] | None = None
    commits_tables: bool = False


class SinkBusyError(SinkUnavailableError):
    """The sink can't take a part at present. It has nothing of the part, which may be written again."""


class ReadOnlyError(SinkBusyError):
    """The target accepts no writes: it is a replica, or a failover is under way. A writer waits, a job's start does not."""


class PartWriter(Protocol):
    def write(self, items: Iterable[PartItem], schemas: Schemas) -> Iterator[PartResult]:
        """Writes the parts of one Spark partition one after the other. Yields each result once its part is durable.

        Raises SinkError; SinkBusyError if writing the part again may succeed; JobHeldError if another driver has taken the
        job over. After an error, or if the iterator is closed before its end, nothing of the unfinished part takes effect.
        """


@runtime_checkable
class KeepsConnection(PartWriter, Protocol):
    """A `PartWriter` that can keep its connection to the target between calls of `write`, for one thread."""

    def keeping(self) -> "KeepsConnection":
        """Returns a writer that does so."""

    def close(self) -> None:
        """Closes the connection, if there is one. A later call of `write` opens another one."""


class Sink(Protocol):
    """A sink on the driver. It has no open connection between calls."""

    def check(
        self, schemas: Sequence[TableSchema], job: JobIdentity | None = None, written: Collection[TableId] = ()
    ) -> list[Finding]:
        """Returns what the job would create and what does not fit. Writes nothing. `job` is None before a first start.

        `written`: the tables that the job was prepared for at an earlier start. Each must have the ownership mark that
        `prepare` left in the target; without it the target is another one, or was emptied.

        Raises SinkError if the target can't be reached, JobFileError if the job file's `sink` can't be used.
        """

    def prepare(self, job: JobIdentity, schemas: Sequence[TableSchema], written: Collection[TableId] = ()) -> None:
        """Creates what is missing and marks the tables as this job's. Then nothing that a driver with a smaller number than
        `job.owner` writes takes effect any more. May be repeated. `written`: as in `check`. Raises SinkError with every
        problem, JobHeldError if a driver with a greater number was prepared.

        Called by the driver that has the job's lease, before the first epoch of a start.
        """

    def written(self, job: JobIdentity) -> Written | None:
        """Returns what the target has of the job, None if a sink keeps no such record. Called after `prepare`. Raises
        SinkError, SinkUnavailableError if what answers may have less than the place that writes go to."""

    def committed_before(self, job: JobIdentity, epoch: int) -> None:
        """Tells that the epochs before `epoch` are committed and will not be written again. The ledger may drop them."""


class PartSink(Sink, Protocol):
    """A sink whose parts are written on executors. It is pickled with its secrets, because `writer` is called there."""

    def writer(self, job: JobIdentity) -> PartWriter: ...


@runtime_checkable
class EpochSink(Sink, Protocol):
    """A sink that lets Spark write. It stays on the driver. Its ledger is in the target's own transaction log."""

    def write_epoch(
        self, batch: "DataFrame", job: JobIdentity, schemas: Schemas, emptied: Collection[TableId] = ()
    ) -> list[PartEnd]:
        """Writes a whole epoch. Returns the ends of its parts once all are durable. Skips parts that an earlier attempt made
        durable. `batch` has rows of TRANSPORT; reading it again costs a second computation. `emptied`: tables that came back
        to the job, of which the epoch has a TRUNCATE and nothing else: whatever their copies have or lack does not matter any
        more. Raises SinkError; CopySetBackError if a copy lacks earlier epochs."""


@runtime_checkable
class KnowsCopies(Protocol):
    """An `EpochSink` that can know without Spark that its copies are as the job has left them."""

    def are_as_left(self, job: JobIdentity, schemas: Sequence[TableSchema]) -> bool:
        """True if `check` and `prepare` need no Spark for these tables, as things are now."""

    def keep_seen(self) -> None:
        """Tells the next start, by the checkpoint, what this run has seen of the copies. Called when its last epoch has ended.
        Nothing depends on it but time."""


@runtime_checkable
class Adapts(Protocol):
    """A sink whose existing copies must fit. Others, such as files, take rows of any columns."""

    def adapt(self, job: JobIdentity, schemas: Sequence[TableSchema]) -> None:
        """Lets the copies of tables that come back to the job take rows of `schemas`, as far as it can; `check` finds what does
        not fit then. All rows of the copies are written again, so their values are not needed. May be
        repeated. Raises SinkError."""

    def add_columns(self, job: JobIdentity, schema: TableSchema, names: Sequence[str]) -> None:
        """Adds columns to the copy of a table that stays in the job. They are NULL in all its rows. May be repeated. Raises
        SinkError if the copy has such a column already, but of another type or with values."""


@runtime_checkable
class ReplacesRanges(Protocol):
    """A sink that can write the rows of a split in place of those that the copy has in the split's range: it takes
    `ReplacedRange` as the first item of a split (`parts_of(items, replaces=True)`; an `EpochSink` as a row of TRANSPORT)."""

    def replaceable(
        self, job: JobIdentity, schemas: Sequence[TableSchema], orders: Mapping[TableId, Mapping[str, str]]
    ) -> frozenset[TableId]:
        """Returns those of the tables whose copies, as they are now, can be replaced range by range. Called before `adapt`.
        `orders`: the columns of tables' split keys, and how the source orders each (`tidemark.state.key_order`). The copy must
        order them so, too. Raises SinkError."""


@runtime_checkable
class AddsConstants(Adapts, Protocol):
    """A sink that can give all rows of a copy the same value in a new column."""

    def add_constants(self, job: JobIdentity, schema: TableSchema, names: Sequence[str]) -> None:
        """Adds columns as `add_columns` does, with the value of their `constant` in all rows of the copy. May be repeated,
        also after a death in between. Raises SinkError also if the copy can't have such a value."""


@runtime_checkable
class Widens(Protocol):
    """A sink that can give columns of a copy a wider type."""

    def widen_columns(self, job: JobIdentity, schema: TableSchema, names: Sequence[str]) -> None:
        """Lets the copy of the table hold each value of these columns. The rows keep their values. May be repeated, also after
        a death in between. Raises SinkError if the copy can't have such a column."""


@runtime_checkable
class DropsColumns(Protocol):
    """A sink that can drop columns of a copy."""

    def drop_columns(self, job: JobIdentity, schema: TableSchema, names: Sequence[str]) -> None:
        """Drops those of the columns that the copy of the table has and `schema` lacks. The copy of another job, or none, is
        left to `check`. May be repeated, also after a death in between. Takes effect only if no driver with a greater number
        than `job.owner` has taken the job over; raises JobHeldError otherwise. Raises SinkError if something else in the target
        needs such a column; then none is dropped."""

    def lacks_columns(self, job: JobIdentity, schema: TableSchema) -> bool:
        """True if the job's copy of the table is there and lacks a column of `schema`, as the sink gets it."""


@runtime_checkable
class TakesLabels(Protocol):
    """A sink whose copies may have enums of their own. The labels that rows have and an enum lacks come last in it."""

    def add_labels(self, job: JobIdentity, schemas: Sequence[TableSchema]) -> None:
        """Lets the copies' enums have the labels of the tables' enums (`Column.named_type`), in their order. May be repeated,
        also after a death in between. Raises SinkError."""


@runtime_checkable
class ProvesAbsence(Protocol):
    """A sink that can tell that it has nothing of an epoch of the log, and never will."""

    def lacks(self, job: JobIdentity, epoch: int) -> bool:
        """Takes the job over, as `prepare` does: after that nothing of drivers with smaller numbers takes effect. Returns True
        if nothing of the epoch's range of the log had taken effect before. Raises as `prepare`."""


def no_mark(table: TableId, location: object, setting: str) -> Finding:
    """Returns the finding for a written table without its ownership mark at `location`. `setting`: key of the location."""
    return Finding(
        table,
        f"{location} is not marked as written by this job: {setting} names another place than before, or the target was "
        "emptied.",
        f"Undo the change of {setting}, or put the whole target back with Tidemark's own tables or files; or {START_OVER}.",
        is_lost_copy=True,
    )


def reserved_name_findings(schema: TableSchema) -> Iterator[Finding]:
    """Yields the captured columns that have the names of a change batch's own columns."""
    reserved = {field.name for field in meta_fields(schema)}
    for column in schema.captured:
        if column.name in reserved:
            yield Finding(
                schema.table,
                f"Its column {column.name} has the name of a column that Tidemark adds to changes.",
                without_column(schema, column.name),
            )


def without_column(schema: TableSchema, column: str) -> str:
    """Returns the remedy for a column that no copy can have."""
    if column in schema.key:
        return ANOTHER_KEY
    return f"Exclude it: {setting_of('source.columns', schema.table, {'exclude': [column]})}."


def raise_problems(findings: Sequence[Finding], among: Collection[TableId] = ()) -> None:
    """Raises one SinkError with every problem among `findings`, if there is one. `among`: the tables of the job. If some of
    them have problems, and others none, the error concerns the first of those alone."""
    problems = [finding for finding in findings if finding.remedy is not None]
    if not problems:
        return
    table = problems[0].table
    if table is None or not {finding.table for finding in problems} < set(among):
        table = None
    else:
        problems = [finding for finding in problems if finding.table == table]
    texts = [f"{finding.table}: {finding.text}" if finding.table else finding.text for finding in problems]
    remedies = dict.fromkeys(str(finding.remedy) for finding in problems)
    is_lost_copy = table is not None and all(finding.is_lost_copy for finding in problems)
    raise (LostCopyError if is_lost_copy else SinkError)(" ".join(texts), " ".join(remedies), table)


def folder_names(copies: TableTemplate) -> tuple[SinkSetting, ...]:
    """The part of a sink's identity that the names of folders are. The default is not in it: earlier jobs have no setting."""
    named = (SinkSetting("sink.table", copies.text),) if copies.text != FOLDER_TEMPLATE.text else ()
    return (*named, *renames(copies))


def renames(copies: TableTemplate) -> tuple[SinkSetting, ...]:
    """The part of a sink's identity that `sink.rename` is."""
    rules = ", ".join(map(str, copies.renames))
    return (SinkSetting("sink.rename", rules),) if rules else ()
