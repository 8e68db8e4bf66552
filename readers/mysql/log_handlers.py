"""The events that the compiled loop leaves to Python: files, new tables, statements, savepoints, XA, and what stops a job."""

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from readers.mysql import log_arrays as w
from readers.mysql.ddl import Statement, classify
from readers.mysql.log_arrays import Group
from readers.mysql.log_connection import another_log
from readers.mysql.log_events import (
    ARTIFICIAL_FLAG,
    CHECKSUM_BYTES,
    FILE_START,
    FLAGS,
    HEADER_BYTES,
    MARIADB_COMPLETED_XA,
    MARIADB_PREPARED_XA,
    MARIADB_STANDALONE,
    SESSION_FLAG,
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
    xa_prepare,
)
from readers.mysql.log_rows import gtids_of
from readers.mysql.log_state import Cuts, Known, LogState
from readers.mysql.log_walker import open_group
from readers.mysql.sql_tokens import tokens
from state.errors import (
    DamagedLogError,
    LogPositionLostError,
    SchemaChangedError,
    SplitChangedError,
    UnknownLogEventError,
)
from state.log_range import PreparedXa
from state.table import TableId

_NEW_JOB = "Start the job anew with another checkpoint directory and an empty target."


class Outcome(Enum):
    """How a transaction ends."""

    COMMIT = auto()
    ROLLBACK = auto()
    PREPARE = auto()  # of an XA transaction: the outcome comes later


@dataclass(frozen=True, slots=True)
class Event:
    """`end_pos`: where the log goes on behind it; for bare events the place of what they are packed in."""

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
    place: int


