"""Reads one range of the log: the loop around the compiled loop, with reconnects.

    socket → Arena → walk() ─ MORE ──→ receive; or make room, which emits what is complete
                            ─ EVENT ─→ EventHandler: new tables, statements, XA, savepoints, files; Unpacker
                            ─ FULL ──→ emit
                            ─ STOP ──→ emit, done

Rows are emitted (flushed) only after the end and the outcome of their transaction are known.
- A transaction that fits into the buffers is decoded as it arrives. Its rows wait in the buffers for its end.
- A larger one is scanned first, without decoding (SCAN). If it committed and has wanted rows, it becomes the deferred
  transaction: the dump restarts at its start, and its rows are now emitted as they arrive (DEFERRED).
- An XA transaction is remembered at XA PREPARE. At its XA COMMIT it becomes the deferred transaction.

`Progress` says where to resume after a broken connection. It advances only when rows are emitted, so no row is emitted
twice. The bytes of the log do not change, so a second reading gives the same rows.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import replace

import pymysql

from tidemark.readers.mysql.binlog import arrays as w
from tidemark.readers.mysql.binlog.arrays import Reason
from tidemark.readers.mysql.binlog.connection import (
    CHECK_LOG_CONNECTION,
    MAX_START,
    ConnectionLostError,
    Dump,
    LogSource,
    LogUnreadableError,
    ServerIdTakenError,
    error_of,
    open_dump,
    unreadable,
)
from tidemark.readers.mysql.binlog.crc import CRC_TABLES
from tidemark.readers.mysql.binlog.events import FILE_START, WrongChecksumError
from tidemark.readers.mysql.binlog.handlers import EventHandler, UnknownXaError
from tidemark.readers.mysql.binlog.payload import COMPRESSED, Unpacker
from tidemark.readers.mysql.binlog.reading_state import Flush, LogState, ReadOptions
from tidemark.readers.mysql.binlog.walker import walk
from tidemark.readers.mysql.connect import CORRECT_REFUSED, Connection, error_code, error_text, is_transient
from tidemark.readers.mysql.schema.collations import charsets_by_collation
from tidemark.state.errors import (
    DamagedLogError,
    LogPositionLostError,
    SchemaChangedError,
    SourceNotUsableError,
    SourceUnavailableError,
    SplitChangedError,
)
from tidemark.state.gtid import GtidSet
from tidemark.state.log_range import LogRange, PreparedXa
from tidemark.state.position import BinlogPosition
from tidemark.state.remedies import START_OVER_NOW

ATTEMPTS = 8
"""How many connections in a row may break without progress, unless the options say otherwise."""
UNREADABLE_ATTEMPTS = 3
"""How many connections in a row may find the log unreadable at one place."""
FIRST_DELAY_SECONDS = 0.05

_ROOM_BYTES = 4096
"""Less free space than this counts as none."""


class LogEndsEarlyError(ConnectionLostError):
    """The log ended before the range. A server shows the position of a transaction shortly before it sends it."""


class Reading:
    def __init__(self, log: LogState) -> None:
        self.log = log
        self.reconnects = 0
        self._events = EventHandler(log)
        self._unpacker = Unpacker(log, self._events)
        self._dump: Dump | None = None
        self._next_server_id = 0

    def run(self) -> Iterator[Flush]:
        """Yields the range. Raises TidemarkError."""
        log = self.log
        if log.start.order > log.stop.order:
            raise _log_reset(f"The job has read the log up to {log.start}, but now it ends at {log.stop}.")
        log.finished = log.start.order == log.stop.order
        failures, reached = 0, log.progress.reached
        while not log.finished:
            try:
                yield from self._one_dump()
            except ConnectionLostError as exc:
                failures = failures + 1 if log.progress.reached == reached else 1
                reached = log.progress.reached
                self.reconnects += 1
                self._pause(exc, failures)
            except DamagedLogError as exc:
                if not log.at_start and isinstance(exc, WrongChecksumError):
                    failures = failures + 1 if log.progress.reached == reached else 1
                    reached = log.progress.reached
                    self.reconnects += 1
                    self._pause(LogUnreadableError(exc.message), failures)
                    continue
                if not log.at_start:
                    raise
                raise _log_reset(
                    f"{log.progress.position} is not between two events of the source's log: {exc.message}"
                ) from exc
            except SchemaChangedError as exc:
                if log.options.replay:
                    raise SplitChangedError(exc.message) from exc
                raise
            finally:
                if self._dump is not None:
                    self._dump.close()
                    self._dump = None

    def _pause(self, exc: ConnectionLostError, failures: int) -> None:
        position = self.log.progress.position
        options = self.log.options
        attempts = ATTEMPTS if options.reconnect_attempts is None else options.reconnect_attempts + 1
        if isinstance(exc, LogUnreadableError) and failures >= min(attempts, UNREADABLE_ATTEMPTS):
            raise unreadable(exc) from exc
        if failures >= attempts:
            if isinstance(exc, LogEndsEarlyError):
                raise LogPositionLostError(
                    f"The source's log had reached {self.log.stop}, but now it ends earlier, after {position}: the source lost "
                    "its end in a crash (sync_binlog=1 prevents it).",
                    START_OVER_NOW,
                ) from exc
            raise SourceUnavailableError(
                f"The log connection broke {failures} times in a row at {position}: {exc}",
                CHECK_LOG_CONNECTION,
            ) from exc
        delay = min(FIRST_DELAY_SECONDS * 2 ** (failures - 1), options.max_delay_seconds)
        time.sleep(delay * random.uniform(0.5, 1.0))

    # One connection

    def _one_dump(self) -> Iterator[Flush]:
        """Reads to the range's end, or until the reading must continue at another position."""
        log = self.log
        self._open()
        while True:
            reason = walk(
                log.arena.buf,
                log.arena.received,
                log.state,
                CRC_TABLES,
                log.tables.arrays,
                log.sources.arrays,
                log.rows,
            )
            match reason:
                case Reason.MORE:
                    yield from self._more()
                case Reason.EVENT:
                    yield from self._event()
                case Reason.FULL:
                    yield from self._full()
                case Reason.STOP:
                    log.finished = True
                case Reason.SOURCE:
                    self._new_source()
                case Reason.WIDE:
                    if not log.arena.join(int(log.state[w.AT])):
                        yield from self._more()
                case Reason.PACKET:
                    self._no_event()
                case _:
                    raise log.damage(Reason(reason))
            if log.finished and log.state[w.SEEKING]:
                self._found_start()
            if log.reread is not None:
                yield self._start_reread()
                return
            if log.resume_at is not None:
                yield self._resume()
                return
            if log.finished:
                yield log.flush()
                return

    def _open(self) -> None:
        """Starts a dump at the position in `progress`."""
        log = self.log
        position = log.progress.position
        seeking = position.pos > MAX_START
        start = FILE_START if seeking else position.pos
        ids = log.source.server_ids
        connection = _opened(log.source)
        try:
            if not log.charsets:
                log.charsets = charsets_by_collation(connection)
            if log.progress.gtids is not None and log.progress.deferred is None:
                _check_log(connection, position, log.progress.gtids)
        except pymysql.MySQLError as exc:
            connection.close()
            if is_transient(exc):
                raise ConnectionLostError(error_text(exc)) from exc
            raise SourceNotUsableError(
                f"The source refuses a query of the log connection: {error_text(exc)}.",
                CORRECT_REFUSED,
            ) from exc
        except BaseException:
            connection.close()
            raise
        server_id = ids[self._next_server_id % len(ids)]
        self._dump = open_dump(connection, log.source.flavour, position.file, start, server_id=server_id)
        log.start_dump(BinlogPosition(position.file, start), seeking=seeking)

    def _more(self) -> Iterator[Flush]:
        """Receives more bytes, after making room for them if needed."""
        arena = self.log.arena
        if arena.room - arena.received < _ROOM_BYTES:
            yield from self._make_room()
        assert self._dump is not None
        arena.received += self._dump.receive(arena.free)

    def _make_room(self) -> Iterator[Flush]:
        """Drops the bytes that were processed. An open transaction that fills the buffer is scanned from now on."""
        log, state, arena = self.log, self.log.state, self.log.arena
        if log.is_open and state[w.TX_AT] < _ROOM_BYTES and not state[w.TX] and state[w.AT] > state[w.TX_AT]:
            log.start_scan()
        if state[w.TX] or state[w.ROW]:
            yield log.flush()
        elif log.is_open:
            log.rewind()
        arena.forget_unpacked()
        start = int(state[w.AT])
        arena.shift(start)
        state[w.AT] = 0
        state[w.ROW_AT] = max(int(state[w.ROW_AT]) - start, 0)
        needed = arena.needed(0) + _ROOM_BYTES
        if needed > arena.room:
            arena.grow(needed)
        elif needed < arena.room // 2:
            arena.shrink()

    def _full(self) -> Iterator[Flush]:
        """Makes room for rows and transactions. An open transaction with too many rows is scanned from now on."""
        log, state = self.log, self.log.state
        if log.is_open and not state[w.TX] and not state[w.TX_ROW]:
            log.start_scan()
        else:
            yield log.flush()
            log.arena.forget_unpacked()

    def _event(self) -> Iterator[Flush]:
        log, state = self.log, self.log.state
        if not log.in_group and state[w.TX] >= len(log.rows.transactions):
            yield from self._full()
        if log.arena.buf[state[w.EVENT] + 4] in COMPRESSED:
            yield from self._unpacker.handle()
            if log.full:
                log.full = False
                yield from self._full()
        else:
            self._handle()
        if log.truncated is not None:
            yield log.flush()

    def _handle(self) -> None:
        try:
            self._events.handle()
        except UnknownXaError as unknown:
            self.log.prepared[unknown.xid] = self._find_prepared(unknown.xid)
            self._events.handle()

    def _find_prepared(self, xid: str) -> PreparedXa:
        """Finds where an XA transaction was prepared, before the range. No SELECT saw its rows before its XA COMMIT."""
        log = self.log
        if log.options.replay:
            raise SplitChangedError(f"XA COMMIT of {xid} at {log.position}, prepared before.")
        files, stop = log.source.file_names(), log.start
        for file in reversed(files[: files.index(stop.file) + 1] if stop.file in files else []):
            begin = BinlogPosition(file, FILE_START)
            found = None
            for flush in Reading(LogState(log.source, LogRange(begin, stop), {}, ReadOptions())).run():
                found = next((event for event in reversed(flush.xa_events) if event.xid == xid), found)
            if found is not None and found.kind == "prepare":
                return PreparedXa(xid, found.start, found.end)
            if found is not None:
                break
            stop = begin
        raise LogPositionLostError(
            f"XA COMMIT of {xid} at {log.position}: the transaction was prepared before {files[0]}, the first file that the "
            "source's log still has, so its rows are lost to the job.",
            f"{START_OVER_NOW} Let the server keep its log for longer than XA transactions stay prepared.",
        )

    def _new_source(self) -> None:
        """Adds the source of the GTID at EVENT: a server, or a domain and server."""
        log = self.log
        at = int(log.state[w.EVENT])
        event = log.arena.buf[at : at + 48].tobytes()
        if log.source.flavour == "mariadb":
            log.sources.domain(int.from_bytes(event[27:31], "little"), int.from_bytes(event[5:9], "little"))
        else:
            log.sources.server(event[20:36])
        log.state[w.SOURCES] = log.sources.count

    def _no_event(self) -> None:
        """Raises for a packet that is not an event: an error, or the log's end."""
        log = self.log
        at = int(log.state[w.AT])
        size = int.from_bytes(log.arena.buf[at : at + 3].tobytes(), "little")
        payload = log.arena.buf[at + 4 : at + 4 + size].tobytes()
        if payload[0] == _ERROR:
            error = error_of(payload[1:], str(log.position))
            if isinstance(error, ServerIdTakenError):
                self._next_server_id += 1
            raise error
        if payload[0] == _END and size < _END_BYTES:
            raise LogEndsEarlyError(f"the log ends at {log.position}")
        raise log.damage(Reason.DAMAGED)

    # Continuing at another position

    def _start_reread(self) -> Flush:
        """Emits the waiting rows; the deferred transaction comes next."""
        log = self.log
        deferred, log.reread = log.reread, None
        assert deferred is not None
        flush = log.flush()
        log.progress = replace(log.progress, position=deferred.start, deferred=deferred, seq=0)
        log.finished = False
        return flush

    def _resume(self) -> Flush:
        log = self.log
        flush = log.flush()
        log.resume_at = None
        log.finished = log.progress.position.order >= log.stop.order
        return flush

    def _found_start(self) -> None:
        """Ends the seeking: the dump started before the range and has reached its start."""
        log = self.log
        if log.position != BinlogPosition(log.progress.position.file, log.progress.position.pos):
            raise _log_reset(f"{log.progress.position} is not between two transactions of the log; {log.position} is.")
        log.end_seeking()


