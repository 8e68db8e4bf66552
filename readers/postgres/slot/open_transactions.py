"""The server's open transactions: waiting for them, and naming them together with the statement that ends each."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from tidemark.readers.long_waits import LongWait
from tidemark.readers.postgres.connect import Connection, quote_literal
from tidemark.state.errors import SourceNotUsableError

SETTLE_SECONDS = 600.0
"""How long a start waits for transactions that are open."""
_POLL_SECONDS = 0.1
_NAMED = 3

_OPEN = (
    "SELECT transactionid::text FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted"
)
# Not pg_current_snapshot(): its xmax follows the last transaction that ended, not the last one that began.
_HOLDERS = """
SELECT l.pid, a.usename::text, a.application_name, p.gid, p.database::text,
       date_trunc('second', coalesce(a.xact_start, p.prepared))::text
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
LEFT JOIN pg_prepared_xacts AS p ON p.transaction = l.transactionid
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND (l.pid IS NOT NULL OR p.gid IS NOT NULL)
AND (%(xids)s::text[] IS NULL OR l.transactionid::text = ANY (%(xids)s::text[]))
ORDER BY age(l.transactionid) DESC"""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """`text`: who has it open, and since when. `ending`: what ends it."""

    text: str
    ending: str


def open_transactions(connection: Connection) -> set[str]:
    """Returns the open transactions that have an id. Each holds a lock on its id until its writes are visible."""
    with connection.cursor() as cursor:
        cursor.execute(_OPEN)
        return {str(row[0]) for row in cursor.fetchall()}


def still_unseen(connection: Connection, transactions: Collection[int]) -> set[int]:
    """Returns those of the committed transactions (32-bit ids) that later SELECTs may not see yet. The log has a transaction
    before its writes are visible: a long time before, if its commit waits for a synchronous standby."""
    return {int(xid) for xid in open_transactions(connection)}.intersection(transactions)


def describe(connection: Connection, xids: Collection[str] | None = None) -> list[OpenTransaction]:
    """Returns the open transactions among `xids` (None: all), the oldest first. Rows' values are not shown."""
    with connection.cursor() as cursor:
        cursor.execute(_HOLDERS, {"xids": None if xids is None else list(xids)})
        rows = cursor.fetchall()
    found: dict[tuple[int | None, str | None], OpenTransaction] = {}  # a process holds one lock for each subtransaction
    for pid, user, application, gid, database, since in rows:
        found.setdefault((pid, gid), described(pid, user, application, gid, database, since))
    return list(found.values())


def wait_for_open_transactions(connection: Connection, *, seconds: float | None = None) -> None:
    """Waits until every transaction that is open now has ended. Raises SourceNotUsableError after `seconds` (SETTLE_SECONDS).

    The log lacks what such a transaction wrote to a table before the table was published. And a committed transaction can
    be in the log before it is visible.

    A standby does not name its primary's open transactions. There it waits until all ids that are given out now have ended.
    """
    if (next_id := _next_id_on_standby(connection)) is not None:
        _wait_on_standby(connection, next_id, SETTLE_SECONDS if seconds is None else seconds)
        return
    older, wait = open_transactions(connection), LongWait()
    deadline = time.monotonic() + (SETTLE_SECONDS if seconds is None else seconds)
    while older := older & open_transactions(connection):
        if time.monotonic() > deadline:
            raise open_for_long(connection, older)
        wait.goes_on(partial(_waited_for, connection, older))
        time.sleep(_POLL_SECONDS)


_WRITERS = """
SELECT l.virtualtransaction, l.pid, a.usename::text, a.application_name, NULL, NULL, date_trunc('second', a.xact_start)::text
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = ANY (%s::oid[]) AND l.mode = 'RowExclusiveLock'
AND l.granted AND l.pid IS NOT NULL AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
ORDER BY a.xact_start"""


