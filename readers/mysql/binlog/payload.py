"""Compressed parts of the log: MySQL's transaction payloads (zstd), MariaDB's compressed events (zlib).

The decompressed bytes go into the arena, after the packets, as bare events. The compiled loop reads them there. A payload
that does not fit is processed in windows: scanned first (SCAN), then read again as the deferred transaction.
"""

import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import zstandard

from tidemark.readers.mysql.binlog import arrays as w
from tidemark.readers.mysql.binlog.arrays import Group, Reason
from tidemark.readers.mysql.binlog.crc import CRC_TABLES
from tidemark.readers.mysql.binlog.events import (
    HEADER_BYTES,
    EventType,
    Payload,
    Reader,
    compressed_part,
    damaged,
    query,
    transaction_payload,
)
from tidemark.readers.mysql.binlog.handlers import EventHandler, Outcome
from tidemark.readers.mysql.binlog.reading_state import Flush, LogState
from tidemark.readers.mysql.binlog.walker import walk

COMPRESSED = frozenset(
    {
        EventType.TRANSACTION_PAYLOAD,
        EventType.MARIADB_QUERY_COMPRESSED,
        EventType.MARIADB_WRITE_ROWS_COMPRESSED_V1,
        EventType.MARIADB_UPDATE_ROWS_COMPRESSED_V1,
        EventType.MARIADB_DELETE_ROWS_COMPRESSED_V1,
        EventType.MARIADB_WRITE_ROWS_COMPRESSED,
        EventType.MARIADB_UPDATE_ROWS_COMPRESSED,
        EventType.MARIADB_DELETE_ROWS_COMPRESSED,
    }
)
_PLAIN = {
    EventType.MARIADB_WRITE_ROWS_COMPRESSED_V1: EventType.WRITE_ROWS_V1,
    EventType.MARIADB_UPDATE_ROWS_COMPRESSED_V1: EventType.UPDATE_ROWS_V1,
    EventType.MARIADB_DELETE_ROWS_COMPRESSED_V1: EventType.DELETE_ROWS_V1,
    EventType.MARIADB_WRITE_ROWS_COMPRESSED: EventType.WRITE_ROWS,
    EventType.MARIADB_UPDATE_ROWS_COMPRESSED: EventType.UPDATE_ROWS,
    EventType.MARIADB_DELETE_ROWS_COMPRESSED: EventType.DELETE_ROWS,
}
_UPDATES = frozenset({EventType.MARIADB_UPDATE_ROWS_COMPRESSED_V1, EventType.MARIADB_UPDATE_ROWS_COMPRESSED})
_PAYLOAD_HEAD_BYTES = 64
_NOWHERE = -(1 << 50)
"""An offset that, as BARE_BASE, moves an event out of every rolled-back range."""

Flushes = Generator[Flush, None, bool]
"""Returns False if the open transaction must be processed again from state[AT]."""


