"""A complete sink as an example. It keeps each table identical in one SQLite file. docs/extend/sink.md explains it.

It is for jobs on one machine (`spark.master: local[*]`): all tasks open the same file, and SQLite's locks are not safe on
network file systems. SQLite has one writer at a time, so parts are written one after the other.

Dates are stored as days and timestamps as microseconds since 1970, because SQLite has no type for them. Decimals are
stored as text, which keeps all digits.
"""

import contextlib
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.fencing import require_owner, taken_over
from tidemark.sinks.parts import Part, check_repeated_part, parts_of
from tidemark.sinks.sink import (
    Finding,
    JobIdentity,
    PartResult,
    Schemas,
    SinkBusyError,
    no_mark,
    raise_problems,
    reserved_name_findings,
)
from tidemark.state.change_batch import UNCHANGED_FIELD, ChangeType, PartItem
from tidemark.state.errors import SinkError
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.table import Column, TableId, TableSchema, arrow_type_of

Row = tuple[Any, ...]

MAX_WAIT_SECONDS = 300.0
"""The time that a part waits for the write lock. Another part holds the lock while it is read and written."""

_LEDGER = """
CREATE TABLE IF NOT EXISTS _tidemark_tables (name TEXT PRIMARY KEY, job_uuid TEXT NOT NULL, job TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS _tidemark_parts (
    job_uuid TEXT, epoch INTEGER, part TEXT, row_count INTEGER NOT NULL, PRIMARY KEY (job_uuid, epoch, part)
);
CREATE TABLE IF NOT EXISTS _tidemark_fence (job_uuid TEXT PRIMARY KEY, owner INTEGER NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class SqliteSink:
    """The sink on the driver. It is pickled to the executors for `writer`, so it has settings only, no connection."""

    path: str

    def check(
        self, schemas: Sequence[TableSchema], job: JobIdentity | None = None, written: Collection[TableId] = ()
    ) -> list[Finding]:
        if not Path(self.path).parent.is_dir():
            return [Finding(None, f"The folder of {self.path} does not exist.", "Create it, or change sink.path.")]
        with self._open_to_read() as connection:
            return [finding for schema in schemas for finding in self._check_table(connection, schema, job, written)]

    def _check_table(
        self,
        connection: sqlite3.Connection,
        schema: TableSchema,
        job: JobIdentity | None,
        written: Collection[TableId],
    ) -> Iterator[Finding]:
        yield from reserved_name_findings(schema)
        yield from _check_columns(schema)
        name = str(schema.table)
        there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ? COLLATE NOCASE", (name,)).fetchone()
        owner = None if there is None else _owner(connection, name)
        if owner is None and schema.table in written:
            yield no_mark(schema.table, self.path, "sink.path")
        elif there is None:
            yield Finding(schema.table, f"will be created as table {name}")
        elif owner is None:
            yield Finding(schema.table, f"Table {name} exists already.", "Drop it, or change sink.path.")
        elif job is None or owner.uuid != job.uuid:
            text = f"Table {name} belongs to job {owner.name} ({owner.uuid})."
            yield Finding(schema.table, text, "Change sink.path; or drop that table to start over.")
        elif _columns_of(connection, name) != [(c.name, _sqlite_type(c)) for c in schema.captured]:
            text = f"Table {name} has other columns than its source."
            yield Finding(schema.table, text, START_OVER_NOW)

    def prepare(self, job: JobIdentity, schemas: Sequence[TableSchema], written: Collection[TableId] = ()) -> None:
        raise_problems(self.check(schemas, job, written))
        with _sqlite_errors(self.path), contextlib.closing(connect(self.path)) as connection:
            connection.executescript(_LEDGER)
            with transaction(connection):
                if (owner_now := _fence(connection, job) or 0) > job.owner:
                    raise taken_over(job, owner_now, self.path)
                connection.execute("INSERT OR REPLACE INTO _tidemark_fence VALUES (?, ?)", (job.uuid, job.owner))
                for schema in schemas:
                    connection.execute(_create_table(schema))
                    owner = (str(schema.table), job.uuid, job.name)
                    connection.execute("INSERT OR IGNORE INTO _tidemark_tables VALUES (?, ?, ?)", owner)

    def writer(self, job: JobIdentity) -> "SqliteWriter":
        return SqliteWriter(self.path, job)

    def written(self, job: JobIdentity) -> None:
        """The ledger forgets epochs, so it can't tell how far the copy has come."""

    def committed_before(self, job: JobIdentity, epoch: int) -> None:
        with _sqlite_errors(self.path), contextlib.closing(connect(self.path)) as connection:
            connection.execute("DELETE FROM _tidemark_parts WHERE job_uuid = ? AND epoch < ?", (job.uuid, epoch))

    @contextlib.contextmanager
    def _open_to_read(self) -> Iterator[sqlite3.Connection]:
        """Opens the file read-only, or an empty database if there is no file. Creates nothing."""
        uri = f"{Path(self.path).absolute().as_uri()}?mode=ro" if Path(self.path).exists() else ":memory:"
        with _sqlite_errors(self.path), contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            yield connection


