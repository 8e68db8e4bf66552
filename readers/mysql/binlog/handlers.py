"""The events that the compiled loop leaves to Python: files, new tables, statements, savepoints, XA, errors."""

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from tidemark.readers.mysql.binlog import arrays as w
from tidemark.readers.mysql.binlog.arrays import Group
from tidemark.readers.mysql.binlog.connection import different_log
from tidemark.readers.mysql.binlog.events import (
    ARTIFICIAL_FLAG,
    CHECKSUM_BYTES,
    FILE_START,
    HEADER_BYTES,
    MARIADB_COMPLETED_XA,
    MARIADB_PREPARED_XA,
    MARIADB_STANDALONE,
    EventType,
    Query,
    damaged,
    format_description,
    header,
    mariadb_gtid,
    previous_gtids,
    query,
    rotate,
    tagged_gtid,
    wrong_checksum,
    xa_prepare,
)
from tidemark.readers.mysql.binlog.reading_state import DeferredTransaction, LogState, RolledBack, XaEvent
from tidemark.readers.mysql.binlog.rows import gtids_of
from tidemark.readers.mysql.binlog.statement_checks import StatementChecks
from tidemark.readers.mysql.binlog.walker import open_group
from tidemark.readers.mysql.statements.sql_tokens import tokens
from tidemark.readers.mysql.statements.statement import Statement
from tidemark.state.errors import (
    DamagedLogError,
    IncompleteRowsError,
    LogPositionLostError,
    UnknownLogEventError,
)
from tidemark.state.log_range import PreparedXa
from tidemark.state.remedies import START_OVER, START_OVER_NOW


class UnknownXaError(Exception):
    """XA COMMIT of a transaction that was prepared before the range. Its event is not processed."""

    def __init__(self, xid: str) -> None:
        super().__init__(xid)
        self.xid = xid


class Outcome(Enum):
    """The end of an event group."""

    COMMIT = auto()
    ROLLBACK = auto()
    PREPARE = auto()  # an XA transaction: its outcome comes later


@dataclass(frozen=True, slots=True)
class Event:
    """`end_pos`: the position after the event; for a bare event, the start of the event that it is packed in."""

    kind: int
    seconds: int
    server_id: int
    body: bytes
    end_pos: int


@dataclass(frozen=True, slots=True)
class _Savepoint:
    name: str
    row: int
    seq: int
    offset: int


