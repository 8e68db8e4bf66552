"""Decides whether a table may stay in the job although it got new columns: whether its rows can be followed as they are.

That is so if nothing else of it changed, and the new columns are NULL in all rows that it had. The job has read only such rows.
"""

from collections.abc import Iterable
from dataclasses import replace

from tidemark.state.table import Column, TableSchema


def with_added_columns(known: TableSchema, now: TableSchema) -> TableSchema | None:
    """Returns `known` with the columns that `now` has in addition, marked as added; None if there are none, or if anything
    else differs. Generated columns have values in the rows that the table had, so they are not accepted; nor are captured ones
    that are NOT NULL."""
    before = {column.name: column for column in known.columns}
    if now.key != known.key or now.oid != known.oid or _kept(now.columns, before) != _plain(known.columns):
        return None
    new = [column for column in now.columns if column.name not in before]
    if not new or any(column.generated or (column.captured and not column.nullable) for column in new):
        return None
    columns = (before.get(column.name) or replace(column, added=True) for column in now.columns)
    return replace(known, columns=tuple(columns))


def new_columns(known: TableSchema, now: TableSchema) -> list[Column]:
    """Returns the columns of `now` that `known` lacks."""
    names = {column.name for column in known.columns}
    return [column for column in now.columns if column.name not in names]


def _kept(columns: Iterable[Column], before: dict[str, Column]) -> list[Column]:
    return [column for column in columns if column.name in before]


def _plain(columns: Iterable[Column]) -> list[Column]:
    return [replace(column, added=False) for column in columns]