class Unpacker:
    def __init__(self, log: LogState, events: EventHandler) -> None:
        self.log = log
        self.events = events

    def handle(self) -> Flushes:
        """Processes the compressed event at AT and advances past it."""
        log, state = self.log, self.log.state
        at, stop, total = int(state[w.EVENT]), int(state[w.EVENT_END]), int(state[w.EVENT_TOTAL])
        size = stop - at + int(state[w.CHECKSUM])
        if not state[w.FRAMED]:
            raise damaged(f"a compressed event inside another one at {log.position}")
        self.events.check(at, stop, size, int.from_bytes(log.arena.buf[at + 13 : at + 17].tobytes(), "little"))
        kind = EventType(int(log.arena.buf[at + 4]))
        if kind is EventType.TRANSACTION_PAYLOAD:
            done = yield from self._payload(at + HEADER_BYTES, stop, int(state[w.LOG_POS]) + size)
        elif kind is EventType.MARIADB_QUERY_COMPRESSED:
            self._statement(log.arena.buf[at + HEADER_BYTES : stop].tobytes(), int(state[w.LOG_POS]) + size)
            done = True
        else:
            done = yield from self._rows(at, stop, kind)
        if done:
            self.events.move_on(total, size)
        return done

    # MySQL: a whole transaction

    def _payload(self, body: int, stop: int, end_pos: int) -> Flushes:
        log, state = self.log, self.log.state
        if state[w.GROUP] != Group.BEGIN:
            raise damaged(f"the TRANSACTION_PAYLOAD event at {log.position} is not allowed there")
        payload = transaction_payload(log.arena.buf[body : min(stop, body + _PAYLOAD_HEAD_BYTES)].tobytes())
        if body + payload.start + payload.size != stop:
            raise damaged(f"the TRANSACTION_PAYLOAD event at {log.position} has a wrong size")
        self.events.inner_end = None
        start = body + payload.start
        if payload.uncompressed_size <= log.options.unpack_bytes:
            done = yield from self._small_payload(start, payload)
        else:
            done = yield from self._large_payload(start, payload)
        if not done:
            return False
        if state[w.GROUP] != Group.ENDED:
            raise damaged(f"the transaction in the payload at {log.position} has no end")
        outcome, xid = self.events.inner_end or (Outcome.COMMIT, "")
        self.events.end_group(outcome, xid, end_pos)
        return True

    def _small_payload(self, start: int, payload: Payload) -> Flushes:
        log, state = self.log, self.log.state
        if not (yield from self._make_room(payload.uncompressed_size)):
            return False
        into = log.arena.unpack_into(payload.uncompressed_size)
        source = _Source(log.arena.buf.data[start : start + payload.size], payload)
        if source.read(into) != payload.uncompressed_size or source.read(memoryview(bytearray(1))):
            raise damaged(f"the payload at {log.position} decompresses to a different size than its header says")
        end = log.arena.unpacked
        with self._bare(end - payload.uncompressed_size):
            reason = yield from self._walk(end)
            ended = bool(state[w.AT] == end)
        if reason is Reason.FULL:
            state[w.GROUP] = Group.BEGIN
            return self._does_not_fit()
        if not ended:
            raise damaged(f"the payload at {log.position} has events after its transaction's end")
        return True

    def _large_payload(self, start: int, payload: Payload) -> Flushes:
        """Processes the payload in windows. Possible only in a scan or for a deferred transaction, which do not need the
        previous window again."""
        log, state, arena = self.log, self.log.state, self.log.arena
        if not state[w.DEFERRED]:
            if state[w.TX] or state[w.ROW]:
                yield log.flush()
                arena.forget_unpacked()
                return False
            if not state[w.SCAN]:
                log.start_scan()
        source = _Source(arena.buf.data[start : start + payload.size], payload)
        arena.forget_unpacked()
        window = len(arena.unpack_into(log.options.unpack_bytes))
        base = arena.room
        filled = seen = 0
        with self._bare(base):
            while True:
                got = source.read(arena.buf.data[base + filled : base + window])
                filled, seen = filled + got, seen + got
                reason = yield from self._walk(base + filled)
                used = int(state[w.AT]) - base
                if reason is Reason.INNER_END:
                    break
                if not got and filled < window:
                    raise damaged(f"the payload at {log.position} ends inside an event")
                if used == 0 and filled == window:
                    window *= 2
                    arena.grow_unpacked(window)
                    continue
                if state[w.DEFERRED]:
                    yield log.flush()
                arena.buf[base : base + filled - used] = arena.buf[base + used : base + filled]
                filled -= used
                state[w.AT] = base
                state[w.BARE_BASE] -= used
        if used != filled or seen != payload.uncompressed_size or source.read(memoryview(bytearray(1))):
            raise damaged(f"the payload at {log.position} has bytes after its transaction's end")
        if state[w.DEFERRED]:
            yield log.flush()
        return True

    # MariaDB: single events

    def _statement(self, body: bytes, end_pos: int) -> None:
        reader = Reader(body, "a QUERY_COMPRESSED event")
        reader.take(8)
        database_size = reader.number(1)
        reader.take(2)
        reader.take(reader.number(2))
        reader.take(database_size + 1)
        part = compressed_part(body, reader.pos)
        text = _inflate(body[part.start :], part.uncompressed_size)
        found = query(body[: reader.pos] + text, self.log.charsets)
        self.events.statement(found, end_pos)

    def _rows(self, at: int, stop: int, kind: EventType) -> Flushes:
        log, state = self.log, self.log.state
        if state[w.GROUP] != Group.OPEN:
            raise damaged(f"rows outside of a transaction at {log.position}")
        body = log.arena.buf[at + HEADER_BYTES : stop].tobytes()
        if state[w.TX_SKIP] or log.is_rolled_back() or log.tables.wanted_of(body) is None:
            return True
        if state[w.SCAN]:
            state[w.TOUCHED] = 1
            return True
        head = _rows_head(body, kind)
        part = compressed_part(body, head)
        size = HEADER_BYTES + head + part.uncompressed_size
        if not (yield from self._make_room(size)):
            return False
        header = bytearray(log.arena.buf[at : at + HEADER_BYTES].tobytes())
        header[4] = _PLAIN[kind]
        header[9:13] = size.to_bytes(4, "little")
        log.arena.unpack_into(size)[:] = (
            bytes(header) + body[:head] + _inflate(body[part.start :], part.uncompressed_size)
        )
        end = log.arena.unpacked
        with self._bare(end - size):
            state[w.BARE_BASE] = _NOWHERE
            reason = yield from self._walk(end)
        return self._does_not_fit() if reason is Reason.FULL else True

    # Bare events

    @contextmanager
    def _bare(self, start: int) -> Iterator[None]:
        """Inside this context the loop reads bare events from `start`. Afterwards its state is as before."""
        state = self.log.state
        saved = {index: int(state[index]) for index in (w.AT, w.CHECKSUM)}
        state[w.AT] = state[w.BARE_BASE] = start
        state[w.FRAMED] = 0
        state[w.CHECKSUM] = 0
        try:
            yield
        finally:
            state[w.FRAMED] = 1
            for index, value in saved.items():
                state[index] = value

    def _walk(self, end: int) -> Generator[Flush, None, Reason]:
        """Reads to `end`. Returns MORE, INNER_END, or FULL if the rows of the open transaction must wait and don't fit."""
        log, state = self.log, self.log.state
        while True:
            reason = Reason(
                walk(log.arena.buf, end, state, CRC_TABLES, log.tables.arrays, log.sources.arrays, log.rows)
            )
            match reason:
                case Reason.EVENT:
                    self.events.handle()
                    if state[w.GROUP] == Group.ENDED:
                        return Reason.INNER_END
                case Reason.FULL if state[w.DEFERRED]:
                    yield log.flush()
                case Reason.MORE | Reason.INNER_END | Reason.FULL:
                    return reason
                case _:
                    raise log.damage(reason)

    def _does_not_fit(self) -> bool:
        """Tells the caller to flush, or to scan the open transaction: it has too many rows."""
        self.log.full = True
        return False

    def _make_room(self, size: int) -> Flushes:
        """Makes room for `size` decompressed bytes. Not to be called while bare events are read."""
        log, state, arena = self.log, self.log.state, self.log.arena
        if arena.unpack_room >= size:
            return True
        if state[w.DEFERRED]:
            yield log.flush()
        elif state[w.TX] or state[w.TX_ROW]:
            yield log.flush()
            arena.forget_unpacked()
            return False
        elif state[w.ROW]:
            log.start_scan()
            arena.forget_unpacked()
            return False
        arena.forget_unpacked()
        if arena.unpack_room < size:
            arena.grow_unpacked(size)
            arena.forget_unpacked()
        return True


