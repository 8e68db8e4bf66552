"""The changes of a log range that neither finished splits nor key re-reads contain, as sinks get them."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from tidemark.readers.log.gap_filter import FinishedSplits, GapFilter, Int64s, Mask
from tidemark.readers.log.key_rereads import KeyRereads
from tidemark.readers.projection.projector import Projector
from tidemark.readers.source import KeyRouting, RoutesByTransaction
from tidemark.state.change_batch import is_truncation
from tidemark.state.errors import SchemaChangedError, TruncatedError, concerning
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.table import TableId, TableSchema

OnTruncate: TypeAlias = Literal["evolve", "stop", "ignore"]
"""As in `sink.on_schema_change`."""


class Gap:
    """Filters an epoch's changes. `columns`: the split columns of the tables in `gap_filter`. `key_rereads`: None if the log
    never leaves values out of changes. `on_truncate` is asked at each TRUNCATE."""

    def __init__(
        self,
        gap_filter: GapFilter,
        columns: dict[TableId, tuple[str, ...]],
        routing: KeyRouting,
        key_rereads: KeyRereads | None,
        project: Projector,
        *,
        on_truncate: Callable[[], OnTruncate],
    ) -> None:
        self._filter, self._columns, self._routing = gap_filter, columns, routing
        self._key_rereads, self._project = key_rereads, project
        self._on_truncate = on_truncate

    def emitted(self, schema: TableSchema, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Returns those of the table's changes that must be emitted, projected."""
        table = schema.table
        if is_truncation(rows):
            return self._truncated(table, rows)
        if not rows.num_rows or table not in self._columns:
            return [self._project.changes(table, rows)]
        kept = self._kept(schema, rows)
        if self._key_rereads is not None and schema.toastable:
            xids = self._transactions(rows)
            assert xids is not None
            every = np.ones(rows.num_rows, np.bool_) if kept is None else kept
            return self._key_rereads.emitted(schema, rows, every, xids)
        return [self._project.changes(table, rows if kept is None else rows.filter(pa.array(kept)))]

    def _kept(self, schema: TableSchema, rows: pa.RecordBatch) -> Mask | None:
        """A mask of the changes that the splits do not contain; None for all."""
        versions = rows.column("_commit_version").to_numpy()
        finished_splits = self._filter.of_table(schema.table, versions[0])  # versions never fall
        if finished_splits is None:
            return None
        owners = None
        if not finished_splits.is_uniform:
            with concerning(schema.table):  # it may have been altered since the range was planned
                owners = self._routing.owners(schema, self._columns[schema.table], rows, finished_splits)
        return finished_splits.keep(owners, versions, self._transactions(rows))

    def _transactions(self, rows: pa.RecordBatch) -> Int64s | None:
        """The transaction id of each row, if high watermarks are sets of transactions."""
        return self._routing.transactions(rows) if isinstance(self._routing, RoutesByTransaction) else None

    def _truncated(self, table: TableId, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Returns a TRUNCATE as the job file wants it. Raises TruncatedError if it is to stop the table."""
        policy = self._on_truncate()
        if policy == "ignore":
            return []
        if policy == "stop" and self._is_emitted(table, rows) is not False:
            raise TruncatedError(
                f"{table} was truncated (transaction {rows.column('_txn_id')[0].as_py()}), and its copy is to keep its rows "
                "(sink.on_schema_change, truncate: stop).",
                "If the job has stopped (source.on_table_error: stop), it continues with truncate: ignore, which keeps the "
                "copy's rows, or with evolve, which empties the copy.",
                table,
            )
        return [self._project.changes(table, self._truncation(table, rows))]

    def _truncation(self, table: TableId, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Emits a TRUNCATE or drops it. It can't do either if some splits or key re-reads were taken before the TRUNCATE and
        some after it: raises SchemaChangedError, so that the table is read again. Splits that are left do not matter: the copy
        has none of their rows, or they replace what it has."""
        is_emitted = self._is_emitted(table, rows)
        if is_emitted is not None:
            return rows.slice(0, len(rows) if is_emitted else 0)
        raise SchemaChangedError(
            f"{table} was truncated (transaction {rows.column('_txn_id')[0].as_py()}) while its rows were being copied: some "
            "of its splits were read before it, some after it.",
            f"{START_OVER_NOW} Do not run TRUNCATE while rows are copied.",
            table,
        )

    def _is_emitted(self, table: TableId, rows: pa.RecordBatch) -> bool | None:
        """False if all rows that the job has read of the table are from after the TRUNCATE, None if only some are."""
        if table not in self._columns:
            return True
        version = rows.column("_commit_version")[0].as_py()
        xids = self._transactions(rows)
        finished_splits = self._filter.of_table(table, version)
        kept = [] if finished_splits is None else _kept_by_split(finished_splits, version, xids)
        if self._key_rereads is not None and xids is not None:
            kept += [not covered for covered in self._key_rereads.covering(table, version, int(xids[0]))]
        if all(kept) or not any(kept):
            return any(kept) or finished_splits is None
        return None


def _kept_by_split(finished_splits: FinishedSplits, version: int, xids: Int64s | None) -> list[bool]:
    splits = finished_splits.finished
    repeated = None if xids is None else np.repeat(xids, len(splits))
    kept: list[bool] = finished_splits.keep(splits, np.repeat(np.int64(version), len(splits)), repeated).tolist()
    return kept
