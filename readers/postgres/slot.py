"""The job's replication slot: made once, checked before every reading, advanced, dropped on demand only.

The slot is a logical one of pgoutput. What lies before its confirmed_flush_lsn is gone for good, silently, so its place is
compared with the job's before anything is read.
"""

import time
from dataclasses import dataclass
from typing import Any

import psycopg2

from readers.postgres.connect import Connection, error_code, error_text
from readers.postgres.log_source import NEW_JOB, ConnectionLostError
from readers.postgres.server import ServerIdentity, require_identity
from state.errors import LogPositionLostError, SourceNotUsableError
from state.position import WalPosition

SETTLE_SECONDS = 600.0
"""So long may the transactions take that are open when a slot is made."""
_POLL_SECONDS = 0.1
FLUSH_SECONDS = 60.0
_UNASKED_FLUSH_SECONDS = 0.5
_FLUSH_POLL_SECONDS = 0.02
_TIMED_OUT = "57014"

_SLOT = """
SELECT to_jsonb(s) || jsonb_build_object(
  'here', s.database IS NOT DISTINCT FROM current_database(),
  'confirmed', s.confirmed_flush_lsn - '0/0',
  'flushed', CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END - '0/0',
  'holder', (SELECT application_name FROM pg_stat_activity AS a WHERE a.pid = s.active_pid))
FROM pg_replication_slots AS s WHERE s.slot_name = %s
"""

_ENDS = """
SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint, (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint
"""

_OPEN = (
    "SELECT transactionid::text FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted"
)
# Not pg_current_snapshot(): its xmax is after the last one that ended, not after the last one that began.


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where a job reads its log."""

    identity: ServerIdentity
    slot: str
    publication: str


def create_slot(connection: Connection, slot: str) -> WalPosition:
    """The place from which the slot has the log. Every transaction that commits before it is visible to every snapshot
    that is taken after the call.

    The publication must be there already: it has to be older than the log that it is applied to. A slot that exists is
    taken as it is. The connection must be in autocommit mode. Raises SourceNotUsableError.
    """
    found = _find(connection, slot)
    if found is None:
        _create(connection, slot)
        found = _find(connection, slot)
        if found is None:
            raise SourceNotUsableError(f"The slot {slot} vanished while it was made.", "Run the job again.")
    else:
        _check_kind(found, slot)
        _check_kept(found, slot)
    wait_for_open_transactions(connection)
    return WalPosition(int(found["confirmed"]))


def wait_for_open_transactions(connection: Connection, *, seconds: float = SETTLE_SECONDS) -> None:
    """Until every transaction that is open now has ended. Raises SourceNotUsableError after `seconds`.

    What such a transaction wrote before a publication had its table is not in the log; and a committed one can be in the
    log before it is visible.
    """
    older = _open_transactions(connection)
    deadline = time.monotonic() + seconds
    while older := older & _open_transactions(connection):
        if time.monotonic() > deadline:
            raise _open_for_long(connection)
        time.sleep(_POLL_SECONDS)


def check_slot(
    connection: Connection, place: LogPlace, position: WalPosition, *, until: WalPosition | None = None
) -> None:
    """Does the slot still have the log from `position` on, and the log reach `until`? Raises LogPositionLostError,
    SourceNotUsableError, or ConnectionLostError where somebody reads it at the moment."""
    require_identity(connection, place.identity)
    found = check_place(connection, place.slot, position)
    if until is not None:
        _check_end(connection, found, until)
    if found["active"]:
        raise ConnectionLostError(
            f"the slot {place.slot} is in use by process {found['active_pid']} ({found['holder'] or 'unknown'})"
        )


def require_slot(connection: Connection, place: LogPlace, position: WalPosition, *, seconds: float = 30.0) -> None:
    """As `check_slot`, for the planner: who reads from the slot is waited for, then it is a SourceNotUsableError."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            check_slot(connection, place, position)
        except ConnectionLostError as exc:
            if time.monotonic() > deadline:
                raise SourceNotUsableError(
                    f"The source's log can't be read: {exc}.", "Stop whoever reads from it: a slot belongs to one job."
                ) from exc
            time.sleep(_POLL_SECONDS)
        else:
            return


