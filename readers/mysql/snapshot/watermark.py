"""Watermarks of MySQL and MariaDB: what a SELECT is sure to see, and the log's end after it.

- gtid: the first `@@global.gtid_executed` that contains all GTIDs of the anchor. The SELECT sees at least these.
- log_status: `performance_schema.log_status`, which blocks commits while it is read. The SELECT sees the log up to it.
- consistent_snapshot: `Binlog_snapshot_file/_position` of the SELECT's own transaction, which sees exactly the log up to
  it. One reader at a time asks for it, until the server gives stable answers (see `_stable_position`).

A plain file and offset is not a low on either server: a transaction is in the log before a SELECT sees it.
The high is the log's end after the SELECT. The log in between is replayed (normalise.py). The replay has all changes that
the SELECT did not see. It may also have changes that the SELECT saw, which does no harm.
"""

import json
import time
from dataclasses import dataclass
from typing import Any

import pymysql

from tidemark.readers.mysql.connect import Connection, error_text, is_transient
from tidemark.readers.mysql.server import ServerInfo, WatermarkMethod, read_log_status
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError
from tidemark.state.gtid import GtidSet
from tidemark.state.position import BinlogPosition
from tidemark.state.remedies import START_OVER, START_OVER_NOW

VISIBILITY_WAIT_SECONDS = 60.0
"""A transaction is visible milliseconds after it is logged, unless the server waits for a semi-synchronous replica."""

FIRST_POLL_SECONDS = 0.001
MAX_POLL_SECONDS = 0.1

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
    """The SELECT sees the log up to `start`, and the transactions `contained` after it. `exact`: it sees nothing else."""

    start: BinlogPosition
    contained: GtidSet
    exact: bool
    taken_at_us: int
    """The source's clock, in microseconds since 1970."""


class Watermarks:
    """Takes lows and highs on a server. Tests replace `low` to show what goes wrong with a weaker one."""

    def __init__(self, server: ServerInfo, method: WatermarkMethod) -> None:
        self._server = server
        self.method = method

    @property
    def opens_transaction(self) -> bool:
        """True if the low belongs to an open transaction in which the SELECT must run."""
        return self.method == "consistent_snapshot"

    def low(self, connection: Connection, anchor: BinlogPosition) -> Low:
        """Takes the low, before the SELECT and on its connection. It is never before the anchor, where reading the log starts.

        Raises SourceNotUsableError if the server does not give one.
        """
        delay_seconds, deadline = FIRST_POLL_SECONDS, time.monotonic() + VISIBILITY_WAIT_SECONDS
        while True:
            match self.method:
                case "gtid":
                    low = _gtid_low(connection, anchor)
                case "log_status":
                    low = _log_status_low(connection)
                case "consistent_snapshot":
                    low = _snapshot_low(connection)
            if low is not None and low.start.order >= anchor.order:
                return low
            if time.monotonic() > deadline:
                raise _not_visible(anchor)
            time.sleep(delay_seconds)
            delay_seconds = min(2 * delay_seconds, MAX_POLL_SECONDS)

    def high(self, connection: Connection, low: Low) -> BinlogPosition:
        """The log's end, without GTIDs. Raises LogPositionLostError if it is before the low."""
        if low.exact:
            return low.start
        status = read_log_status(connection, self._server)
        end = BinlogPosition(status.file, status.pos)
        if end.order < low.start.order:
            raise LogPositionLostError(
                f"The source's log ends at {end}, but it had reached {low.start} before.",
                f"The log was reset, or the server was replaced. {START_OVER_NOW}",
            )
        return end


def _not_visible(anchor: BinlogPosition) -> SourceNotUsableError:
    return SourceNotUsableError(
        f"Transactions before {anchor} are still not executed after {VISIBILITY_WAIT_SECONDS:.0f} s.",
        f"Check whether the server waits for a semi-synchronous replica. If its log was reset, {START_OVER}.",
    )


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
            "GRANT BACKUP_ADMIN ON *.* TO <account>; GRANT SELECT ON performance_schema.log_status TO <account>.",
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
