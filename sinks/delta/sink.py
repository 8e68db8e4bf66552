"""The Delta sink: tables written by Spark itself, one commit for each table and epoch.

`style: mirror` keeps each table identical to its source, `style: changelog` appends every change. A table's property
`tidemark.job_uuid` says whose it is, its transaction identifiers which epochs it holds: the ledger is Delta's own log. Which
table a copy is, by Delta's identifier, stands in the checkpoint.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from conf.sink import DeltaSink as DeltaSettings
from sinks.delta.epoch import EpochWriter
from sinks.delta.faults import spark_errors
from sinks.delta.places import JOB_UUID, Found, Lake, lake_of
from sinks.delta.settings import require_delta
from sinks.delta.side_by_side import SideSessions
from sinks.delta.tables import (
    PartitionBy,
    Style,
    create_table,
    place_findings,
    schema_findings,
    table_findings,
    take_table,
    unknown_tables,
)
from sinks.files import table_folder_name
from sinks.sink import Finding, JobIdentity, Schemas, raise_problems
from state.change_batch import PartEnd
from state.errors import SinkError
from state.store import CheckpointStore
from state.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """`sinks.sink.EpochSink`. `session` gives the session that the job runs in; `checkpoint` is the job's. Driver and
    executors must see the same files."""

    lake: Lake
    style: Style
    partition_by: PartitionBy
    checkpoint: CheckpointStore
    session: Callable[[], SparkSession]
    sessions: SideSessions = field(default_factory=SideSessions)

    @classmethod
    def of(
        cls, settings: DeltaSettings, checkpoint: CheckpointStore, session: Callable[[], SparkSession]
    ) -> "DeltaSink":
        """Raises JobFileError for a path that can't be one."""
        return cls(lake_of(settings), settings.style, settings.partition_by, checkpoint, session)

    def check(self, schemas: Sequence[TableSchema], job: JobIdentity | None = None) -> list[Finding]:
        session = self._session()
        findings = [*unknown_tables(schemas, self.partition_by), *self.lake.findings(session, schemas)]
        for schema in schemas:
            findings += schema_findings(schema, self.style, self.partition_by)
        if any(finding.is_problem for finding in findings):
            return findings  # those places need not be ones that can be looked at
        for schema in schemas:
            place = self.lake.place_of(schema.table)
            found = self.lake.look(session, place)
            written_id = None if job is None else self._written_id(schema.table)
            findings += place_findings(schema, place, found, job, written_id)
            if isinstance(found, Found):
                findings += table_findings(schema, place, found, self.style, self.partition_by)
        return findings

    def prepare(self, job: JobIdentity, schemas: Sequence[TableSchema]) -> None:
        raise_problems(self.check(schemas, job))
        for schema in schemas:
            self._prepare_table(job, schema)

    def _prepare_table(self, job: JobIdentity, schema: TableSchema) -> None:
        session, place = self._session(), self.lake.place_of(schema.table)
        found = self.lake.look(session, place)
        if found is None:
            self.lake.make_room(session, schema.table)
        with spark_errors(place):
            if found is None:
                session.sql(create_table(schema, place, self.style, self.partition_by, job))
            elif isinstance(found, Found) and JOB_UUID not in found.properties:
                session.sql(take_table(place, job))
        if self._written_id(schema.table) is not None:
            return
        taken = self.lake.look(session, place)
        if not isinstance(taken, Found) or taken.properties.get(JOB_UUID) != job.uuid:
            raise SinkError(f"{place} was taken by another job just now.", f"Change {place.setting}.")
        self.checkpoint.create(_note(schema.table), taken.table_id.encode())

    def write_epoch(self, batch: DataFrame, job: JobIdentity, schemas: Schemas) -> list[PartEnd]:
        return EpochWriter(self.lake, self.style, job, schemas, self.sessions).write(batch)

    def committed_before(self, job: JobIdentity, epoch: int) -> None:
        """Delta forgets transaction identifiers by itself, where a table is set to."""

    def _session(self) -> SparkSession:
        session = self.session()
        require_delta(session)
        return session

    def _written_id(self, table: TableId) -> str | None:
        found = self.checkpoint.read(_note(table))
        return None if found is None else found.to_pybytes().decode()


def _note(table: TableId) -> str:
    """Name of the checkpoint's file that says which Delta table the copy is. It is there before the first row is."""
    return f"copies/{table_folder_name(table)}"
