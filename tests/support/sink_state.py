"""Reads the content of a sink as plain values that are the same for every sink.

Dates are days and timestamps microseconds since 1970, decimals Decimal, vectors tuples; everything else is the value in
its canonical type. Rows are sorted by key.
"""

import base64
import datetime
import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.change_parts import SCHEMAS
from tests.support.delta import rows_of_delta, write_epochs
from tests.support.servers import Database
from tidemark.conf.endpoint import DatabaseKind, parse_endpoint
from tidemark.conf.tables import parse_table_template
from tidemark.sinks.audit import NO_AUDIT, AuditColumns
from tidemark.sinks.delta import buckets, staging
from tidemark.sinks.delta.locations import CatalogLake
from tidemark.sinks.delta.sink import DeltaSink
from tidemark.sinks.files.sink import FilesSink, table_folder_name
from tidemark.sinks.mirror.mysql import types as mysql_types
from tidemark.sinks.mirror.planning import target_of
from tidemark.sinks.mirror.postgres import types as postgres_types
from tidemark.sinks.mirror.sink import MirrorSink
from tidemark.sinks.sink import EpochSink, JobIdentity, PartResult, PartSink
from tidemark.state.change_batch import ChangeBatch, ChangeType, PartEnd
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.table import Column, TableSchema, arrow_type_of

Row = tuple[Any, ...]
TEMPLATE = parse_table_template("{schema}_{table}")
FILE_SINKS = ("parquet", "jsonl")
MIRRORS = ("mysql", "mariadb", "postgres")
KEEPING_MIRRORS = ("mysql-keeping", "postgres-keeping")
"""Mirrors that keep deleted rows, in KEEPING."""
KEEPING = AuditColumns(synced_at="_synced_at", deleted="_deleted")
DELTA = "delta"
"""Delta with the style mirror, in a catalog. tests/support/delta.py has its session."""
DELTA_KEEPING = "delta-keeping"
"""The same with deleted rows that are kept, in KEEPING."""

DELTA_BY_TASKS = "delta-by-tasks"
"""The same as DELTA with the rows of Spark's tasks, as where Spark can't read files that tasks have staged."""
DELTA_SPOOLED = "delta-spooled"
"""The same as DELTA with changes that don't fit into a task's memory."""


def plain(value: Any, column: Column) -> Any:
    """Returns the plain value for one from pyarrow, a driver or a test."""
    if _is_time(column) and isinstance(value, str):
        return _microseconds(value)
    return _plain(value, arrow_type_of(column.arrow_type))


def as_numbers(kind: pa.DataType) -> pa.DataType:
    """Returns the type with numbers in place of dates and times: Python's dates begin in year 1, ours do not."""
    if pa.types.is_list(kind):
        return pa.list_(as_numbers(kind.value_type))
    if pa.types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return kind


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_date(kind):
        return value if isinstance(value, int) else int(np.datetime64(_iso(value), "D").astype(np.int64))
    if pa.types.is_timestamp(kind):
        return value if isinstance(value, int) else int(np.datetime64(_iso(value), "us").astype(np.int64))
    if pa.types.is_decimal(kind):
        return Decimal(value).quantize(Decimal(1).scaleb(-kind.scale), context=Context(prec=60))
    if pa.types.is_floating(kind):
        return float(np.float32(value)) if kind.bit_width == 32 else float(value)
    if pa.types.is_list(kind):
        elements = np.frombuffer(bytes.fromhex(value), "<f4") if isinstance(value, str) else value
        return tuple(_plain(element, kind.value_type) for element in elements)
    if pa.types.is_binary(kind):
        return bytes(value)
    return value


def _is_time(column: Column) -> bool:
    return column.source_type.partition("(")[0] == "time"


def _microseconds(text: str) -> int:
    hours, minutes, seconds = text.removeprefix("-").split(":")
    total = (int(hours) * 3600 + int(minutes) * 60) * 10**6 + int(Decimal(seconds) * 10**6)
    return -total if text.startswith("-") else total