class _Source:
    """A payload's bytes, decompressed on demand."""

    def __init__(self, data: memoryview, payload: Payload) -> None:
        self._data = data
        self._at = 0
        self._reader: Any = zstandard.ZstdDecompressor().stream_reader(data) if payload.compressed else None

    def read(self, into: memoryview) -> int:
        """Fills `into` as far as there are bytes, and returns their count."""
        done = 0
        while done < len(into):
            size = self._some(into[done:])
            if size == 0:
                break
            done += size
        return done

    def _some(self, into: memoryview) -> int:
        if self._reader is not None:
            try:
                size: int = self._reader.readinto(into)
            except zstandard.ZstdError as exc:
                raise damaged(f"a compressed transaction: {exc}") from exc
            return size
        size = min(len(into), len(self._data) - self._at)
        into[:size] = self._data[self._at : self._at + size]
        self._at += size
        return size


def _inflate(data: bytes, size: int) -> bytes:
    """zlib data of exactly `size` bytes."""
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, size + 1)
    except zlib.error as exc:
        raise damaged(f"a compressed event: {exc}") from exc
    if len(plain) != size or not inflater.eof:
        raise damaged("a compressed event has a different size than its header says")
    return plain


def _rows_head(body: bytes, kind: EventType) -> int:
    """The size of a row event's body before its images."""
    reader = Reader(body, "a row event")
    reader.take(8)
    if _PLAIN[kind] >= EventType.WRITE_ROWS:
        reader.take(reader.number(2) - 2)
    bitmap = (reader.packed() + 7) // 8
    reader.take(bitmap * (2 if kind in _UPDATES else 1))
    return reader.pos
