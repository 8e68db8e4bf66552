"""The Delta sink: Spark writes the tables, with one commit for each table and epoch.

`style: mirror` keeps each table identical to its source. `style: changelog` appends every change. A table's property
`tidemark.job_uuid` names its owner. The ledger is Delta's own log: its transaction identifiers say which epochs a table has.
The checkpoint records each copy's Delta table id.
"""

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import pyspark
from pyspark.sql import DataFrame, SparkSession

from tidemark import __version__
from tidemark.conf.sink import DeltaSink as DeltaSettings
from tidemark.conf.tables import TableName
from tidemark.sinks.audit import NO_AUDIT, AuditColumns
from tidemark.sinks.comparing import Comparisons, Key
from tidemark.sinks.delta.comparing import Reading, comparable_table, keys_in_table
from tidemark.sinks.delta.epoch import EpochWriter, application
from tidemark.sinks.delta.errors import spark_errors
from tidemark.sinks.delta.local_log import read_log
from tidemark.sinks.delta.locations import (
    JOB_UUID,
    Found,
    Lake,
    LastEpoch,
    Location,
    files_set_back,
    lake_of,
    last_epoch,
    last_transaction,
    quoted,
    require_not_set_back,
)
from tidemark.sinks.delta.seen_copies import SeenCopies
from tidemark.sinks.delta.settings import require_delta
from tidemark.sinks.delta.side_by_side import SideSessions
from tidemark.sinks.delta.spark_reads import SparkReads
from tidemark.sinks.delta.staging import DeltaStager
from tidemark.sinks.delta.staging_places import StagingPlace, remove_staged, staging_folder, staging_objects
from tidemark.sinks.delta.tables import (
    PUT_BACK,
    PartitionBy,
    Style,
    add_columns,
    allow_columns,
    changed_fields,
    claim_table,
    create_table,
    feed_findings,
    folded_name,
    is_replaceable,
    key_findings,
    location_findings,
    missing_columns,
    other_types,
    partition_columns,
    properties_of,
    schema_findings,
    table_findings,
    unknown_tables,
    with_types_of,
)
from tidemark.sinks.fencing import published_lost, require_planned
from tidemark.sinks.files.sink import table_folder_name
from tidemark.sinks.sink import Finding, JobIdentity, Schemas, raise_problems
from tidemark.sinks.staging import StagedTask
from tidemark.state.change_batch import PartEnd
from tidemark.state.checkpoint.layout import COPIES_FOLDER, JOB_FILE, Checkpoint, copy_file, published_split_file
from tidemark.state.checkpoint.store import CheckpointStore, LocalStore
from tidemark.state.errors import CheckpointError, SinkError
from tidemark.state.integer_range import IntegerRange
from tidemark.state.key_order import INTEGERS
from tidemark.state.plan import LogWork, SnapshotWork
from tidemark.state.remedies import RESTORE_CHECKPOINT, START_OVER_NOW, read_again
from tidemark.state.seen_copy import SeenCopy
from tidemark.state.table import TableId, TableSchema