_ERROR, _END, _END_BYTES = 0xFF, 0xFE, 9


def _opened(source: LogSource) -> Connection:
    """Raises ConnectionLostError if the new connection breaks at once."""
    try:
        return source.open()
    except pymysql.MySQLError as exc:
        if is_transient(exc):
            raise ConnectionLostError(error_text(exc)) from exc
        raise


def _check_log(connection: Connection, position: BinlogPosition, gtids: GtidSet) -> None:
    """Raises LogPositionLostError if the GTIDs before the position's file are not all in `gtids`. After a RESET or a restore
    a file of the same name belongs to a different log."""
    with connection.cursor() as cursor:
        try:
            cursor.execute("SHOW BINLOG EVENTS IN %s LIMIT 2", (position.file,))
        except pymysql.MySQLError as exc:
            if error_code(exc) != _WHEN_EXECUTING:
                raise
            raise LogPositionLostError(
                f"The source no longer has {position.file}, where the job must continue: {error_text(exc)}.",
                f"{START_OVER_NOW} Let the server keep its log longer: binlog_expire_logs_seconds.",
            ) from exc
        events = cursor.fetchall()
    text = next((str(event[5]) for event in events if str(event[2]) == "Previous_gtids"), "")
    before = GtidSet.parse(text)
    if not gtids.contains_all(before):
        raise _log_reset(
            f"{position.file} comes after transactions that were not read before {position}: it is a different log."
        )


_WHEN_EXECUTING = 1220


def _log_reset(message: str) -> LogPositionLostError:
    return LogPositionLostError(
        f"{message} The source's log was reset, or the server was restored from a backup.", START_OVER_NOW
    )
