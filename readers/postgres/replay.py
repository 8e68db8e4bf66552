"""How far a standby has replayed its primary's log, and waiting for it (docs/adr/0058)."""

import time

from tidemark.readers.postgres.connect import Connection
from tidemark.state.errors import SourceUnavailableError
from tidemark.state.position import WalPosition
from tidemark.state.remedies import START_OVER

WAIT_SECONDS = 60.0
"""How long a standby may take to replay what the job needs."""
_POLL_SECONDS = 0.01
# The inner query is evaluated first.
_REPLAYED = """
SELECT (received - '0/0'::pg_lsn)::bigint, streams, (pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint, pg_is_in_recovery()
FROM (SELECT pg_last_wal_receive_lsn() AS received, EXISTS (SELECT FROM pg_stat_wal_receiver) AS streams OFFSET 0) AS stream
"""


def await_replay(connection: Connection, position: WalPosition) -> None:
    """Waits until a standby has replayed the log up to the position: after a restart it begins a while before. Raises
    SourceUnavailableError after WAIT_SECONDS. Does nothing on a primary."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        received, streams, replayed, in_recovery = _replayed(connection)
        if not in_recovery or replayed >= position.lsn:
            return
        if time.monotonic() > deadline:
            has_all = streams and received is not None and received <= replayed
            raise SourceUnavailableError(
                f"The standby has replayed the log up to {WalPosition(replayed)}, and the job knows it up to {position}.",
                _PRIMARY_LACKS if has_all else _let_replay(connection),
            )
        time.sleep(_POLL_SECONDS)


_PRIMARY_LACKS = (
    "It streams, and has replayed all that it has got. If it has no more after a minute, its primary lacks what the job knows: "
    "it was restored from an older copy, or lost the end of its log. Then do not wait until its log is longer: "
    f"connect to the server that the job has read, or {START_OVER}."
)


def settled(connection: Connection, lsn: int) -> WalPosition:
    """Returns a replay position after all commits that were visible when the replay position was `lsn`.

    The startup process makes a commit visible, then moves the position. It is doing so only if it has a record that begins at
    `lsn`. It has none if no more has been received than was replayed, and it does not take files from the archive while the
    receiver runs. After the end of a timeline it may, but a timeline does not begin with a commit.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        received, streams, replayed, in_recovery = _replayed(connection)
        if replayed != lsn or not in_recovery or (streams and received == lsn):
            return WalPosition(replayed)
        if time.monotonic() > deadline:
            raise SourceUnavailableError(
                f"The standby has not replayed what comes after {WalPosition(lsn)} in {WAIT_SECONDS:.0f} s.",
                _let_replay(connection),
            )
        time.sleep(_POLL_SECONDS)


def stopped_replay(connection: Connection) -> str | None:
    """Returns what lets a standby replay again that does not stream, or whose replay was paused. None if neither is so, and on
    a primary."""
    with connection.cursor() as cursor:
        cursor.execute(_STOPPED)
        ((paused, streams),) = cursor.fetchall()
    if paused:
        return (
            "Its replay is paused: SELECT pg_wal_replay_resume() on the standby. Then run the job again: it continues."
        )
    if not streams:
        return (
            "It does not stream from its primary now. After a restart it first replays what it has. If it does not, correct "
            "primary_conninfo: a standby that only restores archived files can't be read. Then run the job again: it continues."
        )
    return None


_STOPPED = """
SELECT CASE WHEN standby THEN pg_get_wal_replay_pause_state() <> 'not paused' ELSE false END,
       NOT standby OR EXISTS (SELECT FROM pg_stat_wal_receiver)
FROM (SELECT pg_is_in_recovery() AS standby OFFSET 0) AS server"""


def _let_replay(connection: Connection) -> str:
    """Returns what lets a standby replay further that is behind for long."""
    stopped = stopped_replay(connection)
    return (
        "Look for what it waits for: SELECT wait_event FROM pg_stat_activity WHERE backend_type = 'startup'. If that is "
        "relation or begins with RecoveryConflict, end the oldest queries on the standby. Then run the job again: it continues."
        if stopped is None
        else stopped
    )


def is_in_recovery(connection: Connection) -> bool:
    """Returns whether the server is a standby."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_is_in_recovery()")
        ((found,),) = cursor.fetchall()
    return bool(found)


def _replayed(connection: Connection) -> tuple[int | None, bool, int, bool]:
    """Returns what was received, whether the standby streams, what was replayed after that, and whether it is a standby."""
    with connection.cursor() as cursor:
        cursor.execute(_REPLAYED)
        ((received, streams, replayed, in_recovery),) = cursor.fetchall()
    return received, streams, replayed or 0, in_recovery
