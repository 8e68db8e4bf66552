"""A table's copy in Delta Lake: its columns, the statements that create and change it. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from conf.tables import TableName
from sinks.delta.places import JOB_NAME, JOB_UUID, Found, Occupied, Place, quoted
from sinks.delta.rows import schema_of
from sinks.sink import Finding, JobIdentity
from state.change_batch import meta_fields
from state.table import TableSchema

Style: TypeAlias = Literal["mirror", "changelog"]
PartitionBy: TypeAlias = Mapping[TableName, tuple[str, ...]]

BEGIN_ANEW = "Put it back, or begin anew: a new checkpoint, and the job's tables deleted."
_NEEDS_MAPPING = re.compile(r"[ ,;{}()\n\t=]")


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def columns_of(schema: TableSchema, style: Style) -> StructType:
    return from_arrow_schema(schema_of(schema, "rows" if style == "mirror" else "changes"))


def partition_columns(schema: TableSchema, partition_by: PartitionBy) -> tuple[str, ...]:
    return partition_by.get(TableName(schema.table.database, schema.table.name), ())


def create_table(schema: TableSchema, place: Place, style: Style, partition_by: PartitionBy, job: JobIdentity) -> str:
    fields = columns_of(schema, style).fields
    properties = {JOB_NAME: job.name, JOB_UUID: job.uuid, "delta.enableDeletionVectors": "true"}
    if any(_NEEDS_MAPPING.search(field.name) for field in fields):
        properties["delta.columnMapping.mode"] = "name"
    columns = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in fields)
    partitions = ", ".join(map(quoted, partition_columns(schema, partition_by)))
    partitioned = f" PARTITIONED BY ({partitions})" if partitions else ""
    return f"CREATE TABLE {place.relation} ({columns}) USING delta{partitioned} TBLPROPERTIES ({_listed(properties)})"


def take_table(place: Place, job: JobIdentity) -> str:
    return f"ALTER TABLE {place.relation} SET TBLPROPERTIES ({_listed({JOB_NAME: job.name, JOB_UUID: job.uuid})})"


def _listed(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())


def merge(schema: TableSchema, place: Place, source: str) -> str:
    """`source` is a view of `rows.effect_schema`."""
    names = [column.name for column in schema.captured]
    at = " AND ".join(f"target.{quoted(name)} = source.at.{quoted(name)}" for name in schema.key)
    new = {name: f"source.new.{quoted(name)}" for name in names}
    kept, inserted = dict(new), dict(new)
    lacks = literal(
        f"SinkError: {schema.table}: The log leaves values out of changes to rows that {place} lacks. Remedy: Let the "
        f"source's log repeat such values (ALTER TABLE {schema.table} REPLICA IDENTITY FULL), and begin anew: a new "
        "checkpoint, and the copies deleted."
    )
    for name in schema.toastable:
        missing = f"array_contains(source.missing, {literal(name)})"
        kept[name] = f"CASE WHEN {missing} THEN target.{quoted(name)} ELSE {new[name]} END"
        inserted[name] = f"CASE WHEN {missing} THEN raise_error({lacks}) ELSE {new[name]} END"
    updates = ", ".join(f"target.{quoted(name)} = {value}" for name, value in kept.items())
    return (
        f"MERGE INTO {place.relation} AS target USING {source} AS source ON {at} "
        "WHEN MATCHED AND NOT source.stays THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {updates} "
        f"WHEN NOT MATCHED AND source.stays THEN INSERT ({', '.join(map(quoted, names))}) "
        f"VALUES ({', '.join(inserted.values())})"
    )


def schema_findings(schema: TableSchema, style: Style, partition_by: PartitionBy) -> Iterator[Finding]:
    """What the source's table itself makes impossible."""
    table = schema.table
    exclude = "Exclude it (source.columns)."
    if style == "mirror" and not schema.key:
        yield Finding(
            table,
            "It has no key, so that its rows can't be told apart in a mirror.",
            f"Name columns that are unique and NOT NULL: source.keys: {{{table}: […]}}; or write sink.style: changelog.",
        )
    added = [field.name for field in meta_fields(schema)] if style == "changelog" else []
    seen: set[str] = set(added)
    for column in schema.captured:
        if column.name.lower() in seen:
            yield Finding(table, f"Its column {column.name} has the name of another one, for Delta Lake.", exclude)
        if "`" in column.name:
            yield Finding(
                table, f"Delta Lake can't merge into a column with a backtick in its name: {column.name}.", exclude
            )
        seen.add(column.name.lower())
    columns = {column.name: column for column in schema.captured}
    for name in partition_columns(schema, partition_by):
        if name not in columns:
            yield Finding(table, f"It has no column {name}.", "Correct sink.partition_by.")
        elif columns[name].arrow_type == "binary" or columns[name].arrow_type.startswith("list"):
            yield Finding(
                table, f"Delta Lake does not partition by a column like {name}.", "Correct sink.partition_by."
            )


