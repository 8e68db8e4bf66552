"""Comparison of source and copy, by the values of every column of every row."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psycopg2.extras
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from devtools.server import Server
from scripts.demo_table import DATABASE, ShopTable
from tidemark.jobs.spark.session import DEFAULTS
from tidemark.sinks.delta.settings import delta_settings

Row = tuple[Any, ...]
Rows = Callable[[ShopTable, tuple[str, ...]], Iterator[Row]]
"""A function that yields a table's rows: these columns, in this order, as comparable values."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result for one table.

    `missing`: rows that only the source has. `surplus`: rows that only the copy has. A row that differs counts as both.
    `repeated`: rows that the copy has more than once. `examples`: a few missing and surplus rows.
    """

    table: str
    source_rows: int
    copy_rows: int
    missing: int
    surplus: int
    repeated: int
    examples: tuple[str, ...]

    @property
    def same(self) -> bool:
        return not (self.missing or self.surplus or self.repeated) and self.source_rows == self.copy_rows


def compare(source: Server, tables: Iterable[ShopTable], rows_of_copy: Rows) -> list[Comparison]:
    """Compares all tables. Neither side may change meanwhile."""
    rows_of_source = rows_in_database(source, DATABASE)
    return [_compare_table(table, _columns(source, table), rows_of_source, rows_of_copy) for table in tables]


def rows_in_database(server: Server, database: str) -> Rows:
    """Returns the reader of a database's tables, which are named as in the source."""

    def rows(table: ShopTable, columns: tuple[str, ...]) -> Iterator[Row]:
        quote = '"' if server.kind == "postgres" else "`"
        listed = ", ".join(f"{quote}{column}{quote}" for column in columns)
        with contextlib.closing(server.connect(database)) as connection, connection.cursor() as cursor:
            if server.kind == "postgres":
                for register in (psycopg2.extras.register_default_json, psycopg2.extras.register_default_jsonb):
                    register(connection, loads=str)  # compares JSON as text, not parsed
            cursor.execute("SET TIME ZONE 'UTC'" if server.kind == "postgres" else "SET time_zone = '+00:00'")
            cursor.execute(f"SELECT {listed} FROM {table.name}")
            for row in cursor.fetchall():
                yield tuple(map(_plain, row))

    return rows


def rows_in_files(folder: Path, schema: str) -> Rows:
    """Returns the reader of the files sink's tables: the last change of each key, unless it is a delete.

    Values that PostgreSQL's log leaves out are taken from the row that the change replaced.
    """

    def rows(table: ShopTable, columns: tuple[str, ...]) -> Iterator[Row]:
        changes = ds.dataset(folder / f"{schema}.{table.name}", format="parquet", exclude_invalid_files=False)
        marked = "_unchanged" in changes.schema.names
        names = ["_change_type", "_commit_version", "_seq", *columns, *(["_unchanged"] if marked else [])]
        found = changes.to_table(columns=names).sort_by([("_commit_version", "ascending"), ("_seq", "ascending")])
        places = [columns.index(column) for column in table.key]
        last: dict[Row, Row] = {}
        replaced: Row = ()
        for change, _version, _seq, *values in zip(*(column.to_pylist() for column in found.columns), strict=True):
            left_out = (values.pop() if marked else None) or ()
            row = tuple(map(_plain, values))
            key = tuple(row[place] for place in places)
            if change == "delete":
                replaced = last.pop(key, ())
                continue
            before = last[key] if change == "update_postimage" and left_out else replaced
            last[key] = (
                tuple(before[i] if column in left_out else row[i] for i, column in enumerate(columns))
                if left_out
                else row
            )
        yield from last.values()

    return rows


def rows_in_delta(folder: Path, schema: str) -> Rows:
    """Returns the reader of the Delta sink's tables (`style: mirror`)."""

    def rows(table: ShopTable, columns: tuple[str, ...]) -> Iterator[Row]:
        builder = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR")
        for name, value in (DEFAULTS | delta_settings({}, submitted=False)).items():
            builder = builder.config(name, value)
        session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        found = session.read.format("delta").load(str(folder / f"{schema}.{table.name}")).select(*columns).toArrow()
        for row in zip(*(column.to_pylist() for column in found.columns), strict=True):
            yield tuple(map(_plain, row))

    return rows


def _columns(source: Server, table: ShopTable) -> tuple[str, ...]:
    with contextlib.closing(source.connect(DATABASE)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table.name} LIMIT 0")
        return tuple(column[0] for column in cursor.description)


def _compare_table(table: ShopTable, columns: tuple[str, ...], rows_of_source: Rows, rows_of_copy: Rows) -> Comparison:
    source = set(rows_of_source(table, columns))
    copied = list(rows_of_copy(table, columns))
    copy = set(copied)
    missing, surplus = source - copy, copy - source
    examples = [f"{table.name}: source only: {row}" for row in sorted(missing, key=repr)[:2]]
    examples += [f"{table.name}: copy only:   {row}" for row in sorted(surplus, key=repr)[:2]]
    return Comparison(
        table=table.name,
        source_rows=len(source),
        copy_rows=len(copied),
        missing=len(missing),
        surplus=len(surplus),
        repeated=len(copied) - len(copy),
        examples=tuple(examples),
    )


def _plain(value: Any) -> Any:
    """Converts a value to one form, because drivers return different forms of the same value."""
    if isinstance(value, (memoryview, bytearray)):
        return bytes(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(timezone.utc).replace(tzinfo=None)
    return value
