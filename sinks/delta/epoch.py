"""Writes one epoch into Delta tables, with one commit for each table.

Each commit has job and table as Delta's application id, and the epoch as its version. Delta skips a commit whose application
id and version the table's log already has. So an epoch that was interrupted is simply written again. The commit's metadata
name the epoch, too. Delta's history shows it, and a checkpoint that was set back is noticed by it.
"""

import datetime
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias, TypeVar

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- Spark's convention
from pyspark.sql.types import StructType
from pyspark.storagelevel import StorageLevel

from tidemark.conf.tables import TableName
from tidemark.sinks.audit import NO_AUDIT, AuditColumns
from tidemark.sinks.delta.epoch_rows import EpochRows, EpochTable, RowsOfTasks, StagedRows
from tidemark.sinks.delta.errors import TAKE_BACK, spark_errors
from tidemark.sinks.delta.locations import (
    EpochCommit,
    Head,
    Lake,
    Location,
    files_set_back,
    head_of,
    quoted,
    require_not_set_back,
    was_set_back,
)
from tidemark.sinks.delta.merges import completed, constants, held_as_null, merge, merge_keeping, needs_whole_files
from tidemark.sinks.delta.rows import Shape
from tidemark.sinks.delta.seen_copies import SeenCopies
from tidemark.sinks.delta.side_by_side import SideSessions, write_side_by_side
from tidemark.sinks.delta.tables import (
    PUT_BACK,
    Style,
    changed_fields,
    in_ranges,
    keeps_values,
    other_types,
    with_types_of,
)
from tidemark.sinks.sink import JobIdentity, Schemas, SinkBusyError
from tidemark.sinks.staging import ItemHead, StagedFile, StagedTask
from tidemark.state.change_batch import LOG_PART, PartEnd
from tidemark.state.errors import CopySetBackError, SinkError
from tidemark.state.failpoints import failpoint
from tidemark.state.integer_range import IntegerRange
from tidemark.state.remedies import read_again
from tidemark.state.table import Column, TableId, TableSchema

MAX_ATTEMPTS = 5
"""Attempts at a table's commit, if commits of other writers come in between."""
RETRY_SECONDS = 0.5
_VIEW, _CHANGED_VIEW = "tidemark_changes", "tidemark_changed"
_EPOCH_VIEW = "tidemark_epoch"
_APPLICATION, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_MERGES_WITH_VECTORS = "spark.databricks.delta.merge.deletionVectors.persistent"
_REPORT = "The epoch was not written. This is a bug of Tidemark or a damaged checkpoint: please report it."
_HEAD = ("epoch", "part", "seq", "database", "table", "schema_version", "row_count", "truncates", "range")

EpochHead: TypeAlias = Row | ItemHead
"""The columns _HEAD of a row of TRANSPORT, with `byte_count`, the size of its payload."""
Read: TypeAlias = Callable[[Shape], DataFrame]
"""Reads the rows of a table's share of an epoch."""
Written = TypeVar("Written")


class DriverClock:
    """A `tidemark.sinks.audit.Clock`."""

    def now(self) -> str:
        return f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M:%S.%f}Z"