def _iso(value: Any) -> str:
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    return str(value).removesuffix("Z").removesuffix("+00:00").replace(" ", "T")


def plain_row(schema: TableSchema, values: Any) -> Row:
    return tuple(plain(value, column) for value, column in zip(values, schema.captured, strict=True))


def sorted_rows(schema: TableSchema, values: Any) -> list[Row]:
    names = [column.name for column in schema.captured]
    places = [names.index(name) for name in schema.key]
    return sorted((plain_row(schema, row) for row in values), key=lambda row: [row[place] for place in places])


@dataclass
class SinkCase:
    """A sink of one kind, for one job, with what a test needs to look into it."""

    kind: str
    sink: PartSink | EpochSink
    place: Any
    job: JobIdentity = field(default_factory=lambda: JobIdentity(str(uuid.uuid4()), "contract"))
    staged: bool = True
    """Tasks stage their rows for Spark."""

    def write(self, *parts: list[ChangeBatch | PartEnd], schemas: Any = None) -> list[PartResult]:
        items = [item for items in parts for item in items]
        if isinstance(self.sink, EpochSink):
            schemas = SCHEMAS if schemas is None else schemas
            return write_epochs(self.sink, self.job, items, schemas, staged=self.staged)
        return list(self.sink.writer(self.job).write(items, SCHEMAS if schemas is None else schemas))

    def rows(self, schema: TableSchema) -> list[Row]:
        """Returns the table's rows; for files, the result of applying their changes."""
        if self.kind in FILE_SINKS:
            return sorted_rows(schema, _folded(schema, self.changes(schema)))
        if self.kind == DELTA:
            return sorted_rows(schema, rows_of_delta(self.sink, schema, deleted=False if self.keeps_deleted else None))
        return sorted_rows(schema, _mirror_rows(self, schema, "_deleted IS FALSE" if self.keeps_deleted else "TRUE"))

    @property
    def keeps_deleted(self) -> bool:
        return isinstance(self.sink, (MirrorSink, DeltaSink)) and self.sink.audit.keeps_deleted

    def deleted_rows(self, schema: TableSchema) -> list[Row]:
        """Returns the rows that the source has deleted, in a copy that keeps them."""
        if self.kind == DELTA:
            return sorted_rows(schema, rows_of_delta(self.sink, schema, deleted=True))
        return sorted_rows(schema, _mirror_rows(self, schema, "_deleted IS TRUE"))

    def changes(self, schema: TableSchema) -> list[dict[str, Any]]:
        """Returns all rows of the files, with the change columns, ordered by version and sequence."""
        folder = Path(self.place) / table_folder_name(schema.table)
        files = sorted(path for path in folder.glob("*") if not path.name.startswith((".", "_")))
        read: Callable[[Path], list[dict[str, Any]]] = _parquet_rows if self.kind == "parquet" else _jsonl_rows
        found = [row for path in files for row in read(path)]
        return sorted(found, key=lambda row: (row["_commit_version"], row["_seq"]))

    def back_up(self) -> Callable[[], None]:
        """Takes a backup of the whole target, with Tidemark's own tables or files. Returns a function that puts it back."""
        if self.kind in FILE_SINKS:
            kept = self.place.with_name(f"backup-{uuid.uuid4().hex}")
            shutil.copytree(self.place, kept)

            def put_back() -> None:
                shutil.rmtree(self.place)
                shutil.copytree(kept, self.place)

            return put_back
        with closing(self.place.connect()) as connection, connection.cursor() as cursor:
            tables = {}
            for table in _tables(self):
                cursor.execute(f"SELECT * FROM {table}")
                tables[table] = cursor.fetchall()

        def put_rows_back() -> None:
            with closing(self.place.connect()) as connection, connection.cursor() as cursor:
                for table in _tables(self):
                    cursor.execute(f"DELETE FROM {table}")
                    if rows := tables.get(table, []):
                        holes = ", ".join(["%s"] * len(rows[0]))
                        cursor.executemany(f"INSERT INTO {table} VALUES ({holes})", rows)
                connection.commit()

        return put_rows_back

    def clear(self, schema: TableSchema) -> None:
        """Empties the table without the sink."""
        if self.kind in FILE_SINKS:
            shutil.rmtree(Path(self.place) / table_folder_name(schema.table))
            self.sink.prepare(self.job, [schema])
        else:
            self.place.execute(f"DELETE FROM {target_name(self, schema)}")


