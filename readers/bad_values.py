"""Replaces or refuses a value that its column's Arrow type has no place for: the readers' part of `sink.on_bad_value`.

The mirror sink takes marks (`tidemark.state.marks`): it holds what they mean, or applies the policy. The other sinks, and
tables with masks or a transform, get none. There the reader itself stops, or writes NULL.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.conf.model import JobFile
from tidemark.conf.sink import BadValuePolicy, DeltaSink
from tidemark.conf.tables import setting_of
from tidemark.state.errors import BadValueError
from tidemark.state.remedies import START_OVER
from tidemark.state.table import TableId, TableSchema

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BadValueRule:
    """`takes_marks`: whether the sink does. `takes_null_keys`: whether it takes rows whose key is null, for it has an invalid
    date. `computed`: tables with masks or a transform. The policies are the job file's
    `on_bad_value` and `on_bad_value_in`, the latter by (database, table)."""

    takes_marks: bool = False
    takes_null_keys: bool = True
    computed: frozenset[TableId] = frozenset()
    default: BadValuePolicy = "stop"
    by_table: Mapping[tuple[str, str], Mapping[str, BadValuePolicy]] = field(default_factory=dict)

    @classmethod
    def of(cls, job: JobFile) -> "BadValueRule":
        sink = job.sink
        masked = {TableId(t.database, t.name) for t, columns in job.source.columns.items() if columns.mask}
        return cls(
            sink.type == "mirror",
            not (isinstance(sink, DeltaSink) and sink.style == "mirror"),
            frozenset(masked | {TableId(t.database, t.name) for t in job.transforms}),
            sink.on_bad_value,
            {(t.database, t.name): dict(columns) for t, columns in sink.on_bad_value_in.items()},
        )

    def settled(
        self, column: "BadColumn", values: pa.Array, bad: Mask, what: str, *, exact: bool = True, advice: str = ""
    ) -> pa.Array:
        """Returns the values with their marks, or with NULL instead. `bad`: which ones have marks. `what`: such as `holds
        infinity`. `exact`: False if two values may have one mark, or the source can't be asked for one. `advice`: more for
        the message. Raises BadValueError where no policy applies. It concerns the table alone, unless the policy is to stop."""
        table = column.table
        if self.takes_marks and table not in self.computed and (exact or not column.is_key):
            return values
        policy = self.policy(table, column.name)
        if policy == "null" and not column.is_key:
            return pc.if_else(pa.array(bad), pa.scalar(None, values.type), values)
        message = f"{table}.{column.name} {what}, which a copy can't hold.{advice}"
        raise BadValueError(message, self._remedy(column), None if policy == "stop" else table)

    def policy(self, table: TableId, column: str) -> BadValuePolicy:
        return self.by_table.get((table.database, table.name), {}).get(column, self.default)

    def _remedy(self, column: "BadColumn") -> str:
        table = column.table
        if column.is_key:
            return f"Correct these rows or leave the table out (source.exclude_tables), then {START_OVER}."
        setting = "sink.on_bad_value: null"
        if table not in self.computed:
            setting = setting_of("sink.on_bad_value_in", table, {column.name: None})
        return (
            f"Set {setting}, then start the job again: such values are NULL in the copy. To correct the rows in the source is "
            "not enough if their changes are in the log."
        )


@dataclass(frozen=True, slots=True)
class BadColumn:
    """A column with values that its Arrow type can't hold."""

    table: TableId
    name: str
    is_key: bool

    @classmethod
    def of(cls, schema: TableSchema, name: str) -> "BadColumn":
        return cls(schema.table, name, name in schema.key)


STOP = BadValueRule()
