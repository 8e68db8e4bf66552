"""The state of reading a log range: the position, the open transaction, and what is already emitted.

`reading.py` explains how it is used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from tidemark.readers.bad_values import STOP, BadValueRule
from tidemark.readers.log.log_batch import LogBatch, truncation
from tidemark.readers.mysql.binlog import arrays as w
from tidemark.readers.mysql.binlog.arena import RECEIVE_BYTES, UNPACK_BYTES, Arena
from tidemark.readers.mysql.binlog.arrays import Group, Reason
from tidemark.readers.mysql.binlog.connection import LogSource
from tidemark.readers.mysql.binlog.events import FILE_START, damaged, wrong_checksum
from tidemark.readers.mysql.binlog.gtid_sources import LogSources, overlap
from tidemark.readers.mysql.binlog.rows import (
    COLUMN_BUFFER_BYTES,
    Names,
    batches,
    empty_rows,
    gtids_of,
    states_of,
    transaction_ids,
)
from tidemark.readers.mysql.binlog.tables import KnownTables
from tidemark.readers.mysql.binlog.walker import close_group
from tidemark.readers.mysql.decoding.arrow import decode_error
from tidemark.state.commit_times import CommitTimes
from tidemark.state.errors import LogPositionLostError, TidemarkError
from tidemark.state.gtid import GtidSet, Source
from tidemark.state.kernel import Int64s
from tidemark.state.log_range import LogRange, PreparedXa
from tidemark.state.position import BinlogPosition, binlog_position
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """`skip`: transactions whose rows are not wanted. `replay`: the range completes a split, so a change that makes this
    impossible raises SplitChangedError. `only_drops`: no rows are read, and only a table that is dropped raises an error.
    `cascades_pass`: foreign keys whose changes are not logged may be added.
    `ignored_targets`: tables that statements may write, since these change no captured table. `reconnect_attempts`: new
    connections in a row without progress. `bad_values`: what becomes of values that their Arrow type can't hold. The sizes
    bound the memory."""

    skip: GtidSet | None = None
    replay: bool = False
    only_drops: bool = False
    zero_dates_null: bool = False
    cascades_pass: bool = False
    ignored_targets: frozenset[TableId] = frozenset()
    bad_values: BadValueRule = STOP
    reconnect_attempts: int | None = None
    max_delay_seconds: float = 5.0
    receive_bytes: int = RECEIVE_BYTES
    unpack_bytes: int = UNPACK_BYTES
    column_buffer_bytes: int = COLUMN_BUFFER_BYTES


RolledBack: TypeAlias = tuple[tuple[int, int], ...]
"""Half-open ranges of offsets in a transaction, undone by ROLLBACK TO SAVEPOINT."""


@dataclass(frozen=True, slots=True)
class DeferredTransaction:
    """A transaction whose rows are read after its outcome is known.

    Its event group is [`start`, `end`) of the log. `entry`: its line of TX_FIELDS; for an XA transaction, the line of the
    XA COMMIT. `rolled_back`: the ranges that savepoints undid; None: unknown, scan first. `resume_at`: where the reading
    continues afterwards; None: at `end`.
    """

    start: BinlogPosition
    end: BinlogPosition
    entry: Int64s
    rolled_back: RolledBack | None = ()
    resume_at: BinlogPosition | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything before `position` is emitted; of `deferred`, also the rows before `seq`. `gtids`: MySQL's. `gtid_state`:
    MariaDB's, as `GtidSet.parse_state` has it."""

    position: BinlogPosition
    gtids: GtidSet | None
    prepared: Mapping[str, PreparedXa]
    deferred: DeferredTransaction | None = None
    seq: int = 0
    changes: int = 0
    transactions: int = 0
    timestamp_us: int | None = None
    gtid_state: GtidSet | None = None
    times: CommitTimes = field(default_factory=CommitTimes)

    @property
    def reached(self) -> tuple[BinlogPosition, bool, int]:
        """Changes whenever more is emitted."""
        return self.position, self.deferred is None, self.seq


@dataclass(frozen=True, slots=True)
class XaEvent:
    """An XA PREPARE, XA COMMIT or XA ROLLBACK. Its event group is [`start`, `end`) of the log."""

    kind: Literal["prepare", "commit", "rollback"]
    xid: str
    start: BinlogPosition
    end: BinlogPosition


@dataclass(frozen=True, slots=True)
class Flush:
    """The output of one flush: rows, and the transactions that ended since the last flush (lines of TX_FIELDS, with indexes
    into `sources` and numbers of `files`), and the XA events since then."""

    batches: list[LogBatch]
    transactions: Int64s
    sources: Sequence[Source]
    files: Mapping[int, str]
    xa_events: Sequence[XaEvent] = ()