@dataclass(frozen=True, slots=True)
class EpochWriter:
    """Writes a job's epochs. `is_to_be_read`: whether all rows of a table are read again, and its copy has none of them yet.
    `emptied`: as for `EpochSink.write_epoch`."""

    lake: Lake
    style: Style
    job: JobIdentity
    schemas: Schemas
    sessions: SideSessions
    is_to_be_read: Callable[[Location, TableSchema], bool]
    emptied: Collection[TableId] = ()
    audit: AuditColumns = NO_AUDIT
    seen: SeenCopies = field(default_factory=SeenCopies)

    @property
    def _keeps_rows(self) -> bool:
        """True if a copy has rows that can't be read again."""
        return self.style == "changelog" or self.audit.keeps_deleted

    def write(self, batch: DataFrame) -> list[PartEnd]:
        """Writes `batch`, a whole epoch as rows of TRANSPORT. It is persisted meanwhile, because each table reads it again."""
        view = f"{_EPOCH_VIEW}_{self.job.uuid.replace('-', '')}"
        batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            heads = batch.select(*_HEAD, F.length("payload").alias("byte_count")).collect()
            batch.createOrReplaceGlobalTempView(view)  # visible to other sessions
            return self._write(batch.sparkSession, heads, partial(RowsOfTasks, f"global_temp.{view}"))
        finally:
            batch.sparkSession.catalog.dropGlobalTempView(view)
            batch.unpersist()

    def write_staged(self, session: Callable[[], SparkSession], staged: Sequence[StagedTask]) -> list[PartEnd]:
        """Writes a whole epoch whose tasks have `staged` their rows. Spark is not asked for if no table has any."""
        heads = [head for task in staged for head in task.heads]
        if not _tables(heads):
            return _checked_ends(heads)
        files: defaultdict[TableId, list[StagedFile]] = defaultdict(list)
        for file in (file for task in staged for file in task.files):
            files[file.table].append(file)
        return self._write(session(), heads, lambda found: StagedRows(files[found.table], found))

    def _write(
        self, session: SparkSession, heads: Sequence[EpochHead], rows_of: Callable[[EpochTable], EpochRows]
    ) -> list[PartEnd]:
        ends = _checked_ends(heads)

        def write_table(found: EpochTable) -> None:
            failpoint("sink.before_commit")
            with self.sessions.borrowed(session) as side:
                self._write_table(side, found, rows_of)
            failpoint("sink.after_commit")

        write_side_by_side(session, _tables(heads), write_table)
        return ends

    def _write_table(
        self, session: SparkSession, found: EpochTable, rows_of: Callable[[EpochTable], EpochRows]
    ) -> None:
        table = found.table
        schema = self.schemas[table, found.schema_version]
        location = self.lake.location_of(table)
        replaces = found.truncates and (table in self.emptied or not self._keeps_rows)
        settings = {
            _APPLICATION: application(self.job, table),
            _VERSION: str(found.epoch),
            # Spark writes an instant of a partition as a local time, which two instants have when summer ends.
            "spark.sql.session.timeZone": "UTC",
            # Spark turns it off for streams. Without it, each shuffle of a MERGE has 200 tasks.
            "spark.sql.adaptive.enabled": "true",
            # After a TRUNCATE the whole table is replaced, not only the partitions that have new rows.
            "spark.sql.sources.partitionOverwriteMode": "static",
            **rows_of(found).settings,
        }
        with session_settings(session, settings):
            head = _tried_again(lambda: self._write_once(session, location, found, schema, rows_of, replaces=replaces))
            self._look_back(session, location, found, head)

    def _write_once(
        self,
        session: SparkSession,
        location: Location,
        found: EpochTable,
        schema: TableSchema,
        rows_of: Callable[[EpochTable], EpochRows],
        *,
        replaces: bool,
    ) -> Head:
        """Returns the head of before. Raises SinkBusyError if another writer's commit came in between."""
        head = self._own_head(session, location, found.table)
        self._require_partitions(schema, location, head.partitioned_by)
        if head.may_lack_epochs and not replaces:
            _require_not_set_back(session, location, found.table)
        columns = None
        if found.ranges or (replaces and (head.may_lack_epochs or found.table in self.emptied)):
            columns = self._columns_to_be(session, location, schema)
        placed = replace(found, partitioned_by=head.partitioned_by)
        rows = rows_of(placed)
        of_commit = {_METADATA: str(EpochCommit(found.epoch, head.version, replaces))}
        if needs_whole_files(schema, head.partitioned_by):
            of_commit[_MERGES_WITH_VECTORS] = "false"
        with spark_errors(location, found.table), session_settings(session, of_commit):
            if columns is None:
                self._commit(rows, schema, placed, location, session)
            else:
                self._commit_types(rows, schema, placed, location, session, columns, head.version)
        return head

    def _require_partitions(self, schema: TableSchema, location: Location, partitioned_by: Collection[str]) -> None:
        """Raises CopySetBackError if the copy of a mirror is not partitioned any more by a text of the key. Its rows keep NULL
        for empty texts, which no MERGE finds then."""
        first = self.seen.partitions.setdefault(schema.table, frozenset(partitioned_by))
        may_be_null = [
            {name for name in schema.key if held_as_null(schema, name, by)} for by in (first, partitioned_by)
        ]
        lost = sorted(may_be_null[0] - may_be_null[1])
        if self.style == "mirror" and lost:
            text = f"{location} was partitioned by {', '.join(lost)} when the run first wrote it, and is not now."
            raise CopySetBackError(text, TAKE_BACK, schema.table)

    def _columns_to_be(self, session: SparkSession, location: Location, schema: TableSchema) -> StructType | None:
        """Returns the columns, of the source's types, that the commit gives the copy, None if it has them. Raises
        CopySetBackError if the copy has had them before, or has rows that can't be read again."""
        columns = _columns_of(session, location, schema.table)
        others = list(other_types(self.audit.extended(schema), columns, self.style))
        if others and (self._keeps_rows or not self.is_to_be_read(location, schema)):
            raise _of_other_types(location, others, schema.table)
        return with_types_of(self.audit.extended(schema), columns, self.style) if others else None

    def _require_types(self, session: SparkSession, location: Location, schema: TableSchema) -> None:
        """Raises CopySetBackError if the table's columns have other types now."""
        columns = _columns_of(session, location, schema.table)
        others = list(other_types(self.audit.extended(schema), columns, self.style))
        if others:
            raise _of_other_types(location, others, schema.table)

    def _look_back(self, session: SparkSession, location: Location, found: EpochTable, before: Head) -> None:
        """Raises CopySetBackError if somebody has set the table back between the look at it, `before`, and the commit, or given
        it other types."""
        failpoint("delta.committed")
        table = found.table
        head = self._own_head(session, location, table)
        if head.version == before.version:
            return
        if head.version == before.version + 1 and not head.may_lack_epochs:
            folder = self.lake.log_folder(location)
            self.seen.commit(table, head.version, folder, application(self.job, table), found.epoch)
        else:
            self.seen.forget(table)
            _require_not_set_back(session, location, table)
            self._require_types(session, location, self.schemas[table, found.schema_version])

    def _commit(
        self, rows: EpochRows, schema: TableSchema, found: EpochTable, location: Location, session: SparkSession
    ) -> None:
        if self.style == "changelog" and found.ranges:
            raise SinkError(f"A split of {schema.table} replaces a range of a changelog.", _REPORT)
        if self.style == "changelog":
            _append(rows.read(session, schema, "changes"), location)
        else:
            self._commit_rows(rows, schema, found, location, session)

    def _commit_rows(
        self, rows: EpochRows, schema: TableSchema, found: EpochTable, location: Location, session: SparkSession
    ) -> None:
        read: Read = partial(rows.read, session, schema)
        marks = self.audit.marks(DriverClock())
        if self.audit.keeps_deleted and found.is_log:
            others = "TRUE" if found.truncates else None
            statement = merge_keeping(schema, location, _VIEW, marks, others, found.partitioned_by)
            with _completed(read("kept effect"), schema, location, persists=not rows.are_stored) as effect:
                _merge(effect, statement)
        elif self.audit.keeps_deleted and (found.ranges or found.schema_version > 1):
            # The table came back: the target may have rows with these keys, marked as deleted if they are in no range.
            others = _condition(session, schema, found.ranges, location) if found.ranges else None
            _merge(read("kept rows"), merge_keeping(schema, location, _VIEW, marks, others, found.partitioned_by))
        elif found.truncates:
            _replace(_marked(read("rest"), marks.kept), location)
        elif found.is_log:
            _merge(read("effect"), merge(schema, location, _VIEW, marks, found.partitioned_by))
        elif found.ranges:
            condition = _condition(session, schema, found.ranges, location)
            _replace_ranges(_marked(read("rows"), marks.kept), condition, location)
        else:
            # Splits have keys of their own: the target has none of their rows.
            _append(_marked(read("rows"), marks.kept), location)

    def _commit_types(
        self,
        rows: EpochRows,
        schema: TableSchema,
        found: EpochTable,
        location: Location,
        session: SparkSession,
        columns: StructType,
        version: int,
    ) -> None:
        """Gives the copy `columns` by writing all of it again: the rows of this epoch, and those of `version` in other ranges,
        which are read again later."""
        new = rows.read(session, schema, "rest" if found.truncates else "rows")
        whole = _shaped(_marked(new, self.audit.marks(DriverClock()).kept), columns)
        if not found.truncates:
            whole = _kept_rows(session, location, version, columns, found.ranges).unionAll(whole)
        if found.partitioned_by:  # the other way would take the partitions from the table
            writer = whole.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
            writer.partitionBy(*map(quoted, found.partitioned_by)).saveAsTable(location.relation)  # Spark parses these
        else:
            whole.writeTo(location.relation).option("overwriteSchema", "true").overwrite(F.lit(True))

    def _own_head(self, session: SparkSession, location: Location, table: TableId) -> Head:
        if not self.lake.holds(session, location):
            raise SinkError(f"{location}, the copy of {table}, is gone.", PUT_BACK, self._alone(session, table))
        head = head_of(session, location)
        if head.owner != self.job.uuid:
            text = f"{location}, the copy of {table}, was replaced by another table."
            raise SinkError(text, PUT_BACK, self._alone(session, table))
        if head.version < (before := self.seen.versions.get(table, 0)):
            raise files_set_back(table, f"{location} has version {head.version}, but had version {before} in this run")
        self.seen.versions[table] = head.version
        return head

    def _alone(self, session: SparkSession, table: TableId) -> TableId | None:
        """Returns the table if another one's copy is there. Otherwise it is not one table's trouble."""
        others = {other for other, _ in self.schemas} - {table}
        return table if any(self.lake.holds(session, self.lake.location_of(other)) for other in others) else None


