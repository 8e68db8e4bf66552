"""The Delta sink: tables under `<path>/<database>.<table>/`, written by Spark itself, one commit for each table and epoch.

`style: mirror` keeps each table identical to its source, `style: changelog` appends every change. A table's property
`tidemark.job_uuid` says whose it is, its transaction identifiers which epochs it holds: the ledger is Delta's own log.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from conf.sink import DeltaSink as DeltaSettings
from sinks.delta.epoch import EpochWriter, spark_errors
from sinks.delta.settings import require_delta
from sinks.delta.side_by_side import SideSessions
from sinks.delta.tables import (
    JOB_NAME,
    JOB_UUID,
    Found,
    PartitionBy,
    Style,
    create_table,
    place_of,
    relation,
    schema_findings,
    table_findings,
    take_table,
    unknown_tables,
)
from sinks.files import LEDGER_FOLDER, local_folder, table_folder_name
from sinks.sink import Finding, JobIdentity, Schemas, raise_problems
from state.change_batch import PartEnd
from state.errors import SinkError
from state.table import TableSchema


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """`sinks.sink.EpochSink`. `session` gives the session that the job runs in; it is asked for where a table is there to
    be looked at, and to prepare. Driver and executors must see the same folder."""

    root: Path
    style: Style
    partition_by: PartitionBy
    session: Callable[[], SparkSession]
    sessions: SideSessions = field(default_factory=SideSessions)

    @classmethod
    def of(cls, settings: DeltaSettings, session: Callable[[], SparkSession]) -> "DeltaSink":
        """Raises JobFileError for a path's scheme that is not supported yet."""
        return cls(local_folder(settings.path), settings.style, settings.partition_by, session)

    def check(self, schemas: Sequence[TableSchema], job: JobIdentity | None = None) -> list[Finding]:
        findings = list(unknown_tables(schemas, self.partition_by))
        for schema in schemas:
            findings += schema_findings(schema, self.style, self.partition_by)
            findings += self._check_place(schema, job)
        anchor = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        if not anchor.is_dir() or not os.access(anchor, os.W_OK | os.X_OK):
            findings.append(
                Finding(None, f"{anchor} can't be written to.", "Give the job's user that right, or another sink.path.")
            )
        return findings

    def _check_place(self, schema: TableSchema, job: JobIdentity | None) -> Iterator[Finding]:
        place = place_of(self.root, schema)
        if not (place / "_delta_log").is_dir():
            if job is not None and self._mark(job, schema).exists():
                yield Finding(
                    schema.table,
                    f"{place}, which this job wrote, is gone.",
                    "Begin anew: a new checkpoint, and an empty sink.path.",
                )
            elif place.exists() and any(place.iterdir()):
                yield Finding(
                    schema.table,
                    f"{place} holds files, but no Delta table.",
                    "Empty that folder, or set another sink.path.",
                )
            else:
                yield Finding(schema.table, f"will be created as the Delta table {place}")
            return
        found = self._found(place)
        owner = found.properties.get(JOB_UUID)
        if owner is None and not found.is_empty:
            yield Finding(
                schema.table,
                f"{place} holds rows that this job did not write.",
                "Empty or delete that table, or set another sink.path.",
            )
        elif owner is not None and (job is None or owner != job.uuid):
            this = "this one has not started yet" if job is None else f"this is {job.name} ({job.uuid})"
            yield Finding(
                schema.table,
                f"{place} belongs to job {found.properties.get(JOB_NAME)} ({owner}); {this}.",
                "Set another sink.path; or, to begin anew, delete that table.",
            )
        else:
            if owner is None:
                yield Finding(schema.table, f"the empty Delta table {place} will be used")
            yield from table_findings(schema, place, found, self.style, self.partition_by)

    def _found(self, place: Path) -> Found:
        session = self.session()
        require_delta(session)
        with spark_errors(place):
            detail = session.sql(f"DESCRIBE DETAIL {relation(place)}").collect()[0]
            rows = session.read.format("delta").load(str(place))
            owned = JOB_UUID in detail["properties"]
            return Found(rows.schema, tuple(detail["partitionColumns"]), detail["properties"], owned or rows.isEmpty())

    def prepare(self, job: JobIdentity, schemas: Sequence[TableSchema]) -> None:
        session = self.session()
        require_delta(session)
        raise_problems(self.check(schemas, job))
        for schema in schemas:
            place, mark = place_of(self.root, schema), self._mark(job, schema)
            if mark.exists():
                continue
            with spark_errors(place):
                if (place / "_delta_log").is_dir():
                    session.sql(take_table(place, job))
                else:
                    session.sql(create_table(schema, place, self.style, self.partition_by, job))
            try:
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.touch()
            except OSError as exc:
                raise SinkError(
                    f"{mark} can't be written: {exc}.", "Give the job's user the right to write there."
                ) from exc

    def write_epoch(self, batch: DataFrame, job: JobIdentity, schemas: Schemas) -> list[PartEnd]:
        return EpochWriter(self.root, self.style, job, schemas, self.sessions).write(batch)

    def committed_before(self, job: JobIdentity, epoch: int) -> None:
        """Delta forgets transaction identifiers by itself, where a table is set to."""

    def _mark(self, job: JobIdentity, schema: TableSchema) -> Path:
        """Says that the table was there, prepared for the job."""
        return self.root / LEDGER_FOLDER / job.uuid / table_folder_name(schema.table)
