"""The mirror sink on executors: writes each part in one transaction with its ledger entry.

A part that fits into memory is read completely and then written. After a deadlock or a lost connection it is written again,
from memory. A larger part is written while it is read, also in one transaction. If that transaction breaks, the attempt fails,
and the epoch is run again. The ledger entry is the first write of a transaction: of two attempts at a part, the second one
waits for the first one, and then finds its entry or none.
"""

import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import pyarrow as pa

from tidemark.conf.tables import TableTemplate
from tidemark.sinks.mirror.audit import NO_AUDIT, AuditColumns, Marks
from tidemark.sinks.mirror.bad_values import STOP, Policies, ValueGate
from tidemark.sinks.mirror.connecting import Waiting, unavailable
from tidemark.sinks.mirror.planning import emptied, table_findings, target_of
from tidemark.sinks.mirror.rejects import Rejects
from tidemark.sinks.mirror.table_writing import DeletedRows, TableWriting
from tidemark.sinks.mirror.target import Session, TargetName, TargetTable
from tidemark.sinks.parts import Part, check_repeated_part, parts_of
from tidemark.sinks.sink import (
    BadValues,
    Finding,
    JobIdentity,
    PartResult,
    ReadOnlyError,
    Schemas,
    SinkBusyError,
    raise_problems,
)
from tidemark.state.change_batch import LOG_PART, ChangeBatch, PartItem
from tidemark.state.errors import RefusedRowsError, SinkError
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.table import TableId, TableSchema

CHUNK_BYTES = 32 << 20
"""Changes are collected up to this size before their net effect is written. A smaller part is kept until it is committed."""
ATTEMPTS = 6
FIRST_DELAY_SECONDS = 0.2

KEPT_SECONDS = 20.0
"""The age at which a kept connection is replaced before it is used again. So a target that is another server now, by DNS or
behind a balancer, is found though the former one still answers. Shorter than the time after which a server ends an idle
writer."""

