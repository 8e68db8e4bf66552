"""A table's copy in Delta Lake: its columns, the statements that create and change it, its checks. Pure."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    NumericType,
    StructField,
    StructType,
    TimestampNTZType,
)

from tidemark.conf.tables import TableName
from tidemark.sinks.audit import AuditColumns
from tidemark.sinks.delta.locations import JOB_NAME, JOB_UUID, Found, Location, Occupied, quoted, text_literal
from tidemark.sinks.delta.rows import schema_of
from tidemark.sinks.sink import Finding, JobIdentity, reserved_name_findings, without_column
from tidemark.state.change_batch import meta_fields
from tidemark.state.integer_range import IntegerRange, united
from tidemark.state.remedies import NEEDS_KEY, START_OVER, read_again
from tidemark.state.table import TableSchema

Style: TypeAlias = Literal["mirror", "changelog"]
PartitionBy: TypeAlias = Mapping[TableName, tuple[str, ...]]

KEPT_KEY = "tidemark.key"
"""The property of a table that keeps deleted rows: the columns of the key by which it has one row each, as JSON."""
PUT_BACK = f"Put it back, or {START_OVER}."
_NEEDS_MAPPING = re.compile(r"[ ,;{}()\n\t=]")
_MAPPING = "delta.columnMapping.mode"
_WITHOUT_ZONE = "timestamp_ntz"
_DELETION_VECTORS = "delta.enableDeletionVectors"
_FEED = "delta.enableChangeDataFeed"
_SUFFIXES = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L"}
_SIZED_TEXT = "__CHAR_VARCHAR_TYPE_STRING"
"""In the metadata of a field, Spark keeps the type CHAR(n) or VARCHAR(n), and tells the type STRING."""
_MERGE_NAMES = (
    "_metadata",
    "_row_dropped_",
    "_source_row_present_",
    "_target_row_present_",
    "_tmp_metadata_row_index",
    "deletionvectorid",
)
"""Columns of its own that Delta joins to the table's in a MERGE (4.4.0), in lower case."""
_WHOLE_DECIMAL = re.compile(r"decimal\(\d+,0\)")


def columns_of(schema: TableSchema, style: Style) -> StructType:
    return from_arrow_schema(schema_of(schema, "rows" if style == "mirror" else "changes"))


def partition_columns(schema: TableSchema, partition_by: PartitionBy) -> tuple[str, ...]:
    return partition_by.get(TableName(schema.table.database, schema.table.name), ())


def create_table(
    schema: TableSchema, location: Location, style: Style, partition_by: PartitionBy, properties: Mapping[str, str]
) -> str:
    """`schema`: of the copy. `properties`: see `properties_of`."""
    fields = columns_of(schema, style).fields
    properties = {**properties, _DELETION_VECTORS: "true"}
    if any(_NEEDS_MAPPING.search(field.name) for field in fields):
        properties[_MAPPING] = "name"
    columns = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in fields)
    partitions = ", ".join(map(quoted, partition_columns(schema, partition_by)))
    partitioned = f" PARTITIONED BY ({partitions})" if partitions else ""
    return (
        f"CREATE TABLE {location.relation} ({columns}) USING delta{partitioned} TBLPROPERTIES ({_listed(properties)})"
    )


def properties_of(schema: TableSchema, job: JobIdentity, audit: AuditColumns) -> dict[str, str]:
    """Returns the properties by which a table is the job's copy of a source table."""
    owner = {JOB_NAME: job.name, JOB_UUID: job.uuid}
    return owner | ({KEPT_KEY: _key_text(schema)} if audit.keeps_deleted else {})


def _key_text(schema: TableSchema) -> str:
    return json.dumps(sorted(schema.key), ensure_ascii=False)


def claim_table(location: Location, properties: Mapping[str, str]) -> str:
    return f"ALTER TABLE {location.relation} SET TBLPROPERTIES ({_listed(properties)})"


