"""Values that a target can't hold, and what becomes of them: the policies of `sink.on_bad_value`.

A bad value parks its table, stops the job, is replaced (by NULL or another text), or has its row rejected. A rejected row is in
the table of rejects (rejects.py) as long as the source has it in this form, and not in the copy. Policies apply when rows are
written, so a job that has stopped can go on with another one.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.conf.tables import setting_of
from tidemark.sinks.sink import BadValues
from tidemark.state.errors import RefusedValueError
from tidemark.state.table import TableId, TableSchema

Mask = npt.NDArray[np.bool_]
Policy = Literal["park", "stop", "null", "text", "reject"]


@dataclass(frozen=True, slots=True)
class BadValueMask:
    """The rows whose value the target can't hold, and why: `has a NUL character`. Nulls are never bad."""

    rows: Mask
    why: str


FindBadValues = Callable[[str, pa.Array], BadValueMask | None]
"""Returns the bad values of a column, given by name; None if there are none."""


@dataclass(frozen=True, slots=True)
class Policies:
    """The job file's `on_bad_value` and `on_bad_value_in`, the latter by (database, table)."""

    default: Policy = "stop"
    by_table: Mapping[tuple[str, str], Mapping[str, Policy]] = field(default_factory=dict)

    def of(self, table: TableId, column: str) -> Policy:
        return self.by_table.get((table.database, table.name), {}).get(column, self.default)


STOP = Policies()


@dataclass(slots=True)
class ValueGate:
    """Lets through the rows of one table that its target can hold. One for each table of a part.

    `find`: finds bad values. `as_text`: returns another form of a column's values, None where the target's column is not text.
    """

    schema: TableSchema
    policies: Policies
    find: FindBadValues
    as_text: Callable[[str, pa.Array], pa.Array | None]
    counts: Counter[tuple[str, Policy]] = field(default_factory=Counter)
    _counting: threading.Lock = field(default_factory=threading.Lock)
    """One thread may prepare changes while another one writes the ones before."""

    def passed(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, "RejectedRows | None"]:
        """Returns `rows`, which have the captured columns, without the rejected ones and with bad values replaced; and the
        rejected ones. Raises RefusedValueError where the policy is to stop or to park the table, or can't be followed."""
        bad = self._bad_values(rows)
        if not bad:
            return rows, None
        rejecting = {name: mask for name, mask in bad.items() if self._policy(name) == "reject"}
        is_rejected: Mask = np.logical_or.reduce(
            [mask.rows for mask in rejecting.values()] or [np.zeros(len(rows), bool)]
        )
        columns = []
        for name, array in zip(rows.schema.names, rows.columns, strict=True):
            is_bad = bad[name].rows & ~is_rejected if name in bad else None
            columns.append(
                array if is_bad is None or not is_bad.any() else self._replaced(name, array, bad[name], is_bad)
            )
        replaced = pa.RecordBatch.from_arrays(columns, schema=rows.schema)
        if not rejecting:
            return replaced, None
        for name, mask in rejecting.items():
            self._count(name, "reject", mask.rows)
        names = list(rejecting)
        by_row = np.stack([mask.rows for mask in rejecting.values()], axis=1)[is_rejected]
        why = [
            ", ".join(name for name, is_bad in zip(names, flags, strict=True) if is_bad) for flags in by_row.tolist()
        ]
        taken = pa.array(is_rejected)
        return replaced.filter(pa.array(~is_rejected)), RejectedRows(rows.filter(taken), tuple(why), is_rejected)

    def keyed(self, changes: pa.RecordBatch) -> tuple[pa.RecordBatch, "RejectedRows | None"]:
        """Returns changes without those whose key is not known, and these. Raises RefusedValueError unless the policy is to
        reject them."""
        nulls = {
            name: ~np.asarray(changes.column(name).is_valid())
            for name in self.schema.key
            if changes.column(name).null_count
        }
        if not nulls:
            return changes, None
        for name, rows in nulls.items():
            if self._policy(name) != "reject":
                raise self._refused(name, NULL_KEY, changes.column(name))
            self._count(name, "reject", rows)
        is_rejected: Mask = np.logical_or.reduce(list(nulls.values()))
        rejected = changes.filter(pa.array(is_rejected))
        rows_of = rejected.select([column.name for column in self.schema.captured])
        names = ", ".join(nulls)
        return changes.filter(pa.array(~is_rejected)), RejectedRows(rows_of, (names,) * len(rows_of), is_rejected)

    def holdable(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the keys that the target can hold. It has no row with one of the others."""
        is_bad = np.zeros(keys.num_rows, bool)
        for name, array in zip(keys.schema.names, keys.columns, strict=True):
            if (mask := self.find(name, array)) is not None:
                is_bad |= mask.rows
        return keys.filter(pa.array(~is_bad)) if is_bad.any() else keys

    def told(self) -> tuple[BadValues, ...]:
        return tuple(
            BadValues(self.schema.table, column, policy, count)
            for (column, policy), count in sorted(self.counts.items())
        )

    def _bad_values(self, rows: pa.RecordBatch) -> dict[str, BadValueMask]:
        found = {}
        for name, array in zip(rows.schema.names, rows.columns, strict=True):
            mask = self.find(name, array)
            if name in self.schema.key and array.null_count:
                nulls = ~np.asarray(array.is_valid())
                mask = BadValueMask(nulls if mask is None else nulls | mask.rows, NULL_KEY)
            if mask is not None:
                found[name] = mask
        return found

    def _count(self, column: str, policy: Policy, rows: Mask) -> None:
        with self._counting:
            self.counts[column, policy] += int(np.count_nonzero(rows))

    def _policy(self, column: str) -> Policy:
        return self.policies.of(self.schema.table, column)

    def _replaced(self, name: str, array: pa.Array, mask: BadValueMask, is_bad: Mask) -> pa.Array:
        policy = self._policy(name)
        replacement = None
        if name not in self.schema.key and policy == "null":
            replacement = pa.nulls(len(array), array.type)
        elif name not in self.schema.key and policy == "text":
            replacement = self.as_text(name, array)
        if replacement is None:
            raise self._refused(name, mask.why, array)
        self._count(name, policy, is_bad)
        return pc.if_else(pa.array(is_bad), replacement, array)

    def _refused(self, name: str, why: str, values: pa.Array) -> RefusedValueError:
        """The error names no row: its key would be in logs. `reject` shows it in the target."""
        has_text = name not in self.schema.key and self.as_text(name, values) is not None
        policies = (
            ("reject",) if name in self.schema.key else ("null", "text", "reject") if has_text else ("null", "reject")
        )
        table, first, others = self.schema.table, policies[0], policies[1:]
        setting = setting_of("sink.on_bad_value_in", table, {name: None if first == "null" else first})
        or_other = f" (or {', or '.join(others)})" if others else ""
        return RefusedValueError(
            f"{table}: a value of column {name} {why}, which the target can't hold.",
            f"Set {setting}{or_other}, then start the job again. "
            "To correct the row in the source is not enough: its change stays in the log.",
            None if self._policy(name) == "stop" else table,
        )


NULL_KEY = "is null (perhaps a zero date), though it is part of the key"


@dataclass(frozen=True, slots=True)
class RejectedRows:
    """`rows`: the captured columns. `columns`: for each row the names of its bad columns. `among`: which of the given rows."""

    rows: pa.RecordBatch
    columns: tuple[str, ...]
    among: Mask
