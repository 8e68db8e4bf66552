"""Finds positions in the log: its end, an anchor (a position with exactly the GTIDs before it), and `log.start`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from tidemark.conf.reading import LogStart, StartAfterGtids, StartAtEnd, StartAtFile, StartAtLsn, StartAtTime
from tidemark.readers.mysql.binlog import arrays as w
from tidemark.readers.mysql.binlog.connection import LogSource, file_begun
from tidemark.readers.mysql.binlog.events import FILE_START
from tidemark.readers.mysql.binlog.reader import LogReader
from tidemark.readers.mysql.binlog.reading_state import Flush, ReadOptions
from tidemark.readers.mysql.binlog.rows import gtids_of
from tidemark.readers.mysql.connect import Connection
from tidemark.readers.mysql.server import ServerInfo, binary_logs, read_log_status
from tidemark.state.errors import JobFileError, LogPositionLostError, SourceNotUsableError
from tidemark.state.gtid import GtidSet, Source
from tidemark.state.log_range import LogRange
from tidemark.state.position import BinlogPosition

_CLOCK_MARGIN_SECONDS = 60
"""A transaction's time may be a little earlier than its file's creation."""

_VERSION_BITS = 40


def log_end(connection: Connection, server: ServerInfo) -> BinlogPosition:
    """The end of the log, which is a transaction boundary; without GTIDs."""
    status = read_log_status(connection, server)
    return BinlogPosition(status.file, status.pos)


@dataclass(frozen=True, slots=True)
class LogPositions:
    """Finds positions. `connection` is for queries, `source` for reading the log."""

    source: LogSource
    connection: Connection
    server: ServerInfo

    @property
    def has_gtids(self) -> bool:
        """True if positions carry GTID sets."""
        return self.server.flavour == "mysql" and self.server.gtid_mode == "ON"

    def find_anchor(self) -> BinlogPosition:
        """The end of the log, with the exact set of GTIDs if the server has them.

        Reads the current file from its start: its first event has the GTIDs of all files before.
        """
        end = log_end(self.connection, self.server)
        return self._read_to(end) if self.has_gtids else end

    def resolve(self, start: LogStart) -> BinlogPosition:
        """The position of `log.start`, with GTIDs if the server has them.

        Raises JobFileError if `start` is not a transaction boundary, LogPositionLostError if the log no longer reaches
        back to it.
        """
        match start:
            case StartAtEnd("latest"):
                return self.find_anchor()
            case StartAtEnd():
                return self._start_of(self._files()[0])
            case StartAtFile(file, pos):
                return self._at_file(file, pos)
            case StartAfterGtids(text) if self.server.flavour == "mysql":
                return self._after_gtids(GtidSet.parse(text))
            case StartAfterGtids(text):
                return self._after_mariadb_gtids(text)
            case StartAtTime(time):
                return self._at_time(time)
            case StartAtLsn():
                raise JobFileError(
                    "log.start names an LSN, which is for PostgreSQL sources only.", "Correct log.start."
                )

    # Files

    def _files(self) -> list[str]:
        files = [file for file, _ in binary_logs(self.connection)]
        if not files:
            raise SourceNotUsableError("The server has no binary log.", "Start the server with log_bin.")
        return files

    def _start_of(self, file: str) -> BinlogPosition:
        return BinlogPosition(file, FILE_START, str(self._gtids_before(file)) if self.has_gtids else None)

    def _gtids_before(self, file: str) -> GtidSet:
        return GtidSet.parse(self._first_event(file, "Previous_gtids") or "")

    def _first_event(self, file: str, kind: str) -> str | None:
        """The text of an event of this kind right after the file's FORMAT_DESCRIPTION."""
        with self.connection.cursor() as cursor:
            cursor.execute("SHOW BINLOG EVENTS IN %s LIMIT 3", (file,))
            return next((str(row[5]) for row in cursor.fetchall() if str(row[2]) == kind), None)

    def _read_to(self, position: BinlogPosition) -> BinlogPosition:
        """The first boundary at or after `position`, with the GTIDs before it."""
        return self._scan(self._start_of(position.file), position).finish()

    def _scan(self, start: BinlogPosition, end: BinlogPosition) -> "_Scan":
        return _Scan(LogReader(self.source, {}), start, end)

    # log.start

    def _at_file(self, file: str, pos: int) -> BinlogPosition:
        sizes = dict(binary_logs(self.connection))
        if file not in sizes or pos > sizes[file]:
            raise LogPositionLostError(
                f"log.start is {file}:{pos}, but the source's log has {_listed(sizes)}.",
                "Give a position in one of these files, or `earliest`.",
            )
        found = self._read_to(BinlogPosition(file, pos))
        if (found.file, found.pos) != (file, pos):
            raise JobFileError(
                f"log.start is {file}:{pos}, which is inside a transaction or an event; the next boundary is {found}.",
                "Give the position of a transaction's first event (SHOW BINLOG EVENTS), or the end of a file.",
            )
        return found

    def _after_gtids(self, wanted: GtidSet) -> BinlogPosition:
        """The position with exactly these transactions before it."""
        if not self.has_gtids:
            raise JobFileError(
                "log.start names GTIDs, but gtid_mode is not ON on the source.", "Give file and pos, or `latest`."
            )
        executed, purged = self._gtid_variable("gtid_executed"), self._gtid_variable("gtid_purged")
        if not executed.contains_all(wanted):
            raise JobFileError(
                f"log.start names transactions that the source does not have; it has {executed}.",
                "Give a subset of @@gtid_executed.",
            )
        if not wanted.contains_all(purged):
            raise LogPositionLostError(
                f"log.start names {wanted}, but the source's log starts after {purged}.",
                "Give a set that contains all of @@gtid_purged, or copy the tables first: mode full+incremental.",
            )
        start = self._last_file(lambda file: wanted.contains_all(self._gtids_before(file)))
        scan = self._scan(self._start_of(start), log_end(self.connection, self.server))
        found = scan.find(lambda transaction: not wanted.contains(transaction.source, transaction.number))
        if not found.gtid_set().contains_all(wanted):
            raise JobFileError(
                f"log.start: before {found} the log has {found.gtids}; some of {wanted} come after other transactions.",
                "Give a set that was @@gtid_executed while nothing was being committed, or file and pos.",
            )
        return found

    def _gtid_variable(self, name: str) -> GtidSet:
        with self.connection.cursor() as cursor:
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            row = cursor.fetchone()
        return GtidSet.parse("" if row is None else str(row[0]))

    def _after_mariadb_gtids(self, text: str) -> BinlogPosition:
        """The position before which the last transaction of each domain is the one in `text`."""
        wanted = _mariadb_state(text)
        start = self._last_file(lambda file: _is_before(self._mariadb_state_before(file), wanted))
        state = self._mariadb_state_before(start)
        scan = self._scan(self._start_of(start), log_end(self.connection, self.server))

        def is_after(transaction: "_Transaction") -> bool:
            if state == wanted:
                return True
            domain, server = (int(part) for part in transaction.source[0].split("-"))
            state[domain] = (server, transaction.number)
            return False

        found = scan.find(is_after)
        if state != wanted:
            raise JobFileError(
                f"log.start: the log has no position at which {text} are the last transactions of all domains.",
                "Give a complete value that @@gtid_binlog_pos had, or file and pos.",
            )
        return found

    def _mariadb_state_before(self, file: str) -> dict[int, tuple[int, int]]:
        return _mariadb_state((self._first_event(file, "Gtid_list") or "").strip("[]"))

    def _last_file(self, fits: Callable[[str], bool]) -> str:
        """The newest file that fits. If a file fits, all older ones do."""
        files = self._files()
        for file in reversed(files):
            if fits(file):
                return file
        raise LogPositionLostError(
            f"The source's log starts with {files[0]}, after the transactions that log.start names.",
            "Give a later start, or copy the tables first: mode full+incremental.",
        )

    def _at_time(self, time: datetime) -> BinlogPosition:
        """The position before the first transaction at `time` or later. A time without a zone is UTC."""
        time_us = round(time.replace(tzinfo=time.tzinfo or timezone.utc).timestamp() * 1_000_000)
        files = self._files()
        margin_us = _CLOCK_MARGIN_SECONDS * 1_000_000
        low, high = 0, len(files) - 1  # `low` becomes the newest file that was certainly created before
        while low < high:
            middle = (low + high + 1) // 2
            if self._begun_us(files[middle]) <= time_us - margin_us:
                low = middle
            else:
                high = middle - 1
        if low == 0 and BinlogPosition(files[0], 0).file_number > 1 and self._begun_us(files[0]) > time_us:
            raise LogPositionLostError(
                f"log.start is {time.isoformat()}, but the source's log starts later, with {files[0]}.",
                "Give a later time, `earliest`, or copy the tables first: mode full+incremental.",
            )
        scan = self._scan(self._start_of(files[low]), log_end(self.connection, self.server))
        return scan.find(lambda transaction: transaction.timestamp_us >= time_us)

    def _begun_us(self, file: str) -> int:
        """The creation time of a file, in microseconds since 1970."""
        return file_begun(self.source, file) * 1_000_000