def check_place(connection: Connection, slot: str, position: WalPosition) -> dict[str, Any]:
    """The same without asking who the server is, and whether the slot is being read. Its row of pg_replication_slots."""
    found = _find(connection, slot)
    if found is None:
        raise LogPositionLostError(
            f"The replication slot {slot} is gone, and with it the log from {position} on.",
            f"{NEW_JOB} It makes a new slot.",
        )
    _check_kind(found, slot)
    _check_kept(found, slot)
    _check_place(found, slot, position)
    _check_end(connection, found, position)
    return found


def slot_places(connection: Connection, slot: str) -> tuple[WalPosition, WalPosition]:
    """From where to where the slot has the log. Raises LogPositionLostError, SourceNotUsableError."""
    found = _find(connection, slot)
    if found is None:
        raise LogPositionLostError(f"The replication slot {slot} is gone.", f"{NEW_JOB} It makes a new slot.")
    _check_kind(found, slot)
    _check_kept(found, slot)
    return WalPosition(int(found["confirmed"])), log_end(connection)


def log_end(connection: Connection, *, seconds: float = FLUSH_SECONDS) -> WalPosition:
    """How far the log has come, once it is flushed as far: only then can it be read. No snapshot's high lies behind it.

    The server flushes at each commit, in the background what was committed asynchronously or pruned by a SELECT, and late
    what an open transaction wrote: an id that nobody uses makes it flush that too. Raises SourceNotUsableError after
    `seconds`.
    """
    end, flushed = _one(connection, _ENDS)
    started, asked = time.monotonic(), False
    while flushed < end:
        waited = time.monotonic() - started
        if waited > seconds:
            raise SourceNotUsableError(
                f"The server has not flushed its log in {seconds:.0f} s: {WalPosition(flushed)} of {WalPosition(end)}.",
                "Look after its disk.",
            )
        if waited > _UNASKED_FLUSH_SECONDS and not asked:
            _one(connection, "SELECT pg_current_xact_id()")
            asked = True
        time.sleep(_FLUSH_POLL_SECONDS)
        flushed = _one(connection, _ENDS)[1]
    return WalPosition(end)


def advance_slot(connection: Connection, slot: str, position: WalPosition) -> bool:
    """The server need no longer keep what lies before `position`, which sink and checkpoint hold. False where the slot is
    not there now, for it is being read: the next call makes up for it. Raises SourceNotUsableError."""
    found = _find(connection, slot)
    if found is not None and int(found["confirmed"]) >= position.lsn:
        return True
    if found is None or found["active"]:
        return False
    try:
        _one(connection, "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", slot, str(position))
    except psycopg2.Error as exc:
        if error_code(exc) == _IN_USE:
            return False
        raise _refused(exc) from exc
    return True


def slot_exists(connection: Connection, slot: str) -> bool:
    return _find(connection, slot) is not None


def drop_slot(connection: Connection, slot: str) -> bool:
    """False where there is none. Raises SourceNotUsableError, also for a slot that is in use, and for one of another kind
    or database."""
    found = _find(connection, slot)
    if found is None:
        return False
    _check_kind(found, slot)
    try:
        _one(connection, "SELECT pg_drop_replication_slot(%s)", slot)
    except psycopg2.Error as exc:
        raise _refused(exc) from exc
    return True


def _create(connection: Connection, slot: str) -> None:
    try:
        _one(connection, "SELECT set_config('statement_timeout', %s, false)", f"{SETTLE_SECONDS:.0f}s")
        _one(connection, "SELECT lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput', false, false)", slot)
        _one(connection, "SELECT set_config('statement_timeout', '0', false)")
    except psycopg2.Error as exc:
        if error_code(exc) == _TIMED_OUT:
            _one(connection, "SELECT set_config('statement_timeout', '0', false)")
            raise _open_for_long(connection) from exc
        raise _refused(exc) from exc


