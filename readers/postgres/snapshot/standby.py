"""Snapshots of a standby: which transactions they contain, and where in the log these end (docs/adr/0058).

A snapshot that was taken during recovery has no list of running transactions in its text: only `xmin:xmax:`. So the list is
found out around it, in one message to the server:

    which ids below xmax are unfinished → BEGIN, LOCK TABLE, snapshot → which of these are unfinished now

The standby replays one commit record after the other. Once an id is finished, it stays so. A transaction that is unfinished
after the snapshot is not in it; one that was finished before it is. If one finished in between, and neither xmin nor xmax tells
whether it did so before the snapshot, another snapshot is taken.

A commit becomes visible just before the replay position moves past it. So the position that is read after the snapshot may
be too early by one record. It counts only if it has moved since, or if the standby has nothing left to replay.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemark.readers.postgres.connect import Connection
from tidemark.readers.postgres.replay import await_replay, settled
from tidemark.readers.postgres.snapshot.read_locks import locking
from tidemark.state.errors import SourceUnavailableError
from tidemark.state.position import WalPosition
from tidemark.state.table import TableSchema

ATTEMPT_SECONDS = 60.0
"""How long a snapshot is tried to be taken of which it is known which transactions it contains."""
MAX_RUNNING = 200_000
"""The most unfinished ids, of transactions and their savepoints, that a snapshot's text may list."""
_POLL_SECONDS = 0.01

_BEFORE = """
BEGIN;
SELECT set_config('tidemark.before', jsonb_build_object(
    'in_recovery', pg_is_in_recovery(),
    'xmax', now.xmax,
    'running', (SELECT coalesce(jsonb_agg(c.x), '[]') FROM (
        SELECT unnest(%(known)s::bigint[]) AS x
        UNION ALL SELECT generate_series(
            coalesce(%(upto)s::bigint, now.xmin), CASE WHEN pg_is_in_recovery() THEN now.xmax - 1 END)) AS c
        WHERE pg_xact_status(c.x::text::xid8) = 'in progress')
)::text, false)
FROM (SELECT pg_snapshot_xmin(s)::text::bigint AS xmin, pg_snapshot_xmax(s)::text::bigint AS xmax
      FROM pg_current_snapshot() AS s) AS now;
COMMIT;
"""
# The server evaluates the target list after it takes the snapshot. On a primary nothing is asked about ids.
_AFTER = """
SELECT jsonb_build_object(
    'in_recovery', pg_is_in_recovery(),
    'lsn', (pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint,
    'snapshot', now.s::text,
    'xmin', pg_snapshot_xmin(now.s)::text::bigint,
    'xmax', pg_snapshot_xmax(now.s)::text::bigint,
    'at_us', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    'statuses', (SELECT coalesce(jsonb_agg(jsonb_build_array(x.x, x.status)), '[]') FROM (
        SELECT c.x, pg_xact_status(c.x::text::xid8) AS status FROM (
            SELECT jsonb_array_elements_text(now.before -> 'running')::bigint AS x
            UNION ALL SELECT generate_series((now.before ->> 'xmax')::bigint,
                                             pg_snapshot_xmax(now.s)::text::bigint - 1)) AS c OFFSET 0) AS x
        WHERE x.status IS DISTINCT FROM 'aborted'),
    'before', now.before)
FROM (SELECT pg_current_snapshot() AS s, current_setting('tidemark.before')::jsonb AS before OFFSET 0) AS now
"""
_LSN_ON_PRIMARY = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"


@dataclass(frozen=True, slots=True)
class Taken:
    """The snapshot of the connection's transaction, as a high, and its time in microseconds since 1970. `in_recovery`: it was
    taken on a standby, and the high's LSN is where the standby was then."""

    high: WalPosition
    at_us: int
    in_recovery: bool = True


@dataclass(frozen=True, slots=True)
class Seen:
    """The server's answers around a snapshot. `running`: the ids that were unfinished before it, or were given to transactions
    since, and are unfinished after it. `finished`: those that committed, or of which nothing is known any more."""

    xmin: int
    xmax: int
    running: Sequence[int]
    finished: Sequence[int]