NOTHING_SEEN: Mapping[TableId, SeenCopy] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """A `tidemark.sinks.sink.EpochSink`. `session` returns the job's Spark session, `checkpoint` is the job's store. Driver and
    executors must see the same files."""

    lake: Lake
    style: Style
    partition_by: PartitionBy
    checkpoint: CheckpointStore
    session: Callable[[], SparkSession]
    sessions: SideSessions = field(default_factory=SideSessions)
    audit: AuditColumns = NO_AUDIT
    seen: SeenCopies = field(default_factory=SeenCopies)
    spark_reads: SparkReads = field(default_factory=SparkReads)

    @classmethod
    def of(
        cls, settings: DeltaSettings, checkpoint: CheckpointStore, session: Callable[[], SparkSession]
    ) -> "DeltaSink":
        """Raises JobFileError for a path that can't be one."""
        audit = AuditColumns.of(settings.audit_columns)
        return cls(lake_of(settings), settings.style, settings.partition_by, checkpoint, session, audit=audit)

    def check(
        self, schemas: Sequence[TableSchema], job: JobIdentity | None = None, written: Collection[TableId] = ()
    ) -> list[Finding]:
        """Starts Spark only if there is something that Spark must look at: not for copies as the job has left them."""
        findings = list(self.lake.findings(self._session, schemas))
        if job is None:  # later, tables may have left the job
            findings = [*unknown_tables(schemas, self.partition_by), *findings]
        for schema in schemas:
            findings += schema_findings(schema, self.style, self.partition_by, self.audit)
        if any(finding.is_problem for finding in findings):
            return findings  # such locations may not be readable
        as_seen = self._as_seen(job, schemas)
        for schema in schemas:
            if schema.table in as_seen:
                continue
            self.seen.forget(schema.table)
            location = self.lake.location_of(schema.table)
            before = read_log(self.lake.log_folder(location))
            found = None if self.lake.is_absent(location) else self.lake.look(self._session(), location)
            written_id = None if job is None else self._written_id(schema.table)
            of_copy = list(location_findings(schema, location, found, job, written_id))
            if isinstance(found, Found) and written_id is None and self._has_written(found.table_id):
                text = f"{location} is the copy of another table of this job."
                of_copy.append(Finding(schema.table, text, "Exclude this table (source.exclude_tables)."))
            if written_id is None and schema.table in written:
                raise CheckpointError(f"The checkpoint has lost its file {_id_file(schema.table)}.", RESTORE_CHECKPOINT)
            if isinstance(found, Found):
                of_copy += self._table_findings(schema, location, found)
                is_own = found.table_id == written_id and not any(finding.is_problem for finding in of_copy)
                if job is not None and found.properties.get(JOB_UUID) == job.uuid and is_own:
                    self.seen.look(schema.table, before, found.table_id, self._checked(job, schema))
            findings += of_copy
        return findings

    def are_as_left(self, job: JobIdentity, schemas: Sequence[TableSchema]) -> bool:
        """See `tidemark.sinks.sink.KnowsCopies`."""
        return len(self._as_seen(job, schemas)) == len(schemas)

    def keep_seen(self) -> None:
        """See `tidemark.sinks.sink.KnowsCopies`."""
        Checkpoint("", self.checkpoint).keep_seen_copies(self.seen.known())

    def _as_seen(self, job: JobIdentity | None, schemas: Sequence[TableSchema]) -> dict[TableId, SeenCopy]:
        """Returns what an earlier run has seen of those copies that nobody has written since. The checks would find no problem
        again."""
        if job is None:
            return {}
        copies = {copy.table: copy for copy in Checkpoint("", self.checkpoint).seen_copies()}
        return {
            schema.table: copies[schema.table]
            for schema in schemas
            if schema.table in copies and self._is_as_seen(copies[schema.table], job, schema)
        }

    def _is_as_seen(self, copy: SeenCopy, job: JobIdentity, schema: TableSchema) -> bool:
        if copy.table_id != self._written_id(schema.table) or copy.checked != self._checked(job, schema):
            return False
        return copy.log == read_log(self.lake.log_folder(self.lake.location_of(schema.table)))

    def _checked(self, job: JobIdentity, schema: TableSchema) -> str:
        """Returns the SHA-256 of what the checks of a copy depend on, besides the copy."""
        location = self.lake.location_of(schema.table).text
        facts = (job.uuid, schema, location, self.style, partition_columns(schema, self.partition_by), self.audit)
        return hashlib.sha256(repr((__version__, pyspark.__version__, *facts)).encode()).hexdigest()

    def _table_findings(self, schema: TableSchema, location: Location, found: Found) -> Iterator[Finding]:
        """Yields why the copy can't store the rows of the source's table unchanged."""
        extended, later = self.audit.extended(schema), self._with_types_to_be(schema, location, found)
        is_adapted = self._may_get_types(schema, found)
        yield from table_findings(extended, location, later, self.style, self.partition_by, is_adapted=is_adapted)
        if later is not found:
            yield from feed_findings(schema, location, found, list(other_types(extended, found.columns, self.style)))
        if self.audit.keeps_deleted:
            yield from key_findings(schema, location, found)

    def prepare(self, job: JobIdentity, schemas: Sequence[TableSchema], written: Collection[TableId] = ()) -> None:
        remove_staged(self.checkpoint, job)
        findings = self.check(schemas, job, written)
        tables = [schema.table for schema in schemas]
        raise_problems([finding for finding in findings if finding.remedy == PUT_BACK], tables)
        wrong = {finding.table for finding in findings if finding.is_problem}
        # RESTORE may have brought other columns.
        self._require_same_time(
            [s for s in schemas if s.table in wrong & set(written) and self._is_there(s.table)], written
        )
        raise_problems(findings, tables)
        as_seen = self._as_seen(job, schemas)
        for schema in schemas:
            if schema.table not in as_seen:
                self._prepare_table(job, schema)
        if self.checkpoint.read(JOB_FILE) is not None:
            self._require_same_time(schemas, written, as_seen)

    def replaceable(
        self, job: JobIdentity, schemas: Sequence[TableSchema], orders: Mapping[TableId, Mapping[str, str]]
    ) -> frozenset[TableId]:
        """See `tidemark.sinks.sink.ReplacesRanges`. Keys must be integers."""
        return frozenset(
            schema.table
            for schema in schemas
            if schema.table in orders
            and set(orders[schema.table].values()) == {INTEGERS}
            and self._is_replaceable(job, schema, tuple(orders[schema.table]))
        )

    def _is_replaceable(self, job: JobIdentity, schema: TableSchema, columns: tuple[str, ...]) -> bool:
        """A changelog has no rows to replace. A copy that RESTORE has set back must be replaced in one commit: only that tells
        that it lacks no epoch any more."""
        location = self.lake.location_of(schema.table)
        if self.style != "mirror" or self.lake.is_absent(location):
            return False
        found = self.lake.look(self._session(), location)
        if not isinstance(found, Found) or found.properties.get(JOB_UUID) != job.uuid:
            return False
        later = self._with_types_to_be(schema, location, found)
        if found.table_id != self._written_id(schema.table) or not is_replaceable(later, columns):
            return False
        if any(other_types(self.audit.extended(schema), later.columns, self.style)):
            return False
        last = last_epoch(self._session(), location)
        return last is None or not last.set_back

    def adapt(self, job: JobIdentity, schemas: Sequence[TableSchema]) -> None:
        """Adds columns, and forgets Delta tables that were deleted, so that `prepare` creates them. Lets a mirror have columns
        of the types that the first epoch of the table will give it. Leaves other jobs' tables alone."""
        for schema in schemas:
            found = self._own(job, schema)
            if found is not None:
                self._add_missing(schema, found)
                self._allow_types(schema, found)

    def _allow_types(self, schema: TableSchema, found: Found) -> None:
        location = self.lake.location_of(schema.table)
        later = self._with_types_to_be(schema, location, found)
        with spark_errors(location, schema.table):
            for statement in allow_columns(changed_fields(found.columns, later.columns), location, found):
                self._session().sql(statement)

    def _with_types_to_be(self, schema: TableSchema, location: Location, found: Found) -> Found:
        """Returns the copy as the first epoch since its table came back leaves it: with the source's types."""
        if not self._may_get_types(schema, found):
            return found
        extended = self.audit.extended(schema)
        if not any(other_types(extended, found.columns, self.style)) or not self._is_to_be_read(location, schema):
            return found
        return replace(found, columns=with_types_of(extended, found.columns, self.style))

    def _may_get_types(self, schema: TableSchema, found: Found) -> bool:
        """True if the copy may get other types when its table is read again. A changelog, and a copy that keeps deleted rows,
        have rows that can't be read again, and generated columns would lose their rules: these stay as they are."""
        if self.style != "mirror" or self.audit.keeps_deleted or found.generates:
            return False
        return found.table_id == self._written_id(schema.table)

    def _is_to_be_read(self, location: Location, schema: TableSchema) -> bool:
        """True if all rows of the table are to be read again, and no epoch has written any of them to its copy."""
        state = Checkpoint("", self.checkpoint).job_state()
        if state is None or schema.table in state.left_tables:
            return state is not None
        back = state.came_back.get(schema.table)
        version = next((known.version for known in state.schemas if known.table == schema.table), None)
        if back is None or version != schema.version:
            return False
        session, job = self._session(), JobIdentity(state.job_uuid, state.job_name)
        last = last_epoch(session, location)
        written = last_transaction(session, location, application(job, schema.table)) if last is None else last.epoch
        return written is not None and written <= back.after_epoch

    def _own(self, job: JobIdentity, schema: TableSchema) -> Found | None:
        """Returns the job's own copy. None if there is none."""
        found = self.lake.look(self._session(), self.lake.location_of(schema.table))
        if found is None:
            self.checkpoint.delete(_id_file(schema.table))
        return found if isinstance(found, Found) and found.properties.get(JOB_UUID) == job.uuid else None

    def _add_missing(self, schema: TableSchema, found: Found) -> None:
        raise_problems(list(self.audit.name_findings(schema, folded_name)))
        location, extended = self.lake.location_of(schema.table), self.audit.extended(schema)
        names = missing_columns(extended, found, self.style)
        if names:
            with spark_errors(location, schema.table):
                for statement in add_columns(extended, location, found, self.style, names):
                    self._session().sql(statement)

    def add_columns(self, job: JobIdentity, schema: TableSchema, names: Sequence[str]) -> None:
        session, location = self._session(), self.lake.location_of(schema.table)
        found = self._own(job, schema)
        if found is not None:
            self._add_missing(schema, found)
            found = self._own(job, schema)
        if found is None:
            raise SinkError(f"{location} is not this job's copy of {schema.table} any more.", START_OVER_NOW)
        raise_problems(list(self._table_findings(schema, location, found)))
        is_set = " OR ".join(f"{quoted(name)} IS NOT NULL" for name in names)
        with spark_errors(location):
            rows = session.sql(f"SELECT 1 FROM {location.relation} WHERE {is_set} LIMIT 1").collect()
        if rows:
            raise SinkError(
                f"{location} has values in {', '.join(names)}, which the source's table got only now.",
                read_again(TableName(schema.table.database, schema.table.name)),
            )

    def _prepare_table(self, job: JobIdentity, schema: TableSchema) -> None:
        session, location = self._session(), self.lake.location_of(schema.table)
        found = self.lake.look(session, location)
        if found is None:
            self.lake.create_schema_of(session, schema.table)
        with spark_errors(location, schema.table):
            properties = properties_of(schema, job, self.audit)
            if found is None:
                extended = self.audit.extended(schema)
                session.sql(create_table(extended, location, self.style, self.partition_by, properties))
            elif isinstance(found, Found) and JOB_UUID not in found.properties:
                session.sql(claim_table(location, properties))
        if self._written_id(schema.table) is not None:
            return
        self.seen.forget(schema.table)
        before = read_log(self.lake.log_folder(location))
        claimed = self.lake.look(session, location)
        if not isinstance(claimed, Found) or claimed.properties.get(JOB_UUID) != job.uuid:
            raise SinkError(
                f"{location} was claimed by another job just now.", f"Change {location.setting}, or delete that table."
            )
        self.checkpoint.create(_id_file(schema.table), claimed.table_id.encode())
        if not any(finding.is_problem for finding in self._table_findings(schema, location, claimed)):
            self.seen.look(schema.table, before, claimed.table_id, self._checked(job, schema))

    def _require_same_time(
        self,
        schemas: Sequence[TableSchema],
        written: Collection[TableId],
        as_seen: Mapping[TableId, SeenCopy] = NOTHING_SEEN,
    ) -> None:
        """Raises CopySetBackError for a table that was set back. Raises CheckpointError if the checkpoint was: Delta would skip
        epochs. `as_seen`: copies that Spark need not look at."""
        checkpoint = Checkpoint("", self.checkpoint)
        planned = max(checkpoint.plan_epochs(), default=0)
        written_epochs = _WrittenEpochs(checkpoint.with_attempts(checkpoint.attempts()))
        for schema in schemas:
            location, copy = self.lake.location_of(schema.table), as_seen.get(schema.table)
            last = last_epoch(self._session(), location) if copy is None else _last_epoch_of(copy)
            if last is None:
                continue
            require_planned(last.epoch, planned, location)
            self.seen.versions[schema.table] = last.version
            if schema.table in written:
                self._require_not_set_back(schema, last, planned)
                self._require_newest(schema, last, written_epochs)
            if last.epoch == planned > 0:
                self._require_published(schema, planned)
            if copy is None:
                self.seen.end_look(schema.table, last, self.lake.log_folder(location))
            else:
                self.seen.know(copy)

    def _require_not_set_back(self, schema: TableSchema, last: LastEpoch, planned: int) -> None:
        """Raises CopySetBackError if epochs that the job has written are not in the table, unless the planned one replaces all
        of its rows."""
        if not last.set_back:
            return
        work = Checkpoint("", self.checkpoint).plan(planned).plan.work if planned > last.epoch else None
        if not (isinstance(work, LogWork) and schema.table in work.empties):
            require_not_set_back(schema.table, self.lake.location_of(schema.table), last)

    def _require_newest(self, schema: TableSchema, last: LastEpoch, written: "_WrittenEpochs") -> None:
        """Raises CopySetBackError if the job has written a later epoch to the table than `last`: its files were set back, with
        Delta's log among them. The checkpoint has the plans and reports of the newest epochs."""
        for epoch in written.newest_first:
            if epoch <= last.epoch or (schema.table, schema.version) not in written.tables_of(epoch):
                return  # the table came back to the job later
            if schema.table in written.changed_in(epoch):
                location = self.lake.location_of(schema.table)
                newest = f"no epoch after {last.epoch}" if last.epoch else "no epoch"
                raise files_set_back(
                    schema.table, f"{location} has {newest}, but the job has written epoch {epoch} to it"
                )

    def _require_published(self, schema: TableSchema, epoch: int) -> None:
        """Raises PublishedLostError if rows that the table has of the running epoch are lost: read again, they would be
        others."""
        checkpoint = Checkpoint("", self.checkpoint)
        work = checkpoint.plan(epoch).plan.work
        if epoch == checkpoint.committed_epoch() or not isinstance(work, SnapshotWork):
            return
        for split in (split for task in work.tasks for split in task):
            is_of_table = (split.table, split.schema_version) == (schema.table, schema.version)
            name = published_split_file(epoch, split.id)
            # Without a staged chunk the epoch stops by itself.
            if is_of_table and split.pages is None and self.checkpoint.read(name) is None:
                raise published_lost(name, schema.table)

    def write_epoch(
        self, batch: DataFrame, job: JobIdentity, schemas: Schemas, emptied: Collection[TableId] = ()
    ) -> list[PartEnd]:
        return self._writer(job, schemas, emptied).write(batch)

    def staging(
        self, job: JobIdentity, *, is_local: bool, tell: Callable[[str], None]
    ) -> contextlib.AbstractContextManager[DeltaStager] | None:
        """See `tidemark.sinks.staging.StagesParts`. Spark starts if the checkpoint is in a bucket that it has to read."""
        if is_local or isinstance(self.checkpoint, LocalStore):
            return self._staging(staging_folder(self.checkpoint, job, is_local=is_local))
        from tidemark.state.checkpoint.object_store import S3Store

        if not isinstance(self.checkpoint, S3Store) or not self.spark_reads.bucket(
            self._session, self.checkpoint, tell
        ):
            return None
        return self._staging(staging_objects(self.checkpoint, self.spark_reads.driver))

    @contextlib.contextmanager
    def _staging(self, place: contextlib.AbstractContextManager[StagingPlace]) -> Iterator[DeltaStager]:
        with place as opened:
            yield DeltaStager(opened, self.style, self.audit.keeps_deleted)

    def write_staged(
        self, staged: Sequence[StagedTask], job: JobIdentity, schemas: Schemas, emptied: Collection[TableId] = ()
    ) -> list[PartEnd]:
        """See `tidemark.sinks.staging.StagesParts`."""
        return self._writer(job, schemas, emptied).write_staged(self._session, staged)

    def _writer(self, job: JobIdentity, schemas: Schemas, emptied: Collection[TableId]) -> EpochWriter:
        return EpochWriter(
            self.lake, self.style, job, schemas, self.sessions, self._is_to_be_read, emptied, self.audit, self.seen
        )

    @contextlib.contextmanager
    def comparable(self, schema: TableSchema) -> Iterator[Comparisons]:
        """See `tidemark.sinks.comparing.ComparableSink`."""
        session, location, found = self._copy(schema.table)
        reading = Reading(self.style, found.partition_columns, self.audit.deleted)
        with comparable_table(session, location, schema, reading) as comparisons:
            yield comparisons

    def keys_within(self, schema: TableSchema, within: IntegerRange, limit: int) -> list[Key]:
        """See `tidemark.sinks.comparing.ComparableSink`."""
        session, location, _ = self._copy(schema.table)
        reading = Reading(self.style, deleted=self.audit.deleted)
        return keys_in_table(session, location, schema, reading, within, limit)

    def _copy(self, table: TableId) -> tuple[SparkSession, Location, Found]:
        """Raises SinkError if there is no Delta table."""
        session, location = self._session(), self.lake.location_of(table)
        found = self.lake.look(session, location)
        if not isinstance(found, Found):
            raise SinkError(f"{location}, the copy of {table}, is gone.", START_OVER_NOW)
        return session, location, found

    def written(self, job: JobIdentity) -> None:
        """Delta's log has the last epoch of each table, not of the job."""

    def committed_before(self, job: JobIdentity, epoch: int) -> None:
        """Does nothing. Delta drops old transaction identifiers itself, if a table is configured so."""

    def _session(self) -> SparkSession:
        session = self.session()
        require_delta(session)
        return session

    def _is_there(self, table: TableId) -> bool:
        """True if the Delta table that the job has written is at its location."""
        found = self.lake.look(self._session(), self.lake.location_of(table))
        return isinstance(found, Found) and found.table_id == self._written_id(table)

    def _has_written(self, table_id: str) -> bool:
        """True if the Delta table is a copy of the job, perhaps of a table that has left it."""
        notes = (self.checkpoint.read(name) for name in self.checkpoint.list(COPIES_FOLDER))
        return any(note is not None and note.to_pybytes().decode() == table_id for note in notes)

    def _written_id(self, table: TableId) -> str | None:
        found = self.checkpoint.read(_id_file(table))
        return None if found is None else found.to_pybytes().decode()