def _find(connection: Connection, slot: str) -> dict[str, Any] | None:
    """Its row of pg_replication_slots, with places as numbers."""
    with connection.cursor() as cursor:
        cursor.execute(_SLOT, (slot,))
        row = cursor.fetchone()
    return None if row is None else dict(row[0])


def _check_kind(found: dict[str, Any], slot: str) -> None:
    """Raises SourceNotUsableError."""
    if found["plugin"] != "pgoutput" or not found["here"] or found["temporary"] or found.get("two_phase"):
        raise SourceNotUsableError(
            f"The replication slot {slot} is not one that Tidemark can read: plugin {found['plugin']}, database "
            f"{found['database']}, temporary {found['temporary']}, two_phase {found.get('two_phase')}.",
            "Name another slot: source.slot. Tidemark makes it.",
        )


def _check_kept(found: dict[str, Any], slot: str) -> None:
    """Raises LogPositionLostError for a slot that the server gave up."""
    reason = found.get("invalidation_reason")
    if found["wal_status"] == "lost" or found.get("conflicting") or reason:
        raise LogPositionLostError(
            f"The source invalidated the replication slot {slot} ({reason or found['wal_status']}): the log that it kept "
            "is gone.",
            f"Drop it (tidemark drop), and start over: {NEW_JOB} Then let slots keep more: max_slot_wal_keep_size, "
            "idle_replication_slot_timeout.",
        )


def _check_place(found: dict[str, Any], slot: str, position: WalPosition) -> None:
    confirmed = WalPosition(int(found["confirmed"]))
    if confirmed.lsn > position.lsn:
        raise LogPositionLostError(
            f"The replication slot {slot} stands at {confirmed}, after {position}, where the job has to go on: somebody "
            "else read from it, or it was made anew.",
            f"{NEW_JOB} A slot belongs to one job.",
        )


def _check_end(connection: Connection, found: dict[str, Any], position: WalPosition) -> None:
    if int(found["flushed"]) < position.lsn and (end := log_end(connection)).lsn < position.lsn:
        raise LogPositionLostError(
            f"The source's log ends at {end}, before {position}, which it had reached: the server was restored from an "
            "older copy, or lost the end of its log.",
            NEW_JOB,
        )


def _open_transactions(connection: Connection) -> set[str]:
    """Those with an id; each holds a lock on it until it is over and what it wrote can be seen."""
    with connection.cursor() as cursor:
        cursor.execute(_OPEN)
        return {str(row[0]) for row in cursor.fetchall()}


def _open_for_long(connection: Connection) -> SourceNotUsableError:
    pid, user, since = _one(
        connection,
        "SELECT max(pid)::text, max(usename)::text, min(xact_start)::text FROM (SELECT * FROM pg_stat_activity "
        "WHERE backend_xid IS NOT NULL ORDER BY xact_start LIMIT 1) AS oldest",
    )
    return SourceNotUsableError(
        f"The log can't be begun while older transactions are open; the oldest is that of process {pid} ({user}), since "
        f"{since}.",
        "End it, then run the job again.",
    )


def _refused(error: psycopg2.Error) -> SourceNotUsableError:
    code = error_code(error)
    remedy = {
        _DENIED: "ALTER ROLE <role> REPLICATION.",
        _IN_USE: "Stop whoever reads from it.",
        _TOO_MANY: "Raise max_replication_slots, or drop slots that nobody needs.",
        _NOT_READY: "Set wal_level = logical on the source, and restart it.",
    }.get(code or "", "Correct what it says.")
    return SourceNotUsableError(f"The source refuses the job's replication slot: {error_text(error)}.", remedy)


_DENIED, _IN_USE, _TOO_MANY, _NOT_READY = "42501", "55006", "53400", "55000"


def _one(connection: Connection, sql: str, *arguments: object) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(sql, arguments or None)
        row = cursor.fetchone()
    if row is None:
        raise SourceNotUsableError("The source gave no answer to a question about its log.", "Run the job again.")
    return tuple(row)
