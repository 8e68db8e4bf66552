"""One reading of a range of the log: the loop around the compiled loop, over one connection after the other.

    socket → Arena → walk() ─ MORE ──→ receive; or make room, which hands out what is complete
                            ─ EVENT ─→ EventHandler: new tables, statements, XA, savepoints, files; Unpacker
                            ─ FULL ──→ hand out
                            ─ STOP ──→ hand out, done

Rows are handed out ("flushed") only as part of a transaction whose end and outcome are known.
- A transaction that fits into the buffers is decoded as it comes; its rows wait until its end was seen.
- A larger one is looked through first, without decoding (SCAN); if it committed and has wanted rows, the dump starts
  again at its begin, and now its rows are handed out as they come (KNOWN).
- An XA transaction is remembered when it is prepared, and read so (KNOWN) when its XA COMMIT comes.

`Progress` says where to go on after a broken connection: it moves when rows are handed out, and only then, so that none
is handed out twice. The bytes of the log do not change, so what is read again is the same.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import replace

import pymysql

from readers.mysql import log_arrays as w
from readers.mysql.connect import Connection, error_code, error_text, is_transient
from readers.mysql.log_arrays import Reason
from readers.mysql.log_connection import (
    LARGEST_START,
    ConnectionLostError,
    Dump,
    ServerIdTakenError,
    error_of,
    load_charsets,
    open_dump,
)
from readers.mysql.log_crc import CRC_TABLES
from readers.mysql.log_events import FILE_START
from readers.mysql.log_handlers import EventHandler
from readers.mysql.log_payload import COMPRESSED, Unpacker
from readers.mysql.log_state import Flush, LogState
from readers.mysql.log_walker import walk
from state.errors import (
    DamagedLogError,
    LogPositionLostError,
    SchemaChangedError,
    SourceNotUsableError,
    SourceUnavailableError,
    SplitChangedError,
)
from state.gtid import GtidSet
from state.position import BinlogPosition

ATTEMPTS = 8
"""Broken connections in a row, without anything new handed out, unless the options say otherwise."""
FIRST_DELAY_SECONDS = 0.05

_ROOM_BYTES = 4096
"""Less room than this for received bytes counts as none."""


class LogEndsEarlyError(ConnectionLostError):
    """The log's end came before the range's. A server shows the place of a transaction shortly before it sends it."""


class Reading:
    def __init__(self, log: LogState) -> None:
        self.log = log
        self.reconnects = 0
        self._events = EventHandler(log)
        self._unpacker = Unpacker(log, self._events)
        self._dump: Dump | None = None
        self._next_server_id = 0

    def run(self) -> Iterator[Flush]:
        """Hands out the range. Raises TidemarkError."""
        log = self.log
        if log.start.order > log.stop.order:
            raise LogPositionLostError(
                f"The job has read the log up to {log.start}, but now it ends at {log.stop}.", _ANOTHER_LOG
            )
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
                if not log.at_start:
                    raise
                raise LogPositionLostError(
                    f"{log.progress.position} is not between two events of the source's log: {exc.message}",
                    _ANOTHER_LOG,
                ) from exc
            except SchemaChangedError as exc:
                if log.options.replay:
                    raise SplitChangedError(exc.message, "Read the split again.") from exc
                raise
            finally:
                if self._dump is not None:
                    self._dump.close()
                    self._dump = None

    def _pause(self, exc: ConnectionLostError, failures: int) -> None:
        place = self.log.progress.position
        options = self.log.options
        attempts = ATTEMPTS if options.reconnect_attempts is None else options.reconnect_attempts + 1
        if failures >= attempts:
            if isinstance(exc, LogEndsEarlyError):
                raise LogPositionLostError(
                    f"The source's log ends before {self.log.stop}, which it had "
                    f"reached before; nothing came after {place}.",
                    f"The source lost the end of its log in a crash (sync_binlog=1 prevents it). {_NEW_JOB}",
                ) from exc
            raise SourceUnavailableError(
                f"The log connection broke {failures} times in a row at {place}: {exc}",
                "Check the network and the source's error log; widen source.server_ids if other readers use the same.",
            ) from exc
        delay = min(FIRST_DELAY_SECONDS * 2 ** (failures - 1), options.longest_delay_seconds)
        time.sleep(delay * random.uniform(0.5, 1.0))

    # One connection

    def _one_dump(self) -> Iterator[Flush]:
        """Until the range's end, or until the reading has to go on elsewhere."""
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
            if log.detour is not None:
                yield self._take_detour()
                return
            if log.jump is not None:
                yield self._take_jump()
                return
            if log.finished:
                yield log.flush()
                return

    def _open(self) -> None:
        """A dump from where `progress` says."""
        log = self.log
        position = log.progress.position
        seeking = position.pos > LARGEST_START
        start = FILE_START if seeking else position.pos
        ids = log.source.server_ids
        connection = log.source.open()
        try:
            if not log.charsets:
                log.charsets = load_charsets(connection, log.source.flavour)
            if log.progress.gtids is not None and log.progress.known is None:
                _check_log(connection, position, log.progress.gtids)
        except pymysql.MySQLError as exc:
            connection.close()
            if is_transient(exc):
                raise ConnectionLostError(error_text(exc)) from exc
            raise SourceNotUsableError(
                f"The source refuses what a log connection asks: {error_text(exc)}.",
                "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO <account>.",
            ) from exc
        except BaseException:
            connection.close()
            raise
        server_id = ids[self._next_server_id % len(ids)]
        self._dump = open_dump(connection, log.source.flavour, position.file, start, server_id=server_id)
        log.start_dump(BinlogPosition(position.file, start), seeking=seeking)

    def _more(self) -> Iterator[Flush]:
        """More bytes, or room for them."""
        arena = self.log.arena
        if arena.room - arena.received < _ROOM_BYTES:
            yield from self._make_room()
        assert self._dump is not None
        arena.received += self._dump.receive(arena.free)

    def _make_room(self) -> Iterator[Flush]:
        """Drops what was walked over. An open transaction that fills the buffer is scanned from now on."""
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
        """Room for rows and transactions. An open transaction with too many rows is scanned from now on."""
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
            self._events.handle()
        if log.truncated is not None:
            yield log.flush()

    def _new_source(self) -> None:
        """The GTID at EVENT is of a server, or of a domain and server, that we did not meet before."""
        log = self.log
        at = int(log.state[w.EVENT])
        event = log.arena.buf[at : at + 48].tobytes()
        if log.source.flavour == "mariadb":
            log.sources.domain(int.from_bytes(event[27:31], "little"), int.from_bytes(event[5:9], "little"))
        else:
            log.sources.server(event[20:36])
        log.state[w.SOURCES] = log.sources.count

    def _no_event(self) -> None:
        """An error, or the log's end."""
        log = self.log
        at = int(log.state[w.AT])
        size = int.from_bytes(log.arena.buf[at : at + 3].tobytes(), "little")
        payload = log.arena.buf[at + 4 : at + 4 + size].tobytes()
        if payload[0] == _ERROR:
            error = error_of(payload[1:], log.place)
            if isinstance(error, ServerIdTakenError):
                self._next_server_id += 1
            raise error
        if payload[0] == _END and size < _END_BYTES:
            raise LogEndsEarlyError(f"the log ends at {log.place}")
        raise log.damage(Reason.DAMAGED)

    # Elsewhere

    def _take_detour(self) -> Flush:
        """What waits is handed out; then comes the known transaction."""
        log = self.log
        known, log.detour = log.detour, None
        assert known is not None
        flush = log.flush()
        log.progress = replace(log.progress, position=known.start, known=known, seq=0)
        log.finished = False
        return flush

    def _take_jump(self) -> Flush:
        log = self.log
        flush = log.flush()
        log.jump = None
        log.finished = log.progress.position.order >= log.stop.order
        return flush

    def _found_start(self) -> None:
        """The dump had to start before the range's begin, and has come there."""
        log = self.log
        if log.here != BinlogPosition(log.progress.position.file, log.progress.position.pos):
            raise LogPositionLostError(
                f"{log.progress.position} is not between two transactions of the log any more: {log.place} is.",
                _ANOTHER_LOG,
            )
        log.end_seeking()