def _tried_again(write: Callable[[], Written]) -> Written:
    """Writes, up to MAX_ATTEMPTS times if commits of other writers come in between."""
    for attempt in range(1, MAX_ATTEMPTS):
        try:
            return write()
        except SinkBusyError:
            time.sleep(attempt * RETRY_SECONDS)
    return write()


def application(job: JobIdentity, table: TableId) -> str:
    """Returns Delta's application id of the job's commits to a table's copy. Their versions are the epochs."""
    return f"tidemark/{job.uuid}/{table}"


def _require_not_set_back(session: SparkSession, location: Location, table: TableId) -> None:
    set_back = was_set_back(session, location)
    if set_back is not None:
        require_not_set_back(table, location, set_back)


def _append(rows: DataFrame, location: Location) -> None:
    rows.writeTo(location.relation).append()


def _replace(rows: DataFrame, location: Location) -> None:
    rows.writeTo(location.relation).overwrite(F.lit(True))


def _marked(rows: DataFrame, columns: tuple[Column, ...]) -> DataFrame:
    """Returns the rows with the values of audit columns."""
    return rows.withColumns({name: F.expr(value) for name, value in constants(columns).items()})


def _replace_ranges(rows: DataFrame, condition: str, location: Location) -> None:
    """Removes the copy's rows of the condition, and adds the rows, in one commit. Delta refuses rows that do not meet it."""
    rows.writeTo(location.relation).overwrite(F.expr(condition))


