"""Builds projections from the job file: for preflight, the checkpoint, tasks, and people."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tidemark.conf.model import JobFile
from tidemark.conf.tables import TableName
from tidemark.conf.transform import parse_transform
from tidemark.readers.findings import Finding, of_error
from tidemark.readers.projection.projection import ProjectionSettings, compile_projection, mask_key_id
from tidemark.readers.projection.projector import Projector
from tidemark.state.errors import CheckpointError, JobFileError, TidemarkError
from tidemark.state.projection import TableProjection
from tidemark.state.remedies import START_OVER, read_again
from tidemark.state.table import TableId, TableSchema


def settings_for(job: JobFile, table: TableId) -> ProjectionSettings:
    source = job.source
    masks = source.masked_columns(table.database, table.name)
    return ProjectionSettings(masks, source.mask_key, job.transform(table.database, table.name))


def columns_read(job: JobFile) -> dict[TableId, frozenset[str]]:
    """Returns the columns that each transform reads, in lower case."""
    return {TableId(t.database, t.name): parse_transform(sql).reads for t, sql in job.transforms.items()}


def masked_tables(job: JobFile) -> frozenset[TableId]:
    return frozenset(TableId(t.database, t.name) for t, columns in job.source.columns.items() if columns.mask)


def findings_with(job: JobFile, findings: Iterable[Finding], schemas: Iterable[TableSchema]) -> tuple[Finding, ...]:
    """Returns `findings` and the problems of the tables' projections, each with its line in the job file."""
    found = list(findings)
    for schema in schemas:
        try:
            projections_of(job, [schema])
        except TidemarkError as error:
            found.append(of_error(error, table=schema.table))
    return tuple(
        replace(finding, message=f"{job.place(*finding.setting)}: {finding.message}") if finding.setting else finding
        for finding in found
    )


def projections_of(job: JobFile, schemas: Sequence[TableSchema]) -> tuple[TableProjection, ...]:
    """Returns the projections of the tables whose columns the job file changes. Raises SettingError."""
    return tuple(filter(None, (_projection(job, schema) for schema in schemas)))


def _projection(job: JobFile, schema: TableSchema) -> TableProjection | None:
    table = schema.table
    settings = settings_for(job, table)
    excluded = job.source.excluded_columns(table.database, table.name)
    if not (settings.masks or settings.transform or excluded):
        return None
    output = schema
    if settings.masks or settings.transform:
        from tidemark.conf.duckdb_engine import open_engine

        engine = open_engine()
        try:
            output = compile_projection(engine, schema, settings).output
        finally:
            engine.close()
    keyed = settings.mask_key is not None and "sha256" in settings.masks.values()
    return TableProjection(
        output=output,
        excluded=tuple(sorted(excluded)),
        masks=tuple(sorted(settings.masks.items())),
        mask_key_id=mask_key_id(settings.mask_key) if keyed and settings.mask_key is not None else None,
        transform_sha256=settings.transform and hashlib.sha256(settings.transform.encode()).hexdigest(),
    )


def require_same_projections(
    job: JobFile, schemas: Sequence[TableSchema], known: Sequence[TableProjection], found: Iterable[TableSchema] = ()
) -> None:
    """Raises CheckpointError if the job file changes columns in another way than when the job was started. `found`: the tables
    as the source has them now. A column that is gone there need not be excluded any more, and a column that the job does not
    copy may be."""
    before = {projection.output.table: projection for projection in known}
    present = {schema.table: frozenset(column.name for column in schema.columns) for schema in found}
    for schema in schemas:
        what = _difference(job, schema, before.get(schema.table), present.get(schema.table))
        if what is not None:
            name = TableName(schema.table.database, schema.table.name)
            again = f" {read_again(name)}" if job.mode == "full+incremental" else ""
            raise CheckpointError(
                f"{what} differs from when the job was started: copied rows would not match new ones.",
                f"Undo the change.{again} Or {START_OVER}.",
            )


def _difference(
    job: JobFile, schema: TableSchema, before: TableProjection | None, present: frozenset[str] | None
) -> str | None:
    """`present`: the columns that the source has now, None if that is not known."""
    try:
        now = _projection(job, schema)
    except JobFileError as error:
        return f"{error.message} The setting"
    nothing = TableProjection(schema)
    old, new = before or nothing, now or nothing
    name = str(TableName(schema.table.database, schema.table.name))
    removed, added = set(old.excluded) - set(new.excluded), set(new.excluded) - set(old.excluded)
    if (removed if present is None else removed & present) or added.intersection(c.name for c in schema.captured):
        return job.place("source", "columns", name, "exclude")
    if old.masks != new.masks:
        return job.place("source", "columns", name, "mask")
    if old.mask_key_id != new.mask_key_id:
        return job.place("source", "mask_key")
    if old.transform_sha256 != new.transform_sha256:
        return job.place("transforms", name)
    return None if old.output == new.output else f"The result of {job.place('transforms', name)}"


def projector(job: JobFile, schemas: Iterable[TableSchema], known: Iterable[TableProjection]) -> Projector:
    """Returns the projector of one task."""
    return Projector(
        schemas={schema.table: schema for schema in schemas},
        known={p.output.table: p for p in known if p.masks or p.transform_sha256},
        settings=lambda table: settings_for(job, table),
        partial_deletes=job.source.url.kind == "postgresql",
    )


def lines_of(job: JobFile) -> Iterator[str]:
    """Yields one line per table that says what the job file does to its columns."""
    for table in sorted({*job.source.columns, *job.transforms}):
        excluded = sorted(job.source.excluded_columns(table.database, table.name))
        masks = job.source.masked_columns(table.database, table.name)
        keyed = " with source.mask_key" if job.source.mask_key is not None else ""
        parts = [f"without {', '.join(excluded)}"] if excluded else []
        parts += [f"{name} masked by {kind}{keyed if kind == 'sha256' else ''}" for name, kind in sorted(masks.items())]
        settings = job.source.columns.get(table)
        parts += [f"{', '.join(settings.as_text)} as text"] if settings is not None and settings.as_text else []
        transform = job.transform(table.database, table.name)
        parts += [f"transformed by {' '.join(transform.split())}"] if transform else []
        if parts:
            yield f"{table}: {'; '.join(parts)}"
