"""The mirror sink's executor side: each part in one transaction with its ledger entry.

A part that fits into memory is read whole and then written, so that a deadlock or a lost connection is answered by
writing it again, whole. A larger one is written while it is read, in one transaction too; what breaks that ends the
attempt, and the epoch is run again. The ledger's entry comes first in a transaction: of two attempts at a part the second
waits for it, and finds the first one's entry or none.
"""

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from conf.tables import TableTemplate
from sinks.mirror.net_effect import net_effect
from sinks.mirror.planning import place_of, table_findings
from sinks.mirror.target import Session, TableRows
from sinks.parts import Part, check_repeated_part, parts_of
from sinks.sink import JobIdentity, PartResult, Schemas, SinkBusyError, raise_problems
from state.change_batch import LOG_PART, UNCHANGED_FIELD, ChangeBatch, ChangeType, PartItem, is_truncation
from state.errors import SinkError
from state.table import TableId, TableSchema

CHUNK_BYTES = 32 << 20
"""Changes are gathered to this size before their net effect is written. A smaller part is kept until it is committed."""
ATTEMPTS = 6
FIRST_DELAY_SECONDS = 0.2
_UNCHANGED = UNCHANGED_FIELD.name

Chunk: TypeAlias = dict[tuple[TableId, int], list[pa.RecordBatch]]
"""Changes by table and schema version, in their order within each; tables in the order of their first change."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MirrorWriter:
    """`sinks.sink.PartWriter`. Its connection lasts for one call of `write`."""

    connect: Callable[[], Session]
    template: TableTemplate
    job: JobIdentity

    def write(self, items: Iterable[PartItem], schemas: Schemas) -> Iterator[PartResult]:
        with contextlib.closing(_Connection(self.connect)) as connection:
            for part in parts_of(items):
                batches = part.batches()
                first = _gather(batches)
                if part.complete:
                    yield self._write_small(connection, part, first, schemas)
                else:
                    yield self._write_large(connection, part, _chunks(first, batches), schemas)

    def _write_small(self, connection: "_Connection", part: Part, chunk: Chunk, schemas: Schemas) -> PartResult:
        attempts = itertools.count(1)

        def attempt(session: Session) -> PartResult:
            number = next(attempts)
            recorded = session.begin(self.job.uuid, part.epoch, part.name)
            if recorded is None:
                self._fill(session, part, [chunk], schemas)
                return PartResult(part.epoch, part.name, part.row_count, skipped=False)
            check_repeated_part(part, recorded)
            # Found at a later attempt it may be the first one's, whose COMMIT was done although its answer was lost.
            return PartResult(part.epoch, part.name, part.row_count, skipped=number == 1)

        return connection.retry(attempt)

    def _write_large(
        self, connection: "_Connection", part: Part, chunks: Iterator[Chunk], schemas: Schemas
    ) -> PartResult:
        recorded = connection.retry(lambda session: session.begin(self.job.uuid, part.epoch, part.name))
        if recorded is not None:
            for _ in chunks:
                pass
            check_repeated_part(part, recorded)
            return PartResult(part.epoch, part.name, part.row_count, skipped=True)
        try:
            self._fill(connection.session(), part, chunks, schemas)
        except SinkBusyError:
            # If all was sent, the COMMIT may have been done although its answer was lost: the ledger knows.
            if not part.complete or not self._is_recorded(connection, part):
                raise
        return PartResult(part.epoch, part.name, part.row_count, skipped=False)

    def _is_recorded(self, connection: "_Connection", part: Part) -> bool:
        connection.drop()
        recorded = connection.retry(lambda session: session.begin(self.job.uuid, part.epoch, part.name))
        if recorded is None:
            connection.session().rollback()
            return False
        check_repeated_part(part, recorded)
        return True

    def _fill(self, session: Session, part: Part, chunks: Iterable[Chunk], schemas: Schemas) -> None:
        """The transaction's rows and its end."""
        writers: dict[TableId, TableRows] = {}
        for chunk in chunks:
            for (table, version), batches in chunk.items():
                schema = schemas[table, version]
                if table not in writers:
                    writers[table] = self._rows(session, schema)
                _apply(writers[table], schema, batches, is_log=part.name == LOG_PART)
        session.commit(part.row_count)

    def _rows(self, session: Session, schema: TableSchema) -> TableRows:
        """Looks at the table anew: one that was altered since `prepare` could round what it is given without a word."""
        place = place_of(schema.table, self.template, session.home)
        existing = session.inspect(place)
        if existing is None:
            raise SinkError(
                f"{place}, the copy of {schema.table}, is gone.",
                "Begin anew: a new checkpoint, the other copies dropped, this job's rows in tidemark_tables deleted.",
            )
        raise_problems(list(table_findings(schema, place, existing, session.dialect)))
        return session.rows(place, schema, existing)


def _apply(rows: TableRows, schema: TableSchema, batches: list[pa.RecordBatch], *, is_log: bool) -> None:
    last = max((i for i, batch in enumerate(batches) if is_truncation(batch)), default=None)
    if last is not None:
        rows.empty()
        batches = batches[last + 1 :]
    if not batches:
        return
    names = [column.name for column in schema.captured]
    needed = [*names, "_change_type"]
    if schema.toastable and any(batch.column(_UNCHANGED).null_count < batch.num_rows for batch in batches):
        needed += ["_commit_version", "_seq", _UNCHANGED]
    table = pa.Table.from_batches([batch.select(needed) for batch in batches])
    for changes in table.combine_chunks().to_batches():
        only_inserts = not np.any(changes.column("_change_type").to_numpy() != ChangeType.INSERT)
        if only_inserts and not is_log:
            rows.insert(changes.select(names))
            continue
        effect = net_effect(schema, changes)
        if effect.partial is not None:
            rows.complete(effect.partial)
        rows.delete(effect.touched)
        rows.insert(effect.rows)
        if effect.partial is not None:
            rows.insert_completed()


def _gather(batches: Iterator[ChangeBatch]) -> Chunk:
    """The next changes, up to CHUNK_BYTES or the part's end."""
    chunk: Chunk = {}
    byte_count = 0
    for batch in batches:
        if batch.rows.num_rows:
            chunk.setdefault((batch.table, batch.schema_version), []).append(batch.rows)
        byte_count += batch.rows.nbytes
        if byte_count >= CHUNK_BYTES:
            break
    return chunk


def _chunks(first: Chunk, batches: Iterator[ChangeBatch]) -> Iterator[Chunk]:
    yield first
    while chunk := _gather(batches):
        yield chunk


class _Connection:
    """A session that is opened when it is needed, and anew after a failure that may pass."""

    def __init__(self, connect: Callable[[], Session]) -> None:
        self._connect = connect
        self._session: Session | None = None

    def session(self) -> Session:
        if self._session is None:
            self._session = self._connect()
        return self._session

    def retry(self, attempt: Callable[[Session], T]) -> T:
        """`attempt` up to ATTEMPTS times, each on a transaction of its own; only SinkBusyError is answered so."""
        for number in range(1, ATTEMPTS + 1):
            try:
                return attempt(self.session())
            except SinkBusyError:
                self.drop()
                if number == ATTEMPTS:
                    raise
            time.sleep(FIRST_DELAY_SECONDS * 2 ** (number - 1) * random.uniform(0.5, 1.0))
        raise AssertionError("unreachable")

    def drop(self) -> None:
        """Closes the connection, which rolls back what it had not committed."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    close = drop
