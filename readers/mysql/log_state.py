"""What a reading of the log knows at any moment: where it stands, the open transaction, and what was handed out.

See readers/mysql/log_reading.py for how it is used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from readers.kernel import Int64s
from readers.log_batch import LogBatch, truncation
from readers.mysql import log_arrays as w
from readers.mysql.arrow import decode_error
from readers.mysql.log_arena import RECEIVE_BYTES, UNPACK_BYTES, Arena
from readers.mysql.log_arrays import Group, Reason
from readers.mysql.log_connection import LogSource
from readers.mysql.log_events import FILE_START, damaged
from readers.mysql.log_rows import PLANE_BYTES, Names, batches, empty_rows, gtids_of, transaction_ids
from readers.mysql.log_sources import LogSources, overlap
from readers.mysql.log_tables import KnownTables
from readers.mysql.log_walker import close_group
from state.errors import LogPositionLostError, TidemarkError
from state.gtid import GtidSet, Source
from state.log_range import LogRange, PreparedXa
from state.position import BinlogPosition, binlog_position
from state.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """`skip`: transactions whose rows are not wanted. `replay`: a split is being completed, so that whatever makes it
    impossible is a SplitChangedError. `reconnect_attempts`: after broken connections in a row, without anything new
    handed out. The sizes bound the memory."""

    skip: GtidSet | None = None
    replay: bool = False
    zero_dates_null: bool = False
    reconnect_attempts: int | None = None
    longest_delay_seconds: float = 5.0
    receive_bytes: int = RECEIVE_BYTES
    unpack_bytes: int = UNPACK_BYTES
    plane_bytes: int = PLANE_BYTES


Cuts: TypeAlias = tuple[tuple[int, int], ...]
"""Half-open intervals of places in a transaction."""


@dataclass(frozen=True, slots=True)
class Known:
    """A transaction whose outcome was seen before its rows are handed out.

    Its group stands in the log from `start` to `end`; `entry` is its line among the transactions, of an XA transaction
    that of the XA COMMIT. `cuts`: what savepoints took back, None: not known, look first. `go_on`: where the reading
    goes on after it, None: behind it.
    """

    start: BinlogPosition
    end: BinlogPosition
    entry: Int64s
    cuts: Cuts | None = ()
    go_on: BinlogPosition | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything up to `position` was handed out; of `known` the rows before `seq` too."""

    position: BinlogPosition
    gtids: GtidSet | None
    prepared: Mapping[str, PreparedXa]
    known: Known | None = None
    seq: int = 0
    changes: int = 0
    transactions: int = 0
    timestamp_us: int | None = None

    @property
    def reached(self) -> tuple[BinlogPosition, bool, int]:
        """Equal as long as nothing more was handed out."""
        return self.position, self.known is None, self.seq


@dataclass(frozen=True, slots=True)
class Flush:
    """What one flush hands out: rows, and the transactions whose ends were met since the last one (lines of TX_FIELDS;
    `sources` and `files` by the numbers in them)."""

    batches: list[LogBatch]
    transactions: Int64s
    sources: Sequence[Source]
    files: Mapping[int, str]