def snapshot_text(seen: Seen) -> str | None:
    """Returns the snapshot with the list of its running transactions; None if it can't be told whether it contains one.

    xmin is the oldest transaction that was running, or xmax if none was. The last one below xmax had ended.
    """
    xmin, xmax = seen.xmin, seen.xmax
    in_doubt = [xid for xid in seen.finished if xmin < xid < xmax - 1]
    running = {xid for xid in seen.running if xid < xmax} | ({xmin} if xmin < xmax else set())
    if in_doubt or min(running, default=xmin) < xmin or (xmax - 1 in running and xmax - 1 in seen.finished):
        return None
    return f"{xmin}:{xmax}:{','.join(map(str, sorted(running)))}"


class StandbySnapshots:
    """Takes snapshots on the connections of one reader. Remembers which transactions were unfinished, so that only these and
    later ones are asked about."""

    def __init__(self, another: Callable[[], Connection]) -> None:
        self._another = another
        self._known: tuple[int, ...] = ()
        self._upto: int | None = None
        self._connection: Connection | None = None

    def begin(self, connection: Connection, schemas: Sequence[TableSchema], needed: WalPosition) -> Taken:
        """Begins a transaction with the tables locked, and returns its snapshot, which contains the log up to `needed`.
        The server may have become a primary. Raises SourceUnavailableError."""
        if self._connection is not connection:
            self._known, self._upto, self._connection = (), None, connection
        await_replay(connection, needed)
        with locking(connection, self._another, schemas) as statements:
            taken = self._first_exact(connection, statements)
        if not taken.in_recovery:
            return taken
        return replace(taken, high=WalPosition(settled(connection, taken.high.lsn).lsn, taken.high.snapshot))

    def _first_exact(self, connection: Connection, statements: Sequence[str]) -> Taken:
        deadline = time.monotonic() + ATTEMPT_SECONDS
        while (taken := self._attempt(connection, statements)) is None:
            with connection.cursor() as cursor:
                cursor.execute("ROLLBACK")
            if time.monotonic() > deadline:
                raise SourceUnavailableError(
                    f"The standby finishes transactions so fast that in {ATTEMPT_SECONDS:.0f} s no snapshot was found of which "
                    "it is known which transactions it contains.",
                    "Run the job while less is written: it continues.",
                )
            time.sleep(_POLL_SECONDS)
        return taken

    def _attempt(self, connection: Connection, statements: Sequence[str]) -> Taken | None:
        """Begins the transaction by the statements. None: it can't be told what its snapshot contains. The high's LSN is not
        settled."""
        with connection.cursor() as cursor:
            before = cursor.mogrify(_BEFORE, {"known": list(self._known), "upto": self._upto})
            cursor.execute(before + f"{'; '.join(statements)};{_AFTER}".encode())
            ((after,),) = cursor.fetchall()
            if not after["before"]["in_recovery"]:
                cursor.execute(_LSN_ON_PRIMARY)
                ((lsn,),) = cursor.fetchall()
                return Taken(WalPosition(lsn, after["snapshot"]), after["at_us"], in_recovery=False)
        if not after["in_recovery"]:  # it was promoted meanwhile
            return None
        seen = self._seen(after)
        text = snapshot_text(seen)
        if text is None:
            return None
        return Taken(WalPosition(after["lsn"], text), after["at_us"])

    def _seen(self, after: dict[str, Any]) -> Seen:
        running = [xid for xid, status in after["statuses"] if status == "in progress"]
        finished = [xid for xid, status in after["statuses"] if status != "in progress"]
        if len(running) > MAX_RUNNING:
            raise SourceUnavailableError(
                f"Transactions on the primary are open with {len(running)} savepoints or subtransactions, which are too many "
                "to list in a snapshot of the standby.",
                "Let these transactions end, then run the job again: it continues.",
            )
        self._known, self._upto = tuple(running), after["xmax"]
        return Seen(after["xmin"], after["xmax"], running, finished)
