"""Finds positions in the log: its end, an anchor (a position with exactly the GTIDs before it), and `log.start`."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from tidemark.conf.reading import LogStart, StartAfterGtids, StartAtEnd, StartAtFile, StartAtLsn, StartAtTime
from tidemark.readers.mysql.binlog import arrays as w
from tidemark.readers.mysql.binlog.connection import LogSource, file_begun
from tidemark.readers.mysql.binlog.events import FILE_START
from tidemark.readers.mysql.binlog.reader import LogReader
from tidemark.readers.mysql.binlog.reading_state import Flush, ReadOptions
from tidemark.readers.mysql.binlog.rows import among, gtids_of, states_of
from tidemark.readers.mysql.connect import Connection
from tidemark.readers.mysql.server import ServerInfo, binary_logs, read_log_status
from tidemark.state.commit_times import CommitTimes
from tidemark.state.errors import DamagedLogError, JobFileError, LogPositionLostError, SourceNotUsableError
from tidemark.state.gtid import GtidSet, Interval, Source
from tidemark.state.kernel import Int64s
from tidemark.state.log_range import LogRange
from tidemark.state.position import BinlogPosition, Position
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.table import TableId, TableSchema

_CLOCK_MARGIN_SECONDS = 60
"""A transaction's time may be a little earlier than its file's creation."""

MAX_DATED_FILES = 10
"""How many older files are read for the times of the last transactions of all sources."""

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
        """True if positions carry MySQL's GTID sets."""
        return self.server.flavour == "mysql" and self.server.gtid_mode == "ON"

    @property
    def has_state(self) -> bool:
        """True if positions carry the state of MariaDB's log."""
        return self.server.flavour == "mariadb"

    def find_anchor(self, *, dated: bool = True) -> BinlogPosition:
        """The end of the log, with the exact set of GTIDs if the server has them (MariaDB: the state of its log).

        Reads the current file from its start: its first event has the GTIDs of all files before. It does not tell when the
        last transactions were committed of sources that have none in it: with `dated`, the files that do are read, too, the
        newest MAX_DATED_FILES of them. What can't be read is not known: only what is asked at a failover needs it.
        """
        end = log_end(self.connection, self.server)
        if not self.has_gtids and not self.has_state:
            return end
        found = self._scan(self._start_of(end.file), end).finish()
        return self._dated(found) if dated else found

    def _dated(self, found: BinlogPosition) -> BinlogPosition:
        """The position with the times of transactions that its file does not have."""
        gtids, times, files, read = _logged(found), CommitTimes.parse(found.times), self._files(), 0
        following = found.file
        try:
            older = gtids.ends().common(self._gtids_before(found.file)).minus(self._gtids_before(files[0]))
            for file in reversed(files[: files.index(found.file)] if found.file in files else []):
                if not older.intervals or read == MAX_DATED_FILES:
                    break
                before = self._gtids_before(file)
                if older.minus(before).intervals:
                    scan = self._scan(self._start_of(file), BinlogPosition(following, FILE_START))
                    times = times.after(CommitTimes.parse(scan.finish().times), gtids)
                    read += 1
                older, following = older.common(before), file
        except (LogPositionLostError, DamagedLogError):
            pass
        return replace(found, times=times.text())

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
                raise AssertionError("the job file's check refuses it")

    # Another server

    def same_place(
        self,
        position: BinlogPosition,
        schemas: Mapping[TableId, TableSchema],
        *,
        lost: GtidSet | None = None,
        unread: list[LogRange] | None = None,
    ) -> BinlogPosition:
        """The position after the last transaction that another server's log has up to `position`, but those of `lost`. This
        server must have all of them, and before the position no others that changed the tables. Raises LogPositionLostError,
        with the reason.

        With `lost`, the last transaction is an earlier one than the other server's. The caller has found a place without.
        With `unread`, there may be others that changed the tables: ranges that may have them are added to it."""
        if self.server.galera and self.server.own_numbers:
            raise LogPositionLostError(
                f"It is a node of a Galera cluster, and {self.server.own_numbers}. So numbers don't tell where its log has "
                "what the job has read.",
                START_OVER_NOW,
            )
        wanted = self.known_gtids(position)
        if self.server.galera and wanted is not None and not self._are_of_cluster(wanted):
            raise LogPositionLostError(
                "It is a node of a Galera cluster, and none of the transactions that the job has read has a number that the "
                "cluster has given: the other node numbered transactions itself.",
                START_OVER_NOW,
            )
        wanted = wanted if wanted is None or lost is None else wanted.minus(lost)
        if wanted is None:
            raise LogPositionLostError(
                "Only GTIDs can tell where its log has what the job has read, and there are none.", START_OVER_NOW
            )
        missing = wanted.minus(self.executed())
        if missing.intervals:
            raise LogPositionLostError(
                f"It lacks transactions that the job has read: {self.text(missing)}. Only the other server had them.",
                START_OVER_NOW,
            )
        files = self._files()
        unlogged = self._unlogged()
        before = [self._gtids_before(file) for file in files]
        unknown = before[0].union(unlogged).minus(wanted)
        wanted = wanted.minus(unlogged)
        if unknown.intervals or (self.has_state and not wanted.minus(before[0]).intervals):
            raise LogPositionLostError(
                f"Its log starts with {files[0]}, after transactions that the job "
                f"{f'has not read: {self.text(unknown)}' if unknown.intervals else 'has read'}.",
                START_OVER_NOW,
            )
        last = max((i for i, gtids in enumerate(before) if wanted.minus(gtids).intervals), default=0)
        others = list[LogRange]()
        for i in range(last):
            # The transactions of a file are those before the next one.
            if before[i + 1].minus(before[i]).minus(wanted).intervals:
                others.append(LogRange(self._start_of(files[i]), self._start_of(files[i + 1])))
        start = self._start_of(files[last])
        place, last_at = self._scan(start, log_end(self.connection, self.server)).after(wanted)
        if position.times is None:
            are_same = self._were_at_one_time(position.last_at, last_at, lacks_none=lost is None)
        else:
            are_same = self._are_same(position, wanted, dict(zip(files, before, strict=True)))
            times = CommitTimes.parse(position.times).after(CommitTimes.parse(place.times), _logged(place))
            place = replace(place, times=times.text())
        if not are_same:
            raise LogPositionLostError(
                "Its log has transactions with the same GTIDs, but they were not committed at the same time.",
                START_OVER_NOW,
            )
        others.append(LogRange(start, place))
        if unread is not None:
            unread.extend(others)
            return place
        for log_range in others:
            self._require_none_of(log_range, wanted, schemas)
        return place

    def _are_same(self, position: BinlogPosition, wanted: GtidSet, before: Mapping[str, GtidSet]) -> bool:
        """Whether the transactions that the job has read are those of this server's log, which has `wanted` of them. Else a
        server that lost some has given their numbers again, or it is another topology. `before`: by file, in their order.

        A transaction whose time is noted was committed at that time here, too. If the server lacks it, the one before it was
        not committed later. What this log does not have any more can't be compared. MariaDB's numbers are small, so one of them
        must be compared there; MySQL's servers before 8.0 note no times."""
        logged, limits = _logged(position), dict[tuple[Source, int], tuple[int, bool]]()
        for source, number, time_us in CommitTimes.parse(position.times):
            interval = logged.interval_of(source, number)
            if interval is None:
                continue
            first = interval[0]
            last = max((min(b - 1, number) for a, b in wanted.intervals.get(source, ()) if a <= number), default=0)
            if last >= first:
                limits[source, last] = time_us, last == number
        files, asked = list(before), dict[int, list[tuple[Source, int]]]()
        for source, number in limits:
            older = [i for i, gtids in enumerate(before.values()) if not gtids.contains(source, number)]
            if older:
                asked.setdefault(older[-1], []).append((source, number))
        compared = 0
        for i, transactions in asked.items():
            end = (
                BinlogPosition(files[i + 1], FILE_START)
                if i + 1 < len(files)
                else log_end(self.connection, self.server)
            )
            times = self._scan(self._start_of(files[i]), end).times(transactions)
            for transaction, at_us in times.items():
                limit_us, is_same = limits[transaction]
                if at_us > limit_us or (is_same and at_us != limit_us):
                    return False
                compared += 1
        return compared > 0 or not self.has_state

    def _were_at_one_time(self, read_at: int | None, at: int | None, *, lacks_none: bool) -> bool:
        """The same for a position of an earlier version, which has one time for all sources. On MariaDB it is that of the last
        one, which is the same if the transactions are, and none is lacking (`lacks_none`)."""
        if read_at is None or at is None:
            return not self.has_state
        return at == read_at if lacks_none and self.has_state else at <= read_at

    def has_state_of(self, position: BinlogPosition) -> bool:
        """True if MariaDB's log has the same last transactions up to a position as the log that it was taken from. Domains that
        the server has deleted since don't count. Reads the position's file."""
        found, known = self._read_to(BinlogPosition(position.file, position.pos)), _logged(position).intervals
        return found.pos == position.pos and all(known.get(s) == last for s, last in _logged(found).intervals.items())

    def _are_of_cluster(self, gtids: GtidSet) -> bool:
        """False if certainly no transaction has a number of the cluster's: MariaDB gives these in a domain of their own."""
        if not self.has_state:
            return True
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT @@GLOBAL.wsrep_gtid_domain_id")
            ((domain,),) = cursor.fetchall()
        return any(source.split("-")[0] == str(domain) for source, _ in gtids.intervals)

    def lost(self, position: BinlogPosition) -> GtidSet:
        """The transactions up to another server's position that this server lacks. None of them if the position does not
        tell."""
        wanted = self.known_gtids(position)
        return GtidSet() if wanted is None else wanted.minus(self.executed())

    def known_gtids(self, position: BinlogPosition) -> GtidSet | None:
        """The transactions up to the position, None if it does not tell."""
        if self.has_state:
            return None if position.gtid_state is None else GtidSet.parse_state(position.gtid_state)
        if not self.has_gtids or position.gtids is None:
            return None
        return position.gtid_set().union(GtidSet.parse(position.unlogged or ""))

    def executed(self) -> GtidSet:
        """All transactions of the server."""
        if not self.has_state:
            return self._gtid_variable("gtid_executed")
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT @@GLOBAL.gtid_binlog_state")
            row = cursor.fetchone()
        return GtidSet.parse_state("" if row is None else str(row[0]))

    def text(self, gtids: GtidSet) -> str:
        return gtids.state() if self.has_state else str(gtids)

    def _require_none_of(self, log_range: LogRange, known: GtidSet, schemas: Mapping[TableId, TableSchema]) -> None:
        """Raises LogPositionLostError if a transaction of the range that is not `known` changed the tables."""
        reader = LogReader(self.source, schemas)
        try:
            for batch in reader.read(log_range, skip=known):
                raise _foreign_transaction(str(batch.table), log_range.start)
        except SourceNotUsableError as error:  # such as an ALTER TABLE
            raise _foreign_transaction(error.message, log_range.start) from error

    # Files

    def _files(self) -> list[str]:
        files = [file for file, _ in binary_logs(self.connection)]
        if not files:
            raise SourceNotUsableError("The server has no binary log.", "Start the server with log_bin.")
        return files

    def _start_of(self, file: str) -> BinlogPosition:
        position = BinlogPosition(file, FILE_START)
        if self.has_state:
            return replace(position, gtid_state=self._gtids_before(file).state())
        if not self.has_gtids:
            return position
        return replace(position, gtids=str(self._gtids_before(file)), unlogged=str(self._unlogged()) or None)

    def _unlogged(self) -> GtidSet:
        """BinlogPosition.unlogged. A replica that does not log what it replicates has others, too, and their positions are
        not known: none are returned for it."""
        if not self.has_gtids or not self.server.log_replica_updates:
            return GtidSet()
        purged = self._gtid_variable("gtid_purged")  # first, because files may be purged meanwhile
        return purged.minus(self._gtids_before(self._files()[0]))

    def _gtids_before(self, file: str) -> GtidSet:
        if self.has_state:
            return GtidSet.parse_state(self._first_event(file, "Gtid_list") or "")
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
        if not found.gtid_set().contains_all(wanted.minus(self._unlogged())):
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
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT UNIX_TIMESTAMP()")
            ((now,),) = cursor.fetchall()
        if time_us > int(now) * 1_000_000 + margin_us:
            raise JobFileError(
                f"log.start is {time.isoformat()}, which is in the future by the source's clock: what is committed until then "
                "can't be left out.",
                "Give an earlier time, or start the job then, with `latest`.",
            )
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