class LogState:
    """What the compiled loop and the handlers of events share."""

    def __init__(
        self, source: LogSource, log_range: LogRange, wanted: Mapping[TableId, TableSchema], options: ReadOptions
    ) -> None:
        self.source = source
        self.start, self.stop = binlog_position(log_range.start), binlog_position(log_range.stop)
        self.options = options
        self.wanted = wanted
        self.arena = Arena(options.receive_bytes, options.unpack_bytes)
        self.tables = KnownTables(wanted, mariadb=source.flavour == "mariadb")
        self.rows = empty_rows(self.tables.width, plane_bytes=options.plane_bytes)
        self.sources = LogSources(options.skip)
        self.state = np.zeros(w.STATE_SIZE, np.int64)
        self.charsets: dict[int, str] = {}
        self.files: dict[int, str] = {}
        self.begun: dict[str, int] = {} if self.start.begun is None else {self.start.file: self.start.begun}
        """When each file was begun, as far as known."""
        self.file = self.start.file
        self.known: Known | None = None
        self.prepared: dict[str, PreparedXa] = {xa.xid: xa for xa in log_range.prepared}
        self.progress = Progress(
            self.start,
            None if self.start.gtids is None else self.start.gtid_set(),
            dict(self.prepared),
        )
        self.finished = False
        self.expected = (self.start.file, self.start.pos)
        """Where the dump was asked to start."""
        self.file_entered = False
        self.described = False
        self.full = False
        """Likewise: the planes are."""
        self.detour: Known | None = None
        """Set by a handler: hand out this transaction next."""
        self.jump: BinlogPosition | None = None
        """Likewise: go on here."""
        self.truncated: tuple[Sequence[TableId], Int64s] | None = None
        """Likewise: hand out what waits, then that these tables were emptied, by the transaction of this line."""

    def start_dump(self, position: BinlogPosition, *, seeking: bool) -> None:
        """A new dump was asked for, from `position` on: everything that was not handed out comes again."""
        state = self.state
        self.arena.reset()
        self.expected = (position.file, position.pos)
        self.file_entered = self.described = False
        self.file = position.file
        self.prepared = dict(self.progress.prepared)
        self.known = self.detour = self.jump = self.truncated = None
        mark = state[w.MARK]
        state[:] = 0
        state[w.MARK] = mark
        state[w.FRAMED] = 1
        state[w.SOURCES] = self.sources.count
        state[w.STOP_POS] = w.NO_STOP
        state[w.LOG_POS] = state[w.BOUNDARY] = position.pos
        state[w.SEEKING] = int(seeking)
        if self.progress.known is not None:
            self.begin_known(self.progress.known, self.progress.seq)

    def end_seeking(self) -> None:
        """The dump has come to the range's begin."""
        self.state[w.SEEKING] = 0
        self.state[w.TX] = self.state[w.ROW] = 0
        self.prepared = dict(self.progress.prepared)
        self.finished = False
        self._set_stop()

    # Places

    @property
    def here(self) -> BinlogPosition:
        """Where the next event stands."""
        return BinlogPosition(self.file, int(self.state[w.LOG_POS]))

    @property
    def place(self) -> str:
        """The same, for messages."""
        return str(self.here)

    @property
    def at_start(self) -> bool:
        """Has the dump brought no event yet from where it was asked to start, inside a file?"""
        place = (self.file, self.here.pos)
        return place == self.expected and place[1] > FILE_START and not self.in_group

    @property
    def in_group(self) -> bool:
        return bool(self.state[w.GROUP] != Group.OUTSIDE)

    @property
    def is_open(self) -> bool:
        """Inside a transaction whose rows must wait for its end."""
        return self.in_group and not self.state[w.KNOWN] and not self.state[w.SCAN]

    def position_of(self, pos: int) -> BinlogPosition:
        return BinlogPosition(self.file, pos)

    def enter_file(self, name: str, pos: int) -> None:
        """A file begins, or the dump's first one. Table ids and the checksum's kind are the file's own."""
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
        number, last = self.here.file_number, stop.file_number
        self.state[w.STOP_POS] = stop.pos if number == last else w.NO_STOP if number < last else 0

    def is_next_file(self, name: str) -> bool:
        return BinlogPosition(name, FILE_START).file_number > self.here.file_number

    def is_beyond_stop(self) -> bool:
        """Is the file one behind the range's last?"""
        return self.here.file_number > self.stop.file_number

    def at_boundary(self) -> None:
        """After an event that Python handled, outside of transactions."""
        state = self.state
        state[w.BOUNDARY] = state[w.LOG_POS]
        if state[w.LOG_POS] >= state[w.STOP_POS]:
            self.finished = True

    def is_cut(self) -> bool:
        """Was the event here taken back by a savepoint, as an earlier look at its transaction showed?"""
        cuts = (self.known.cuts or ()) if self.known is not None else ()
        return any(start <= self.state[w.LOG_POS] < end for start, end in cuts)

    def damage(self, reason: Reason) -> TidemarkError:
        """The error for a reason by which the loop refuses to go on."""
        state, place = self.state, self.place
        if reason is Reason.DECODER:
            plan = self.tables.slots[int(state[w.FAULT_SLOT])].plan
            return decode_error(plan, int(state[w.FAULT]), place)
        if reason is Reason.COLUMNS:
            table = self.tables.slots[int(state[w.FAULT_SLOT])].schema.table
            return damaged(f"rows of {table} at {place} have another number of columns than their table")
        return damaged(f"{_DAMAGE[reason]} at {place}")

    # Groups

    def rewind(self) -> None:
        """Back to the begin of the open transaction: its bytes are still there."""
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
        state[w.CUTS] = 0

    def start_scan(self) -> None:
        """The open transaction does not fit: go on without its rows, to see how it ends."""
        state = self.state
        state[w.SCAN] = 1
        state[w.TOUCHED] = int(state[w.ROW] > state[w.TX_ROW])
        state[w.ROW] = state[w.TX_ROW]
        state[w.ROW_AT] = 0

    def close_group(self, end_pos: int) -> None:
        """The open transaction ends, and its rows count."""
        close_group(self.state, self.rows, end_pos)
        self.leave_group()

    def drop_group(self, end_pos: int) -> None:
        """The open transaction ends, and its rows do not count (any more, or not yet)."""
        self.state[w.ROW] = self.state[w.TX_ROW]
        self.close_group(end_pos)

    def entry(self, end: BinlogPosition) -> Int64s:
        """The open transaction's line among the transactions, if it ends at `end`; its end is not yet counted."""
        state = self.state
        line = np.zeros(w.TX_FIELDS, np.int64)
        line[w.TX_VERSION] = end.version
        line[w.TX_TIMESTAMP] = state[w.TX_TIME]
        line[w.TX_SOURCE_INDEX] = state[w.TX_SOURCE]
        line[w.TX_GTID_NUMBER] = state[w.TX_NUMBER]
        line[w.TX_BEGIN] = state[w.FILE_BASE] | state[w.TX_START]
        return line

    def begin_known(self, known: Known, seq: int) -> None:
        """From here on the rows of `known` are handed out as they come. Nothing else may be waiting."""
        state = self.state
        self.known = known
        state[w.KNOWN] = 1
        state[w.SEQ] = 0
        state[w.DROP_SEQ] = seq
        state[w.SCAN] = int(known.cuts is None)
        self._enter_known()
        self._set_cuts(known.cuts or ())

    def _enter_known(self) -> None:
        assert self.known is not None
        self.rows.transactions[0] = self.known.entry
        self.state[w.TX] = 1
        self.state[w.TX_INDEX] = 0
        self.state[w.TX_ROW] = 0

    def _set_cuts(self, cuts: Cuts) -> None:
        if len(cuts) > len(self.rows.cuts):
            self.rows = self.rows._replace(cuts=np.zeros((2 * len(cuts), 2), np.int64))
        if cuts:
            self.rows.cuts[: len(cuts)] = cuts
        self.state[w.CUTS] = len(cuts)

    def end_known(self) -> None:
        """The group of `known` was read to its end, and its rows handed out."""
        known, state = self.known, self.state
        assert known is not None
        if known.go_on is None:
            self.rows.transactions[0, w.TX_DONE] = 1
        else:
            self.jump = known.go_on
        self.known = None
        state[w.KNOWN] = 0
        state[w.DROP_SEQ] = 0
        self.leave_group()

    def looked_at_known(self, cuts: Cuts) -> None:
        """The group of `known` was looked through to its end: it comes again, now for its rows."""
        known = self.known
        assert known is not None
        if self.state[w.TOUCHED]:
            self.detour = replace(known, cuts=cuts)
            self.known = None
            self.state[w.KNOWN] = 0
            self.leave_group()
        else:
            self.end_known()

    # Handing out

    def flush(self) -> Flush:
        """The rows of all transactions that ended, or of the known one. An open one is rewound to its begin."""
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
        )
        transactions = self.rows.transactions[:ended]
        transactions = transactions[transactions[:, w.TX_DONE] == 1]
        truncations = self._truncations(names)
        made += truncations
        self.progress = self._progress(count, transactions, truncations=len(truncations))
        state[w.ROW] = 0
        state[w.TX] = 0
        if state[w.KNOWN]:
            self._enter_known()
        return Flush(made, transactions, self.sources.sources, self.files)

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
        gtids = before.gtids
        if gtids is not None and len(transactions):
            found = gtids_of(transactions, self.sources.sources)
            if overlap(gtids, found):
                raise LogPositionLostError(
                    f"The log before {self.place} holds transactions again that were read before: {found}.",
                    "The source's log was reset or the server restored: start the job anew with another checkpoint "
                    "directory and an empty target.",
                )
            gtids = gtids.union(found)
        known = self.known
        started = len(np.unique(self.rows.tx[:count])) if count else 0
        if before.known is not None and before.seq and count and self.rows.tx[0] == 0:
            started -= 1  # counted when its first rows were handed out
        return Progress(
            known.start if known is not None else self.jump or self.position_of(int(self.state[w.BOUNDARY])),
            gtids,
            dict(self.prepared),
            known,
            int(self.state[w.SEQ]) if known is not None else 0,
            before.changes + count + truncations,
            before.transactions + started + int(truncations > 0),
            int(transactions[-1, w.TX_TIMESTAMP]) if len(transactions) else before.timestamp_us,
        )


_DAMAGE = {
    Reason.DAMAGED: "lengths contradict each other",
    Reason.CHECKSUM: "a checksum is wrong",
    Reason.POSITION: "an event ends elsewhere than it says",
    Reason.GRAMMAR: "an event stands where it can't stand",
    Reason.UNMAPPED: "rows come without their table's TABLE_MAP in the same transaction",
}
