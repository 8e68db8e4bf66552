"""Decides whether a table may stay in the job although it got or lost columns, or has columns of wider types: whether its rows
can be followed as they are.

That is so if nothing else of it changed, and each new column has one value in all rows that it had: NULL, or a constant that is
known. The job has read only such rows. A wider type changes no value.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tidemark.state.table import Column, TableSchema


def with_changed_columns(
    known: TableSchema,
    now: TableSchema,
    widens: Callable[[Column, Column], bool],
    constants: Mapping[str, str] | None = None,
) -> TableSchema | None:
    """Returns `known` with the columns that `now` has in addition, marked as added, those that it lacks, marked as dropped, and
    those that have a wider type now; None if there are none, or if anything else differs. `widens`: whether the second column
    holds each value of the first one. `constants`: `Column.constant` of those that are not NULL in the rows that the table had.

    Generated columns have values in these rows, so they are not accepted; nor are captured ones that are NOT NULL and have no
    constant. A name that a dropped column had is not accepted: the log has values of both under it. Nor is a wider type beside
    a captured generated column, whose values may show the form of the others: `CONCAT(price)`."""
    values = constants or {}
    before = {column.name: column for column in known.present}
    kept = [column for column in now.columns if column.name in before]
    wider = wider_columns(known, now)
    same_order = [name for name in before if any(column.name == name for column in kept)]
    if set(now.key) != set(known.key) or now.oid != known.oid or [column.name for column in kept] != same_order:
        return None
    if wider and any(column.generated and column.captured for column in now.present):
        return None
    if any(column.name in known.key or not widens(_plain(before[column.name]), column) for column in wider):
        return None
    new = new_columns(known, now)
    if len(kept) == len(before) and not new and not wider:
        return None
    names = {column.name for column in known.columns if column.dropped}
    if any(column.generated or column.name in names for column in new):
        return None
    if any(column.captured and not column.nullable and column.name not in values for column in new):
        return None
    changed = {column.name: _widened(before[column.name], column) for column in wider}
    columns = [changed.get(column.name) or before.get(column.name) or _added(column, values) for column in now.columns]
    return replace(known, columns=tuple(_with_dropped(known, columns)))


def wider_columns(known: TableSchema, now: TableSchema) -> list[Column]:
    """Returns the columns of `now` that `known` has with another description, such as another type."""
    before = {column.name: _plain(column) for column in known.present}
    return [column for column in now.present if column.name in before and before[column.name] != _plain(column)]


def new_columns(known: TableSchema, now: TableSchema) -> list[Column]:
    """Returns the columns of `now` that `known` lacks."""
    names = {column.name for column in known.present}
    return [column for column in now.present if column.name not in names]


def _with_dropped(known: TableSchema, columns: list[Column]) -> list[Column]:
    """Inserts the other columns of `known`, each after the one that was before it."""
    found = list(columns)
    names = [column.name for column in columns]
    at = 0
    for column in known.columns:
        if column.name in names:
            at = names.index(column.name)
        else:
            found.insert(at, replace(column, captured=False, arrow_type="", dropped=True))
            names.insert(at, column.name)
        at += 1
    return found


def _added(column: Column, constants: Mapping[str, str]) -> Column:
    return replace(column, added=True, constant=constants.get(column.name) if column.captured else None)


def _widened(before: Column, now: Column) -> Column:
    earlier = (before.source_type,) if now.source_type != before.source_type else ()
    return replace(now, added=before.added, constant=before.constant, narrower=(*before.narrower, *earlier))


def _plain(column: Column) -> Column:
    """Returns the column as a catalog describes it."""
    return replace(column, added=False, constant=None, narrower=())
