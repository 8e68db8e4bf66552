"""The mirror sink on executors: writes each part in one transaction with its ledger entry. With `log.apply_parallelism`,
several transactions may write a log part (`sinks/mirror/shares.py`).

A part that fits into memory is read completely and then written. After a deadlock or a lost connection it is written again,
from memory. A larger part is written while it is read, also in one transaction. If that transaction breaks, the attempt fails,
and the epoch is run again. The ledger entry is the first write of a transaction: of two attempts at a part, the second one
waits for the first one, and then finds its entry or none.
"""

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from tidemark.conf.tables import TableTemplate
from tidemark.sinks.audit import NO_AUDIT, AuditColumns
from tidemark.sinks.mirror.bad_values import STOP, Policies
from tidemark.sinks.mirror.buckets import has_buckets
from tidemark.sinks.mirror.connecting import Waiting, unavailable
from tidemark.sinks.mirror.filling import Chunk, Copies, Filling
from tidemark.sinks.mirror.ledger import LOCK_WAIT_SECONDS
from tidemark.sinks.mirror.shares import LOCK_SECONDS, MIN_BYTES, Shares, sizes_of
from tidemark.sinks.mirror.target import Session
from tidemark.sinks.parts import Part, check_repeated_part, parts_of
from tidemark.sinks.sink import BadValues, JobIdentity, PartResult, ReadOnlyError, Schemas, SinkBusyError
from tidemark.state.change_batch import LOG_PART, ChangeBatch, PartItem
from tidemark.state.errors import SinkError

CHUNK_BYTES = 32 << 20
"""Changes are collected up to this size before their net effect is written. A smaller part is kept until it is committed."""
ATTEMPTS = 6
FIRST_DELAY_SECONDS = 0.2

KEPT_SECONDS = 20.0
"""The age at which a kept connection is replaced before it is used again. If the target is another server now, by DNS or
behind a load balancer, it is found even if the old server still answers. Shorter than the time after which a server ends an
idle writer."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MirrorWriter:
    """A `tidemark.sinks.sink.PartWriter`. It has a connection during a call of `write`; with `kept`, that one, which stays open
    until `close`. Then it is for one thread. `parallelism`: how many connections may write an epoch of the log."""

    connect: Callable[[], Session]
    template: TableTemplate
    job: JobIdentity
    waiting: Waiting
    policies: Policies = STOP
    audit: AuditColumns = NO_AUDIT
    parallelism: int = 1
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
            for part in parts_of(items, replaces=True):
                batches = part.batches()
                first = _collect(batches)
                if self._is_shared(connection, part, first, schemas):
                    result = self._write_shared(connection, part, first, batches, schemas)
                    if result is not None:
                        yield result
                        continue
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
                bad_values = self._fill(session, part, lambda filling: filling.apply(chunk), schemas)
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
            bad_values = self._fill(connection.session(), part, lambda filling: filling.apply_all(chunks), schemas)
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

    def _fill(
        self, session: Session, part: Part, fill: Callable[[Filling], None], schemas: Schemas
    ) -> tuple[BadValues, ...]:
        """Writes the rows by `fill` and commits."""
        filling = self._filling(session, part, schemas)
        if part.replaced is not None:
            filling.replace(part.replaced)
        fill(filling)
        filling.finish()
        session.commit(part.row_count, part.after)
        return filling.told()

    def _filling(self, session: Session, part: Part, schemas: Schemas) -> Filling:
        copies = Copies(self.template, self.policies, self.audit, self.parallelism > 1, self.connect)
        return Filling.of(session, copies, self.job.uuid, part, schemas)

    def _is_shared(self, connection: "_Connection", part: Part, first: Chunk, schemas: Schemas) -> bool:
        """True if several connections are to write the part."""
        if self.parallelism == 1 or part.name != LOG_PART:
            return False
        if part.complete:
            sizes = sizes_of(first)
            if sum(sizes.values()) < MIN_BYTES:
                return False
            return len(sizes) > 1 or (
                any(has_buckets(schemas[key]) for key in first)
                and connection.retry(lambda session: session.locks_only_rows)
            )
        return not connection.retry(lambda session: session.is_whole(self.job, part.epoch))

    def _write_shared(
        self, connection: "_Connection", part: Part, first: Chunk, batches: Iterator[ChangeBatch], schemas: Schemas
    ) -> PartResult | None:
        """Lets several connections write the part. Returns None if they could not and all changes are in `first`. Another
        attempt, by one connection, shows whether the error is one of the part, or was caused by several connections."""
        is_kept = part.complete
        shares = Shares(self.job, connection.share, lambda session: self._filling(session, part, schemas))
        try:
            result = shares.write(part, [first] if is_kept else _chunks(first, batches), self.parallelism)
        except (SinkError, SinkBusyError) as error:
            connection.drop()
            if is_kept:
                return None
            connection.retry(lambda session: session.keep_whole(self.job, part.epoch))
            raise SinkBusyError(
                f"Several connections could not write {part}; one will (log.apply_parallelism). {error.message}",
                error.remedy,
            ) from error
        connection.end_shares()
        return result


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
    """A session that is opened at its first use, and again after an error that may pass. Also those that write shares."""

    def __init__(self, connect: Callable[[], Session], waiting: Waiting) -> None:
        self._connect = connect
        self._waiting = waiting
        self._session: Session | None = None
        self._further: list[Session] = []

    def session(self) -> Session:
        if self._session is None:
            self._session = self._connect()
        return self._session

    def share(self, number: int) -> Session:
        """Returns the session of a share, `session` for the first one. They do not wait for locks as long as others."""
        if number == 0:
            self.session().wait_for_locks(LOCK_SECONDS)
            return self.session()
        while len(self._further) < number:
            self._further.append(self._connect())
            self._further[-1].wait_for_locks(LOCK_SECONDS)
        return self._further[number - 1]

    def end_shares(self) -> None:
        """Called when the shares are committed. From now on `session` waits for locks as before."""
        try:
            self.session().wait_for_locks(LOCK_WAIT_SECONDS)
        except (SinkError, SinkBusyError):
            self.drop()

    def retry(self, attempt: Callable[[Session], T]) -> T:
        """Calls `attempt` up to ATTEMPTS times, each in a transaction of its own. Only SinkBusyError is retried. A target that
        accepts no writes is waited for like one that is out of reach: a failover may be under way."""
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
        """Closes the connections, which rolls back open transactions."""
        sessions = [*self._further] if self._session is None else [self._session, *self._further]
        self._session, self._further = None, []
        for session in sessions:
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
