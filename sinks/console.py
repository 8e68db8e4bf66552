"""The console sink: prints each change as one line, to try a job out.

It has no ledger: a part that is run again is printed again.
"""

import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.sinks.parts import Part, parts_of
from tidemark.sinks.rows.fields import Frame, variable
from tidemark.sinks.rows.json_lines import json_rows
from tidemark.sinks.sink import Finding, JobIdentity, PartResult, Schemas, raise_problems, reserved_name_findings
from tidemark.state.change_batch import CHANGE_TYPE_NAMES, META_FIELDS, UNCHANGED_FIELD, ChangeBatch, PartItem
from tidemark.state.table import TableId, TableSchema

_MEMORY_BYTES = 8 << 20
_ROWS_AT_ONCE = 16384
_META = frozenset(field.name for field in META_FIELDS)
_UNCHANGED = UNCHANGED_FIELD.name


@dataclass(frozen=True, slots=True)
class ConsoleSink:
    """A `PartSink`. A part is printed when it is complete. `stream` None: standard output."""

    stream: IO[str] | None = None

    def check(
        self, schemas: Sequence[TableSchema], job: JobIdentity | None = None, written: Collection[TableId] = ()
    ) -> list[Finding]:
        return [finding for schema in schemas for finding in reserved_name_findings(schema)]

    def prepare(self, job: JobIdentity, schemas: Sequence[TableSchema], written: Collection[TableId] = ()) -> None:
        raise_problems(self.check(schemas, job, written))

    def writer(self, job: JobIdentity) -> "ConsoleWriter":
        return ConsoleWriter(sys.stdout if self.stream is None else self.stream)

    def written(self, job: JobIdentity) -> None:
        return None

    def committed_before(self, job: JobIdentity, epoch: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class ConsoleWriter:
    """A `PartWriter`."""

    stream: IO[str]

    def write(self, items: Iterable[PartItem], schemas: Schemas) -> Iterator[PartResult]:
        for part in parts_of(items):
            self._print(part)
            yield PartResult(part.epoch, part.name, part.row_count, skipped=False)

    def _print(self, part: Part) -> None:
        with tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as lines:
            for batch in part.batches():
                for start in range(0, batch.rows.num_rows, _ROWS_AT_ONCE):
                    lines.write(_lines(batch, start))
            lines.seek(0)
            for line in lines:
                self.stream.write(line.decode())
            self.stream.flush()


def _lines(batch: ChangeBatch, start: int) -> memoryview:
    """Returns `shop.orders update_postimage {"id":1,…}` per row, with `_unchanged` at the end if a row has such columns."""
    rows = batch.rows.slice(start, _ROWS_AT_ONCE)
    kinds = variable(pc.take(pa.array(CHANGE_TYPE_NAMES), rows.column("_change_type")))
    columns = rows.select([name for name in rows.schema.names if name not in _META])
    if columns.schema.names[-1] == _UNCHANGED and columns.column(_UNCHANGED).null_count == columns.num_rows:
        columns = columns.drop_columns(_UNCHANGED)
    return json_rows(columns, lead=[(kinds, Frame(f"{batch.table} ".encode(), b" ", b""))]).data