@dataclass(frozen=True, slots=True)
class SqliteWriter:
    """The writer on executors. It writes part by part."""

    path: str
    job: JobIdentity

    def write(self, items: Iterable[PartItem], schemas: Schemas) -> Iterator[PartResult]:
        for part in parts_of(items):
            yield self._write_part(part, schemas)

    def _write_part(self, part: Part, schemas: Schemas) -> PartResult:
        key = (self.job.uuid, part.epoch, part.name)
        # One transaction makes rows and ledger entry durable together.
        with _sqlite_errors(self.path), contextlib.closing(connect(self.path)) as connection, transaction(connection):
            require_owner(self.job, _fence(connection, self.job), self.path)
            found = connection.execute(
                "SELECT row_count FROM _tidemark_parts WHERE (job_uuid, epoch, part) = (?, ?, ?)", key
            ).fetchone()
            if found is None:
                changes = _Changes(connection)
                for batch in part.batches():
                    changes.apply(schemas[batch.table, batch.schema_version], batch.rows)
                connection.execute("INSERT INTO _tidemark_parts VALUES (?, ?, ?, ?)", (*key, part.row_count))
                return PartResult(part.epoch, part.name, part.row_count, skipped=False)
        part.read_to_end()
        check_repeated_part(part, found[0])
        return PartResult(part.epoch, part.name, part.row_count, skipped=True)


def _fence(connection: sqlite3.Connection, job: JobIdentity) -> int | None:
    found = connection.execute("SELECT owner FROM _tidemark_fence WHERE job_uuid = ?", (job.uuid,)).fetchone()
    return None if found is None else int(found[0])


class _Changes:
    """Applies changes in their order, within one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._removed: Row | None = None
        """The row of the last DELETE, for an INSERT that moves it to another key."""

    def apply(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        columns = [_values(rows.column(i), column, schema) for i, column in enumerate(schema.captured)]
        unchanged = rows.column(UNCHANGED_FIELD.name).to_pylist() if schema.toastable else [None] * rows.num_rows
        kinds = rows.column("_change_type").to_pylist()
        for kind, row, left_out in zip(kinds, zip(*columns, strict=True), unchanged, strict=True):
            match ChangeType(kind):
                case ChangeType.TRUNCATE:
                    self._connection.execute(f"DELETE FROM {_quoted(str(schema.table))}")
                case ChangeType.DELETE:
                    self._delete(schema, row)
                case ChangeType.INSERT:
                    self._put(schema, _filled(schema, row, left_out, self._removed))
                case ChangeType.UPDATE_POSTIMAGE:
                    old = self._select(schema, row) if left_out else None
                    self._put(schema, _filled(schema, row, left_out, old))
                case ChangeType.UPDATE_PREIMAGE:
                    raise ValueError("no sink gets preimages")

    def _put(self, schema: TableSchema, row: Row) -> None:
        names = ", ".join(_quoted(column.name) for column in schema.captured)
        marks = ", ".join("?" * len(row))
        self._connection.execute(f"INSERT OR REPLACE INTO {_quoted(str(schema.table))} ({names}) VALUES ({marks})", row)

    def _delete(self, schema: TableSchema, row: Row) -> None:
        self._removed = self._select(schema, row) if schema.toastable else None
        condition, key = _key(schema, row)
        self._connection.execute(f"DELETE FROM {_quoted(str(schema.table))} WHERE {condition}", key)

    def _select(self, schema: TableSchema, row: Row) -> Row | None:
        names = ", ".join(_quoted(column.name) for column in schema.captured)
        condition, key = _key(schema, row)
        query = f"SELECT {names} FROM {_quoted(str(schema.table))} WHERE {condition}"
        found: Row | None = self._connection.execute(query, key).fetchone()
        return found


def _filled(schema: TableSchema, row: Row, left_out: list[str] | None, old: Row | None) -> Row:
    """Returns the row with the values that PostgreSQL's log left out, because they did not change. The `old` row has them."""
    if not left_out:
        return row
    if old is None:
        raise SinkError(
            f"{schema.table}: The log leaves values out of a change to a row that the copy lacks.",
            START_OVER_NOW,
        )
    names = [column.name for column in schema.captured]
    return tuple(was if name in left_out else now for name, now, was in zip(names, row, old, strict=True))


