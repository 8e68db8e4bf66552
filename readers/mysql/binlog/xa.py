"""XA transactions: those that the server lists as prepared, and their events in the log."""

from collections.abc import Collection, Iterator

import pymysql

from tidemark.readers.mysql.binlog.connection import LogSource
from tidemark.readers.mysql.binlog.events import FILE_START, xid_text
from tidemark.readers.mysql.binlog.reading import Reading
from tidemark.readers.mysql.binlog.reading_state import LogState, ReadOptions, XaEvent
from tidemark.readers.mysql.connect import Connection, error_code, error_text, flavour_of
from tidemark.readers.mysql.server import ACCESS_DENIED
from tidemark.state.errors import SourceNotUsableError
from tidemark.state.log_range import LogRange
from tidemark.state.position import BinlogPosition

_NOT_ALLOWED = 1401
"""XAER_RMERR: MySQL's answer to an account without XA_RECOVER_ADMIN."""


def prepared_xids(connection: Connection) -> frozenset[str]:
    """The XIDs that XA RECOVER lists, as in XA COMMIT events. A transaction stays listed until SELECTs see its commit.

    Raises SourceNotUsableError if the account may not ask."""
    mysql = flavour_of(connection) == "mysql"
    try:
        with connection.cursor() as cursor:
            cursor.execute("XA RECOVER CONVERT XID" if mysql else "XA RECOVER")
            rows = cursor.fetchall()
    except pymysql.MySQLError as error:
        if error_code(error) not in ACCESS_DENIED | {_NOT_ALLOWED}:
            raise
        raise SourceNotUsableError(
            f"The account may not list the prepared XA transactions (XA RECOVER): {error_text(error)}.",
            "GRANT XA_RECOVER_ADMIN ON *.* TO <account>.",
        ) from error
    found = set()
    for form, global_size, _, data in rows:
        xid = bytes.fromhex(str(data)[2:]) if mysql else data if isinstance(data, bytes) else str(data).encode()
        found.add(xid_text(xid[: int(global_size)], xid[int(global_size) :], int(form)))
    return frozenset(found)


def xa_events(source: LogSource, start: BinlogPosition, stop: BinlogPosition) -> Iterator[XaEvent]:
    """The XA events of a range of the log, in order. Raises TidemarkError."""
    bare = BinlogPosition(start.file, start.pos)
    for flush in Reading(LogState(source, LogRange(bare, stop), {}, ReadOptions())).run():
        yield from flush.xa_events


def last_events(source: LogSource, end: BinlogPosition, xids: Collection[str]) -> dict[str, XaEvent]:
    """The last event before `end` of each XID that the log has. The newest file is read first, so the search for a transaction
    ends in the file in which it was prepared."""
    found: dict[str, XaEvent] = {}
    files, stop = source.file_names(), end
    for file in reversed(files[: files.index(end.file) + 1]):
        start = BinlogPosition(file, FILE_START)
        last = {event.xid: event for event in xa_events(source, start, stop)}
        found |= {xid: last[xid] for xid in xids if xid in last and xid not in found}
        if len(found) == len(xids):
            break
        stop = start
    return found
