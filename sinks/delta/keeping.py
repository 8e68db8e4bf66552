"""The net effect of a log part on a Delta table that keeps deleted rows, as rows for a MERGE."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.delta.effect import (
    are_among,
    effect_batch,
    effect_schema,
    effects,
    fitting,
    missing_names,
    struct_of,
    went_with_truncation,
)
from tidemark.sinks.mirror.net_effect import NetEffect, PartialRows
from tidemark.state.change_batch import ChangeType, batch_schema, is_truncation
from tidemark.state.table import TableSchema


def kept_schema(schema: TableSchema) -> pa.Schema:
    """Returns `effect_schema` with two more columns.

    `deleted`: the source has deleted the row. If it `stays`, `new` has its last values, else the target's row has them. A row
    that neither stays nor is deleted makes room for one that is inserted. `origin`: the key of the target's row that has the
    values of `missing`, null if that is the row at `at`.
    """
    kinds = effect_schema(schema)
    return pa.schema([*kinds, pa.field("deleted", pa.bool_()), pa.field("origin", kinds.field("at").type)])


def kept_effect(schema: TableSchema, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the net effect of changes as rows of `kept_schema`. If the changes have a TRUNCATE, the rows of all other keys are
    deleted, too."""
    for effect, read in effects(schema, without_truncations(schema, batches), with_deleted=True):
        yield from kept_rows(schema, effect, read)


def kept_rows(schema: TableSchema, effect: NetEffect, read: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields rows of `kept_schema`. Each `at` occurs once. `read`: as for `effect_rows`."""
    assert effect.deleted is not None, "the net effect was asked for deleted rows"
    yield from _states(schema, effect, read, deleted=False)
    yield from _states(schema, effect.deleted, read, deleted=True)
    unknown = effect.gone.filter(pa.array(~are_among(effect.gone, [effect.deleted.touched])))
    yield _batch(schema, unknown, None, deleted=True)


def replacing_rows(schema: TableSchema, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields rows of `kept_schema` that put rows of the table in place of all rows that the target has of their keys."""
    yield _batch(schema, rows.select(list(schema.key)), None, deleted=False)
    yield _batch(schema, None, rows, deleted=False)


def without_truncations(schema: TableSchema, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Returns the changes with a DELETE of each row that a TRUNCATE finds among them, in its place. Raises SinkError for a
    value that was left out after a TRUNCATE, and that its row got before."""
    places = [i for i, batch in enumerate(batches) if is_truncation(batch)]
    found, begin = list[pa.RecordBatch](), 0
    for place in places:
        since = batches[begin:place]
        kinds = pa.schema([schema.arrow_schema().field(name) for name in schema.key])
        rows = fitting(_rows_after(schema, since, is_truncated=begin > 0), kinds)
        found += [*since, *(_deletes(schema, keys, batches[place]) for keys in rows)]
        begin = place + 1
    if places:
        _rows_after(schema, batches[begin:], is_truncated=True)
    return found + batches[begin:]


def _rows_after(schema: TableSchema, batches: list[pa.RecordBatch], *, is_truncated: bool) -> list[pa.RecordBatch]:
    """Returns the keys of the rows after changes, which come after a TRUNCATE or not."""
    found = []
    for effect, _ in effects(schema, batches):
        found.append(effect.rows.select(list(schema.key)))
        if effect.partial is not None:
            if is_truncated:
                raise went_with_truncation(schema)
            found.append(effect.partial.rows.select(list(schema.key)))
    return found


def _deletes(schema: TableSchema, keys: pa.RecordBatch, truncation: pa.RecordBatch) -> pa.RecordBatch:
    """Returns changes that delete the rows of the keys, in the transaction of a TRUNCATE."""
    columns = []
    for field in batch_schema(schema):
        if field.name in schema.key:
            columns.append(keys.column(field.name))
        elif field.name == "_change_type":
            columns.append(pa.array(np.full(keys.num_rows, ChangeType.DELETE, np.int8)))
        elif field.nullable:
            columns.append(pa.nulls(keys.num_rows, field.type))
        else:
            columns.append(pa.repeat(truncation.column(field.name)[0], keys.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=batch_schema(schema))


def _states(schema: TableSchema, effect: NetEffect, read: pa.RecordBatch, *, deleted: bool) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the effect, which the source has or has deleted."""
    keys = effect.rows.select(list(schema.key))
    replaced = are_among(keys, [read])
    for rows in _parts(effect.rows, ~replaced):
        yield _batch(schema, rows.select(list(schema.key)), rows, deleted=deleted)
    for rows in _parts(effect.rows, replaced):
        yield _batch(schema, rows.select(list(schema.key)), None, deleted=False)
        yield _batch(schema, None, rows, deleted=deleted)
    if (partial := effect.partial) is None:
        return
    keys = partial.rows.select(list(schema.key))
    replaced = are_among(keys, [read])
    elsewhere = replaced | _differ(keys, partial.origins)
    for own in _partial_parts(partial, ~elsewhere):
        yield _batch(schema, own.origins, own.rows, deleted=deleted, missing=missing_names(schema, own))
    for is_replaced in (False, True):
        for moved in _partial_parts(partial, elsewhere & (replaced == is_replaced)):
            at, missing = moved.rows.select(list(schema.key)), missing_names(schema, moved)
            if is_replaced:
                yield _batch(schema, at, None, deleted=False)
            yield _batch(
                schema,
                None if is_replaced else at,
                moved.rows,
                deleted=deleted,
                missing=missing,
                origin=moved.origins,
            )


def _parts(rows: pa.RecordBatch, mask: npt.NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
    if mask.any():
        yield rows.filter(pa.array(mask))


def _partial_parts(partial: PartialRows, mask: npt.NDArray[np.bool_]) -> Iterator[PartialRows]:
    if mask.any():
        chosen = pa.array(mask)
        yield PartialRows(partial.rows.filter(chosen), partial.origins.filter(chosen), partial.missing[mask])


def _differ(keys: pa.RecordBatch, others: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    differs = np.zeros(keys.num_rows, np.bool_)
    for key, other in zip(keys.columns, others.columns, strict=True):
        differs |= pc.not_equal(key, other).to_numpy(zero_copy_only=False)
    return differs


def _batch(
    schema: TableSchema,
    at: pa.RecordBatch | None,
    new: pa.RecordBatch | None,
    *,
    deleted: bool,
    missing: pa.Array | None = None,
    origin: pa.RecordBatch | None = None,
) -> pa.RecordBatch:
    kinds, rows = kept_schema(schema), effect_batch(schema, at, new, missing=missing)
    marks = pa.array(np.full(rows.num_rows, deleted))
    origins = struct_of(origin, kinds.field("origin").type, rows.num_rows)
    return pa.RecordBatch.from_arrays([*rows.columns, marks, origins], names=kinds.names)