Chunk: TypeAlias = dict[tuple[TableId, int], list[pa.RecordBatch]]
"""Changes by table and schema version, in the order of the log; tables in the order of their first change."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MirrorWriter:
    """A `tidemark.sinks.sink.PartWriter`. It has a connection during a call of `write`; with `kept`, that one, which stays open
    until `close`. Then it is for one thread."""

    connect: Callable[[], Session]
    template: TableTemplate
    job: JobIdentity
    waiting: Waiting
    policies: Policies = STOP
    audit: AuditColumns = NO_AUDIT
    kept: "_KeptConnection | None" = None

    def keeping(self) -> "MirrorWriter":
        """Returns a writer that keeps its connection between calls."""
        return replace(self, kept=_KeptConnection(_Connection(self.connect, self.waiting)))

    def close(self) -> None:
        if self.kept is not None:
            self.kept.connection.drop()

    def write(self, items: Iterable[PartItem], schemas: Schemas) -> Iterator[PartResult]:
        once = contextlib.closing(_Connection(self.connect, self.waiting))
        with once if self.kept is None else self.kept.used() as connection:
            for part in parts_of(items):
                batches = part.batches()
                first = _collect(batches)
                if part.complete:
                    yield self._write_small(connection, part, first, schemas)
                else:
                    yield self._write_large(connection, part, _chunks(first, batches), schemas)

    def _write_small(self, connection: "_Connection", part: Part, chunk: Chunk, schemas: Schemas) -> PartResult:
        attempts = itertools.count(1)

        def attempt(session: Session) -> PartResult:
            number = next(attempts)
            recorded = session.begin(self.job, part.epoch, part.name)
            if recorded is None:
                bad_values = self._fill(session, part, [chunk], schemas)
                return PartResult(part.epoch, part.name, part.row_count, skipped=False, bad_values=bad_values)
            check_repeated_part(part, recorded)
            # At a later attempt the entry may be the first one's: its COMMIT succeeded, but the answer was lost.
            return PartResult(part.epoch, part.name, part.row_count, skipped=number == 1)

        return connection.retry(attempt)

    def _write_large(
        self, connection: "_Connection", part: Part, chunks: Iterator[Chunk], schemas: Schemas
    ) -> PartResult:
        recorded = connection.retry(lambda session: session.begin(self.job, part.epoch, part.name))
        if recorded is not None:
            for _ in chunks:
                pass
            check_repeated_part(part, recorded)
            return PartResult(part.epoch, part.name, part.row_count, skipped=True)
        bad_values: tuple[BadValues, ...] = ()
        try:
            bad_values = self._fill(connection.session(), part, chunks, schemas)
        except SinkBusyError:
            # If all was sent, the COMMIT may have succeeded with its answer lost: the ledger says so.
            if not part.complete or not self._is_recorded(connection, part):
                raise
        return PartResult(part.epoch, part.name, part.row_count, skipped=False, bad_values=bad_values)

    def _is_recorded(self, connection: "_Connection", part: Part) -> bool:
        connection.drop()
        recorded = connection.retry(lambda session: session.begin(self.job, part.epoch, part.name))
        if recorded is None:
            connection.session().rollback()
            return False
        check_repeated_part(part, recorded)
        return True

    def _fill(self, session: Session, part: Part, chunks: Iterable[Chunk], schemas: Schemas) -> tuple[BadValues, ...]:
        """Writes the rows and commits."""
        writers: dict[TableId, TableWriting] = {}
        rejects = Rejects(session, self.job.uuid, part.epoch, part.name)
        marks = self.audit.marks(session)
        noted = dict[TargetName, TargetTable]()
        for chunk in chunks:
            new = [schemas[key] for key in chunk if key[0] not in writers]
            existing = session.inspect_all([target_of(s.table, self.template, session.home) for s in new])
            noted |= self._require_rows(session, new, existing)
            for (table, version), batches in chunk.items():
                schema = schemas[table, version]
                if table not in writers:
                    writers[table] = self._table(session, schema, existing, rejects, marks)
                try:
                    writers[table].apply(schema, batches, is_log=part.name == LOG_PART)
                except RefusedRowsError as error:
                    raise self._of_table(error, table) from error
        session.note_incarnations(noted)  # last: splits of one table are written side by side
        session.commit(part.row_count, part.after)
        return tuple(told for writing in writers.values() for told in writing.told())

    def _require_rows(
        self, session: Session, schemas: Iterable[TableSchema], existing: Mapping[TargetName, TargetTable]
    ) -> dict[TargetName, TargetTable]:
        """Raises SinkError for a copy that somebody emptied or created again. One that was rewritten with its rows goes on.
        Returns the tables that the job has not seen with rows yet, or not as they are now."""
        seen, noted = session.incarnations(existing), dict[TargetName, TargetTable]()
        for schema in schemas:
            target = target_of(schema.table, self.template, session.home)
            table = existing.get(target)
            if table is None or table.incarnation in (None, seen.get(target)):
                continue
            if target in seen and session.is_empty(target):
                _raise_of(schema.table, [emptied(schema.table, target)])
            noted[target] = table
        return noted

    def _of_table(self, error: RefusedRowsError, table: TableId) -> RefusedRowsError:
        """What the server has refused concerns the table alone, too: the transaction has nothing of it."""
        if error.table is not None or self.policies.default == "stop":
            return error
        return RefusedRowsError(error.message, error.remedy, table)

    def _table(
        self,
        session: Session,
        schema: TableSchema,
        tables: Mapping[TargetName, TargetTable],
        rejects: Rejects,
        marks: Marks,
    ) -> TableWriting:
        """Checks the table again: if it was altered since `prepare`, it could silently round values."""
        target = target_of(schema.table, self.template, session.home)
        existing = tables.get(target)
        if existing is None:
            raise SinkError(
                f"{target}, the copy of {schema.table}, is gone.",
                START_OVER_NOW,
                schema.table,
            )
        _raise_of(schema.table, self.audit.problems(schema, existing, session.dialect))
        extended = self.audit.extended(schema)
        _raise_of(schema.table, table_findings(extended, target, existing, session.dialect))
        rows = session.rows(target, extended, existing, marks.removed)
        gate = ValueGate(schema, self.policies, rows.bad_values, rows.as_text)
        if not self.audit.keeps_deleted:
            return TableWriting(rows, gate, rejects, marks)
        deleted = DeletedRows(session.rows(target, extended, existing, repeats=True), replace(gate, counts=Counter()))
        return TableWriting(rows, gate, rejects, marks, deleted, is_read_again=schema.version > 1)


def _raise_of(table: TableId, findings: Iterable[Finding]) -> None:
    """Raises SinkError with all problems of a table. They concern that table alone."""
    try:
        raise_problems(list(findings))
    except SinkError as error:
        raise SinkError(error.message, error.remedy, table) from None


def _collect(batches: Iterator[ChangeBatch]) -> Chunk:
    """Returns the next changes, up to CHUNK_BYTES or the end of the part."""
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
    while chunk := _collect(batches):
        yield chunk


class _Connection:
    """A session that is opened at its first use, and again after an error that may pass."""

    def __init__(self, connect: Callable[[], Session], waiting: Waiting) -> None:
        self._connect = connect
        self._waiting = waiting
        self._session: Session | None = None

    def session(self) -> Session:
        if self._session is None:
            self._session = self._connect()
        return self._session

    def retry(self, attempt: Callable[[Session], T]) -> T:
        """Calls `attempt` up to ATTEMPTS times, each in a transaction of its own. Only SinkBusyError is retried. A target that
        accepts no writes is waited for like one that is out of reach: a fail-over may be under way."""
        busy, read_only = 0, self._waiting.to_write()
        while True:
            try:
                result = attempt(self.session())
            except ReadOnlyError as error:
                self.drop()
                if not read_only.failed(error.message):
                    raise unavailable(error, read_only.failures) from error
            except SinkBusyError:
                self.drop()
                busy += 1
                if busy == ATTEMPTS:
                    raise
                # A lock or a deadlock: the others may end meanwhile, and do not try again at the same moment.
                time.sleep(FIRST_DELAY_SECONDS * 2 ** (busy - 1) * random.uniform(0.5, 1.0))
            else:
                read_only.succeeded()
                return result

    def drop(self) -> None:
        """Closes the connection, which rolls back an open transaction."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    close = drop


class _KeptConnection:
    """A connection that stays open between calls of `write`."""

    def __init__(self, connection: _Connection) -> None:
        self.connection = connection
        self._opened_at = 0.0

    @contextlib.contextmanager
    def used(self) -> Iterator[_Connection]:
        """Yields the connection without an open transaction. After an error it is closed, which ends that transaction."""
        if time.monotonic() > self._opened_at + KEPT_SECONDS:
            self.connection.drop()
            self._opened_at = time.monotonic()
        try:
            yield self.connection
        except BaseException:
            self.connection.drop()
            raise