@dataclass(frozen=True, slots=True)
class _Transaction:
    source: Source
    number: int
    timestamp_us: int


@dataclass(frozen=True, slots=True)
class _Scan:
    """Reads the transactions of a range, without rows."""

    reader: LogReader
    start: BinlogPosition
    stop: BinlogPosition

    def finish(self) -> BinlogPosition:
        """Reads to the end of the range and returns it."""
        for _ in self._flushes():
            pass
        return self.reader.end

    def find(self, matches: Callable[[_Transaction], bool]) -> BinlogPosition:
        """The boundary before the first transaction that matches; the end of the range if none does."""
        gtids = None if self.start.gtids is None else self.start.gtid_set()
        for flush in self._flushes():
            for i, line in enumerate(flush.transactions.tolist()):
                source = flush.sources[line[w.TX_SOURCE_INDEX]] if line[w.TX_SOURCE_INDEX] >= 0 else _NO_SOURCE
                if matches(_Transaction(source, line[w.TX_GTID_NUMBER], line[w.TX_TIMESTAMP])):
                    if gtids is not None:
                        gtids = gtids.union(gtids_of(flush.transactions[:i], flush.sources))
                    version = line[w.TX_BEGIN]
                    file = flush.files[version >> _VERSION_BITS]
                    pos = version & ((1 << _VERSION_BITS) - 1)
                    return BinlogPosition(file, pos, None if gtids is None else str(gtids))
            if gtids is not None:
                gtids = gtids.union(gtids_of(flush.transactions, flush.sources))
        return self.reader.end

    def _flushes(self) -> Iterable[Flush]:
        return self.reader.flushes(LogRange(self.start, self.stop), {}, ReadOptions())


_NO_SOURCE: Source = ("", "")


def _listed(sizes: dict[str, int]) -> str:
    first, *_, last = [*sizes, *sizes]
    return f"{first} to {last} (up to {sizes[last]})"


def _mariadb_state(text: str) -> dict[int, tuple[int, int]]:
    """Parses `0-1-100,1-2-7`: domain → (server, number). The last entry of a domain counts."""
    state = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        numbers = part.split("-")
        if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
            raise JobFileError(
                f"log.start: {text!r} is not a GTID position.", "Write it like @@gtid_binlog_pos: 0-1-100."
            )
        state[int(numbers[0])] = (int(numbers[1]), int(numbers[2]))
    return state


def _is_before(state: dict[int, tuple[int, int]], wanted: dict[int, tuple[int, int]]) -> bool:
    return all(domain in wanted and number <= wanted[domain][1] for domain, (_, number) in state.items())