def _tables(case: SinkCase) -> list[str]:
    schema = "public" if case.kind == "postgres" else case.place.name
    found = case.place.query("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (schema,))
    return sorted(name for (name,) in found)


def target_name(case: SinkCase, schema: TableSchema) -> str:
    place = target_of(schema.table, TEMPLATE, "public" if case.kind == "postgres" else case.place.name)
    return (postgres_types if case.kind == "postgres" else mysql_types).full_name(place)


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    table = pq.ParquetFile(path).read()
    columns = []
    for name, values in zip(table.column_names, table.columns, strict=True):
        columns.append(values if name.startswith("_") else values.cast(as_numbers(values.type)))
    return pa.Table.from_arrays(columns, names=table.column_names).to_pylist()


def _jsonl_rows(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines() if line]


def _folded(schema: TableSchema, changes: list[dict[str, Any]]) -> list[list[Any]]:
    state: dict[Any, list[Any]] = {}
    removed: list[Any] | None = None
    names = [column.name for column in schema.captured]
    for change in changes:
        if change["_change_type"] == ChangeType.TRUNCATE.name.lower():
            assert not any(change[name] for name in names)
            state.clear()
            continue
        values = [_from_json(change[c.name], c) for c in schema.captured]
        key = tuple(plain(values[names.index(name)], schema.column(name)) for name in schema.key)
        if change["_change_type"] == ChangeType.DELETE.name.lower():
            removed = state.pop(key, None)
            continue
        before = removed if change["_change_type"] == ChangeType.INSERT.name.lower() else state.get(key)
        for name in change.get("_unchanged") or ():
            assert before is not None
            values[names.index(name)] = before[names.index(name)]
        state[key] = values
    return list(state.values())


def _from_json(value: Any, column: Column) -> Any:
    """Plain values from JSON, which has no bytes and no -0.0 of type int."""
    if column.arrow_type == "binary" and isinstance(value, str):
        return base64.b64decode(value, validate=True)
    return value


def _mirror_rows(case: SinkCase, schema: TableSchema, condition: str) -> list[tuple[Any, ...]]:
    database: Database = case.place
    select = _postgres_expression if case.kind == "postgres" else _mysql_expression
    expressions = ", ".join(select(column) for column in schema.captured)
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'UTC'" if case.kind == "postgres" else "SET time_zone = '+00:00'")
        cursor.execute(f"SELECT {expressions} FROM {target_name(case, schema)} WHERE {condition}")
        return list(cursor.fetchall())


def _mysql_expression(column: Column) -> str:
    name = mysql_types.quoted(column.name)
    base = column.source_type.partition("(")[0].split(" ")[0]
    if base in {"date", "datetime", "timestamp", "time", "decimal"} and column.arrow_type != "binary":
        return f"CAST({name} AS CHAR)"
    if base == "bit":
        return f"{name} + 0"
    if base in {"float", "double"}:
        return f"{name} * 1e0"  # with all its digits
    if base == "vector":
        return f"HEX({name})"
    return name


def _postgres_expression(column: Column) -> str:
    name = postgres_types.quoted(column.name)
    if column.arrow_type == "date32":
        return f"{name} - DATE '1970-01-01'"
    if column.arrow_type.startswith("timestamp"):
        return f"(extract(epoch FROM {name}) * 1000000)::bigint"
    if _is_time(column):
        return f"(extract(epoch FROM {name}) * 1000000)::bigint"
    if column.arrow_type == "float32":
        return f"{name}::float8"
    if column.arrow_type == "string":
        return f"{name}::text"
    return name


def make_case(kind: str, request: pytest.FixtureRequest, *, source: DatabaseKind = "mysql") -> SinkCase:
    """A sink whose target belongs to the test, for a job that reads a server of kind `source`."""
    if kind in FILE_SINKS:
        folder = request.getfixturevalue("tmp_path") / "copy"
        return SinkCase(kind, FilesSink.of(str(folder), "parquet" if kind == "parquet" else "jsonl"), folder)
    if kind in {DELTA, DELTA_KEEPING, DELTA_BY_TASKS, DELTA_SPOOLED}:
        if kind == DELTA_SPOOLED:
            patch = request.getfixturevalue("monkeypatch")
            patch.setattr(staging, "MEMORY_BYTES", 0)
            patch.setattr(buckets, "WORKER_BYTES", 200)
        audit = KEEPING if kind == DELTA_KEEPING else NO_AUDIT
        session = request.getfixturevalue("delta_session")
        schema = f"contract_{uuid.uuid4().hex}"
        lake = CatalogLake("spark_catalog", parse_table_template(f"{schema}.{{schema}}_{{table}}"))
        checkpoint = LocalStore(str(request.getfixturevalue("tmp_path") / "checkpoint"))
        sink = DeltaSink(lake, "mirror", {}, checkpoint, lambda: session, audit=audit)
        return SinkCase(DELTA, sink, schema, staged=kind != DELTA_BY_TASKS)
    audit = KEEPING if kind in KEEPING_MIRRORS else NO_AUDIT
    kind = kind.removesuffix("-keeping")
    database: Database = request.getfixturevalue(f"{kind}_database")
    return SinkCase(kind, MirrorSink(parse_endpoint(database.url), TEMPLATE, None, source, audit=audit), database)


def sink_params(kinds: tuple[str, ...]) -> list[Any]:
    rare = [pytest.mark.integration, pytest.mark.every_server]
    always: dict[str, Any] = dict.fromkeys(FILE_SINKS, ()) | dict.fromkeys(
        (*MIRRORS, *KEEPING_MIRRORS, DELTA), pytest.mark.integration
    )
    return [pytest.param(kind, marks=always.get(kind, rare)) for kind in kinds]


@pytest.fixture(params=sink_params(FILE_SINKS + MIRRORS + KEEPING_MIRRORS))
def any_sink(request: pytest.FixtureRequest) -> Iterator[SinkCase]:
    return make_case(request.param, request)


@pytest.fixture(
    params=sink_params((*FILE_SINKS, *MIRRORS, *KEEPING_MIRRORS, DELTA, DELTA_KEEPING, DELTA_BY_TASKS, DELTA_SPOOLED))
)
def every_sink(request: pytest.FixtureRequest) -> Iterator[SinkCase]:
    """Every sink with state, including those that write whole epochs."""
    return make_case(request.param, request)


@pytest.fixture(params=sink_params(MIRRORS + KEEPING_MIRRORS))
def any_mirror(request: pytest.FixtureRequest) -> Iterator[SinkCase]:
    return make_case(request.param, request)


@pytest.fixture(params=sink_params(MIRRORS))
def mirror(request: pytest.FixtureRequest) -> Iterator[SinkCase]:
    return make_case(request.param, request)


@pytest.fixture(params=sink_params(FILE_SINKS + MIRRORS + KEEPING_MIRRORS))
def any_sink_of_postgres(request: pytest.FixtureRequest) -> Iterator[SinkCase]:
    return make_case(request.param, request, source="postgresql")


@pytest.fixture(params=sink_params(MIRRORS))
def mirror_of_postgres(request: pytest.FixtureRequest) -> Iterator[SinkCase]:
    return make_case(request.param, request, source="postgresql")
