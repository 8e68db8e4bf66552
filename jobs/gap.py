"""What an epoch's log brings: the changes that splits and points do not contain yet, as sinks get them."""

import numpy as np
import pyarrow as pa

from jobs.half_moves import HalfMoves
from jobs.sources import KeyRouting
from readers.gap_filter import GapFilter, Int64s, Mask, TableRoutes
from readers.projecting import Projector
from state.change_batch import is_truncation
from state.errors import UnknownLogEventError
from state.table import TableId, TableSchema


class Gap:
    """`columns`: the split columns of the tables that `gap_filter` has. `half_moves`: None where the log leaves no values
    out of their changes."""

    def __init__(
        self,
        gap_filter: GapFilter,
        columns: dict[TableId, tuple[str, ...]],
        routing: KeyRouting,
        half_moves: HalfMoves | None,
        project: Projector,
    ) -> None:
        self._filter, self._columns, self._routing = gap_filter, columns, routing
        self._half_moves, self._project = half_moves, project

    def filled(self, schema: TableSchema, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Those of a table's changes that are emitted."""
        table = schema.table
        if not rows.num_rows or table not in self._columns:
            return [self._project.changes(table, rows)]
        if is_truncation(rows):
            return [self._project.changes(table, self._truncation(table, rows))]
        kept = self._kept(schema, rows)
        if self._half_moves is not None and schema.toastable:
            xids = self._routing.transactions(rows)
            assert xids is not None
            every = np.ones(rows.num_rows, np.bool_) if kept is None else kept
            return self._half_moves.filled(schema, rows, every, xids)
        return [self._project.changes(table, rows if kept is None else rows.filter(pa.array(kept)))]

    def _kept(self, schema: TableSchema, rows: pa.RecordBatch) -> Mask | None:
        """Those that the splits do not contain yet; None: all."""
        versions = rows.column("_commit_version").to_numpy()
        routes = self._filter.of_table(schema.table, versions[0])  # versions never fall
        if routes is None:
            return None
        owners = None
        if not routes.is_uniform:
            owners = self._routing.owners(schema, self._columns[schema.table], rows, routes)
        return routes.keep(owners, versions, self._routing.transactions(rows))

    def _truncation(self, table: TableId, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Right where all splits and points were read before it, or all after it; raises UnknownLogEventError otherwise."""
        version = rows.column("_commit_version")[0].as_py()
        xids = self._routing.transactions(rows)
        routes = self._filter.of_table(table, version)
        kept = [] if routes is None else _kept_by_pieces(routes, version, xids)
        if self._half_moves is not None and xids is not None:
            kept += [not covered for covered in self._half_moves.covering(table, version, int(xids[0]))]
        if all(kept) or not any(kept):
            return rows.slice(0, len(rows) if all(kept) else 0)
        raise UnknownLogEventError(
            f"{table} was truncated (transaction {rows.column('_txn_id')[0].as_py()}) while its rows were being copied: some "
            "of its splits were read before, some after.",
            "Start the job over with an empty checkpoint and an empty target, and let no TRUNCATE come while rows are copied.",
        )


def _kept_by_pieces(routes: TableRoutes, version: int, xids: Int64s | None) -> list[bool]:
    pieces = np.arange(len(routes.highs))
    repeated = None if xids is None else np.repeat(xids, len(pieces))
    kept: list[bool] = routes.keep(pieces, np.repeat(np.int64(version), len(pieces)), repeated).tolist()
    return kept