def _columns_of(session: SparkSession, location: Location, table: TableId) -> StructType:
    with spark_errors(location, table):
        return session.table(location.relation).schema


def _of_other_types(location: Location, others: Sequence[str], table: TableId) -> CopySetBackError:
    """Returns the error for a copy to which somebody has given other types: Spark would cast values without a word."""
    return CopySetBackError(f"{location} has {', '.join(others)}.", TAKE_BACK, table)


def _kept_rows(
    session: SparkSession, location: Location, version: int, columns: StructType, ranges: tuple[IntegerRange, ...]
) -> DataFrame:
    """Returns those rows of a version of the copy that are in none of the ranges, as rows of `columns`. Leaves out rows with a
    value that is another one in its new type, or may be another one."""
    rows = session.sql(f"SELECT * FROM {location.relation} VERSION AS OF {version}")
    before = {field.name: field.dataType for field in rows.schema.fields}
    changed = {field.name: field.dataType for field in changed_fields(rows.schema, columns)}

    def converted(name: str) -> str:
        return f"try_cast({quoted(name)} AS {changed[name].simpleString()})" if name in changed else quoted(name)

    if not all(keeps_values(before[name], kind) for name, kind in changed.items()):
        rows = rows.limit(0)
    else:
        names = {name.lower(): name for name in before}
        condition = in_ranges(ranges, columns, lambda name: converted(names[name.lower()]))
        same = [f"try_cast({converted(name)} AS {before[name].simpleString()}) <=> {quoted(name)}" for name in changed]
        rows = rows.where(" AND ".join([f"NOT coalesce({condition or 'FALSE'}, FALSE)", *same]))
        rows = rows.select(*(F.expr(converted(name)).alias(name) for name in before))
    return _shaped(rows, columns)


