"""Watermarks of MySQL and MariaDB: what a SELECT is sure to see, and where the log ends after it.

- gtid: the first `@@global.gtid_executed` that has all of the anchor's GTIDs. The SELECT sees what low has.
- log_status: `performance_schema.log_status`, which stops commits while it is taken. The SELECT sees the log up to it.
- consistent_snapshot: `Binlog_snapshot_file/_position` of the SELECT's own transaction, which sees exactly that much; asked for
  by one reader at a time, until the server answers alike (see `_shown_alike`).

A bare file and offset is no low on either server: a transaction stands in the log before a SELECT sees it.
The high is the log's end after the SELECT; what lies between is replayed (normalise.py). That may show changes that the
SELECT saw already, which does no harm, and shows all that it did not see.
"""

import json
import time
from dataclasses import dataclass
from typing import Any

import pymysql

from readers.mysql.connect import Connection, error_text, is_transient
from readers.mysql.server import ServerInfo, WatermarkMethod, read_log_status
from state.errors import LogPositionLostError, SourceNotUsableError
from state.gtid import GtidSet
from state.position import BinlogPosition

VISIBILITY_WAIT_SECONDS = 60.0
"""A transaction is visible milliseconds after it was logged, unless the server waits for a semi-synchronous replica."""

FIRST_POLL_SECONDS = 0.001
LONGEST_POLL_SECONDS = 0.1

SHOWN_ALIKE = 10
"""Of three sessions that asked all the time, one answer in 70 was another one's; of 9,000 times five alike, none was."""
MOST_ANSWERS = 1000
SHOWN_LOCK = "tidemark_binlog_snapshot"
SHOWN_LOCK_SECONDS = 2
"""It is held for milliseconds; who holds it longer was cut off from the server or stopped, and asks nothing."""

_NOW_US = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"


@dataclass(frozen=True, slots=True)
class Low:
    """The SELECT sees the log up to `start`, and `contained` of what follows. `exact`: and nothing else."""

    start: BinlogPosition
    contained: GtidSet
    exact: bool
    taken_at_us: int
    """By the source's clock, microseconds since 1970."""


class Watermarks:
    """How lows and highs are taken on a server. Tests replace `low` to show what goes wrong with a lesser one."""

    def __init__(self, server: ServerInfo, method: WatermarkMethod) -> None:
        self._server = server
        self.method = method

    @property
    def opens_transaction(self) -> bool:
        """Is the low that of a transaction, in which the SELECT must run?"""
        return self.method == "consistent_snapshot"

    def low(self, connection: Connection, anchor: BinlogPosition) -> Low:
        """To be taken before the SELECT, on its connection; never before the anchor, for the log is read from there on.

        Raises SourceNotUsableError where the server does not give one.
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
            delay_seconds = min(2 * delay_seconds, LONGEST_POLL_SECONDS)

    def high(self, connection: Connection, low: Low) -> BinlogPosition:
        """The log's end, without GTIDs. Raises LogPositionLostError if it lies before the low."""
        if low.exact:
            return low.start
        status = read_log_status(connection, self._server)
        end = BinlogPosition(status.file, status.pos)
        if end.order < low.start.order:
            raise LogPositionLostError(
                f"The source's log ends at {end}, but it went on to {low.start} before.",
                "The log was reset or the server replaced: start the job anew with another checkpoint directory.",
            )
        return end


def _not_visible(anchor: BinlogPosition) -> SourceNotUsableError:
    return SourceNotUsableError(
        f"Transactions before {anchor} are still not executed after {VISIBILITY_WAIT_SECONDS:.0f} s.",
        "Check whether the server waits for a semi-synchronous replica, or whether its log was reset: then start the job "
        "anew with another checkpoint directory.",
    )


def _gtid_low(connection: Connection, anchor: BinlogPosition) -> Low | None:
    """None while some of the anchor's transactions are not executed."""
    if anchor.gtids is None:
        raise SourceNotUsableError(
            f"The server has GTIDs now, but the job's position {anchor} is from a time when it had none.",
            "Set gtid_mode as it was, or start the job anew with another checkpoint directory.",
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
    place = json.loads(str(text))
    start = BinlogPosition(str(place["binary_log_file"]), int(place["binary_log_position"]))
    return Low(start, GtidSet(), exact=False, taken_at_us=int(now_us))


def _snapshot_low(connection: Connection) -> Low:
    with connection.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, %s)", (SHOWN_LOCK, SHOWN_LOCK_SECONDS))
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        shown = _shown_alike(cursor)
        cursor.execute("SELECT RELEASE_LOCK(%s)", (SHOWN_LOCK,))
    (now_us,) = _row(connection, f"SELECT {_NOW_US}")
    file = shown.get("binlog_snapshot_file")
    if not file:
        raise SourceNotUsableError(
            "The server does not show the log position of a consistent snapshot (Binlog_snapshot_file).",
            "Start the server with log_bin, and connect to it directly, not through a proxy.",
        )
    start = BinlogPosition(file, int(shown["binlog_snapshot_position"]))
    return Low(start, GtidSet(), exact=True, taken_at_us=int(now_us))


def _shown_alike(cursor: pymysql.cursors.Cursor) -> dict[str, str]:
    """The position of this session's snapshot, once SHOWN_ALIKE answers in a row have the same.

    MariaDB keeps what SHOW STATUS is about to show in variables of the whole server: who asks at the same moment may be shown
    in its place. An answer was seen to be that of another reader's older snapshot. Readers of Tidemark take turns by a lock
    of their own; against others, a monitor or a dump, there are the answers, which they would have to meet each time.
    """
    last: dict[str, str] = {}
    alike = 0
    for _ in range(MOST_ANSWERS):
        cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
        shown = {str(name).lower(): str(value) for name, value in cursor.fetchall()}
        alike = alike + 1 if shown == last else 1
        last = shown
        if alike == SHOWN_ALIKE:
            return shown
    raise SourceNotUsableError(
        f"The server shows another position of the same snapshot each time ({MOST_ANSWERS} answers).",
        "Connect to the server directly, not through a proxy that shares connections.",
    )


def _row(connection: Connection, sql: str) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        row = cursor.fetchone()
    if row is None:
        raise SourceNotUsableError(f"The source answers {sql!r} with no row.", "Connect to the server itself.")
    return row