class EventHandler:
    """`handle` takes the event at AT. Payloads and compressed events are not for it: readers/mysql/log_payload.py."""

    def __init__(self, log: LogState) -> None:
        self.log = log
        self.inner_end: tuple[Outcome, str] | None = None
        """How the transaction inside a payload ended: its outcome, and the XID."""
        self._mark = -1
        self._savepoints: list[_Savepoint] = []
        self._cuts: list[tuple[int, int]] = []
        self._xa_cuts: dict[str, Cuts] = {}
        """Of the XA transactions that were prepared in this reading."""
        self._torn = False
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
            EventType.MARIADB_START_ENCRYPTION: self._encryption,
            **dict.fromkeys(_LOAD_EVENTS, self._load),
            **dict.fromkeys(_HARMLESS, _nothing),
        }

    # Events

    def handle(self) -> None:
        """Takes the event at AT, and moves behind it. Raises TidemarkError."""
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
        else:
            if kind not in self._handlers:
                raise UnknownLogEventError(
                    f"The log has an event of type {kind} at {log.place}, which this version does not know.",
                    "Use a version of Tidemark that knows this server's log.",
                )
            self.check(at, stop, size, end_pos)
            is_in_file = is_in_file or (end_pos == 0 and log.in_group)
            body = log.arena.buf[at + HEADER_BYTES : stop].tobytes()
            after = int(state[w.LOG_POS]) + (size if framed else 0)
            self._handlers[kind](Event(kind, seconds, server_id, body, after))
        self.move_on(total, size if framed and is_in_file else 0)

    def move_on(self, total: int, size: int) -> None:
        """Behind a packet of `total` bytes, which is `size` bytes of the log file."""
        log, state = self.log, self.log.state
        state[w.AT] += total
        if not state[w.FRAMED]:
            return
        state[w.LOG_POS] += size
        if not log.in_group and size:
            log.at_boundary()

    def check(self, at: int, stop: int, size: int, end_pos: int) -> None:
        """Checksum and place of an event in a packet; inside a transaction it need not say its place. Raises
        DamagedLogError."""
        log, state = self.log, self.log.state
        if not state[w.FRAMED]:
            return
        if end_pos != (int(state[w.LOG_POS]) + size) & 0xFFFFFFFF and not (end_pos == 0 and log.in_group):
            raise damaged(f"the event at {log.place} with {size} bytes says that it ends at {end_pos}")
        if state[w.CHECKSUM] and not _checksum_holds(log.arena.buf[at : stop + CHECKSUM_BYTES].tobytes()):
            raise damaged(f"the checksum of the event at {log.place} is wrong")

    # Files

    def _rotate(self, at: int, size: int, *, artificial: bool) -> None:
        """The last event of a file; or, made for us, in front of each file's first one."""
        log, state = self.log, self.log.state
        event = log.arena.buf[at : at + size].tobytes()
        if not artificial:
            self.check(at, at + size - int(state[w.CHECKSUM]), size, header(event)[4])
            if log.in_group:
                raise damaged(f"a transaction is not finished where {log.file} ends")
            return
        name, pos = rotate(event[HEADER_BYTES:-CHECKSUM_BYTES] if _checksum_holds(event) else event[HEADER_BYTES:])
        if not log.file_entered:
            if (name, pos) != log.expected:
                raise LogPositionLostError(
                    f"The source answers with its log from {name}:{pos} instead of {':'.join(map(str, log.expected))}.",
                    _NEW_JOB,
                )
        elif pos != FILE_START or not log.is_next_file(name):
            raise damaged(f"{name}:{pos} follows after {log.place}")
        self._torn = log.in_group
        if self._torn:
            # A crashed server's last file may end inside a transaction, which its restart rolled back.
            state[w.ROW] = state[w.TX_ROW]
            log.leave_group()
        log.enter_file(name, pos)
        if log.is_beyond_stop():
            log.finished = True

    def _format_description(self, at: int, size: int) -> None:
        log, state = self.log, self.log.state
        event = log.arena.buf[at : at + size].tobytes()
        found = format_description(event[HEADER_BYTES:])
        if found.checksum_bytes and not _checksum_holds(event):
            raise damaged(f"the checksum of the FORMAT_DESCRIPTION event of {log.file} is wrong")
        begun, end_pos = header(event)[0], header(event)[4]
        known = log.begun.setdefault(log.file, begun)
        if known != begun:
            raise another_log(log.file, known, begun)
        if end_pos and end_pos != log.here.pos + size:
            raise damaged(f"the FORMAT_DESCRIPTION event of {log.file} says that it ends at {end_pos}")
        if self._torn and not found.created_seconds:
            raise damaged(f"a transaction is not finished where the file before {log.file} ends")
        self._torn = False
        state[w.CHECKSUM] = found.checksum_bytes
        log.described = True

    def _previous_gtids(self, event: Event) -> None:
        """The set in front of a file proves that nothing before it was missed, and that it still is the same log."""
        log, state = self.log, self.log.state
        known = log.progress.gtids
        if known is None or state[w.SEEKING]:
            return
        ended = log.rows.transactions[: int(state[w.TX])]
        known = known.union(gtids_of(ended[ended[:, w.TX_DONE] == 1], log.sources.sources))
        found = previous_gtids(event.body)
        if found != known:
            raise LogPositionLostError(
                f"{log.file} begins after the transactions {found or 'none'}, but those read before are {known or 'none'}.",
                f"Transactions were added or removed without the log (RESET, gtid_purged, a restore). {_NEW_JOB}",
            )

    def _encryption(self, event: Event) -> None:
        raise UnknownLogEventError(
            f"{self.log.place}: the source sends its log encrypted.",
            "Use a server that decrypts its log for replicas (MariaDB does since 10.1.7).",
        )

    def _incident(self, event: Event) -> None:
        raise DamagedLogError(
            f"{self.log.place}: the source says that changes are missing in its log (INCIDENT).", _NEW_JOB
        )

    # Transactions

    def _tagged_gtid(self, event: Event) -> None:
        found = tagged_gtid(event.body)
        number = self.log.sources.server(found.source, found.tag)
        time = found.commit_timestamp_us
        self._open(number, found.number, event.seconds * 1_000_000 if time is None else time)
        self.log.state[w.GROUP] = Group.BEGIN

    def _mariadb_gtid(self, event: Event) -> None:
        """Those with XA flags; the others are the loop's."""
        found = mariadb_gtid(event.body)
        number = self.log.sources.domain(found.domain, event.server_id)
        self._open(number, found.number, event.seconds * 1_000_000)
        alone = found.flags & (MARIADB_STANDALONE | MARIADB_COMPLETED_XA) and not found.flags & MARIADB_PREPARED_XA
        self.log.state[w.GROUP] = Group.ALONE if alone else Group.OPEN

    def _open(self, source: int, number: int, time_us: int) -> None:
        log = self.log
        if log.in_group or not log.state[w.FRAMED]:
            raise damaged(f"a transaction begins inside another one at {log.place}")
        log.state[w.SOURCES] = log.sources.count
        open_group(log.state, source, number, time_us, int(log.sources.skips(source, number)))

    def end_group(self, outcome: Outcome, xid: str, end_pos: int) -> None:
        """The open transaction ends, and the log goes on at `end_pos`. Inside a payload: noted until its end."""
        log, state = self.log, self.log.state
        if state[w.GROUP] not in {Group.OPEN, Group.ENDED}:
            raise damaged(f"a transaction ends at {log.place} that has not begun")
        if not state[w.FRAMED]:
            self.inner_end = (outcome, xid)
            state[w.GROUP] = Group.ENDED
            return
        end = log.position_of(end_pos)
        if state[w.KNOWN]:
            assert log.known is not None
            if end != log.known.end or outcome is Outcome.ROLLBACK:
                raise damaged(f"the transaction from {log.known.start} ends at {end}, not at {log.known.end} as before")
            if log.known.cuts is None:
                log.looked_at_known(self._current_cuts())
            else:
                log.end_known()
        elif outcome is Outcome.ROLLBACK:
            log.drop_group(end_pos)
        elif outcome is Outcome.PREPARE:
            self._xa_cuts[xid] = self._current_cuts()
            log.prepared[xid] = PreparedXa(xid, log.position_of(int(state[w.TX_START])), end)
            log.drop_group(end_pos)
        elif state[w.SCAN] and state[w.TOUCHED] and not state[w.TX_SKIP]:
            start = log.position_of(int(state[w.TX_START]))
            log.detour = Known(start, end, log.entry(end), self._current_cuts())
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
            raise damaged(f"a TABLE_MAP event outside of a transaction at {log.place}")
        log.tables.add(event.body, int(log.state[w.MARK]), log.charsets)

    def _partial_update(self, event: Event) -> None:
        log = self.log
        if not log.state[w.TX_SKIP] and log.tables.is_wanted(event.body):
            raise UnknownLogEventError(
                f"{log.place}: an update holds only parts of JSON values.",
                "SET GLOBAL binlog_row_value_options='' on the source, let applications connect anew, and start after it.",
            )

    def _load(self, event: Event) -> None:
        """LOAD DATA of a session with binlog_format=STATEMENT."""
        if self.log.wanted and not self.log.state[w.TX_SKIP]:
            raise self._not_rows("LOAD DATA")

    # Statements

    def _query(self, event: Event) -> None:
        self.statement(query(event.body, self.log.charsets), event.end_pos)

    def statement(self, found: Query, end_pos: int) -> None:
        """A QUERY event: transaction control, or a statement that was logged as such."""
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
                f"{self.log.place}: a statement outside of a transaction.",
                "Use a source of MySQL 8.0 or newer, or MariaDB 10.5 or newer.",
            )
        else:
            truncated = self._check_statement(found, alone=group is not Group.OPEN)
            if group is not Group.OPEN:
                if truncated:
                    self.log.truncated = (truncated, self.log.entry(self.log.position_of(end_pos)))
                self.log.close_group(end_pos)

    def _check_statement(self, found: Query, *, alone: bool) -> list[TableId]:
        """The wanted tables that it truncates."""
        log = self.log
        if log.state[w.TX_SKIP] or not log.wanted:
            return []
        meaning = classify(found.text, found.database, found.sql_mode)
        if meaning.unknown:
            raise UnknownLogEventError(
                f"{log.place}: the log has {meaning.what}, and it is not known whether it changes captured tables.",
                "Start the job anew, from a position after it.",
            )
        if meaning.writes and self._may_touch(found):
            raise self._not_rows(meaning.what)
        if meaning.truncated is not None and alone and not log.options.replay and not self._is_of_its_session():
            return self._named(meaning.truncated)
        changed = self._wanted(meaning)
        if changed:
            raise SchemaChangedError(
                f"{log.place}: {meaning.what} on {', '.join(map(str, changed))}, which can't be followed.",
                "Start the job anew with another checkpoint directory and an empty target, or leave the table out.",
            )
        for table in meaning.lost_index:
            for wanted in self._named(table):
                log.tables.lose_index(wanted)
        return []

    def _is_of_its_session(self) -> bool:
        """Does the statement at EVENT depend on its session, by temporary tables? They may have a captured table's name."""
        at = int(self.log.state[w.EVENT])
        return bool(
            int.from_bytes(self.log.arena.buf[at + FLAGS : at + HEADER_BYTES].tobytes(), "little") & SESSION_FLAG
        )

    def _wanted(self, meaning: Statement) -> list[TableId]:
        found = {wanted for table in meaning.changed for wanted in self._named(table)}
        dropped = {self._fold(name) for name in meaning.dropped_databases}
        return sorted(found | {table for table in self.log.wanted if self._fold(table.database) in dropped})

    def _named(self, table: TableId) -> list[TableId]:
        """The wanted tables that a statement's name may mean."""
        name = (self._fold(table.database), self._fold(table.name))
        return [known for known in self.log.wanted if (self._fold(known.database), self._fold(known.name)) == name]

    def _fold(self, name: str) -> str:
        return name.lower() if self.log.source.lower_case_names else name

    def _may_touch(self, found: Query) -> bool:
        """A statement writes tables that it need not name (triggers, functions): only a list of databases clears it."""
        if not found.updated_databases:
            return True
        updated = {self._fold(name) for name in found.updated_databases}
        return any(self._fold(table.database) in updated for table in self.log.wanted)

    def _not_rows(self, what: str) -> UnknownLogEventError:
        return UnknownLogEventError(
            f"{self.log.place}: the log has {what} as a statement, not as rows.",
            "SET GLOBAL binlog_format=ROW on the source, let applications connect anew, and start the job anew from a "
            "position after it.",
        )

    # Savepoints

    def _savepoint(self, found: Query) -> None:
        """Servers cut off what a savepoint takes back, unless the transaction holds what they can't take back."""
        log, state = self.log, self.log.state
        if log.known is not None and log.known.cuts is not None:
            return
        if self._mark != state[w.MARK]:
            self._mark, self._savepoints, self._cuts = int(state[w.MARK]), [], []
        words = list(tokens(found.text, found.sql_mode))
        name = words[-1].text.lower()
        place = int(state[w.LOG_POS] if state[w.FRAMED] else state[w.AT] - state[w.BARE_BASE])
        if words[0].is_word("SAVEPOINT"):
            self._savepoints.append(_Savepoint(name, int(state[w.ROW]), int(state[w.SEQ]), place))
            return
        at = next((i for i in reversed(range(len(self._savepoints))) if self._savepoints[i].name == name), None)
        if at is None:
            raise damaged(f"a savepoint at {log.place} that was not set")
        if words[0].is_word("RELEASE"):
            del self._savepoints[at:]
            return
        saved = self._savepoints[at]
        del self._savepoints[at + 1 :]
        self._cuts.append((saved.place, place))
        if not state[w.SCAN]:
            state[w.ROW], state[w.SEQ] = saved.row, saved.seq

    def _current_cuts(self) -> Cuts:
        return tuple(self._cuts) if self._mark == self.log.state[w.MARK] else ()

    # XA

    def _xa(self, text: str, group: Group, end_pos: int) -> None:
        match = _XA.fullmatch(text)
        if match is None:
            raise UnknownLogEventError(f"{self.log.place}: an XA statement of an unknown form.", _NEW_JOB)
        verb, xid = match["verb"].upper(), f"X'{match['gtrid'].lower()}',X'{match['bqual'].lower()}',{match['form']}"
        log, state = self.log, self.log.state
        if verb in {"START", "BEGIN"} and group is Group.BEGIN:
            state[w.GROUP] = Group.OPEN
        elif verb == "END" and group is Group.OPEN:
            return
        elif verb in {"COMMIT", "ROLLBACK"} and group in {Group.BEGIN, Group.ALONE}:
            self._xa_end(xid, commits=verb == "COMMIT", end_pos=end_pos)
        else:
            raise damaged(f"XA {verb} at {log.place} where it can't stand")

    def _xa_end(self, xid: str, *, commits: bool, end_pos: int) -> None:
        """XA COMMIT: now the rows count that were prepared."""
        log, state = self.log, self.log.state
        prepared = log.prepared.pop(xid, None)
        counts = commits and log.wanted and not state[w.TX_SKIP] and not state[w.SEEKING]
        if counts and prepared is None:
            if log.options.replay:
                raise SplitChangedError(f"XA COMMIT of {xid} at {log.place}, prepared before.", "Read the split again.")
            raise UnknownLogEventError(
                f"XA COMMIT of {xid} at {log.place}: it was prepared before the job's first position.",
                "Start the job anew at a moment when XA RECOVER shows no transactions.",
            )
        end = log.position_of(end_pos)
        entry = log.entry(end)
        log.drop_group(end_pos)
        if counts and prepared is not None:
            log.detour = Known(prepared.start, prepared.end, entry, self._xa_cuts.pop(xid, None), end)


