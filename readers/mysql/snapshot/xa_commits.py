"""Tells whether SELECTs see the XA COMMITs of the log up to a position (spec/XA.tla).

An XA COMMIT is logged before it is visible, and the server does not wait for it as for other commits. XA RECOVER lists the
transaction until then. So if a transaction is listed, the log tells whether it is still prepared, or committed and not visible.
"""

import time
from collections.abc import Callable, Collection

from tidemark.readers.mysql.binlog.connection import LogSource
from tidemark.readers.mysql.binlog.xa import last_events, prepared_xids, xa_events
from tidemark.readers.mysql.connect import Connection
from tidemark.state.errors import SourceNotUsableError, TidemarkError
from tidemark.state.log_range import PreparedXa
from tidemark.state.position import BinlogPosition
from tidemark.state.remedies import START_OVER

VISIBILITY_WAIT_SECONDS = 60.0
"""A transaction is visible milliseconds after it is logged, unless the server waits for a semi-synchronous replica."""

SHORT_WAIT_SECONDS = 2.0
"""Most XA transactions end sooner. After this time the log is searched for those that are still listed."""

FIRST_POLL_SECONDS = 0.001
MAX_POLL_SECONDS = 0.1


class Waiting:
    """Waits between questions, longer each time."""

    def __init__(self, seconds: float | None = None) -> None:
        self._delay_seconds = FIRST_POLL_SECONDS
        self._deadline = time.monotonic() + (VISIBILITY_WAIT_SECONDS if seconds is None else seconds)

    @property
    def over(self) -> bool:
        return time.monotonic() > self._deadline

    def wait(self, error: TidemarkError | None = None) -> None:
        """Raises `error`, if there is one, once the time is over."""
        if error is not None and self.over:
            raise error
        time.sleep(self._delay_seconds)
        self._delay_seconds = min(2 * self._delay_seconds, MAX_POLL_SECONDS)


class XaCommits:
    """The XA COMMITs of the log after `settled`, a position up to which all are visible. The log is read only if needed."""

    def __init__(self, log: Callable[[], LogSource], settled: BinlogPosition) -> None:
        self._log = log
        self._read_to = settled
        self._ends: dict[str, BinlogPosition] = {}
        self._open: dict[str, PreparedXa] = {}

    @property
    def open(self) -> tuple[PreparedXa, ...]:
        """The transactions that were prepared in what was read of the log, and have no end there. A replay from there on
        needs them: without them an XA COMMIT in the replay would make the split be read again, on a busy server each time."""
        return tuple(self._open.values())

    def are_visible(self, position: BinlogPosition, asked: BinlogPosition, prepared: Collection[str]) -> bool:
        """True if SELECTs, or the snapshot of `position`, see all XA COMMITs up to `position`. `prepared`: what XA RECOVER
        listed when the log had reached `asked`, before the snapshot was taken."""
        if not prepared and asked.order > self._read_to.order:
            self._read_to = asked
        if position.order > self._read_to.order:
            for event in xa_events(self._log(), self._read_to, position):
                match event.kind:
                    case "commit":
                        self._ends[event.xid] = event.end
                        self._open.pop(event.xid, None)
                    case "prepare":  # an XID is free again once its last transaction is no longer listed
                        self._ends.pop(event.xid, None)
                        self._open[event.xid] = PreparedXa(event.xid, event.start, event.end)
                    case "rollback":
                        self._open.pop(event.xid, None)
            self._read_to = position
        unknown = {xid for xid, end in self._ends.items() if end.order > asked.order or xid in prepared}
        self._ends = {xid: self._ends[xid] for xid in unknown}
        return not any(self._ends[xid].order <= position.order for xid in unknown)


def await_xa_commits(log: LogSource, connection: Connection, position: BinlogPosition) -> None:
    """Waits until SELECTs see all XA COMMITs up to `position`, an end that the log had. Transactions that stay prepared don't
    matter: the log has no XA COMMIT of them. Raises SourceNotUsableError."""
    listed, waiting = prepared_xids(connection), Waiting(SHORT_WAIT_SECONDS)
    while listed and not waiting.over:
        waiting.wait()
        listed &= prepared_xids(connection)
    if listed:
        last = last_events(log, position, listed)
        listed = frozenset(xid for xid, event in last.items() if event.kind == "commit")
    waiting = Waiting()
    while listed & prepared_xids(connection):
        waiting.wait(not_visible(position))


def not_visible(position: BinlogPosition) -> SourceNotUsableError:
    return SourceNotUsableError(
        f"Transactions before {position} are still not executed after {VISIBILITY_WAIT_SECONDS:.0f} s.",
        f"Check whether the server waits for a semi-synchronous replica. If its log was reset, {START_OVER}.",
    )