def _listed(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{text_literal(name)} = {text_literal(value)}" for name, value in properties.items())


def is_replaceable(found: Found, columns: Collection[str]) -> bool:
    """True if rows of the source can take the place of the copy's rows, one range of the integers in `columns` after the other.
    Without deletion vectors each of these commits would write the other rows of the files that it touches again. Delta does not
    find a column with a dot in its name in the condition of such a commit."""
    has_vectors = found.properties.get(_DELETION_VECTORS, "").lower() == "true"
    suffixes = _integer_suffixes(found.columns)
    return has_vectors and all(name.lower() in suffixes and "." not in name for name in columns)


def in_ranges(
    ranges: Iterable[IntegerRange], columns: StructType, expression_of: Callable[[str], str] = quoted
) -> str | None:
    """Returns the condition for the rows of a Delta table in disjoint ranges of keys, None if the ranges are not of integers
    there. `columns`: those of the table. `expression_of`: of the value in a column of that name. All ranges of a key together
    have all rows: those without a key, which only somebody else can have written, belong to the range that has no start.

    A literal has the type of its column. Otherwise Spark would change the comparison, and could not hand it on to Delta."""
    suffixes, conditions = _integer_suffixes(columns), list[str]()
    for keys in united(ranges):
        if not all(name.lower() in suffixes for name in keys.columns):
            return None
        condition = keys.condition(expression_of, literal_of=lambda name, value: f"{value}{suffixes[name.lower()]}")
        if keys.start is None and keys.end is not None:
            condition = " OR ".join([f"({condition})", *(f"{expression_of(name)} IS NULL" for name in keys.columns)])
        conditions.append(f"({condition})")
    return " OR ".join(conditions)


def _integer_suffixes(columns: StructType) -> dict[str, str]:
    """Returns the columns that hold integers, in lower case, with what follows a literal of their type."""
    found = dict[str, str]()
    for field in columns.fields:
        kind = field.dataType.simpleString()
        suffix = "BD" if _WHOLE_DECIMAL.fullmatch(kind) else _SUFFIXES.get(kind)
        if suffix is not None:
            found[field.name.lower()] = suffix
    return found


def schema_findings(
    schema: TableSchema, style: Style, partition_by: PartitionBy, audit: AuditColumns
) -> Iterator[Finding]:
    """Yields the problems of the source's table that no location can solve."""
    table = schema.table
    if style == "mirror" and not schema.key:
        yield Finding(
            table,
            "It has no key: a mirror can't tell its rows apart.",
            NEEDS_KEY,
        )
    yield from reserved_name_findings(schema)
    yield from audit.name_findings(schema, folded_name)
    added = [field.name for field in meta_fields(schema)] if style == "changelog" else []
    seen = {folded_name(name): name for name in added}
    for column in schema.captured:
        exclude = without_column(schema, column.name)
        other = seen.setdefault(folded_name(column.name), column.name)
        if other != column.name:
            text = f"Delta Lake takes the names of the columns {other} and {column.name} for one."
            first = column.name in schema.key and other not in added
            yield Finding(table, text, without_column(schema, other) if first else exclude)
        if style == "mirror" and column.name.lower() in _MERGE_NAMES:
            yield Finding(table, f"Delta Lake needs the name of its column {column.name} to merge changes.", exclude)
        if "${" in column.name:
            yield Finding(table, f"Spark takes a part of the name of its column {column.name} for a setting.", exclude)
        if "`" in column.name:
            yield Finding(
                table, f"Delta Lake can't merge into a column with a backtick in its name: {column.name}.", exclude
            )
    columns = {column.name: column for column in schema.captured}
    names = partition_columns(schema, partition_by)
    if names and set(columns_of(audit.extended(schema), style).names) <= set(names):
        yield Finding(
            table, "Delta Lake does not partition a table by all of its columns.", "Correct sink.partition_by."
        )
    for name in names:
        if name not in columns:
            yield Finding(table, f"It has no column {name}.", "Correct sink.partition_by.")
        elif columns[name].arrow_type == "binary" or columns[name].arrow_type.startswith("list") or "." in name:
            yield Finding(
                table, f"Delta Lake does not partition by a column like {name}.", "Correct sink.partition_by."
            )


def folded_name(name: str) -> str:
    """Equal for names that Spark takes as equal: Java's `equalsIgnoreCase` has one character for each, of either case."""
    return "".join((one.upper() if len(one.upper()) == 1 else one).lower()[0] for one in name)


def location_findings(
    schema: TableSchema,
    location: Location,
    found: Found | Occupied | None,
    job: JobIdentity | None,
    written_id: str | None,
) -> Iterator[Finding]:
    """Yields whether the copy may go there. `written_id`: the id of the job's Delta table for it, None before it has one."""
    table = schema.table
    if found is None and written_id is None:
        yield Finding(table, f"will be created as the Delta table {location}")
    elif found is None:
        yield Finding(
            table, f"{location}, which this job wrote, is gone, or {location.setting} has changed since.", PUT_BACK
        )
    elif isinstance(found, Occupied):
        yield Finding(table, f"{location} {found.text}.", f"Remove what is there, or change {location.setting}.")
    elif written_id is not None and found.table_id != written_id:
        yield Finding(table, f"{location} is not the table that this job wrote, but another one.", PUT_BACK)
    elif (owner := found.properties.get(JOB_UUID)) is not None and (job is None or owner != job.uuid):
        this = "this one has not started yet" if job is None else f"this is {job.name} ({job.uuid})"
        yield Finding(
            table,
            f"{location} belongs to job {found.properties.get(JOB_NAME)} ({owner}); {this}.",
            f"Change {location.setting}, or delete that table.",
        )
    elif owner is None and written_id is None and not found.is_empty:
        yield Finding(
            table,
            f"{location} has rows that this job did not write.",
            f"Empty or delete that table, or change {location.setting}.",
        )
    elif owner is None:
        yield Finding(table, f"the Delta table {location} will be used")


def missing_columns(schema: TableSchema, found: Found, style: Style) -> tuple[str, ...]:
    """Returns the columns that the Delta table lacks, in the order of `schema`, which is that of the copy."""
    existing = {field.name.lower() for field in found.columns.fields}
    return tuple(name for name in columns_of(schema, style).names if name.lower() not in existing)


def other_types(schema: TableSchema, columns: StructType, style: Style) -> Iterator[str]:
    """Yields which columns of the Delta table, whose `columns` are given, have another type than in `schema`, which is that of
    the copy."""
    existing = _by_name(columns)
    for field in columns_of(schema, style).fields:
        kind = _kind(existing.get(field.name.lower(), field))
        if kind != field.dataType.simpleString():
            yield f"{field.name} as {kind}, not as {field.dataType.simpleString()}"


def with_types_of(schema: TableSchema, columns: StructType, style: Style) -> StructType:
    """Returns a Delta table's `columns` with the types of `schema`, and those that it lacks. All may be null, as in each table
    whose schema is overwritten."""
    wanted = {field.name.lower(): field for field in columns_of(schema, style).fields}
    existing = _by_name(columns)
    held = [
        StructField(field.name, wanted[name].dataType, metadata=_comment(field))
        if name in wanted and _kind(field) != _kind(wanted[name])
        else StructField(field.name, field.dataType, metadata=field.metadata)
        for name, field in existing.items()
    ]
    return StructType([*held, *(field for name, field in wanted.items() if name not in existing)])


def changed_fields(before: StructType, after: StructType) -> list[StructField]:
    """Returns the fields of `after` that have another type than in `before`."""
    existing = _by_name(before)
    return [field for field in after.fields if _kind(field) != _kind(existing.get(field.name.lower(), field))]


def keeps_values(before: DataType, after: DataType) -> bool:
    """True if a value is the same one in both types, where a cast and the cast back give it again. In others it may be another
    one all the same: 20260301 as a number is no day in Spark, but one in MySQL. As texts, numbers of ZEROFILL have zeros in
    front. The label '10' of an ENUM becomes its position. A `real` of PostgreSQL becomes the decimal of its six digits."""
    if isinstance(before, NumericType) and isinstance(after, NumericType):
        return not (isinstance(before, (FloatType, DoubleType)) and isinstance(after, DecimalType))
    kinds = (DateType, TimestampNTZType)
    return isinstance(before, kinds) and isinstance(after, kinds)


def _comment(field: StructField) -> dict[str, Any]:
    return {name: text for name, text in field.metadata.items() if name == "comment"}


def _by_name(columns: StructType) -> dict[str, StructField]:
    return {field.name.lower(): field for field in columns.fields}


def _kind(field: StructField) -> str:
    return str(field.metadata.get(_SIZED_TEXT, field.dataType.simpleString()))


def add_columns(
    schema: TableSchema, location: Location, found: Found, style: Style, names: Collection[str]
) -> Iterator[str]:
    """Yields the statements that give the table these columns, and before that the features that they need."""
    fields = [field for field in columns_of(schema, style).fields if field.name in names]
    yield from allow_columns(fields, location, found)
    columns = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in fields)
    yield f"ALTER TABLE {location.relation} ADD COLUMNS ({columns})"