_ERROR, _END, _END_BYTES = 0xFF, 0xFE, 9
_NEW_JOB = "Start the job anew with another checkpoint directory and an empty target."
_ANOTHER_LOG = f"The source's log was reset, or the server restored from a backup. {_NEW_JOB}"


def _check_log(connection: Connection, position: BinlogPosition, gtids: GtidSet) -> None:
    """Does the position's file begin with transactions that we have, and none else? After RESET or a restore the same
    names lead to another log. Raises LogPositionLostError."""
    with connection.cursor() as cursor:
        try:
            cursor.execute("SHOW BINLOG EVENTS IN %s LIMIT 2", (position.file,))
        except pymysql.MySQLError as exc:
            if error_code(exc) != _WHEN_EXECUTING:
                raise
            raise LogPositionLostError(
                f"The source no longer has {position.file}, where the job must go on: {error_text(exc)}.",
                f"{_NEW_JOB} Then keep logs longer: binlog_expire_logs_seconds.",
            ) from exc
        events = cursor.fetchall()
    text = next((str(event[5]) for event in events if str(event[2]) == "Previous_gtids"), "")
    before = GtidSet.parse(text)
    if not gtids.contains_all(before):
        raise LogPositionLostError(
            f"{position.file} begins after transactions that were not read before {position}: it is another log.",
            _ANOTHER_LOG,
        )


_WHEN_EXECUTING = 1220
