"""Watermarks of MySQL and MariaDB: what a SELECT is sure to see, and the log's end after it.

- gtid: the first `@@global.gtid_executed` that contains all GTIDs of the anchor. The SELECT sees at least these.
- log_status: `performance_schema.log_status`, which blocks commits while it is read. The SELECT sees the log up to it.
- consistent_snapshot: `Binlog_snapshot_file/_position` of the SELECT's own transaction, which sees exactly the log up to
  it. One reader at a time asks for it, until the server gives stable answers (see `_stable_position`).

A plain file and offset is not a low on either server: a transaction is in the log before a SELECT sees it.
An XA COMMIT is special: log_status does not wait until it is visible, and MariaDB's snapshot may lack one of another
session that is before its position. So these two lows count only if all XA COMMITs before them are visible
(spec/XA.tla). With GTIDs there is nothing to ask: `gtid_executed` has an XA COMMIT once it is visible.
The high is the log's end after the SELECT. The log in between is replayed (normalise.py). The replay has all changes that
the SELECT did not see. It may also have changes that the SELECT saw, which does no harm.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pymysql

from tidemark.readers.mysql.binlog.connection import LogSource
from tidemark.readers.mysql.binlog.xa import prepared_xids
from tidemark.readers.mysql.connect import Connection, error_text, is_transient
from tidemark.readers.mysql.server import READ_LOG_STATUS, ServerInfo, WatermarkMethod, read_log_status
from tidemark.readers.mysql.snapshot.xa_commits import Waiting, XaCommits, not_visible
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError
from tidemark.state.gtid import GtidSet
from tidemark.state.log_range import PreparedXa
from tidemark.state.position import BinlogPosition
from tidemark.state.remedies import START_OVER, START_OVER_NOW

EQUAL_ANSWERS = 10
"""With 3 sessions polling, 1 answer in 70 was another session's. Five equal answers in a row were never wrong in 9,000
trials. We ask for 10."""
MAX_ANSWERS = 1000
STATUS_LOCK = "tidemark_binlog_snapshot"
STATUS_LOCK_SECONDS = 2
"""The lock is held for milliseconds. A session that holds it longer is disconnected or stopped, and does not poll."""

_NOW_US = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"


@dataclass(frozen=True, slots=True)
class Low:
    """The SELECT sees the log up to `start`, and the transactions `contained` after it. `exact`: it sees nothing else.
    `prepared`: XA transactions that are open at `start`."""

    start: BinlogPosition
    contained: GtidSet
    exact: bool
    taken_at_us: int
    """The source's clock, in microseconds since 1970."""
    prepared: tuple[PreparedXa, ...] = ()


class Watermarks:
    """Takes lows and highs on a server. Tests replace `low` to show what goes wrong with a weaker one. `log`: the source's log,
    which is searched for XA COMMITs."""

    def __init__(self, server: ServerInfo, method: WatermarkMethod, log: Callable[[], LogSource]) -> None:
        self._server = server
        self._log = log
        self.method = method

    def low(self, connection: Connection, anchor: BinlogPosition) -> Low:
        """Takes the low, before the SELECT and on its connection. It is never before the anchor, where reading the log starts.

        Raises SourceNotUsableError if the server does not give one.
        """
        commits, waiting = XaCommits(self._log, anchor), Waiting()
        while True:
            low = self._low(connection, anchor, commits)
            if low is not None and low.start.order >= anchor.order:
                return low
            waiting.wait(not_visible(anchor))

    def _low(self, connection: Connection, anchor: BinlogPosition, commits: XaCommits) -> Low | None:
        """None if it does not count: the SELECT may miss a transaction of the log before it."""
        match self.method:
            case "gtid":
                return _gtid_low(connection, anchor)
            case "log_status":
                low = _log_status_low(connection)
                if low.start.order < anchor.order:
                    return None
                self._await_xa_commits(connection, commits, low.start)
                return replace(low, prepared=commits.open)
            case "consistent_snapshot":
                status = read_log_status(connection, self._server)
                end, prepared = BinlogPosition(status.file, status.pos), prepared_xids(connection)
                low = _snapshot_low(connection)
                return low if commits.are_visible(low.start, end, prepared) else None

    def _await_xa_commits(self, connection: Connection, commits: XaCommits, position: BinlogPosition) -> None:
        waiting = Waiting()
        while not commits.are_visible(position, position, prepared_xids(connection)):
            waiting.wait(not_visible(position))

    def high(self, connection: Connection, low: Low) -> BinlogPosition:
        """The log's end, without GTIDs. SELECTs see the XA COMMITs up to it, so that it can be an anchor. Raises
        LogPositionLostError if it is before the low."""
        if low.exact:
            return low.start
        status = read_log_status(connection, self._server)
        end = BinlogPosition(status.file, status.pos)
        if end.order < low.start.order:
            raise LogPositionLostError(
                f"The source's log ends at {end}, but it had reached {low.start} before: the log was reset, or the server was "
                "replaced.",
                START_OVER_NOW,
            )
        if self.method == "log_status":
            self._await_xa_commits(connection, XaCommits(self._log, low.start), end)
        return end