class EventHandler:
    """`handle` processes the event at AT. `payload.py` has the compressed events."""

    def __init__(self, log: LogState) -> None:
        self.log = log
        self.inner_end: tuple[Outcome, str] | None = None
        """The outcome and the XID of the transaction inside a payload."""
        self._statements = StatementChecks(log)
        self._mark = -1
        self._savepoints: list[_Savepoint] = []
        self._rolled_back: list[tuple[int, int]] = []
        self._xa_rolled_back: dict[str, RolledBack] = {}
        """By XID, for the XA transactions that were prepared in this reading."""
        self._rotated = False
        """True after a file's last event, which names the next file."""
        self._cut: str | None = None
        """The file before this one, if its last event is missing. A crash leaves such a file."""
        self._handlers: Mapping[int, Callable[[Event], None]] = {
            EventType.QUERY: self._query,
            EventType.XID: lambda event: self.end_group(Outcome.COMMIT, "", event.end_pos),
            EventType.TABLE_MAP: self._table_map,
            EventType.INCIDENT: self._incident,
            EventType.PREVIOUS_GTIDS: self._previous_gtids,
            EventType.XA_PREPARE: self._xa_prepare,
            EventType.PARTIAL_UPDATE_ROWS: self._partial_update,
            EventType.GTID_TAGGED: self._tagged_gtid,
            EventType.MARIADB_GTID: self._mariadb_gtid,
            EventType.VIEW_CHANGE: self._view_change,
            **dict.fromkeys(_LOAD_EVENTS, self._load),
            **dict.fromkeys(_HARMLESS, _nothing),
        }

    # Events

    def handle(self) -> None:
        """Processes the event at AT and advances past it. Raises TidemarkError."""
        log, state = self.log, self.log.state
        at, stop, total = int(state[w.EVENT]), int(state[w.EVENT_END]), int(state[w.EVENT_TOTAL])
        framed = bool(state[w.FRAMED])
        seconds, kind, server_id, size, end_pos, flags = header(log.arena.buf[at : at + HEADER_BYTES].tobytes())
        is_in_file = bool(end_pos) and not flags & ARTIFICIAL_FLAG
        if kind == EventType.FORMAT_DESCRIPTION and framed:
            self._format_description(at, size)
        elif kind == EventType.ROTATE and framed:
            self._rotate(at, size, artificial=not is_in_file)
        elif kind in {EventType.HEARTBEAT, EventType.HEARTBEAT_V2} and framed:
            is_in_file = False
        elif kind == EventType.MARIADB_START_ENCRYPTION and framed and not end_pos and log.is_at_dump_start:
            # MariaDB repeats a file's START_ENCRYPTION before the first event, with end position 0 and no flag that says so.
            self._check_checksum(at, stop)
            is_in_file = False
        else:
            if kind not in self._handlers:
                raise UnknownLogEventError(
                    f"The log has an event of the unknown type {kind} at {log.position}.",
                    "Use a version of Tidemark that supports this server's log.",
                )
            self.check(at, stop, size, end_pos)
            is_in_file = is_in_file or (end_pos == 0 and log.in_group)
            body = log.arena.buf[at + HEADER_BYTES : stop].tobytes()
            after = int(state[w.LOG_POS]) + (size if framed else 0)
            self._handlers[kind](Event(kind, seconds, server_id, body, after))
        self.move_on(total, size if framed and is_in_file else 0)

    def move_on(self, total: int, size: int) -> None:
        """Advances past a packet of `total` bytes, which are `size` bytes of the log file."""
        log, state = self.log, self.log.state
        state[w.AT] += total
        if not state[w.FRAMED]:
            return
        state[w.LOG_POS] += size
        if not log.in_group and size:
            log.at_boundary()

    def check(self, at: int, stop: int, size: int, end_pos: int) -> None:
        """Checks the checksum and the end position of an event in a packet. Inside a transaction the end position may be 0.
        Raises DamagedLogError."""
        log, state = self.log, self.log.state
        if not state[w.FRAMED]:
            return
        if end_pos != (int(state[w.LOG_POS]) + size) & 0xFFFFFFFF and not (end_pos == 0 and log.in_group):
            raise damaged(f"the event at {log.position} has {size} bytes, but its end position is {end_pos}")
        self._check_checksum(at, stop)

    def _check_checksum(self, at: int, stop: int) -> None:
        log = self.log
        if log.state[w.CHECKSUM] and not _checksum_holds(log.arena.buf[at : stop + CHECKSUM_BYTES].tobytes()):
            raise wrong_checksum(f"the checksum of the event at {log.position} is wrong")

    # Files

    def _rotate(self, at: int, size: int, *, artificial: bool) -> None:
        """Processes the last event of a file, or the artificial event before each file's first one."""
        log, state = self.log, self.log.state
        event = log.arena.buf[at : at + size].tobytes()
        if not artificial:
            self.check(at, at + size - int(state[w.CHECKSUM]), size, header(event)[4])
            if log.in_group:
                raise damaged(f"a transaction is not finished where {log.file} ends")
            self._rotated = True
            return
        name, pos = rotate(event[HEADER_BYTES:-CHECKSUM_BYTES] if _checksum_holds(event) else event[HEADER_BYTES:])
        if not log.file_entered:
            if (name, pos) != log.expected:
                raise LogPositionLostError(
                    f"The source sends its log from {name}:{pos} instead of {':'.join(map(str, log.expected))}.",
                    START_OVER_NOW,
                )
        elif pos != FILE_START or not log.is_later_file(name):
            raise damaged(f"{name}:{pos} follows {log.position}")
        elif log.progress.gtids is None and not log.is_next_file(name):  # GTIDs tell whether a file is missing
            raise LogPositionLostError(
                f"The source's log goes on with {name} after {log.file}: files between them are missing.",
                f"If they are in its folder, name them in the source's binlog index file and restart the source; then run the "
                f"job again: nothing is lost. Otherwise {START_OVER}.",
            )
        torn = log.in_group
        # Without an event of the file, its last one may be before the dump's start. GTIDs tell what is missing.
        is_cut = not self._rotated and not log.at_start and log.progress.gtids is None
        self._cut = log.file if log.file_entered and (torn or is_cut) else None
        self._rotated = False
        if torn:
            # The last file before a crash may end inside a transaction. The restart rolled it back.
            state[w.ROW] = state[w.TX_ROW]
            log.leave_group()
        log.enter_file(name, pos)
        if log.is_beyond_stop() and self._cut is None:
            log.finished = True

    def _format_description(self, at: int, size: int) -> None:
        log, state = self.log, self.log.state
        event = log.arena.buf[at : at + size].tobytes()
        found = format_description(event[HEADER_BYTES:])
        if found.checksum_bytes and not _checksum_holds(event):
            raise wrong_checksum(f"the checksum of the FORMAT_DESCRIPTION event of {log.file} is wrong")
        begun, end_pos = header(event)[0], header(event)[4]
        known = log.begun.setdefault(log.file, begun)
        if known != begun:
            raise different_log(log.file, known, begun)
        if end_pos and end_pos != log.position.pos + size:
            raise damaged(f"the FORMAT_DESCRIPTION event of {log.file} has the wrong end position {end_pos}")
        if self._cut is not None and not found.created_seconds:  # the server was not started with this file
            raise LogPositionLostError(
                f"The end of {self._cut} is missing in the source's log: the file does not name {log.file}, which the "
                "server began without a restart.",
                f"If there is a whole copy of the file, put it in its place, and run the job again: nothing is lost. Otherwise "
                f"{START_OVER}.",
            )
        if self._cut is not None and log.is_beyond_stop():
            log.finished = True
        self._cut = None
        state[w.CHECKSUM] = found.checksum_bytes
        log.described = True

    def _previous_gtids(self, event: Event) -> None:
        """Compares the GTIDs before a file with those read: nothing was missed, and it is still the same log."""
        log, state = self.log, self.log.state
        read = log.progress.gtids
        if read is None or state[w.SEEKING]:
            return
        ended = log.rows.transactions[: int(state[w.TX])]
        read = read.union(gtids_of(ended[ended[:, w.TX_DONE] == 1], log.sources.sources)[0])
        found = previous_gtids(event.body)
        if found != read:
            raise LogPositionLostError(
                f"{log.file} comes after the transactions {found or 'none'}, but those read before it are {read or 'none'}: "
                "some were added or removed without the log (RESET, gtid_purged, a restore).",
                START_OVER_NOW,
            )

    def _incident(self, event: Event) -> None:
        raise DamagedLogError(
            f"{self.log.position}: the source says that changes are missing in its log (INCIDENT).", START_OVER_NOW
        )

    # Transactions

    def _tagged_gtid(self, event: Event) -> None:
        found = tagged_gtid(event.body)
        number = self.log.sources.server(found.source, found.tag)
        time = found.commit_timestamp_us
        self._open(number, found.number, event.seconds * 1_000_000 if time is None else time)
        self.log.state[w.TX_ORIGINAL] = found.original_commit_timestamp_us or time or 0
        self.log.state[w.GROUP] = Group.BEGIN

    def _mariadb_gtid(self, event: Event) -> None:
        """Processes GTIDs with XA flags; the compiled loop has the others."""
        found = mariadb_gtid(event.body)
        number = self.log.sources.domain(found.domain, event.server_id)
        self._open(number, found.number, event.seconds * 1_000_000)
        self.log.state[w.TX_ORIGINAL] = event.seconds * 1_000_000
        alone = found.flags & (MARIADB_STANDALONE | MARIADB_COMPLETED_XA) and not found.flags & MARIADB_PREPARED_XA
        self.log.state[w.GROUP] = Group.ALONE if alone else Group.OPEN

    def _view_change(self, event: Event) -> None:
        """Group replication: each member commits such a transaction itself, under one GTID, at a time of its own."""
        self.log.state[w.TX_ORIGINAL] = 0

    def _open(self, source: int, number: int, time_us: int) -> None:
        log = self.log
        if log.in_group or not log.state[w.FRAMED]:
            raise damaged(f"a transaction starts inside another one at {log.position}")
        log.state[w.SOURCES] = log.sources.count
        open_group(log.state, source, number, time_us, int(log.sources.skips(source, number)))

    def end_group(self, outcome: Outcome, xid: str, end_pos: int) -> None:
        """Ends the open transaction at `end_pos`. Inside a payload: only notes the outcome."""
        log, state = self.log, self.log.state
        if state[w.GROUP] not in {Group.OPEN, Group.ENDED}:
            raise damaged(f"a transaction ends at {log.position} without a start")
        if not state[w.FRAMED]:
            self.inner_end = (outcome, xid)
            state[w.GROUP] = Group.ENDED
            return
        end = log.position_of(end_pos)
        if state[w.DEFERRED]:
            assert log.deferred is not None
            if end != log.deferred.end or outcome is Outcome.ROLLBACK:
                raise damaged(
                    f"the transaction from {log.deferred.start} ended at {log.deferred.end}, but now at {end}"
                )
            if log.deferred.rolled_back is None:
                log.end_deferred_scan(self._current_rolled_back())
            else:
                log.end_deferred()
        elif outcome is Outcome.ROLLBACK:
            log.drop_group(end_pos)
        elif outcome is Outcome.PREPARE:
            self._xa_rolled_back[xid] = self._current_rolled_back()
            start = log.position_of(int(state[w.TX_START]))
            log.prepared[xid] = PreparedXa(xid, start, end)
            log.xa_events.append(XaEvent("prepare", xid, start, end))
            log.drop_group(end_pos)
        elif state[w.SCAN] and state[w.TOUCHED] and not state[w.TX_SKIP]:
            start = log.position_of(int(state[w.TX_START]))
            log.reread = DeferredTransaction(start, end, log.entry(end), self._current_rolled_back())
            log.leave_group()
        else:
            log.close_group(end_pos)

    def _xa_prepare(self, event: Event) -> None:
        found = xa_prepare(event.body)
        self.end_group(Outcome.COMMIT if found.one_phase else Outcome.PREPARE, found.xid, event.end_pos)

    # Tables

    def _table_map(self, event: Event) -> None:
        log = self.log
        if log.state[w.GROUP] != Group.OPEN:
            raise damaged(f"the TABLE_MAP event at {log.position} is outside of a transaction")
        log.tables.add(event.body, int(log.state[w.MARK]), log.charsets)

    def _partial_update(self, event: Event) -> None:
        log = self.log
        table = None if log.state[w.TX_SKIP] else log.tables.wanted_of(event.body)
        if table is not None:
            raise IncompleteRowsError(
                f"{log.position}: an update of {table} has only parts of JSON values: its session had set "
                "binlog_row_value_options=PARTIAL_JSON.",
                f"SET GLOBAL binlog_row_value_options='' on the source, let applications reconnect, then {START_OVER}.",
                table,
            )

    def _load(self, event: Event) -> None:
        """Refuses LOAD DATA of a session with binlog_format=STATEMENT."""
        if self.log.tables.wanted and not self.log.state[w.TX_SKIP]:
            raise self._statements.not_rows(Statement("LOAD DATA"))

    # Statements

    def _query(self, event: Event) -> None:
        self.statement(query(event.body, self.log.charsets), event.end_pos)

    def statement(self, found: Query, end_pos: int) -> None:
        """Processes a QUERY event: transaction control, or a statement that was logged as such."""
        state, text = self.log.state, found.text
        group = Group(int(state[w.GROUP]))
        if group is Group.OPEN and text in _ENDS:
            self.end_group(_ENDS[text], "", end_pos)
        elif group is Group.OPEN and text.startswith(("SAVEPOINT ", "ROLLBACK TO ", "RELEASE SAVEPOINT ")):
            self._savepoint(found)
        elif text.startswith("XA "):
            self._xa(text, group, end_pos)
        elif group in {Group.OUTSIDE, Group.ENDED}:
            raise UnknownLogEventError(
                f"{self.log.position}: a statement is outside of a transaction.",
                "Use a source of MySQL 8.0 or newer, or MariaDB 10.5 or newer.",
            )
        else:
            truncated = self._statements.truncated_by(found, alone=group is not Group.OPEN)
            if group is not Group.OPEN:
                if truncated:
                    self.log.truncated = (truncated, self.log.entry(self.log.position_of(end_pos)))
                self.log.close_group(end_pos)

    # Savepoints

    def _savepoint(self, found: Query) -> None:
        """Notes savepoints and the rows they undo. A server removes undone rows from the log unless the transaction also has
        changes that can't be rolled back."""
        log, state = self.log, self.log.state
        if log.deferred is not None and log.deferred.rolled_back is not None:
            return
        if self._mark != state[w.MARK]:
            self._mark, self._savepoints, self._rolled_back = int(state[w.MARK]), [], []
        words = list(tokens(found.text, found.sql_mode))
        name = words[-1].text.lower()
        offset = int(state[w.LOG_POS] if state[w.FRAMED] else state[w.AT] - state[w.BARE_BASE])
        if words[0].is_word("SAVEPOINT"):
            self._savepoints.append(_Savepoint(name, int(state[w.ROW]), int(state[w.SEQ]), offset))
            return
        at = next((i for i in reversed(range(len(self._savepoints))) if self._savepoints[i].name == name), None)
        if at is None:
            raise damaged(f"the savepoint at {log.position} was not set")
        if words[0].is_word("RELEASE"):
            del self._savepoints[at:]
            return
        saved = self._savepoints[at]
        del self._savepoints[at + 1 :]
        self._rolled_back.append((saved.offset, offset))
        if not state[w.SCAN]:
            state[w.ROW], state[w.SEQ] = saved.row, saved.seq

    def _current_rolled_back(self) -> RolledBack:
        return tuple(self._rolled_back) if self._mark == self.log.state[w.MARK] else ()

    # XA

    def _xa(self, text: str, group: Group, end_pos: int) -> None:
        match = _XA.fullmatch(text)
        if match is None:
            raise UnknownLogEventError(f"{self.log.position}: an XA statement has an unknown form.", START_OVER_NOW)
        verb, xid = match["verb"].upper(), f"X'{match['gtrid'].lower()}',X'{match['bqual'].lower()}',{match['form']}"
        log, state = self.log, self.log.state
        if verb in {"START", "BEGIN"} and group is Group.BEGIN:
            state[w.GROUP] = Group.OPEN
        elif verb == "END" and group is Group.OPEN:
            return
        elif verb in {"COMMIT", "ROLLBACK"} and group in {Group.BEGIN, Group.ALONE}:
            self._xa_end(xid, commits=verb == "COMMIT", end_pos=end_pos)
        else:
            raise damaged(f"XA {verb} at {log.position} is not allowed there")

    def _xa_end(self, xid: str, *, commits: bool, end_pos: int) -> None:
        """Processes XA COMMIT or XA ROLLBACK. At a commit the prepared transaction becomes the deferred one."""
        log, state = self.log, self.log.state
        counts = commits and log.tables.wanted and not state[w.TX_SKIP] and not state[w.SEEKING]
        if counts and xid not in log.prepared:
            raise UnknownXaError(xid)
        prepared = log.prepared.pop(xid, None)
        end, start = log.position_of(end_pos), log.position_of(int(state[w.TX_START]))
        log.xa_events.append(XaEvent("commit" if commits else "rollback", xid, start, end))
        entry = log.entry(end)
        log.drop_group(end_pos)
        if counts and prepared is not None:
            log.reread = DeferredTransaction(
                prepared.start, prepared.end, entry, self._xa_rolled_back.pop(xid, None), end
            )


