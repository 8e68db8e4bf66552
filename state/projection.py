"""Projections: which columns of a table the sink gets, and how they are computed."""

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.state.table import TableSchema


@dataclass(frozen=True, slots=True)
class TableProjection:
    """The job file's settings for one table when the job started. They must not change: old rows would not match new ones.

    `masks`: (column, kind). `mask_key_id`: differs for different mask keys but does not tell the key; None if no mask uses
    one. `transform_sha256`: the hash of the transform's text. `output`: the table as sinks get it.
    """

    output: TableSchema
    excluded: tuple[str, ...] = ()
    masks: tuple[tuple[str, str], ...] = ()
    mask_key_id: str | None = None
    transform_sha256: str | None = None


def outputs_of(schemas: Iterable[TableSchema], projections: Iterable[TableProjection]) -> tuple[TableSchema, ...]:
    """All tables as sinks get them."""
    projected = {projection.output.table: projection.output for projection in projections}
    return tuple(projected.get(schema.table, schema) for schema in schemas)
