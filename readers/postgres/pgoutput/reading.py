"""Reads one range of the log: runs the compiled loop over one connection after another.

    COPY → buffer → walk() ─ MORE ────→ receive; if the buffer is full, flush first
                           ─ MESSAGE ─→ relations, truncates, ignored messages
                           ─ FULL ────→ flush
                           ─ END ─────→ flush, done

To flush is to emit the rows in the buffers. The server sends committed transactions only, and Begin holds the commit's LSN.
So rows can be flushed in the middle of a transaction, and memory is bounded for transactions of any size.

RESUME_LSN and RESUME_SEQ say where to resume after a broken connection. They change only with a flush. The server decodes
the same log again, in the same order; rows that were emitted before are dropped by their number.
"""

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from tidemark.readers.bad_values import STOP, BadValueRule
from tidemark.readers.log.log_batch import LogBatch, truncation
from tidemark.readers.postgres.connect import quote_table
from tidemark.readers.postgres.pgoutput import arrays as w
from tidemark.readers.postgres.pgoutput.arrays import Reason
from tidemark.readers.postgres.pgoutput.messages import IGNORED, damaged, read_relation, read_truncate
from tidemark.readers.postgres.pgoutput.rows import COLUMN_BUFFER_BYTES, TRANSACTIONS, batches, empty_rows
from tidemark.readers.postgres.pgoutput.stream import HEADER_BYTES, SIGNATURE
from tidemark.readers.postgres.pgoutput.tables import KnownTables
from tidemark.readers.postgres.pgoutput.walker import walk
from tidemark.readers.postgres.slot.log_source import ByteStream, ConnectionLostError, LogSource
from tidemark.state.errors import (
    SchemaChangedError,
    SourceNotUsableError,
    SourceUnavailableError,
    TidemarkError,
    UnknownLogEventError,
)
from tidemark.state.position import WalPosition
from tidemark.state.remedies import START_OVER
from tidemark.state.table import TableId, TableSchema

ATTEMPTS = 8
"""Broken connections in a row without progress, unless the options set another limit."""
FIRST_DELAY_SECONDS = 0.05
BUFFER_BYTES = 16 << 20
MAX_BYTES = 3 << 30
"""The limit of the receive buffer. A message of the server has at most 1 GiB."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """`reconnect_attempts`: allowed reconnects in a row without progress. The sizes bound the memory. `bad_values`: what
    becomes of values that their Arrow type can't hold."""

    reconnect_attempts: int | None = None
    max_delay_seconds: float = 5.0
    buffer_bytes: int = BUFFER_BYTES
    column_buffer_bytes: int = COLUMN_BUFFER_BYTES
    transactions: int = TRANSACTIONS
    bad_values: BadValueRule = STOP