def allow_columns(fields: Collection[StructField], location: Location, found: Found) -> Iterator[str]:
    """Yields the statement that gives the table the features which Delta turns on by itself only where a table is created:
    column mapping for such names, and times without a zone. None if it needs none."""
    features = dict[str, str]()
    if found.properties.get(_MAPPING, "none") == "none" and any(_NEEDS_MAPPING.search(field.name) for field in fields):
        features[_MAPPING] = "name"
    if any(_WITHOUT_ZONE in field.dataType.simpleString() for field in fields):
        features["delta.feature.timestampNtz"] = "supported"
    if features:
        yield f"ALTER TABLE {location.relation} SET TBLPROPERTIES ({_listed(features)})"


def table_findings(
    schema: TableSchema,
    location: Location,
    found: Found,
    style: Style,
    partition_by: PartitionBy,
    *,
    is_adapted: bool = False,
) -> Iterator[Finding]:
    """Yields why a table that this job may use can't store the rows unchanged. `schema`: of the copy. `is_adapted`: the copy
    gets columns and types that fit when the table is read again."""
    remedy = f"Delete that table and let the job create it, or change {location.setting}."
    of_columns = remedy
    if is_adapted:
        again = read_again(TableName(schema.table.database, schema.table.name))
        of_columns = f"{again} It changes the copy so that it fits."
    existing = _by_name(found.columns)
    never_null = {column.name for column in schema.captured if not column.nullable} if style == "mirror" else set[str]()
    for field in columns_of(schema, style).fields:
        held = existing.get(field.name.lower())
        if held is None:
            yield Finding(schema.table, f"{location} has no column {field.name}.", of_columns)
            continue
        kind = _kind(held)
        if kind != field.dataType.simpleString():
            text = f"{location} has {field.name} as {kind}, not as {field.dataType.simpleString()}."
            yield Finding(schema.table, text, of_columns)
        elif not held.nullable and field.name not in never_null:
            text = f"{location} has {field.name} as NOT NULL, but it may be NULL in the source."
            let = f"ALTER TABLE {location.relation} ALTER COLUMN {quoted(held.name)} DROP NOT NULL"
            yield Finding(schema.table, text, f"Allow NULL ({let}). Or delete that table and let the job create it.")
    wanted = partition_columns(schema, partition_by)
    if wanted and wanted != found.partition_columns:
        listed = ", ".join(found.partition_columns) or "nothing"
        yield Finding(schema.table, f"{location} is partitioned by {listed}, not by {', '.join(wanted)}.", remedy)


