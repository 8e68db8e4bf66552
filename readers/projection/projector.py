"""Applies projections to a task's rows before any of them is written.

Expressions are evaluated over full rows only. A DELETE in PostgreSQL's log may hold only the key: its computed columns are
null, like its other columns.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.readers.projection.projection import (
    BATCH,
    Projection,
    ProjectionSettings,
    compile_projection,
    engine_schema,
    setting_of,
)
from tidemark.readers.snapshot.gathered_rows import GatheredRows
from tidemark.readers.snapshot.split_read import SplitRead
from tidemark.state.change_batch import UNCHANGED_FIELD, ChangeType, is_truncation, meta_fields
from tidemark.state.errors import JobFileError, SourceNotUsableError
from tidemark.state.projection import TableProjection
from tidemark.state.remedies import START_OVER, log_whole_rows
from tidemark.state.table import TableId, TableSchema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MAX_BATCH_BYTES = 8 << 20
_UNCHANGED = UNCHANGED_FIELD.name


@dataclass(slots=True)
class Projector:
    """The projections of one task. `known` has the tables that have one; `settings` returns a table's settings. Not
    thread-safe.

    `partial_deletes`: DELETE rows may hold only the key.
    """

    schemas: Mapping[TableId, TableSchema]
    known: Mapping[TableId, TableProjection]
    settings: Callable[[TableId], ProjectionSettings]
    partial_deletes: bool
    _engine: "DuckDBPyConnection | None" = None
    _compiled: dict[TableId, Projection] = field(default_factory=dict)

    def split(self, read: SplitRead) -> tuple[SplitRead, TableSchema]:
        """Returns a split's rows as sinks get them, and their schema."""
        table = read.report.table
        if table not in self.known:
            return read, self.schemas[table]
        projection = self._projection(table)
        schema = projection.output.arrow_schema()
        gathered = GatheredRows(schema)
        for batch in read.rows.to_batches():
            for part in _divided(batch):
                gathered.add(pa.RecordBatch.from_arrays(self._project(projection, part), schema=schema))
        return replace(read, rows=gathered.table()), projection.output

    def changes(self, table: TableId, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns changes, which have `batch_schema` of the table, as sinks get them."""
        if table not in self.known or not rows.num_rows:
            return rows
        projection = self._projection(table)
        names = projection.schema.arrow_schema().names
        full = self._full_rows(projection.schema, rows)
        if _UNCHANGED in rows.schema.names:
            _require_values(projection, rows.column(_UNCHANGED))
        columns = [_joined(arrays) for arrays in zip(*self._parts(projection, rows.select(names), full), strict=True)]
        fields = meta_fields(projection.output)
        for meta in fields:
            is_unchanged = meta.name == _UNCHANGED
            columns.append(_renamed(projection, rows.column(_UNCHANGED)) if is_unchanged else rows.column(meta.name))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*projection.output.arrow_schema(), *fields]))

    def _parts(
        self, projection: Projection, rows: pa.RecordBatch, full: npt.NDArray[np.bool_] | None
    ) -> Iterator[list[pa.Array]]:
        start = 0
        for part in _divided(rows):
            yield self._project(projection, part, None if full is None else full[start : start + part.num_rows])
            start += part.num_rows

    def _project(
        self, projection: Projection, rows: pa.RecordBatch, full: npt.NDArray[np.bool_] | None = None
    ) -> list[pa.Array]:
        """Returns the output's columns. `full`: which rows expressions are evaluated over; None for all."""
        made = iter(())
        if projection.sql:
            given = rows if full is None or full.all() else rows.filter(pa.array(full))
            arrays = self._evaluate(projection, given)
            if given is not rows:
                assert full is not None
                indices = pa.array(np.cumsum(full) - 1, mask=~full)
                arrays = [array.take(indices) for array in arrays]
            made = iter(arrays)
        return [next(made) if passed is None else rows.column(passed) for passed in projection.passed]

    def _evaluate(self, projection: Projection, rows: pa.RecordBatch) -> list[pa.Array]:
        import duckdb

        schema = engine_schema(projection)
        if not rows.num_rows:
            return [pa.array([], kind) for kind in schema.types]
        try:
            result = self._executed(projection, rows)
        except duckdb.Error as error:
            if (
                isinstance(error, duckdb.OperationalError) and rows.num_rows > 1
            ):  # such as too little memory for all of them
                half = rows.num_rows // 2
                parts = [self._evaluate(projection, part) for part in (rows.slice(0, half), rows.slice(half))]
                return [_joined(arrays) for arrays in zip(*parts, strict=True)]
            raise JobFileError(
                f"{'.'.join(setting_of(projection.schema.table, mask=False))} fails on a row: {_told(error)} ….",
                "Let the expression accept such values (TRY_CAST, CASE), or correct the row in the source; then "
                f"{START_OVER}.",
                projection.schema.table,
            ) from error
        if result.num_rows != rows.num_rows:
            raise ValueError(f"{result.num_rows} rows of {rows.num_rows}: {projection.sql}")
        return [_joined(column.chunks) for column in result.cast(schema.with_metadata(None)).columns]

    def _executed(self, projection: Projection, rows: pa.RecordBatch) -> pa.Table:
        engine = self._opened()
        engine.register(BATCH, pa.Table.from_batches([rows]))
        try:
            return engine.execute(projection.sql, projection.parameters).to_arrow_table()
        finally:
            engine.unregister(BATCH)

    def _projection(self, table: TableId) -> Projection:
        """Compiles a table's projection once. Raises JobFileError if its output differs from the driver's."""
        if table not in self._compiled:
            projection = compile_projection(self._opened(), self.schemas[table], self.settings(table))
            if projection.output != self.known[table].output:
                raise JobFileError(
                    f"The projection of {table} gives other columns on this machine than where the job was started.",
                    "Install the same version of duckdb on driver and executors.",
                )
            self._compiled[table] = projection
        return self._compiled[table]

    def _opened(self) -> "DuckDBPyConnection":
        if self._engine is None:
            from tidemark.conf.duckdb_engine import open_engine

            self._engine = open_engine()
        return self._engine

    def _full_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        """A mask of the full rows; None for all. A DELETE is not full if a NOT NULL column or every column outside its key is
        null. A TRUNCATE is never full."""
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


def _divided(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divides into batches of about MAX_BATCH_BYTES, to bound the engine's memory."""
    count = max(1, rows.num_rows * MAX_BATCH_BYTES // max(rows.nbytes, MAX_BATCH_BYTES))
    for start in range(0, rows.num_rows, count):
        yield rows.slice(start, count)


def _told(error: Exception) -> str:
    """Returns the beginning of what the engine says: what follows quotes the row."""
    return re.split(r"[\"'(0-9]", str(error), maxsplit=1)[0].strip()


def _joined(arrays: Iterable[pa.Array]) -> pa.Array:
    several = list(arrays)
    return several[0] if len(several) == 1 else pa.concat_arrays(several)


def _require_values(projection: Projection, unchanged: pa.ListArray) -> None:
    """Raises SourceNotUsableError if an expression needs a value that the log left out. Preflight refuses such tables, but the
    source may have been altered since."""
    table = projection.schema.table
    lacking = sorted(projection.reads.intersection(pc.unique(pc.list_flatten(unchanged)).to_pylist()))
    if lacking:
        raise SourceNotUsableError(
            f"The transform of {table} computes from {', '.join(lacking)}, and the log leaves its value out of an update: "
            "the replica identity of the table is no longer FULL.",
            log_whole_rows(table),
            table,
        )


def _renamed(projection: Projection, unchanged: pa.ListArray) -> pa.Array:
    """Returns UNCHANGED_FIELD with the names of output columns."""
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