_ENDS = {"COMMIT": Outcome.COMMIT, "ROLLBACK": Outcome.ROLLBACK}
_XA = re.compile(
    r"XA (?P<verb>\w+) X'(?P<gtrid>[0-9A-Fa-f]*)', *X'(?P<bqual>[0-9A-Fa-f]*)', *(?P<form>\d+)(?: ONE PHASE)?"
)
_LOAD_EVENTS = (6, 8, EventType.APPEND_BLOCK, 10, EventType.DELETE_FILE, 12, EventType.BEGIN_LOAD_QUERY,
                EventType.EXECUTE_LOAD_QUERY)  # fmt: skip
_HARMLESS = (
    EventType.STOP,
    EventType.INTVAR,  # these three belong to a statement, which decides
    EventType.RAND,
    EventType.USER_VAR,
    EventType.IGNORABLE,
    EventType.ROWS_QUERY,
    EventType.TRANSACTION_CONTEXT,  # group replication's own bookkeeping
    EventType.VIEW_CHANGE,
    EventType.MARIADB_ANNOTATE_ROWS,
    EventType.MARIADB_BINLOG_CHECKPOINT,  # the server's own recovery
    EventType.MARIADB_GTID_LIST,
)


def _nothing(event: Event) -> None:
    """Known, and without a meaning for rows."""


def _checksum_holds(event: bytes) -> bool:
    return zlib.crc32(event[:-CHECKSUM_BYTES]) == int.from_bytes(event[-CHECKSUM_BYTES:], "little")
