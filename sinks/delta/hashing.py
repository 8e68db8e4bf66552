"""Keys and hashes of a copy's rows, computed by executors. The driver computes those of expected rows by the same code."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.conf.duckdb_engine import open_engine
from tidemark.conf.redaction import redact_exception
from tidemark.sinks.comparing import Key
from tidemark.sinks.folded.hashing import RowHashing, key_kinds, key_names, require_alike, selected
from tidemark.state.errors import SinkError
from tidemark.state.table import TableSchema
from tidemark.state.typed_rows import typed_schema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

HASHED = pa.schema([pa.field("hashed", pa.binary(), nullable=False)])
"""The output of `Hashing`: an Arrow IPC stream for each batch of rows."""
WANTED = "wanted"
_META = ("_change_type", "_commit_version", "_seq", "_is_snapshot", "_unchanged")


@dataclass(frozen=True, slots=True)
class Hashing:
    """The function for mapInArrow: takes rows of a copy with the columns `names`, yields HASHED. `partitioned`: the columns by
    which Delta partitions the table. `probe`: the result of `folded.hashing.probe` in the command's process. `wanted`: only
    rows of these keys are hashed; None: all."""

    hashing: RowHashing
    names: tuple[str, ...]
    partitioned: tuple[str, ...]
    probe: int
    wanted: tuple[Key, ...] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for hashed in self.hashed(batches):
                if hashed.num_rows:
                    yield pa.RecordBatch.from_arrays([pa.array([_written(hashed)], pa.binary())], schema=HASHED)
        except BaseException as error:
            redact_exception(error)  # Spark writes a worker's exception into its event log and its web pages
            raise

    def hashed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yields keys and hashes as `folded.hashing.selected` reads them. Raises SinkError, without a value of a row."""
        import duckdb

        schema = self.hashing.schema
        require_alike(self.hashing.seed, self.probe, schema.table)
        with contextlib.closing(open_engine()) as engine:
            if self.wanted is not None:
                load_keys(engine, schema, self.wanted)
            for batch in batches:
                engine.register("batch", self._changes(batch))
                try:
                    yield engine.execute(self._query(engine)).to_arrow_table()
                except duckdb.Error as error:
                    text = re.split(r"[\"'(0-9]", str(error), maxsplit=1)[0].strip()  # what follows may quote a row
                    raise SinkError(
                        f"Rows of {schema.table} can't be compared: {text} ….", "Please report this."
                    ) from error
                finally:
                    engine.unregister("batch")

    def _changes(self, batch: pa.RecordBatch) -> pa.Table:
        kinds = typed_schema(self.hashing.schema)
        columns = {}
        for name in self.names:
            # Spark has other names for the time zone and for the elements of lists.
            columns[name] = batch.column(name).cast(kinds.field(name).type)
            if name in self.partitioned and pa.types.is_string(columns[name].type):
                is_empty = pc.equal(columns[name], "")  # Delta has NULL for an empty text in a partition
                columns[name] = pc.if_else(is_empty, pa.scalar(None, pa.string()), columns[name])
        is_logged = pc.invert(columns["_is_snapshot"]) if "_is_snapshot" in columns else False
        return self.hashing.changes(columns, batch.num_rows, is_logged=is_logged)

    def _query(self, engine: "DuckDBPyConnection") -> str:
        schema = self.hashing.schema
        names = key_names(schema)
        kinds = [kind for name, kind, *_ in engine.execute("DESCRIBE batch").fetchall() if name in names]
        among = "" if self.wanted is None else f" SEMI JOIN {WANTED} USING ({', '.join(names)})"
        return f"SELECT * FROM (SELECT {selected(schema, kinds)} FROM batch) changes{among}"


def hashed_names(schema: TableSchema, *, is_changelog: bool) -> tuple[str, ...]:
    """Returns the columns that are read of a copy."""
    captured = schema.arrow_schema().names
    if not is_changelog:
        return tuple(captured)
    return (*captured, *(name for name in _META if name in typed_schema(schema).names))


def load_keys(engine: "DuckDBPyConnection", schema: TableSchema, keys: Sequence[Key]) -> None:
    """Creates the table WANTED of these keys."""
    names = key_names(schema)
    texts = [pa.array([key[i] for key in keys], pa.string()) for i in range(len(names))]
    typed = ", ".join(
        f"TRY_CAST({name} AS {kind}) AS {name}" for name, kind in zip(names, key_kinds(schema), strict=True)
    )
    engine.register("texts", pa.table(texts, names=names))
    engine.execute(f"CREATE OR REPLACE TABLE {WANTED} AS SELECT {typed} FROM texts")
    engine.unregister("texts")


def read(hashed: bytes) -> pa.Table:
    """Returns the table of a row of HASHED."""
    return pa.ipc.open_stream(hashed).read_all()


def _written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
