"""Where the source has keys of the copy: the ranges to read for them."""

from collections.abc import Sequence

import pyarrow as pa

from tidemark.conf.model import JobFile
from tidemark.conf.sink import Sink
from tidemark.conf.tables import TableName
from tidemark.readers.source import BoundsKeys
from tidemark.sinks.comparing import Key
from tidemark.state.key_source import KeySource
from tidemark.state.split import Bound, KeyRange
from tidemark.state.table import Column, TableSchema, arrow_type_of

MAX_RANGES = 1000
"""For more ranges the table is read as a whole: each is a statement of its own."""


def keys_of(keys: tuple[Key, ...], schema: TableSchema) -> pa.RecordBatch | None:
    """Returns the keys, texts of the copy's server, as values. None if a type's texts are not understood."""
    arrays = []
    for i, name in enumerate(schema.key):
        kind = arrow_type_of(schema.column(name).arrow_type)
        if not is_readable(kind):
            return None
        try:
            arrays.append(_values(pa.array([key[i] for key in keys], pa.string()), kind))
        except pa.ArrowInvalid:
            return None
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([(n, a.type) for n, a in zip(schema.key, arrays, strict=True)])
    )


def _values(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns the values of texts. Raises ArrowInvalid."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:  # MySQL's texts name no time zone: they are in UTC
            texts = texts.cast(pa.timestamp(kind.unit))
    return texts.cast(kind)


def is_readable(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
    )


def has_own_key(job: JobFile, schema: TableSchema, output: TableSchema, columns: tuple[str, ...]) -> bool:
    """True if the copy's key is the source's, and the table is split by columns of it."""
    if not columns or job.transform(schema.table.database, schema.table.name) is not None:
        return False
    return set(columns) <= set(output.key) and not any(_differs(schema, output.column(name)) for name in output.key)


def has_exact_keys(output: TableSchema, held: pa.Schema, sink: Sink) -> bool:
    """True if the sink writes each key of the source that the copy can hold unchanged. `held`: the copy's columns."""
    table = TableName(output.table.database, output.table.name)
    policies, expected = sink.on_bad_value_in.get(table, {}), output.arrow_schema()
    kinds = {name: held.field(name).type for name in output.key}
    return all(
        expected.field(name).type == kind
        and not pa.types.is_timestamp(kind)  # it may lose digits
        and policies.get(name, sink.on_bad_value) != "text"
        for name, kind in kinds.items()
    )


def ranges_around(
    source: KeySource, schema: TableSchema, columns: tuple[str, ...], keys: pa.RecordBatch
) -> tuple[KeyRange, ...] | None:
    """Returns for each key the range from it to the key after the next one that the source has. None if the source can't be
    given one of the keys."""
    bounds = source.bounds_of(schema.table, columns, keys) if isinstance(source, BoundsKeys) else None
    if bounds is None:
        return None
    return tuple(KeyRange(bound, _end_after(source, schema, columns, bound)) for bound in bounds)


def joined(ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Returns the same keys in fewer ranges: one begins where none ends. Only a server knows the order of all keys."""
    starting = {each.start.literals: each for each in ranges if each.start is not None}
    ends = {each.end.literals for each in ranges if each.end is not None}
    found = []
    for start in starting.keys() - ends:
        end = (first := starting[start]).end
        while end is not None and end.literals in starting:
            end = starting[end.literals].end
        found.append(KeyRange(first.start, end))
    return found


def _end_after(source: KeySource, schema: TableSchema, columns: tuple[str, ...], bound: Bound) -> Bound | None:
    following = source.next_bounds(schema.table, columns, after=bound, until=None, rows=1, count=1)
    return following[0] if following else None


def _differs(schema: TableSchema, column: Column) -> bool:
    """True if the copy's key is another one than the source's."""
    origin = next((c for c in schema.columns if c.name == column.name), None)
    return column.made or origin is None or origin.arrow_type != column.arrow_type