_ENDS = {"COMMIT": Outcome.COMMIT, "ROLLBACK": Outcome.ROLLBACK}
_XA = re.compile(
    r"XA (?P<verb>\w+) X'(?P<gtrid>[0-9A-Fa-f]*)', *X'(?P<bqual>[0-9A-Fa-f]*)', *(?P<form>\d+)(?: ONE PHASE)?"
)
_LOAD_EVENTS = (6, 8, EventType.APPEND_BLOCK, 10, EventType.DELETE_FILE, 12, EventType.BEGIN_LOAD_QUERY,
                EventType.EXECUTE_LOAD_QUERY)  # fmt: skip
_HARMLESS = (
    EventType.STOP,
    EventType.INTVAR,  # these three belong to a statement, which is checked itself
    EventType.RAND,
    EventType.USER_VAR,
    EventType.IGNORABLE,
    EventType.ROWS_QUERY,
    EventType.TRANSACTION_CONTEXT,  # group replication's own bookkeeping
    EventType.MARIADB_ANNOTATE_ROWS,
    EventType.MARIADB_BINLOG_CHECKPOINT,  # for the server's own recovery
    EventType.MARIADB_GTID_LIST,
    EventType.MARIADB_START_ENCRYPTION,  # for the server itself: it sends events decrypted
)


def _nothing(event: Event) -> None:
    """Ignores an event that has no meaning for rows."""


def _checksum_holds(event: bytes) -> bool:
    return zlib.crc32(event[:-CHECKSUM_BYTES]) == int.from_bytes(event[-CHECKSUM_BYTES:], "little")
