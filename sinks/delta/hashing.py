"""Keys and hashes of a copy's rows, computed by executors. The driver computes those of expected rows by the same code."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemark.conf.duckdb_engine import open_engine
from tidemark.conf.redaction import redact_exception
from tidemark.sinks.comparing import Key
from tidemark.sinks.folded.hashing import change_expressions, change_kinds, key_kinds, key_names
from tidemark.state.errors import SinkError
from tidemark.state.table import TableSchema
from tidemark.state.typed_rows import typed_schema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

HASHED = pa.schema([pa.field("hashed", pa.binary(), nullable=False)])
"""The output of `Hashing`: an Arrow IPC stream for each batch of rows."""
WANTED = "wanted"
_META = ("_change_type", "_commit_version", "_seq", "_is_snapshot", "_unchanged")
_LOW = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Hashing:
    """The function for mapInArrow: takes rows of a copy with the columns `names`, yields HASHED. `partitioned`: the columns by
    which Delta partitions the table. `wanted`: only rows of these keys are hashed; None: all."""

    schema: TableSchema
    names: tuple[str, ...]
    partitioned: tuple[str, ...]
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
        """Yields keys and hashes, to be read by `unpacked`. Raises SinkError, without a value of a row."""
        import duckdb

        kinds = typed_schema(self.schema)
        with contextlib.closing(open_engine()) as engine:
            if self.wanted is not None:
                load_keys(engine, self.schema, self.wanted)
            for batch in batches:
                # Spark has other names for the time zone and for the elements of lists.
                columns = [batch.column(name).cast(kinds.field(name).type) for name in self.names]
                engine.register("batch", pa.table(columns, names=[f"c{i}" for i in range(len(columns))]))
                try:
                    yield engine.execute(self._query(engine)).to_arrow_table()
                except duckdb.Error as error:
                    text = re.split(r"[\"'(0-9]", str(error), maxsplit=1)[0].strip()  # what follows may quote a row
                    raise SinkError(
                        f"Rows of {self.schema.table} can't be compared: {text} ….", "Please report this."
                    ) from error
                finally:
                    engine.unregister("batch")

    def _query(self, engine: "DuckDBPyConnection") -> str:
        described = engine.execute("DESCRIBE batch").fetchall()
        columns = {name: (column[0], column[1]) for name, column in zip(self.names, described, strict=True)}
        for name in self.partitioned:
            if columns.get(name, ("", ""))[1] == "VARCHAR":  # Delta has NULL for an empty text in a partition
                columns[name] = (f"nullif({columns[name][0]}, '')", "VARCHAR")
        is_logged = f"NOT {columns['_is_snapshot'][0]}" if "_is_snapshot" in columns else "false"
        expressions = change_expressions(self.schema, columns, is_logged)
        inner = ", ".join(f"{expression} AS {name}" for name, expression in expressions.items())
        packed = ", ".join(text for name, kind in change_kinds(self.schema).items() for text in _packed(name, kind))
        among = "" if self.wanted is None else f" SEMI JOIN {WANTED} USING ({', '.join(key_names(self.schema))})"
        return f"SELECT {packed} FROM (SELECT {inner} FROM batch) changes{among}"


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


def unpacked(schema: TableSchema) -> str:
    """Returns the expressions that give `change_kinds` from hashed rows."""
    return ", ".join(_unpacked(name, kind) for name, kind in change_kinds(schema).items())


def read(hashed: bytes) -> pa.Table:
    """Returns the table of a row of HASHED."""
    return pa.ipc.open_stream(hashed).read_all()


def _written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _packed(name: str, kind: str) -> Iterator[str]:
    """Yields expressions of types that Arrow has."""
    if kind == "UHUGEINT":
        yield f"CAST({name} >> 64 AS UBIGINT) AS {name}_high"
        yield f"CAST({name} & {_LOW}::UHUGEINT AS UBIGINT) AS {name}_low"
    elif kind == "HUGEINT":
        yield f"CAST({name} AS DECIMAL(38, 0)) AS {name}"
    else:
        yield name


def _unpacked(name: str, kind: str) -> str:
    if kind == "UHUGEINT":
        return f"(CAST({name}_high AS UHUGEINT) << 64) | CAST({name}_low AS UHUGEINT)"
    return f"CAST({name} AS HUGEINT)" if kind == "HUGEINT" else name
