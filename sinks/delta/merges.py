"""The statements that merge the net effect of changes into a Delta table. Pure."""

from collections.abc import Collection, Iterable, Mapping

from tidemark.sinks.audit import Marks
from tidemark.sinks.delta.locations import Location, quoted, text_literal
from tidemark.sinks.mirror.unchanged import missing_value_error
from tidemark.state.table import Column, TableSchema


def merge(
    schema: TableSchema, location: Location, source: str, marks: Marks, partitioned_by: Collection[str] = ()
) -> str:
    """Returns the MERGE of the view `source`, which has `effect_schema`. `partitioned_by`: the table's partition columns."""
    kept, inserted = _values(schema, location)
    kept, inserted = kept | constants(marks.kept), inserted | constants(marks.kept)
    return (
        f"{_merging(schema, location, source, partitioned_by)} "
        "WHEN MATCHED AND NOT source.stays THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {_set(kept)} "
        f"WHEN NOT MATCHED AND source.stays THEN {_insert(inserted)}"
    )


def merge_keeping(
    schema: TableSchema,
    location: Location,
    source: str,
    marks: Marks,
    others: str | None,
    partitioned_by: Collection[str] = (),
) -> str:
    """Returns the MERGE of the view `source`, which has `kept_schema`, into a table that keeps deleted rows. `others`: the
    condition for rows of other keys that the source has deleted, too; None for none. `partitioned_by`: the table's partition
    columns."""
    kept, inserted = _values(schema, location)
    deleted = marks.removed[0].name
    states = constants(marks.kept) | {deleted: "source.deleted"}
    is_there, removed = f"target.{quoted(deleted)} IS NOT TRUE", _set(constants(marks.removed))
    by_others = f" WHEN NOT MATCHED BY SOURCE AND {is_there} AND ({others}) THEN UPDATE SET {removed}"
    return (
        f"{_merging(schema, location, source, partitioned_by)} "
        "WHEN MATCHED AND NOT source.stays AND NOT source.deleted THEN DELETE "
        f"WHEN MATCHED AND source.stays THEN UPDATE SET {_set(kept | states)} "
        f"WHEN MATCHED AND {is_there} THEN UPDATE SET {removed} "
        f"WHEN NOT MATCHED AND source.stays THEN {_insert(inserted | states)}{'' if others is None else by_others}"
    )


def completed(schema: TableSchema, location: Location, source: str) -> str:
    """Returns the query that gives the rows of `source`, which has `kept_schema`, with the values that the table has in rows
    under other keys."""
    held = [f"{_held(schema, name, schema.key)} AS {_key(i)}" for i, name in enumerate(schema.key)]
    values = [f"target.{quoted(name)} AS {_value(i)}" for i, name in enumerate(schema.toastable)]
    keys = [_key(i) for i in range(len(schema.key))]
    origins = [f"origin.{quoted(name)} AS {_key(i)}" for i, name in enumerate(schema.key)]
    found = (
        f"SELECT {', '.join(f'first(there.{_value(i)}) AS {_value(i)}' for i in range(len(values)))}, "
        f"{', '.join(f'there.{key}' for key in keys)}, true AS is_there "
        f"FROM (SELECT {', '.join([*held, *values])} FROM {location.relation} AS target) AS there "
        f"LEFT SEMI JOIN (SELECT {', '.join(origins)} FROM {source} WHERE origin IS NOT NULL) AS wanted "
        f"ON {' AND '.join(f'there.{key} = wanted.{key}' for key in keys)} "
        f"GROUP BY {', '.join(f'there.{key}' for key in keys)}"
    )
    new = []
    for name in (column.name for column in schema.captured):
        value = f"changed.new.{quoted(name)}"
        if name in schema.toastable:
            there = f"found.{_value(schema.toastable.index(name))}"
            absent = f"WHEN found.is_there IS NULL THEN {_raise_not_there(schema, location)}"
            there = f"CASE {absent} ELSE {there} END"
            missing = f"array_contains(changed.missing, {text_literal(name)})"
            value = f"CASE WHEN changed.origin IS NOT NULL AND {missing} THEN {there} ELSE {value} END"
        new.append(f"{text_literal(name)}, {value}")
    at_origin = " AND ".join(f"found.{_key(i)} = changed.origin.{quoted(name)}" for i, name in enumerate(schema.key))
    return (
        "SELECT changed.at, changed.stays, CASE WHEN changed.origin IS NULL THEN changed.missing END AS missing, "
        f"CASE WHEN changed.new IS NOT NULL THEN named_struct({', '.join(new)}) END AS new, changed.deleted, "
        f"changed.origin FROM {source} AS changed LEFT JOIN ({found}) AS found ON {at_origin}"
    )


def constants(columns: Iterable[Column]) -> dict[str, str]:
    """Returns expressions of the values of audit columns, by column."""
    return {
        column.name: str(column.constant) if column.arrow_type == "bool" else f"TIMESTAMP_LTZ '{column.constant}'"
        for column in columns
    }


def _key(place: int) -> str:
    return f"k{place}"


def _value(place: int) -> str:
    return f"v{place}"


def needs_whole_files(schema: TableSchema, partitioned_by: Collection[str]) -> bool:
    """True if the MERGE's condition may hold for a row of the source that has no row in the table: all columns of the key are
    texts and partitions. Delta (4.4.0) evaluates the condition again for such rows, with NULL for the table's columns, unless
    it writes files again as a whole. It fails if no clause takes them."""
    return all(held_as_null(schema, name, partitioned_by) for name in schema.key)


def _merging(schema: TableSchema, location: Location, source: str, partitioned_by: Collection[str]) -> str:
    at = " AND ".join(f"{_held(schema, name, partitioned_by)} = source.at.{quoted(name)}" for name in schema.key)
    return f"MERGE INTO {location.relation} AS target USING {source} AS source ON {at}"


def _values(schema: TableSchema, location: Location) -> tuple[dict[str, str], dict[str, str]]:
    """Returns expressions of the source's columns for a row that is updated, and for one that is inserted."""
    new = {column.name: f"source.new.{quoted(column.name)}" for column in schema.captured}
    kept, inserted = dict(new), dict(new)
    for name in schema.toastable:
        missing = f"array_contains(source.missing, {text_literal(name)})"
        kept[name] = f"CASE WHEN {missing} THEN target.{quoted(name)} ELSE {new[name]} END"
        inserted[name] = f"CASE WHEN {missing} THEN {_raise_not_there(schema, location)} ELSE {new[name]} END"
    return kept, inserted


def _raise_not_there(schema: TableSchema, location: Location) -> str:
    what = f"The log leaves values out of changes to rows that {location} does not have"
    return f"raise_error({text_literal(f'SinkError: {missing_value_error(schema, what)}')})"


def _set(values: Mapping[str, str]) -> str:
    return ", ".join(f"target.{quoted(name)} = {value}" for name, value in values.items())


def _insert(values: Mapping[str, str]) -> str:
    return f"INSERT ({', '.join(map(quoted, values))}) VALUES ({', '.join(values.values())})"


def _held(schema: TableSchema, name: str, partitioned_by: Collection[str]) -> str:
    """Returns the expression of the table's value in a column of the key."""
    held = f"target.{quoted(name)}"
    return f"coalesce({held}, '')" if held_as_null(schema, name, partitioned_by) else held


def held_as_null(schema: TableSchema, name: str, partitioned_by: Collection[str]) -> bool:
    """True for a text by which the table is partitioned: Delta has NULL there for an empty text."""
    names = {column.lower() for column in partitioned_by}
    return name.lower() in names and schema.column(name).arrow_type == "string"
