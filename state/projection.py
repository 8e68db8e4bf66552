"""What a job makes of a table's columns on their way from the source to the sink."""

from collections.abc import Iterable
from dataclasses import dataclass

from state.table import TableSchema


@dataclass(frozen=True, slots=True)
class TableProjection:
    """What the job file said of one table when the job started: the same ever after, or old rows would not match new ones.

    `masks`: (column, kind). `mask_key_id`: tells keys apart without telling a key, None where no mask uses one.
    `transform_sha256`: of the transform's text. `output`: the table as sinks get it.
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