def _shaped(rows: DataFrame, columns: StructType) -> DataFrame:
    """Returns rows with `columns`. Those that `rows` lacks are NULL."""
    names = {name.lower(): name for name in rows.columns}
    return rows.select(
        *(
            (F.col(quoted(names[name])) if (name := field.name.lower()) in names else F.lit(None))
            .cast(field.dataType)
            .alias(field.name, metadata=field.metadata)
            for field in columns.fields
        )
    )


def _condition(session: SparkSession, schema: TableSchema, ranges: tuple[IntegerRange, ...], location: Location) -> str:
    """Returns the condition for the copy's rows in the ranges."""
    condition = in_ranges(ranges, session.table(location.relation).schema)
    if condition is None:
        raise SinkError(
            f"{location}: the key's columns ({', '.join(ranges[0].columns)}) are no integers any more.",
            f"Delete that table and let the job create it. {read_again(TableName(schema.table.database, schema.table.name))}",
            schema.table,
        )
    return condition


def _merge(effect: DataFrame, statement: str) -> None:
    """Runs the MERGE of `effect` as _VIEW."""
    with _viewed(effect, _VIEW):
        effect.sparkSession.sql(statement)


@contextmanager
def _completed(effect: DataFrame, schema: TableSchema, location: Location, *, persists: bool) -> Iterator[DataFrame]:
    """Gives rows of `kept_schema` the values that only the copy has, under other keys. `persists`: because the rows are read
    again. Delta refuses a MERGE of persisted rows that it does not copy."""
    if not schema.toastable:
        yield effect
        return
    if persists:
        effect.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        if effect.where("origin IS NOT NULL").isEmpty():
            yield effect
        else:
            with _viewed(effect, _CHANGED_VIEW):
                yield effect.sparkSession.sql(completed(schema, location, _CHANGED_VIEW))
    finally:
        if persists:
            effect.unpersist()


@contextmanager
def _viewed(rows: DataFrame, view: str) -> Iterator[None]:
    rows.createOrReplaceTempView(view)
    try:
        yield
    finally:
        rows.sparkSession.catalog.dropTempView(view)


@contextmanager
def session_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Sets `settings` in the session while inside."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


def _tables(heads: Sequence[EpochHead]) -> list[EpochTable]:
    of_table: defaultdict[TableId, list[EpochHead]] = defaultdict(list)
    for head in heads:
        if head["database"] is not None:
            of_table[TableId(head["database"], head["table"])].append(head)
    return [_share(table, found) for table, found in of_table.items()]


def _share(table: TableId, heads: Sequence[EpochHead]) -> EpochTable:
    """Returns the table's share of the epoch of which it has the batches and ranges `heads`."""
    parts = {head["part"] for head in heads}
    ranges = tuple(IntegerRange.from_text(head["range"]) for head in heads if head["range"] is not None)
    if len({head["schema_version"] for head in heads}) > 1:
        raise SinkError(f"The columns of {table} change inside one epoch.", _REPORT)
    if LOG_PART in parts and (len(parts) > 1 or ranges):
        raise SinkError(f"An epoch has rows of {table} from splits and from the log.", _REPORT)
    if ranges and len(ranges) != len(parts):
        raise SinkError(f"Only some splits of {table} in an epoch replace ranges of the copy.", _REPORT)
    return EpochTable(
        table,
        heads[0]["schema_version"],
        heads[0]["epoch"],
        is_log=LOG_PART in parts,
        byte_count=sum(head["byte_count"] or 0 for head in heads),
        truncates=any(head["truncates"] for head in heads),
        ranges=ranges,
    )


def _checked_ends(heads: Sequence[EpochHead]) -> list[PartEnd]:
    """Returns the end of each part. Raises SinkError if batches are missing."""
    counts: dict[str, tuple[int, int]] = {}
    for head in heads:
        if head["database"] is not None:
            batches, rows = counts.get(head["part"], (0, 0))
            counts[head["part"]] = batches + 1, rows + head["row_count"]
    ends = [PartEnd(h["epoch"], h["part"], h["seq"], h["row_count"]) for h in heads if h["database"] is None]
    complete = {end.part: (end.seq, end.row_count) for end in ends}
    for part in counts.keys() | complete.keys():
        if complete.get(part) != counts.get(part, (0, 0)):
            raise SinkError(
                f"Part {part} has {counts.get(part)} batches and rows, its end says {complete.get(part)}.", _REPORT
            )
    return ends