def _gtid_low(connection: Connection, anchor: BinlogPosition) -> Low | None:
    """None as long as some of the anchor's transactions are not executed."""
    if anchor.gtids is None:
        raise SourceNotUsableError(
            f"gtid_mode is now ON, but the job's position {anchor} was taken without GTIDs.",
            f"Set gtid_mode to its former value, or {START_OVER}.",
        )
    text, now_us = _row(connection, f"SELECT @@GLOBAL.gtid_executed, {_NOW_US}")
    executed = GtidSet.parse(str(text))
    return (
        Low(anchor, executed, exact=False, taken_at_us=int(now_us))
        if executed.contains_all(anchor.gtid_set())
        else None
    )


def _log_status_low(connection: Connection) -> Low:
    try:
        text, now_us = _row(connection, f"SELECT LOCAL, {_NOW_US} FROM performance_schema.log_status")
    except pymysql.MySQLError as error:
        if is_transient(error):
            raise
        raise SourceNotUsableError(
            f"performance_schema.log_status can't be read: {error_text(error)}.",
            READ_LOG_STATUS,
        ) from error
    status = json.loads(str(text))
    start = BinlogPosition(str(status["binary_log_file"]), int(status["binary_log_position"]))
    return Low(start, GtidSet(), exact=False, taken_at_us=int(now_us))


def _snapshot_low(connection: Connection) -> Low:
    with connection.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, %s)", (STATUS_LOCK, STATUS_LOCK_SECONDS))
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        shown = _stable_position(cursor)
        cursor.execute("SELECT RELEASE_LOCK(%s)", (STATUS_LOCK,))
    (now_us,) = _row(connection, f"SELECT {_NOW_US}")
    file = shown.get("binlog_snapshot_file")
    if not file:
        raise SourceNotUsableError(
            "The server does not show the log position of a consistent snapshot (Binlog_snapshot_file).",
            "Start the server with log_bin, and connect to it directly, not through a proxy.",
        )
    start = BinlogPosition(file, int(shown["binlog_snapshot_position"]))
    return Low(start, GtidSet(), exact=True, taken_at_us=int(now_us))


def snapshot_position(connection: Connection) -> BinlogPosition:
    """MariaDB: the log position of a snapshot taken now. That of each later one is not before it."""
    try:
        return _snapshot_low(connection).start
    finally:
        connection.rollback()


def _stable_position(cursor: pymysql.cursors.Cursor) -> dict[str, str]:
    """The position of this session's snapshot, after EQUAL_ANSWERS equal answers in a row.

    MariaDB prepares the values for SHOW STATUS in variables of the whole server. If two sessions ask at the same time, one
    can get the other's values; we saw an answer with another reader's older snapshot. Tidemark's own readers take turns
    with a lock. The repeated answers protect against other programs, such as a monitor or a dump.
    """
    last: dict[str, str] = {}
    equal = 0
    for _ in range(MAX_ANSWERS):
        cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
        shown = {str(name).lower(): str(value) for name, value in cursor.fetchall()}
        equal = equal + 1 if shown == last else 1
        last = shown
        if equal == EQUAL_ANSWERS:
            return shown
    raise SourceNotUsableError(
        f"The server shows different positions for the same snapshot ({MAX_ANSWERS} answers).",
        "Connect to the server directly, not through a proxy that shares connections.",
    )


def _row(connection: Connection, sql: str) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        row = cursor.fetchone()
    if row is None:
        raise SourceNotUsableError(f"The source returns no row for {sql!r}.", "Connect to the server itself.")
    return row