class LogState:
    """The state that the compiled loop and the event handlers share."""

    def __init__(
        self, source: LogSource, log_range: LogRange, wanted: Mapping[TableId, TableSchema], options: ReadOptions
    ) -> None:
        self.source = source
        self.start, self.stop = binlog_position(log_range.start), binlog_position(log_range.stop)
        self.options = options
        self.wanted = wanted
        self.arena = Arena(options.receive_bytes, options.unpack_bytes)
        self.tables = KnownTables({} if options.only_drops else wanted, mariadb=source.flavour == "mariadb")
        self.rows = empty_rows(self.tables.width, column_buffer_bytes=options.column_buffer_bytes)
        self.sources = LogSources(options.skip)
        self.state = np.zeros(w.STATE_SIZE, np.int64)
        self.charsets: dict[int, str] = {}
        self.files: dict[int, str] = {}
        self.begun: dict[str, int] = {} if self.start.begun is None else {self.start.file: self.start.begun}
        """The creation time of each file that is known, in seconds since 1970."""
        self.file = self.start.file
        self.deferred: DeferredTransaction | None = None
        self.prepared: dict[str, PreparedXa] = {xa.xid: xa for xa in log_range.prepared}
        self.progress = Progress(
            self.start,
            None if self.start.gtids is None else self.start.gtid_set(),
            dict(self.prepared),
            gtid_state=None if self.start.gtid_state is None else GtidSet.parse_state(self.start.gtid_state),
            times=CommitTimes.parse(self.start.times),
        )
        self.finished = False
        self.expected = (self.start.file, self.start.pos)
        """The requested start of the dump."""
        self.file_entered = False
        self.described = False
        self.full = False
        """Set by the unpacker: the column buffers are full."""
        self.reread: DeferredTransaction | None = None
        """Set by a handler: emit this transaction next."""
        self.resume_at: BinlogPosition | None = None
        """Set by a handler: continue at this position."""
        self.truncated: tuple[Sequence[TableId], Int64s] | None = None
        """Set by a handler: emit the waiting rows, then the truncation of these tables by the transaction of this line."""
        self.xa_events: list[XaEvent] = []
        """Those since the last flush."""

    def start_dump(self, position: BinlogPosition, *, seeking: bool) -> None:
        """Resets the state for a new dump from `position`. Everything that is not yet emitted comes again."""
        state = self.state
        self.arena.reset()
        self.expected = (position.file, position.pos)
        self.file_entered = self.described = False
        self.file = position.file
        self.prepared = dict(self.progress.prepared)
        self.deferred = self.reread = self.resume_at = self.truncated = None
        self.xa_events = []
        mark = state[w.MARK]
        state[:] = 0
        state[w.MARK] = mark
        state[w.FRAMED] = 1
        state[w.SOURCES] = self.sources.count
        state[w.STOP_POS] = w.NO_STOP
        state[w.LOG_POS] = state[w.BOUNDARY] = position.pos
        state[w.SEEKING] = int(seeking)
        if self.progress.deferred is not None:
            self.start_deferred(self.progress.deferred, self.progress.seq)

    def end_seeking(self) -> None:
        """Leaves the seeking: the dump has reached the range's start."""
        self.state[w.SEEKING] = 0
        self.state[w.TX] = self.state[w.ROW] = 0
        self.prepared = dict(self.progress.prepared)
        self.xa_events = []
        self.finished = False
        self._set_stop()

    # Positions

    @property
    def position(self) -> BinlogPosition:
        """The position of the next event."""
        return self.position_of(int(self.state[w.LOG_POS]))

    @property
    def at_start(self) -> bool:
        """True if the dump was asked to start inside a file and brought no event yet."""
        return self.is_at_dump_start and self.position.pos > FILE_START

    @property
    def is_at_dump_start(self) -> bool:
        """True if no event after the requested start was processed yet."""
        return (self.file, self.position.pos) == self.expected and not self.in_group

    @property
    def in_group(self) -> bool:
        return bool(self.state[w.GROUP] != Group.OUTSIDE)

    @property
    def is_open(self) -> bool:
        """True inside a transaction whose rows must wait for its end."""
        return self.in_group and not self.state[w.DEFERRED] and not self.state[w.SCAN]

    def position_of(self, pos: int) -> BinlogPosition:
        return BinlogPosition(self.file, pos)

    def enter_file(self, name: str, pos: int) -> None:
        """Enters a new file, or the dump's first one. Table ids and the checksum algorithm belong to one file."""
        number = BinlogPosition(name, pos).file_number
        self.file = name
        self.files[number] = name
        self.file_entered = True
        self.tables.forget()
        state = self.state
        state[w.FILE_BASE] = BinlogPosition(name, 0).version
        state[w.LOG_POS] = pos
        state[w.BOUNDARY] = pos
        self._set_stop()

    def _set_stop(self) -> None:
        stop = self.progress.position if self.state[w.SEEKING] else self.stop
        number, last = self.position.file_number, stop.file_number
        self.state[w.STOP_POS] = stop.pos if number == last else w.NO_STOP if number < last else 0

    def is_later_file(self, name: str) -> bool:
        return BinlogPosition(name, FILE_START).file_number > self.position.file_number

    def is_next_file(self, name: str) -> bool:
        """True if no file is missing between this one and that. A server gives each new file the next number."""
        return BinlogPosition(name, FILE_START).file_number == self.position.file_number + 1

    def is_beyond_stop(self) -> bool:
        """True if the file comes after the range's last one."""
        return self.position.file_number > self.stop.file_number

    def at_boundary(self) -> None:
        """Notes a transaction boundary after an event that Python handled."""
        state = self.state
        state[w.BOUNDARY] = state[w.LOG_POS]
        if state[w.LOG_POS] >= state[w.STOP_POS]:
            self.finished = True

    def is_rolled_back(self) -> bool:
        """True if the event at LOG_POS was undone by a ROLLBACK TO SAVEPOINT, as the scan of its transaction showed."""
        rolled_back = (self.deferred.rolled_back or ()) if self.deferred is not None else ()
        return any(start <= self.state[w.LOG_POS] < end for start, end in rolled_back)

    def damage(self, reason: Reason) -> TidemarkError:
        """The error for a reason why the loop can't continue."""
        state, where = self.state, str(self.position)
        if reason is Reason.DECODER:
            plan = self.tables.slots[int(state[w.ERROR_SLOT])].plan
            return decode_error(plan, int(state[w.ERROR]), where, lacks_generated=self.source.lacks_generated)
        if reason is Reason.COLUMNS:
            table = self.tables.slots[int(state[w.ERROR_SLOT])].schema.table
            return damaged(f"rows of {table} at {where} have a different number of columns than their table")
        if reason is Reason.CHECKSUM:
            return wrong_checksum(f"a checksum is wrong at {where}")
        return damaged(f"{_DAMAGE[reason]} at {where}")

    # Groups

    def rewind(self) -> None:
        """Goes back to the start of the open transaction, whose bytes are still in the buffer."""
        state = self.state
        state[w.AT] = state[w.TX_AT]
        state[w.LOG_POS] = state[w.TX_START]
        state[w.ROW] = state[w.TX_ROW]
        self.leave_group()

    def leave_group(self) -> None:
        state = self.state
        state[w.GROUP] = Group.OUTSIDE
        state[w.ROW_AT] = 0
        state[w.SCAN] = 0
        state[w.ROLLED_BACK] = 0

    def start_scan(self) -> None:
        """Continues without the rows of the open transaction, which does not fit, to see how it ends."""
        state = self.state
        state[w.SCAN] = 1
        state[w.TOUCHED] = int(state[w.ROW] > state[w.TX_ROW])
        state[w.ROW] = state[w.TX_ROW]
        state[w.ROW_AT] = 0

    def close_group(self, end_pos: int) -> None:
        """Ends the open transaction and keeps its rows."""
        close_group(self.state, self.rows, end_pos)
        self.leave_group()

    def drop_group(self, end_pos: int) -> None:
        """Ends the open transaction and drops its rows: it was rolled back, or comes later."""
        self.state[w.ROW] = self.state[w.TX_ROW]
        self.close_group(end_pos)

    def entry(self, end: BinlogPosition) -> Int64s:
        """The open transaction's line of TX_FIELDS if it ends at `end`, with TX_DONE 0."""
        state = self.state
        line = np.zeros(w.TX_FIELDS, np.int64)
        line[w.TX_VERSION] = end.version
        line[w.TX_TIMESTAMP] = state[w.TX_TIME]
        line[w.TX_ORIGINAL_TIMESTAMP] = state[w.TX_ORIGINAL]
        line[w.TX_SOURCE_INDEX] = state[w.TX_SOURCE]
        line[w.TX_GTID_NUMBER] = state[w.TX_NUMBER]
        line[w.TX_BEGIN] = state[w.FILE_BASE] | state[w.TX_START]
        return line

    def start_deferred(self, deferred: DeferredTransaction, seq: int) -> None:
        """Emits the rows of `deferred` as they arrive from now on. No other rows may be waiting."""
        state = self.state
        self.deferred = deferred
        state[w.DEFERRED] = 1
        state[w.SEQ] = 0
        state[w.DROP_SEQ] = seq
        state[w.SCAN] = int(deferred.rolled_back is None)
        self._enter_deferred()
        self._set_rolled_back(deferred.rolled_back or ())

    def _enter_deferred(self) -> None:
        assert self.deferred is not None
        self.rows.transactions[0] = self.deferred.entry
        self.state[w.TX] = 1
        self.state[w.TX_INDEX] = 0
        self.state[w.TX_ROW] = 0

    def _set_rolled_back(self, rolled_back: RolledBack) -> None:
        if len(rolled_back) > len(self.rows.rolled_back):
            self.rows = self.rows._replace(rolled_back=np.zeros((2 * len(rolled_back), 2), np.int64))
        if rolled_back:
            self.rows.rolled_back[: len(rolled_back)] = rolled_back
        self.state[w.ROLLED_BACK] = len(rolled_back)

    def end_deferred(self) -> None:
        """Ends the deferred transaction, whose group was read to its end."""
        deferred, state = self.deferred, self.state
        assert deferred is not None
        if deferred.resume_at is None:
            self.rows.transactions[0, w.TX_DONE] = 1
        else:
            self.resume_at = deferred.resume_at
        self.deferred = None
        state[w.DEFERRED] = 0
        state[w.DROP_SEQ] = 0
        self.leave_group()

    def end_deferred_scan(self, rolled_back: RolledBack) -> None:
        """Ends the scan of the deferred transaction. It is read again for its rows if it has any."""
        deferred = self.deferred
        assert deferred is not None
        if self.state[w.TOUCHED]:
            self.reread = replace(deferred, rolled_back=rolled_back)
            self.deferred = None
            self.state[w.DEFERRED] = 0
            self.leave_group()
        else:
            self.end_deferred()

    # Emitting

    def flush(self) -> Flush:
        """Emits the rows of all transactions that ended, or of the deferred one. Rewinds an open one to its start."""
        state = self.state
        if self.is_open:
            self.rewind()
        count, ended = int(state[w.ROW]), int(state[w.TX])
        names = Names(self.sources.texts, self.files)
        made = batches(
            self.rows,
            count,
            self.arena.buf,
            self.tables.slots,
            names,
            zero_dates_null=self.options.zero_dates_null,
            rule=self.options.bad_values,
        )
        transactions = self.rows.transactions[:ended]
        transactions = transactions[transactions[:, w.TX_DONE] == 1]
        truncations = self._truncations(names)
        made += truncations
        self.progress = self._progress(count, transactions, truncations=len(truncations))
        state[w.ROW] = 0
        state[w.TX] = 0
        if state[w.DEFERRED]:
            self._enter_deferred()
        xa_events, self.xa_events = self.xa_events, []
        return Flush(made, transactions, self.sources.sources, self.files, xa_events)

    def _truncations(self, names: Names) -> list[LogBatch]:
        if self.truncated is None:
            return []
        tables, line = self.truncated
        self.truncated = None
        (transaction,) = transaction_ids(line[None], names).to_pylist()
        version, time_us = int(line[w.TX_VERSION]), int(line[w.TX_TIMESTAMP])
        return [
            truncation(self.wanted[table], version=version, time_us=time_us, seq=seq, transaction=transaction)
            for seq, table in enumerate(tables)
        ]

    def _progress(self, count: int, transactions: Int64s, *, truncations: int) -> Progress:
        before = self.progress
        gtids, times = before.gtids, before.times
        if gtids is not None and len(transactions):
            found, found_times = gtids_of(transactions, self.sources.sources)
            if overlap(gtids, found):
                raise LogPositionLostError(
                    f"The log before {self.position} has transactions a second time: {found}. It was reset, or the server was "
                    "restored.",
                    START_OVER_NOW,
                )
            gtids = gtids.union(found)
            times = times.after(found_times, gtids)
        gtid_state = before.gtid_state
        if gtid_state is not None and len(transactions):
            found, found_times = states_of(transactions, self.sources.sources)
            gtid_state = gtid_state.union(found)
            times = times.after(found_times, gtid_state)
        deferred = self.deferred
        started = len(np.unique(self.rows.tx[:count])) if count else 0
        if before.deferred is not None and before.seq and count and self.rows.tx[0] == 0:
            started -= 1  # counted when its first rows were emitted
        return Progress(
            deferred.start if deferred is not None else self.resume_at or self.position_of(int(self.state[w.BOUNDARY])),
            gtids,
            dict(self.prepared),
            deferred,
            int(self.state[w.SEQ]) if deferred is not None else 0,
            before.changes + count + truncations,
            before.transactions + started + int(truncations > 0),
            int(transactions[-1, w.TX_TIMESTAMP]) if len(transactions) else before.timestamp_us,
            gtid_state,
            times,
        )


_DAMAGE = {
    Reason.DAMAGED: "lengths contradict each other",
    Reason.POSITION: "an event's end position is wrong",
    Reason.GRAMMAR: "an event is not allowed where it is",
    Reason.UNMAPPED: "rows have no TABLE_MAP in their transaction",
}