def feed_findings(schema: TableSchema, location: Location, found: Found, others: Collection[str]) -> Iterator[Finding]:
    """Yields why Delta would refuse the commit of rows that changes the types of the columns `others`. With column mapping, a
    column of another type is a new one for Delta, and the old one is dropped. A table with a change data feed may not get rows
    in such a commit (4.4.0)."""
    has_feed = found.properties.get(_FEED, "").lower() == "true"
    if has_feed and found.properties.get(_MAPPING, "none") != "none":
        why = "With change data feed and column mapping it can't get other types."
        off = f"ALTER TABLE {location.relation} SET TBLPROPERTIES ('{_FEED}' = 'false')"
        yield Finding(
            schema.table,
            f"{location} has {', '.join(others)}. {why}",
            f"Turn its change data feed off ({off}), and on again once the table's rows have been read. Or delete that table "
            "and let the job create it.",
        )


def key_findings(schema: TableSchema, location: Location, found: Found) -> Iterator[Finding]:
    """Yields why a table that keeps deleted rows can't have the source's rows: under another key, several deleted rows may have
    one key."""
    key = found.properties.get(KEPT_KEY)
    if JOB_UUID in found.properties and key != _key_text(schema):
        held = "an unknown key" if key is None else f"the key ({', '.join(json.loads(key))})"
        yield Finding(
            schema.table,
            f"{location} keeps deleted rows by {held}, and the table's key is ({', '.join(schema.key)}) now.",
            f"Delete that table and let the job create it, or change {location.setting}.",
        )


def unknown_tables(schemas: Sequence[TableSchema], partition_by: PartitionBy) -> Iterator[Finding]:
    known = {TableName(schema.table.database, schema.table.name) for schema in schemas}
    for name in partition_by:
        if name not in known:
            yield Finding(None, f"sink.partition_by names {name}, which is not copied.", "Correct sink.partition_by.")