def _logged(position: BinlogPosition) -> GtidSet:
    """The transactions that the log has up to a position, none if positions don't tell."""
    if position.gtid_state is not None:
        return GtidSet.parse_state(position.gtid_state)
    return GtidSet() if position.gtids is None else position.gtid_set()


def _foreign_transaction(what: str, start: Position) -> LogPositionLostError:
    return LogPositionLostError(
        f"After {start} its log has transactions between those that the job has read, and the job has not read them. They "
        f"change the job's tables: {what}",
        START_OVER_NOW,
    )


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
        before, times = _logged(self.start), CommitTimes()
        for flush in self._flushes():
            for i, line in enumerate(flush.transactions.tolist()):
                source = flush.sources[line[w.TX_SOURCE_INDEX]] if line[w.TX_SOURCE_INDEX] >= 0 else _NO_SOURCE
                if matches(_Transaction(source, line[w.TX_GTID_NUMBER], line[w.TX_TIMESTAMP])):
                    return self._position(flush, line[w.TX_BEGIN], *self._with(before, times, flush, i))
            before, times = self._with(before, times, flush, len(flush.transactions))
        return self.reader.end

    def after(self, wanted: GtidSet) -> tuple[BinlogPosition, int | None]:
        """The boundary after the last transaction of `wanted`, or the start of the range if it is before. With
        BinlogPosition.last_at, as earlier versions noted it, of the wanted ones alone: others may be between them."""
        before, times, last_at = _logged(self.start), CommitTimes(), None
        if not wanted.minus(before).intervals:
            return self.start, None
        for flush in self._flushes():
            lines, known, timed = flush.transactions, before, times
            before, times = self._with(known, timed, flush, len(lines))
            if wanted.minus(before).intervals:
                last_at = self._last_at(among(lines, flush.sources, wanted), last_at)
                continue

            def has_all(count: int, known: GtidSet = known, flush: Flush = flush) -> bool:
                return not wanted.minus(known.union(self._found(flush, count)[0])).intervals

            count = bisect_left(range(len(lines)), 1, key=has_all)
            version = int(lines[count - 1, w.TX_VERSION])
            last_at = self._last_at(among(lines[:count], flush.sources, wanted), last_at)
            return self._position(flush, version, *self._with(known, timed, flush, count)), last_at
        raise LogPositionLostError("Its log lacks transactions that it has executed.", START_OVER_NOW)

    def times(self, transactions: Iterable[tuple[Source, int]]) -> Mapping[tuple[Source, int], int]:
        """When those of the transactions were committed that the range has, in microseconds, if it is known."""
        sources: dict[Source, list[Interval]] = {}
        for source, number in transactions:
            sources.setdefault(source, []).append((number, number + 1))
        wanted = GtidSet({source: tuple(sorted(intervals)) for source, intervals in sources.items()})
        found = dict[tuple[Source, int], int]()
        for flush in self._flushes():
            for line in among(flush.transactions, flush.sources, wanted).tolist():
                if line[w.TX_ORIGINAL_TIMESTAMP]:
                    transaction = flush.sources[line[w.TX_SOURCE_INDEX]], line[w.TX_GTID_NUMBER]
                    found[transaction] = line[w.TX_ORIGINAL_TIMESTAMP]
        return found

    def _last_at(self, lines: Int64s, before: int | None) -> int | None:
        if not len(lines):
            return before
        times = lines[:, w.TX_ORIGINAL_TIMESTAMP]
        if self.start.gtid_state is None:
            return max(int(times.max()) // 1_000_000, before or 0) or None
        return int(times[-1]) // 1_000_000 or None

    def _found(self, flush: Flush, count: int) -> tuple[GtidSet, CommitTimes]:
        found_in = gtids_of if self.start.gtid_state is None else states_of
        return found_in(flush.transactions[:count], flush.sources)

    def _with(self, before: GtidSet, times: CommitTimes, flush: Flush, count: int) -> tuple[GtidSet, CommitTimes]:
        """Adds the first `count` transactions of a flush."""
        found, found_times = self._found(flush, count)
        gtids = before.union(found)
        return gtids, times.after(found_times, gtids)

    def _position(self, flush: Flush, version: int, before: GtidSet, times: CommitTimes) -> BinlogPosition:
        position = BinlogPosition(flush.files[version >> _VERSION_BITS], version & ((1 << _VERSION_BITS) - 1))
        if self.start.gtid_state is not None:
            return replace(position, gtid_state=before.state(), times=times.text())
        if self.start.gtids is None:
            return position
        return replace(position, gtids=str(before), times=times.text(), unlogged=self.start.unlogged)

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
        domain, server, number = (int(word) for word in part.split("-"))
        state[domain] = (server, number)
    return state


def _is_before(state: dict[int, tuple[int, int]], wanted: dict[int, tuple[int, int]]) -> bool:
    return all(domain in wanted and number <= wanted[domain][1] for domain, (_, number) in state.items())
