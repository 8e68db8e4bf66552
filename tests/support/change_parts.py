"""Change batches made by hand, as the readers would send them."""

import dataclasses
import datetime
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from tidemark.state.change_batch import (
    UNCHANGED_FIELD,
    ChangeBatch,
    ChangeType,
    PartEnd,
    PartItem,
    ReplacedRange,
    batch_schema,
)
from tidemark.state.copied_range import CopiedRange
from tidemark.state.integer_range import IntegerRange
from tidemark.state.reached import Reached
from tidemark.state.table import Column, TableId, TableSchema, arrow_type_of

COMMITTED_AT = datetime.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=datetime.timezone.utc)

INSERT, UPDATE, DELETE = ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE, ChangeType.DELETE
TRUNCATE = ChangeType.TRUNCATE

Change = tuple[ChangeType, Sequence[Any]]
"""The kind, and the row's values in the order of the captured columns."""


class _Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Any = _Unchanged()
"""In a change: the value that the update did not touch and the log left out."""


def column(name: str, source_type: str, arrow_type: str, *, key: bool = False, collation: str | None = None) -> Column:
    """A column of a MySQL source. Character types are utf8mb4 unless the collation says otherwise."""
    has_charset = source_type.startswith(
        ("char", "varchar", "text", "tinytext", "mediumtext", "longtext", "enum", "set")
    )
    if has_charset and collation is None:
        collation = "utf8mb4_general_ci"
    charset = collation.partition("_")[0] if collation else None
    return Column(name, source_type, arrow_type, nullable=not key, charset=charset, collation=collation)


ORDERS = TableSchema(
    TableId("shop", "orders"),
    1,
    (
        column("id", "bigint", "int64", key=True),
        column("customer", "varchar(60)", "string"),
        column("amount", "decimal(12,2)", "decimal(12,2)"),
        column("placed_at", "datetime(6)", "timestamp"),
        column("note", "text", "string"),
    ),
    ("id",),
)
ITEMS = TableSchema(
    TableId("shop", "items"),
    1,
    (
        column("order_id", "bigint", "int64", key=True),
        column("sku", "varchar(20)", "string", key=True, collation="utf8mb4_0900_bin"),
        column("quantity", "int unsigned", "int64"),
    ),
    ("order_id", "sku"),
)
NOTES = TableSchema(
    TableId("public", "notes"),
    1,
    (
        Column("id", "bigint", "int64", nullable=False),
        Column("lang", "character varying(9)", "string", nullable=False, toastable=True),
        Column("stars", "integer", "int32", nullable=True),
        Column("body", "text", "string", nullable=True, toastable=True),
        Column("scan", "bytea", "binary", nullable=True, toastable=True),
        Column("size", "numeric(30,2)", "decimal(30,2)", nullable=True, toastable=True),
    ),
    ("lang", "id"),
)
"""A table of a PostgreSQL source, whose log leaves values out."""
SCHEMAS = {(schema.table, schema.version): schema for schema in (ORDERS, ITEMS, NOTES)}


def array(values: Sequence[Any], arrow_type: str) -> pa.Array:
    """A column's array. Dates and timestamps may be given as days and microseconds since 1970."""
    kind = arrow_type_of(arrow_type)
    if pa.types.is_temporal(kind) and all(isinstance(v, int) or v is None for v in values):
        return pa.array(values, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)
    return pa.array(values, kind)


def rows(schema: TableSchema, changes: Iterable[Change], *, version: int = 1, snapshot: bool = False) -> pa.RecordBatch:
    """Change rows of one transaction, `version`, or of a snapshot."""
    given = list(changes)
    listed = [(kind, [None if v is UNCHANGED else v for v in values]) for kind, values in given]
    columns = [
        array([values[i] for _, values in listed], captured.arrow_type) for i, captured in enumerate(schema.captured)
    ]
    count = len(listed)
    transactions = pa.array([None if snapshot else f"gtid:{version}"] * count, pa.string())
    meta = [
        pa.array([int(kind) for kind, _ in listed], pa.int8()),
        pa.array([version] * count, pa.int64()),
        pa.array([COMMITTED_AT] * count, pa.timestamp("us", tz="UTC")),
        pa.array(range(count), pa.int32()),
        pa.DictionaryArray.from_arrays(
            transactions.dictionary_encode().indices, transactions.dictionary_encode().dictionary
        ),
        pa.array([snapshot] * count, pa.bool_()),
    ]
    if schema.toastable:
        meta.append(pa.array([_left_out(schema, values) for _, values in given], UNCHANGED_FIELD.type))
    return pa.RecordBatch.from_arrays([*columns, *meta], schema=batch_schema(schema))


def _left_out(schema: TableSchema, values: Sequence[Any]) -> list[str] | None:
    return [c.name for c, value in zip(schema.captured, values, strict=True) if value is UNCHANGED] or None


def part(
    epoch: int, name: str, batches: Sequence[tuple[TableSchema, pa.RecordBatch]], after: Reached | None = None
) -> list[ChangeBatch | PartEnd]:
    items: list[ChangeBatch | PartEnd] = [
        ChangeBatch(epoch, name, seq, schema.table, schema.version, batch)
        for seq, (schema, batch) in enumerate(batches)
    ]
    items.append(PartEnd(epoch, name, len(batches), sum(batch.num_rows for _, batch in batches), after))
    return items


def snapshot_part(
    epoch: int, split: int, schema: TableSchema, values: Iterable[Sequence[Any]]
) -> list[ChangeBatch | PartEnd]:
    return part(epoch, f"s{split}", [(schema, rows(schema, [(INSERT, v) for v in values], snapshot=True))])


def replacing_part(
    epoch: int, split: int, schema: TableSchema, keys: IntegerRange, values: Iterable[Sequence[Any]]
) -> list[PartItem]:
    """The part of a split that replaces a range."""
    *batches, end = snapshot_part(epoch, split, schema, values)
    assert isinstance(end, PartEnd)
    moved = [
        dataclasses.replace(batch, seq=batch.seq + 1)
        for batch in batches
        if isinstance(batch, ChangeBatch) and batch.rows.num_rows
    ]
    first = ReplacedRange(epoch, end.part, 0, schema.table, schema.version, CopiedRange.of_integers(keys))
    return [first, *moved, dataclasses.replace(end, seq=len(moved) + 1)]


def log_part(
    epoch: int, *transactions: tuple[TableSchema, Iterable[Change]], after: Reached | None = None
) -> list[ChangeBatch | PartEnd]:
    """A part with a batch for each of the pairs; versions grow with epoch and position. `after`: as in PartEnd."""
    batches = [
        (schema, rows(schema, changes, version=1000 * epoch + place))
        for place, (schema, changes) in enumerate(transactions)
    ]
    return part(epoch, "log", batches, after)