def _key(schema: TableSchema, row: Row) -> tuple[str, Row]:
    names = [column.name for column in schema.captured]
    condition = " AND ".join(f"{_quoted(name)} = ?" for name in schema.key)
    return condition, tuple(row[names.index(name)] for name in schema.key)


def _values(array: pa.Array, column: Column, schema: TableSchema) -> list[Any]:
    """Returns a column's values as SQLite stores them. Raises SinkError if a value would be changed."""
    kind = arrow_type_of(column.arrow_type)
    if pa.types.is_date(kind):
        return list(array.cast(pa.int32()).to_pylist())
    if pa.types.is_timestamp(kind):
        return list(array.cast(pa.int64()).to_pylist())
    if pa.types.is_decimal(kind):
        return [None if value is None else format(value, "f") for value in array.to_pylist()]
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(array)).as_py():
        raise SinkError(
            f"{schema.table}: column {column.name} has a NaN, and SQLite would store null instead.",
            "Exclude that column (source.columns), or correct the value in the source.",
        )
    return list(array.to_pylist())


def _sqlite_type(column: Column) -> str | None:
    """Returns SQLite's type for the column, None if SQLite can't store its values."""
    kind = arrow_type_of(column.arrow_type)
    if pa.types.is_list(kind):
        return None
    if pa.types.is_floating(kind):
        return "REAL"
    if pa.types.is_binary(kind):
        return "BLOB"
    return "TEXT" if pa.types.is_string(kind) or pa.types.is_decimal(kind) else "INTEGER"


def _check_columns(schema: TableSchema) -> Iterator[Finding]:
    for column in schema.captured:
        if _sqlite_type(column) is None:
            text = f"SQLite has no type for its column {column.name} ({column.source_type})."
            yield Finding(schema.table, text, "Exclude that column (source.columns).")
    names = [column.name.lower() for column in schema.captured]
    if len(set(names)) < len(names):
        text = "SQLite does not tell columns apart whose names differ in case only."
        yield Finding(schema.table, text, "Exclude one of the columns (source.columns).")


def _owner(connection: sqlite3.Connection, name: str) -> JobIdentity | None:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = '_tidemark_tables'").fetchone() is None:
        return None
    found = connection.execute("SELECT job_uuid, job FROM _tidemark_tables WHERE name = ?", (name,)).fetchone()
    return None if found is None else JobIdentity(*found)


def _columns_of(connection: sqlite3.Connection, name: str) -> list[tuple[str, str]]:
    return [(row[1], row[2]) for row in connection.execute(f"PRAGMA table_info({_quoted(name)})")]


def _create_table(schema: TableSchema) -> str:
    columns = ", ".join(f"{_quoted(column.name)} {_sqlite_type(column)}" for column in schema.captured)
    key = ", ".join(_quoted(name) for name in schema.key)
    return f"CREATE TABLE IF NOT EXISTS {_quoted(str(schema.table))} ({columns}, PRIMARY KEY ({key}))"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def connect(path: str) -> sqlite3.Connection:
    """Opens a connection without Python's implicit transactions."""
    return sqlite3.connect(path, timeout=MAX_WAIT_SECONDS, isolation_level=None)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Starts a transaction with the write lock. Commits it, or rolls it back after any exception."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # after some errors, such as a full disk, SQLite has rolled back itself
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextlib.contextmanager
def _sqlite_errors(path: str) -> Iterator[None]:
    """Converts SQLite's errors to SinkError. Errors of the reader pass through unchanged."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise SinkBusyError(f"{path} is locked by another process.", "Close it there; then start again.") from error
        raise SinkError(
            f"{path} can't be used: {error}.", "Check the file and its folder, then start again."
        ) from error
    except sqlite3.DatabaseError as error:
        raise SinkError(
            f"{path} can't be written: {error}.", "Check the file and its disk, then start again."
        ) from error