def wait_for_writers(connection: Connection, oids: Collection[int], *, seconds: float | None = None) -> None:
    """Waits until every transaction that holds a lock to write to the tables has ended. Raises SourceNotUsableError after
    `seconds` (SETTLE_SECONDS).

    An UPDATE or a DELETE takes the lock, and then the server asks once whether the table needs a replica identity. Its
    transaction may get an id only with its first row, so it need not be among the open ones. Prepared transactions have ids.
    """
    older, wait = _writers(connection, oids), LongWait()
    deadline = time.monotonic() + (SETTLE_SECONDS if seconds is None else seconds)
    while older:
        now = _writers(connection, oids)
        older = {transaction: now[transaction] for transaction in older if transaction in now}
        if older and time.monotonic() > deadline:
            raise _still_open(list(older.values()))
        if older:
            wait.goes_on(partial(_named_waited_for, list(older.values())))
            time.sleep(_POLL_SECONDS)


def _writers(connection: Connection, oids: Collection[int]) -> dict[str, OpenTransaction]:
    with connection.cursor() as cursor:
        cursor.execute(_WRITERS, (list(oids),))
        return {str(transaction): described(*facts) for transaction, *facts in cursor.fetchall()}


# age() counts from the next id that the server knows of.
_NEXT_ID = """
SELECT CASE WHEN pg_is_in_recovery() THEN now.xmax + age((now.xmax % 4294967296)::text::xid) END
FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xmax) AS now"""
_OLDEST_RUNNING = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"


def _next_id_on_standby(connection: Connection) -> int | None:
    with connection.cursor() as cursor:
        cursor.execute(_NEXT_ID)
        ((found,),) = cursor.fetchall()
    return None if found is None else int(found)


def _wait_on_standby(connection: Connection, next_id: int, seconds: float) -> None:
    deadline, wait = time.monotonic() + seconds, LongWait()
    while True:
        with connection.cursor() as cursor:
            cursor.execute(_OLDEST_RUNNING)
            ((oldest,),) = cursor.fetchall()
        if int(oldest) >= next_id:
            return
        text = f"transactions from {oldest} on are open on the primary, or the standby has not replayed their end"
        remedy = (
            "Let them end. On the primary: SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL "
            "ORDER BY xact_start, and SELECT * FROM pg_prepared_xacts."
        )
        if time.monotonic() > deadline:
            raise SourceNotUsableError(
                f"The job can't start reading the log while older transactions are open: {text}.",
                f"{remedy} Then run the job again.",
            )
        wait.goes_on(partial("The job waits until older transactions have ended: {}. {}".format, text, remedy))
        time.sleep(_POLL_SECONDS)


def _waited_for(connection: Connection, xids: Collection[str]) -> str:
    return _named_waited_for(describe(connection, xids))


def _named_waited_for(found: Sequence[OpenTransaction]) -> str:
    named = " ".join(f"{transaction.text}. {transaction.ending}." for transaction in found[:_NAMED])
    return f"The job waits until older transactions have ended: {named or 'the last of them has just ended.'}"


def open_for_long(connection: Connection, xids: Collection[str]) -> SourceNotUsableError:
    """Returns the error for a start that has waited for these transactions."""
    return _still_open(describe(connection, xids))


def _still_open(found: Sequence[OpenTransaction]) -> SourceNotUsableError:
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    named = "; ".join(transaction.text for transaction in found[:_NAMED])
    return SourceNotUsableError(
        "The job can't start reading the log while older transactions are open"
        + (f": {named}{more}." if found else ". The last of them has just ended."),
        "".join(f"{transaction.ending}. " for transaction in found[:_NAMED]) + "Then run the job again.",
    )


def described(
    pid: int | None, user: str | None, application: str | None, gid: str | None, database: str | None, since: str | None
) -> OpenTransaction:
    """Returns a transaction of the process, or one that was prepared as `gid`."""
    if gid is not None:
        return OpenTransaction(
            f"the prepared transaction {gid} in database {database}, since {since}",
            f"Let its transaction manager finish it, or COMMIT PREPARED {quote_literal(gid)} or "
            f"ROLLBACK PREPARED {quote_literal(gid)} in database {database}",
        )
    facts = [f"user {user}"] if user else []
    facts += [f"application {application}"] if application else []
    facts += [f"since {since}"] if since else []
    return OpenTransaction(
        f"process {pid} ({', '.join(facts) or 'of another role'})", f"End it, or SELECT pg_terminate_backend({pid})"
    )