class _WrittenEpochs:
    """The committed epochs that the checkpoint still has. Each file is read once, however many tables ask."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        committed = checkpoint.committed_epoch()
        self._epochs = checkpoint.plan_epochs()
        self.newest_first = [epoch for epoch in reversed(self._epochs) if epoch <= committed]
        self._checkpoint = checkpoint
        self._tables: dict[int, frozenset[tuple[TableId, int]]] = {}
        self._changed: dict[int, frozenset[TableId]] = {}

    def tables_of(self, epoch: int) -> frozenset[tuple[TableId, int]]:
        """Returns the job's tables in the epoch, with the versions of their schemas."""
        if epoch not in self._tables:
            tables = self._checkpoint.plan(epoch).state.tables
            self._tables[epoch] = frozenset((table.table, table.schema_version) for table in tables)
        return self._tables[epoch]

    def changed_in(self, epoch: int) -> frozenset[TableId]:
        """Returns the tables with rows or changes in the epoch, as far as its log's report or the next plan tells them."""
        if epoch not in self._changed:
            has_report = self._checkpoint.has_log_report(epoch)
            changes = self._checkpoint.log_report(epoch).changes if has_report else ()
            changed = {changes_of.table for changes_of in changes}
            self._changed[epoch] = frozenset(changed if has_report else self._read_in(epoch))
        return self._changed[epoch]

    def _read_in(self, epoch: int) -> Iterator[TableId]:
        """Yields the tables of which the epoch's splits have rows. Staged chunks are written by later epochs."""
        planned = self._checkpoint.plan(epoch)
        if not isinstance(planned.plan.work, SnapshotWork) or epoch + 1 not in self._epochs:
            return
        written = {split.table for task in planned.plan.work.tasks for split in task if split.pages is None}
        before = {table.table: table.done_rows for table in planned.state.tables}
        for table in self._checkpoint.plan(epoch + 1).state.tables:
            if table.table in written and table.done_rows > before.get(table.table, table.done_rows):
                yield table.table


def _last_epoch_of(copy: SeenCopy) -> LastEpoch:
    return LastEpoch(copy.epoch, copy.log.version, set_back=False, newest=copy.log.version)


def _id_file(table: TableId) -> str:
    """Returns the name of the checkpoint's file with the copy's Delta table id. It is written before the first row is."""
    return copy_file(table_folder_name(table))