def place_findings(
    schema: TableSchema,
    place: Place,
    found: Found | Occupied | None,
    job: JobIdentity | None,
    written_id: str | None,
) -> Iterator[Finding]:
    """Whether the copy may go there. `written_id`: of the Delta table that the job has for it, None before it has one."""
    table = schema.table
    if found is None and written_id is None:
        yield Finding(table, f"will be created as the Delta table {place}")
    elif found is None:
        yield Finding(
            table, f"{place}, which this job wrote, is gone, or {place.setting} was another one then.", BEGIN_ANEW
        )
    elif isinstance(found, Occupied):
        yield Finding(table, f"{place} {found.text}.", f"Make that place free, or change {place.setting}.")
    elif written_id is not None and found.table_id != written_id:
        yield Finding(table, f"{place} is not the table that this job wrote, but another one.", BEGIN_ANEW)
    elif (owner := found.properties.get(JOB_UUID)) is not None and (job is None or owner != job.uuid):
        this = "this one has not started yet" if job is None else f"this is {job.name} ({job.uuid})"
        yield Finding(
            table,
            f"{place} belongs to job {found.properties.get(JOB_NAME)} ({owner}); {this}.",
            f"Change {place.setting}; or, to begin anew, delete that table.",
        )
    elif owner is None and written_id is None and not found.is_empty:
        yield Finding(
            table,
            f"{place} holds rows that this job did not write.",
            f"Empty or delete that table, or change {place.setting}.",
        )
    elif owner is None:
        yield Finding(table, f"the Delta table {place} will be used")


def table_findings(
    schema: TableSchema, place: Place, found: Found, style: Style, partition_by: PartitionBy
) -> Iterator[Finding]:
    """Of a table that this job may have: whether it takes the rows as they are."""
    remedy = f"Delete that table and let the job create it, or change {place.setting}."
    existing = {field.name.lower(): field.dataType.simpleString() for field in found.columns.fields}
    for field in columns_of(schema, style).fields:
        kind = existing.get(field.name.lower())
        if kind is None:
            yield Finding(schema.table, f"{place} has no column {field.name}.", remedy)
        elif kind != field.dataType.simpleString():
            text = f"{place} has {field.name} as {kind}, not as {field.dataType.simpleString()}."
            yield Finding(schema.table, text, remedy)
    wanted = partition_columns(schema, partition_by)
    if wanted and wanted != found.partition_columns:
        listed = ", ".join(found.partition_columns) or "nothing"
        yield Finding(schema.table, f"{place} is partitioned by {listed}, not by {', '.join(wanted)}.", remedy)


def unknown_tables(schemas: Sequence[TableSchema], partition_by: PartitionBy) -> Iterator[Finding]:
    known = {TableName(schema.table.database, schema.table.name) for schema in schemas}
    for name in partition_by:
        if name not in known:
            yield Finding(None, f"sink.partition_by names {name}, which is not copied.", "Correct sink.partition_by.")
