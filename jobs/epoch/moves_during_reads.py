"""Rows that get other keys, by changes that leave values out, while signals have rows of their tables read again
(docs/adr/0037).

The copy takes such a value from its row under the old key, which may be what the signal was to mend. Where the rows that were
read do not tell the value, the signal ends as failed.
"""

import time
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.readers.log.moved_rows import MovedRows, has_moves
from tidemark.readers.snapshot.repairs import KeyValues, key_values, read_repair
from tidemark.state.change_batch import ChangeType
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import SchemaChangedError
from tidemark.state.key_repair import KeyRepair
from tidemark.state.remedies import log_whole_rows
from tidemark.state.signals import Answer
from tidemark.state.table import TableId, TableSchema


class MovesDuringReads:
    """`outputs`: the schemas of the epoch's changes. `rereads`: the rows that it writes. `parts`: the signals that are not
    done after it, with their tables. `under_any_key`: as in `MovedRows.lacking`. Raises CheckpointError if rows that were read
    again are gone or damaged."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        outputs: Iterable[TableSchema],
        rereads: Sequence[KeyRepair],
        parts: Sequence[tuple[int, TableId]],
        *,
        under_any_key: bool,
    ) -> None:
        toastable = {schema.table: schema for schema in outputs if schema.toastable}
        self._checkpoint, self._parts, self._under_any_key = checkpoint, parts, under_any_key
        self._reads = dict[TableId, _Reads]()
        for reread in rereads:
            if reread.table in toastable:
                reads = self._reads.setdefault(reread.table, _Reads())
                reads.add(checkpoint, reread, toastable[reread.table])
        self._rows = {table: MovedRows(toastable[table], reads.keys) for table, reads in self._reads.items()}
        self._unfinished = {table for _, table in parts if table in toastable}
        self._moved: set[TableId] = set()
        self._looked_ahead: set[TableId] = set()
        self.tables = frozenset(self._rows)
        """Those of which rows were read again, and whose log may leave values out."""

    def look_ahead(self, table: TableId, changes: pa.RecordBatch) -> None:
        """Takes changes of one of `tables`, as the sink gets them, for `keys_of`. All of the range, or none."""
        self._looked_ahead.add(table)
        self._rows[table].take(changes)

    def keys_of(self, table: TableId) -> tuple[set[KeyValues], set[KeyValues]]:
        """Returns those of the keys read again that the range removes, and those of these that it also gives to a row."""
        if table not in self._rows:
            return set(), set()
        rows = self._rows[table]
        return rows.removed, rows.removed & rows.inserted

    def take(self, table: TableId, changes: pa.RecordBatch) -> None:
        """Takes changes of the range, as the sink gets them."""
        if table in self._rows and table not in self._looked_ahead:
            self._rows[table].take(changes)
        if table in self._unfinished and table not in self._moved and has_moves(changes):
            self._moved.add(table)

    def end_signals(self) -> None:
        """Gives the signals that fail their outcomes. If the rows of a failover do (`Reread.signal` 0), raises
        SchemaChangedError, so that their table is read again. To be called when all changes are taken, before the log's report
        is written."""
        failed = {number: table for number, table in self._parts if table in self._moved}
        for table, rows in self._rows.items():
            if rows.has_moves:
                failed |= dict.fromkeys(self._failed(self._reads[table], rows), table)
        if (lost := failed.get(0)) is not None:  # nobody waits for an outcome
            raise SchemaChangedError(
                f"After a failover that lost transactions, a row of {lost} that these had changed got another key, by a "
                "change of which the log leaves long values out.",
                log_whole_rows(lost),
                lost,
            )
        for number, table in failed.items():
            self._checkpoint.create_outcome(number, Answer(False, moved_text(table), time.time_ns() // 1000))

    def _failed(self, reads: "_Reads", rows: MovedRows) -> list[int]:
        """The signals of which rows moved whose values only the copy has. A signal with keys is about these only."""
        if not rows.is_known:
            return list(reads.wanted)
        lacking = rows.lacking(reads.rows, under_any_key=self._under_any_key).values()
        if not lacking:
            return []
        signals = self._checkpoint.signals()
        return [
            number
            for number, keys in reads.wanted.items()
            if number not in signals
            or not signals[number][0].keys
            or any(not keys.isdisjoint(row.keys) for row in lacking)
        ]


class _Reads:
    """The rows of a table that were read again: the keys, those of them that have rows, and each signal's."""

    def __init__(self) -> None:
        self.keys, self.rows = set[KeyValues](), set[KeyValues]()
        self.wanted: dict[int, set[KeyValues]] = {}

    def add(self, checkpoint: Checkpoint, reread: KeyRepair, schema: TableSchema) -> None:
        wanted = self.wanted.setdefault(reread.signal, set())
        for batch in read_repair(checkpoint.store, reread.file, schema):
            is_row = pc.equal(batch.column("_change_type"), int(ChangeType.INSERT))
            self.rows.update(key_values(batch.filter(is_row), schema.key))
            wanted.update(key_values(batch, schema.key))
        self.keys |= wanted


def moved_text(table: TableId) -> str:
    """The outcome of a signal whose rows moved meanwhile."""
    return (
        f"While its rows were read, a row of {table} got another key by a change of which the log leaves long values out: the "
        "copy may keep an old value of the row. To find and mend such rows: tidemark reconcile JOB.yaml --repair."
    )
