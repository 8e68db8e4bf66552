"""Writes the changes of one table in a part's transaction: the net effect, without the rows that the target can't hold."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.conf.tables import TableName
from tidemark.sinks.audit import Marks
from tidemark.sinks.mirror.audit import marked, marked_partial
from tidemark.sinks.mirror.bad_values import RejectedRows, ValueGate
from tidemark.sinks.mirror.net_effect import NetEffect, PartialRows, net_effect
from tidemark.sinks.mirror.rejects import Rejects, filled
from tidemark.sinks.mirror.target import TableRows
from tidemark.sinks.mirror.unchanged import missing_value_error
from tidemark.sinks.sink import BadValues
from tidemark.state.change_batch import CHANGE_TYPE_NAMES, UNCHANGED_FIELD, ChangeType, is_truncation
from tidemark.state.copied_range import CopiedRange
from tidemark.state.errors import SinkError
from tidemark.state.remedies import read_again
from tidemark.state.table import Column, TableSchema

_UNCHANGED = UNCHANGED_FIELD.name
NO_MARKS = Marks()

Step: TypeAlias = Callable[[], None]
"""Writes what was prepared, by the session of the transaction."""


@dataclass(slots=True)
class TableWriting:
    """`rows` writes the target's table, `gate` keeps out what it can't hold, `rejects` keeps rejected rows.

    `deleted`: writes rows that the source has deleted again, if the copy keeps such rows. `is_read_again`: the copy may have
    rows with the keys of a split."""

    rows: TableRows
    gate: ValueGate
    rejects: Rejects
    marks: Marks = NO_MARKS
    deleted: "DeletedRows | None" = None
    is_read_again: bool = False
    inserted: int = 0
    """How many rows without a change before them were written."""

    def prepared(self, schema: TableSchema, batches: list[pa.RecordBatch], *, is_log: bool) -> list[Step]:
        """Returns the steps that write changes, which are in the order of the log. Does not use the session: a thread may
        prepare changes while another one writes the ones before."""
        steps: list[Step] = []
        last = max((i for i, batch in enumerate(batches) if is_truncation(batch)), default=None)
        if last is not None:
            if self.deleted is not None:
                steps += self.prepared(schema, batches[:last], is_log=is_log)  # the last states of the rows
            steps.append(partial(self._empty, schema))
            batches = batches[last + 1 :]
        if not batches:
            return steps
        names = [column.name for column in schema.captured]
        needed = [*names, "_change_type"]
        if schema.toastable and any(batch.column(_UNCHANGED).null_count < batch.num_rows for batch in batches):
            needed += ["_commit_version", "_seq", "_txn_id", _UNCHANGED]
        table = pa.Table.from_batches([batch.select(needed) for batch in batches])
        for changes in table.combine_chunks().to_batches():
            only_inserts = not np.any(changes.column("_change_type").to_numpy() != ChangeType.INSERT)
            if not schema.key and not only_inserts:
                raise SinkError(
                    f"{schema.table} has no key, and a row of it was updated or deleted: its copy only gets rows "
                    "(sink.keyless: append).",
                    "Give it a primary key, or copy it by a job with a sink that takes every change, such as files. "
                    f"{read_again(TableName(schema.table.database, schema.table.name))}",
                    schema.table,
                )
            if only_inserts and not (is_log and schema.key):
                steps.append(partial(self._insert, schema, changes.select(names)))
            else:
                steps.append(self._net_effect(schema, changes))
        return steps

    def replace(self, schema: TableSchema, keys: CopiedRange, after_epoch: int) -> None:
        """Removes what the copy has in a range of keys, before the source's rows of the range are written. Rejected rows can be
        found by integers only. Else all go that were there before this load, which began after an epoch."""
        self.rows.delete_range(keys)
        if (integers := keys.integers) is not None:
            self.rejects.forget_range(schema.table, integers)
        else:
            self.rejects.forget_until(schema.table, after_epoch)

    def told(self) -> tuple[BadValues, ...]:
        """Returns what was done with bad values. Rejected rows that the source has deleted are neither in the copy nor
        among the rejects."""
        deleted = () if self.deleted is None else self.deleted.gate.told()
        return (*self.gate.told(), *(bad for bad in deleted if bad.policy != "reject"))

    def _empty(self, schema: TableSchema) -> None:
        self.rows.empty()
        self.rejects.forget_all(schema.table)

    def _insert(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        passed, rejected = self.gate.passed(rows)
        if self.deleted is not None and self.is_read_again and schema.key:
            self.rows.upsert(marked(passed, self.marks.kept))
        else:
            self.rows.insert(marked(passed, self.marks.kept))
        self.inserted += passed.num_rows
        if rejected is not None:
            self.rejects.add(schema, rejected)

    def _net_effect(self, schema: TableSchema, changes: pa.RecordBatch) -> Step:
        keyed, unkeyed = self.gate.keyed(changes)
        kinds = []
        if unkeyed is not None:
            numbers = changes.column("_change_type").filter(pa.array(unkeyed.among)).to_pylist()
            kinds = [CHANGE_TYPE_NAMES[number] for number in numbers]
        effect = net_effect(schema, keyed, with_deleted=self.deleted is not None) if keyed.num_rows else None
        return partial(self._write, schema, effect, unkeyed, kinds)

    def _write(
        self, schema: TableSchema, effect: NetEffect | None, unkeyed: RejectedRows | None, kinds: list[str]
    ) -> None:
        """`unkeyed`: changes whose key is not known, and `kinds` which ones they are."""
        if unkeyed is not None:
            self.rejects.add(schema, unkeyed, kinds)
        if effect is not None:
            self._write_keyed(schema, effect)

    def _write_keyed(self, schema: TableSchema, effect: NetEffect) -> None:
        kept = self._states(schema, effect, self.gate)
        removed = [effect.gone] if self.rows.updates_in_place else [effect.touched]
        deleted = None
        if self.deleted is not None and effect.deleted is not None:
            deleted = self._states(schema, effect.deleted, self.deleted.gate)
        self.rejects.forget(schema, effect.touched)
        for some in kept.rejected:
            self.rejects.add(schema, some)
            removed.append(some.rows.select(list(schema.key)))
        if self.deleted is not None and deleted is not None:
            _complete(self.deleted.rows, deleted, self.marks.removed)
        _complete(self.rows, kept, self.marks.kept)
        for keys in removed:
            self.rows.delete(self.gate.holdable(keys))
        if (
            self.deleted is not None and deleted is not None
        ):  # first: the target may take a deleted key for one that is kept
            _upsert(self.deleted.rows, deleted, self.marks.removed)
        _upsert(self.rows, kept, self.marks.kept)

    def _states(self, schema: TableSchema, effect: NetEffect, gate: ValueGate) -> "_States":
        """Returns the rows of an effect that the target can hold, and those to reject, completed."""
        effect = self.rejects.completed(schema, effect)
        partial, partial_rejected = self._partial(schema, effect, gate)
        passed, rejected = gate.passed(effect.rows)
        new = effect.new if rejected is None and partial is None else None
        return _States(passed, partial, [some for some in (partial_rejected, rejected) if some is not None], new)

    def _partial(
        self, schema: TableSchema, effect: NetEffect, gate: ValueGate
    ) -> tuple[PartialRows | None, RejectedRows | None]:
        """Returns the rows that the target completes, and those to reject, completed."""
        partial = effect.partial
        if partial is None:
            return None, None
        passed, rejected = gate.passed(partial.rows)
        if rejected is None:
            return PartialRows(passed, partial.origins, partial.missing), None
        here, rest = pa.array(rejected.among), pa.array(~rejected.among)
        missing = partial.missing[rejected.among]
        names = [name for i, name in enumerate(rejected.rows.schema.names) if missing[:, i].any()]
        present: list[dict[str, Any]] = []
        for row in self.rows.present(partial.origins.filter(here), names):
            if row is None:
                raise missing_value_error(
                    schema, "The log leaves values out of a change to a row that the copy does not have"
                )
            present.append(row)
        whole = RejectedRows(filled(rejected.rows, missing, present), rejected.columns, rejected.among)
        if not passed.num_rows:
            return None, whole
        return PartialRows(passed, partial.origins.filter(rest), partial.missing[~rejected.among]), whole


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """Writes last states of rows that the source has deleted. The rows that `gate` rejects are dropped: the source does not
    have them."""

    rows: TableRows
    gate: ValueGate


@dataclass(frozen=True, slots=True)
class _States:
    whole: pa.RecordBatch
    partial: PartialRows | None
    rejected: list[RejectedRows]
    new: npt.NDArray[np.bool_] | None
    """See `NetEffect.new`."""


def _complete(rows: TableRows, states: _States, marks: tuple[Column, ...]) -> None:
    """Takes missing values from the target, before its rows change."""
    if states.partial is not None:
        rows.complete(marked_partial(states.partial, marks))


def _upsert(rows: TableRows, states: _States, marks: tuple[Column, ...]) -> None:
    rows.upsert(marked(states.whole, marks), states.new)
    if states.partial is not None:
        rows.upsert_completed()