class Reading:
    """Reads [start, stop) of `source`. The counts are complete when `run` has ended."""

    def __init__(
        self,
        source: LogSource,
        start: WalPosition,
        stop: WalPosition,
        wanted: Mapping[TableId, TableSchema],
        options: ReadOptions,
    ) -> None:
        self.reconnects = 0
        self.changes = 0
        self.state = np.zeros(w.STATE_SIZE, np.int64)
        self.state[w.RESUME_LSN], self.state[w.STOP_LSN] = start.lsn, stop.lsn
        self.state[w.DONE_LSN] = -1
        self._source, self._start, self._stop, self._options = source, start, stop, options
        self._tables = KnownTables(wanted, partial(source.type_names, stop=stop))
        self._rows = empty_rows(
            self._tables.width, column_buffer_bytes=options.column_buffer_bytes, transactions=options.transactions
        )
        self._buf = np.empty(options.buffer_bytes, np.uint8)
        self._received = 0
        # The relation that was described last, and where its message ends in the buffer.
        self._described: tuple[int, int] | None = None
        self._finished = False

    def run(self) -> Iterator[LogBatch]:
        """Yields the range's changes. Raises TidemarkError."""
        failures, reached = 0, self._reached
        while not self._finished:
            stream = None
            try:
                stream = self._open()
                yield from self._read(stream)
            except ConnectionLostError as exc:
                failures = failures + 1 if self._reached == reached else 1
                reached = self._reached
                self.reconnects += 1
                self._pause(exc, failures)
            finally:
                if stream is not None:
                    stream.close()

    @property
    def _reached(self) -> tuple[int, int]:
        return int(self.state[w.RESUME_LSN]), int(self.state[w.RESUME_SEQ])

    def _pause(self, exc: ConnectionLostError, failures: int) -> None:
        options = self._options
        attempts = ATTEMPTS if options.reconnect_attempts is None else options.reconnect_attempts + 1
        if exc.lost is not None and failures >= min(attempts, ATTEMPTS):
            raise exc.lost from exc
        if failures >= attempts:
            raise SourceUnavailableError(
                f"The log connection broke {failures} times in a row at {WalPosition(self._reached[0])}: {exc}",
                "Check the network and the source's server log, and that nobody else reads the job's slot.",
            ) from exc
        delay = min(FIRST_DELAY_SECONDS * 2 ** (failures - 1), options.max_delay_seconds)
        time.sleep(delay * random.uniform(0.5, 1.0))

    # One connection

    def _open(self) -> ByteStream:
        """Opens a stream from the slot's position."""
        state = self.state
        state[[w.AT, w.OPEN, w.ROW, w.TX]] = 0
        state[w.TX_INDEX] = -1
        state[w.LAST_LSN] = -1
        self._received = 0
        self._described = None
        self._tables.forget()
        return self._source.open(self._start, self._stop)

    def _read(self, stream: ByteStream) -> Iterator[LogBatch]:
        """Reads one connection to the range's end."""
        self._read_header(stream)
        while True:
            reason = walk(self._buf, self._received, self.state, self._tables.arrays, self._rows)
            match reason:
                case Reason.MORE:
                    if self._received == len(self._buf):
                        yield from self._flush()
                        self._make_room()
                    self._receive(stream)
                case Reason.MESSAGE:
                    yield from self._message()
                case Reason.FULL:
                    yield from self._flush()
                case Reason.END:
                    self._check_end(stream)
                    yield from self._flush()
                    self._finished = True
                    return
                case _:
                    raise self._error(Reason(reason))

    def _read_header(self, stream: ByteStream) -> None:
        while self._received < HEADER_BYTES:
            self._receive(stream)
        if self._buf[:HEADER_BYTES].tobytes() != SIGNATURE:
            raise damaged("it does not begin with COPY's signature")
        self.state[w.AT] = HEADER_BYTES

    def _receive(self, stream: ByteStream) -> None:
        size = stream.receive(self._buf.data[self._received :])
        if size == 0:
            raise damaged("it ends in the middle")
        self._received += size

    def _check_end(self, stream: ByteStream) -> None:
        if self._received - int(self.state[w.AT]) != 2 or stream.receive(memoryview(bytearray(1))):
            raise damaged("there is data after its end")
        if self.state[w.OPEN]:
            raise damaged("its last transaction has no Commit")

    def _flush(self) -> Iterator[LogBatch]:
        """Yields the rows in the buffers, and moves the resume position. Their bytes are no longer needed."""
        state = self.state
        count = int(state[w.ROW])
        made = batches(self._rows, count, self._buf, self._tables.slots, self._options.bad_values) if count else []
        state[[w.ROW, w.TX]] = 0
        state[w.TX_INDEX] = -1
        if state[w.OPEN] and state[w.WANTED]:
            state[w.RESUME_LSN] = state[w.TX_LSN]
            state[w.RESUME_SEQ] = max(int(state[w.SEQ]), int(state[w.DROP_SEQ]))
        else:
            done = state[w.TX_LSN] if state[w.OPEN] else state[w.LAST_LSN] + 1
            if done > state[w.RESUME_LSN]:
                state[w.RESUME_LSN], state[w.RESUME_SEQ] = done, 0
        self.changes += count
        yield from made

    def _make_room(self) -> None:
        """Drops read bytes from the buffer, and enlarges it if one message fills it. Call it after a flush."""
        at = int(self.state[w.AT])
        rest = self._received - at
        size = len(self._buf)
        if rest == size:
            size = min(2 * size, MAX_BYTES)
            if rest == size:
                raise SourceNotUsableError(
                    f"A message of the log has more than {size} bytes.",
                    "Leave the table with such rows out: source.exclude_tables.",
                )
        elif 2 * rest < self._options.buffer_bytes:
            size = self._options.buffer_bytes
        if size != len(self._buf):
            other = np.empty(size, np.uint8)
            other[:rest] = self._buf[at : self._received]
            self._buf = other
        else:
            self._buf[:rest] = self._buf[at : self._received]
        if self._described is not None:
            self._described = self._described[0], self._described[1] - at
        self._received, self.state[w.AT] = rest, 0

    # Rare messages

    def _message(self) -> Iterator[LogBatch]:
        state = self.state
        start, end = int(state[w.MESSAGE]), int(state[w.MESSAGE_END])
        kind = int(self._buf[start])
        described, self._described = self._described, None
        follows = described[0] if described is not None and described[1] == int(state[w.AT]) else None
        if kind == ord("R"):
            relation = read_relation(self._buf[start:end].tobytes())
            self._tables.add(relation, follows)
            self._described = relation.id, end
        elif kind == ord("Y") and follows is not None:
            self._described = follows, end
        elif kind == ord("T"):
            relations = read_truncate(self._buf[start:end].tobytes())
            self._tables.are_tables(relations)
            truncations = self._truncations(relations)
            state[w.AT] = end
            if truncations:  # SEQ counts them: rows and truncations must be emitted together
                yield from self._flush()
                self.changes += len(truncations)
                yield from truncations
        elif kind not in IGNORED:
            raise UnknownLogEventError(
                f"The log has a message of an unknown kind: {chr(kind)!r}, in the transaction at {self._where}.",
                "Use a newer version of Tidemark.",
            )
        state[w.AT] = end

    def _truncations(self, relations: tuple[int, ...]) -> list[LogBatch]:
        """Returns one TRUNCATE per table of the job in `relations`, which includes tables by CASCADE. RESTART IDENTITY is
        ignored."""
        state, found = self.state, []
        if not state[w.OPEN]:
            raise self._error(Reason.GRAMMAR)
        if not state[w.WANTED]:
            return []
        for relation in relations:
            schema = self._tables.wanted_schema(relation)
            if schema is None:
                continue
            seq = int(state[w.SEQ])
            state[w.SEQ] += 1
            if seq >= state[w.DROP_SEQ]:
                lsn, time_us, xid = (int(state[i]) for i in (w.TX_LSN, w.TX_TIME, w.TX_XID))
                found.append(truncation(schema, version=lsn, time_us=time_us, seq=seq, transaction=str(xid)))
        return found

    @property
    def _where(self) -> WalPosition:
        return WalPosition(int(self.state[w.TX_LSN]))

    def _error(self, reason: Reason) -> TidemarkError:
        relation, where = int(self.state[w.RELATION]), self._where
        table = str(self._tables.slots[relation].schema.table) if reason in _OF_SLOTS else f"relation {relation}"
        match reason:
            case Reason.UNMAPPED:
                unfit = self._tables.unfit(relation)
                return damaged(f"{table} has rows at {where} and was not described") if unfit is None else unfit
            case Reason.IDENTITY:
                altered, key = self._tables.slots[relation].schema.table, self._tables.slots[relation].schema.key
                if not key:
                    return SchemaChangedError(
                        f"{table} has an update or delete at {where} without the whole old row, and the job knows no key.",
                        "If its rows are still updated or deleted, let it have a primary key, or "
                        f"ALTER TABLE {quote_table(altered)} REPLICA IDENTITY FULL. Then {START_OVER}.",
                        altered,
                    )
                return SchemaChangedError(
                    f"{table} has an update or delete at {where} without the old row's key: its REPLICA IDENTITY does not "
                    "include the key.",
                    f"ALTER TABLE {quote_table(altered)} REPLICA IDENTITY DEFAULT, USING INDEX or FULL, such that it includes "
                    f"the job's key. Then {START_OVER}.",
                    altered,
                )
            case Reason.KEY:
                return SchemaChangedError(
                    f"{table} has a row at {where} with a null in its key.",
                    f"Declare the key's columns NOT NULL, or name another key in source.keys. Then {START_OVER}.",
                    self._tables.slots[relation].schema.table,
                )
            case Reason.TOO_MANY:
                return SourceNotUsableError(
                    f"The transaction at {where} has more rows than Tidemark can count.",
                    f"Write fewer rows in one transaction; to get past this one, {START_OVER}.",
                )
            case _:
                return damaged(f"{_DAMAGE[reason]}, near {where}")


_OF_SLOTS = frozenset({Reason.COLUMNS, Reason.FORM, Reason.IDENTITY, Reason.KEY, Reason.TOO_MANY})
_DAMAGE = {
    Reason.DAMAGED: "lengths contradict each other",
    Reason.GRAMMAR: "a message is not allowed where it is",
    Reason.ORDER: "transactions are out of order",
    Reason.COLUMNS: "a row has another number of columns than its table",
    Reason.FORM: "a value is not text",
}
