"""Projecting: a task's rows become what sinks get, before anything of them is written anywhere.

Expressions are evaluated over full rows only. A DELETE of PostgreSQL's log may carry nothing but the key: what would be
computed of such a row is null, as the rest of it is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from readers.gathered_rows import GatheredRows
from readers.projection import BATCH, Projection, ProjectionSettings, compile_projection, engine_schema, setting_of
from readers.split_read import SplitRead
from state.change_batch import UNCHANGED_FIELD, ChangeType, is_truncation, meta_fields
from state.errors import JobFileError, SourceNotUsableError
from state.projection import TableProjection
from state.table import TableId, TableSchema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MAX_BATCH_BYTES = 8 << 20
_UNCHANGED = UNCHANGED_FIELD.name
_NOTHING = ProjectionSettings()


@dataclass(slots=True)
class Projector:
    """Of one task, which may have tables that nothing is done to. `settings` gives those of the others. Not for threads.

    `partial_deletes`: DELETE rows may carry only the key.
    """

    schemas: Mapping[TableId, TableSchema]
    known: Mapping[TableId, TableProjection]
    settings: Callable[[TableId], ProjectionSettings]
    partial_deletes: bool
    _engine: "DuckDBPyConnection | None" = None
    _compiled: dict[TableId, Projection] = field(default_factory=dict)

    def split(self, read: SplitRead) -> tuple[SplitRead, TableSchema]:
        """A split's rows as sinks get them, and their schema."""
        table = read.report.table
        if table not in self.known:
            return read, self.schemas[table]
        projection = self._projection(table)
        schema = projection.output.arrow_schema()
        gathered = GatheredRows(schema)
        for batch in read.rows.to_batches():
            for piece in _pieces(batch):
                gathered.add(pa.RecordBatch.from_arrays(self._project(projection, piece), schema=schema))
        return replace(read, rows=gathered.table()), projection.output

    def changes(self, table: TableId, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Changes with `batch_schema` of the table, as sinks get them."""
        if table not in self.known or not rows.num_rows:
            return rows
        projection = self._projection(table)
        names = projection.schema.arrow_schema().names
        full = self._full_rows(projection.schema, rows)
        if _UNCHANGED in rows.schema.names:
            _require_values(projection, rows.column(_UNCHANGED))
        columns = [_joined(arrays) for arrays in zip(*self._pieces(projection, rows.select(names), full), strict=True)]
        fields = meta_fields(projection.output)
        for meta in fields:
            is_unchanged = meta.name == _UNCHANGED
            columns.append(_renamed(projection, rows.column(_UNCHANGED)) if is_unchanged else rows.column(meta.name))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*projection.output.arrow_schema(), *fields]))

    def _pieces(
        self, projection: Projection, rows: pa.RecordBatch, full: npt.NDArray[np.bool_] | None
    ) -> Iterator[list[pa.Array]]:
        start = 0
        for piece in _pieces(rows):
            yield self._project(projection, piece, None if full is None else full[start : start + piece.num_rows])
            start += piece.num_rows

    def _project(
        self, projection: Projection, rows: pa.RecordBatch, full: npt.NDArray[np.bool_] | None = None
    ) -> list[pa.Array]:
        """The output's columns."""
        made = iter(())
        if projection.sql:
            given = rows if full is None or full.all() else rows.filter(pa.array(full))
            arrays = self._evaluate(projection, given)
            if given is not rows:
                assert full is not None
                places = pa.array(np.cumsum(full) - 1, mask=~full)
                arrays = [array.take(places) for array in arrays]
            made = iter(arrays)
        return [next(made) if passed is None else rows.column(passed) for passed in projection.passed]

    def _evaluate(self, projection: Projection, rows: pa.RecordBatch) -> list[pa.Array]:
        import duckdb

        engine, schema = self._opened(), engine_schema(projection)
        if not rows.num_rows:
            return [pa.array([], kind) for kind in schema.types]
        engine.register(BATCH, pa.Table.from_batches([rows]))
        try:
            result = engine.execute(projection.sql, projection.parameters).to_arrow_table()
        except duckdb.Error as error:
            text = str(error).partition("\n")[0]
            raise JobFileError(
                f"{'.'.join(setting_of(projection.schema.table, mask=False))} fails on a row: {text}.",
                "Correct the row in the source, if a split is read; else let the expression bear such values (TRY_CAST, CASE), "
                "and start over with an empty checkpoint and an empty target.",
            ) from error
        finally:
            engine.unregister(BATCH)
        if result.num_rows != rows.num_rows:
            raise ValueError(f"{result.num_rows} rows of {rows.num_rows}: {projection.sql}")
        return [_joined(column.chunks) for column in result.cast(schema.with_metadata(None)).columns]

    def _projection(self, table: TableId) -> Projection:
        """Raises JobFileError where this process would make another table than the driver did."""
        if table not in self._compiled:
            projection = compile_projection(self._opened(), self.schemas[table], self.settings(table))
            if projection.output != self.known[table].output:
                raise JobFileError(
                    f"Here the columns of {table} are made other than where the job was started.",
                    "Install the same version of duckdb on driver and executors.",
                )
            self._compiled[table] = projection
        return self._compiled[table]

    def _opened(self) -> "DuckDBPyConnection":
        if self._engine is None:
            from conf.engine import open_engine

            self._engine = open_engine()
        return self._engine

    def _full_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        """None: all of them. A row without a value that the source never leaves out, or with none but its key, is not, nor
        is a truncation's."""
        if is_truncation(rows):
            return np.zeros(1, np.bool_)
        deletes = rows.column("_change_type").to_numpy() == ChangeType.DELETE
        if not self.partial_deletes or not deletes.any():
            return None
        empty, lacking = np.ones(len(deletes), np.bool_), np.zeros(len(deletes), np.bool_)
        for column in schema.captured:
            if column.name in schema.key:
                continue
            null = rows.column(column.name).is_null().to_numpy(zero_copy_only=False)
            empty &= null
            if not column.nullable:
                lacking |= null
        full: npt.NDArray[np.bool_] = ~(deletes & (empty | lacking))
        return full


def _pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Of about MAX_BATCH_BYTES: what the engine holds at a time."""
    count = max(1, rows.num_rows * MAX_BATCH_BYTES // max(rows.nbytes, MAX_BATCH_BYTES))
    for start in range(0, rows.num_rows, count):
        yield rows.slice(start, count)


def _joined(arrays: Iterable[pa.Array]) -> pa.Array:
    several = list(arrays)
    return several[0] if len(several) == 1 else pa.concat_arrays(several)


def _require_values(projection: Projection, unchanged: pa.ListArray) -> None:
    """Preflight saw to it that the log has all that is computed from; the source may have been altered since."""
    table = projection.schema.table
    lacking = sorted(projection.reads.intersection(pc.unique(pc.list_flatten(unchanged)).to_pylist()))
    if lacking:
        raise SourceNotUsableError(
            f"The transform of {table} computes from {', '.join(lacking)}, and the log leaves its value out of an update: "
            "the replica identity of the table is no longer FULL.",
            f"ALTER TABLE {table} REPLICA IDENTITY FULL, and start over with an empty checkpoint and an empty target.",
        )


def _renamed(projection: Projection, unchanged: pa.ListArray) -> pa.Array:
    """UNCHANGED_FIELD with the output's names."""
    outputs = [(c.name, carried) for c, carried in zip(projection.output.captured, projection.carried, strict=True)]
    marked = np.zeros((len(unchanged), len(outputs)), np.bool_)
    names, owners = pc.list_flatten(unchanged), pc.list_parent_indices(unchanged).to_numpy()
    for i, (_, carried) in enumerate(outputs):
        if carried is not None:
            marked[owners[pc.equal(names, carried).to_numpy(zero_copy_only=False)], i] = True
    counts = marked.sum(axis=1)
    offsets = np.zeros(len(unchanged) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    values = pa.array([name for name, _ in outputs]).take(pa.array(np.nonzero(marked)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(counts == 0))
