"""The job's replication slot: created once, checked before every read, advanced, and dropped only on demand.

It is a logical slot of pgoutput. The server silently leaves out what is before its confirmed_flush_lsn, so that position is
compared with the job's before anything is read.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import psycopg2
import psycopg2.errors
import psycopg2.extras

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.libpq import connection_settings
from tidemark.conf.source import Tls
from tidemark.readers.long_waits import LongWait
from tidemark.readers.postgres.connect import (
    APPLICATION_NAME,
    CORRECT,
    KEEP_MORE_LOG,
    Connection,
    error_code,
    error_text,
    is_removed_log,
    quote_identifier,
    version_of,
)
from tidemark.readers.postgres.replay import await_replay, is_in_recovery, stopped_replay
from tidemark.readers.postgres.server import ServerIdentity, require_same
from tidemark.readers.postgres.session import will_pass
from tidemark.readers.postgres.slot import open_transactions as waits
from tidemark.readers.postgres.slot.log_source import ConnectionLostError, let_replicate
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError
from tidemark.state.failpoints import failpoint
from tidemark.state.log_extent import WalExtent
from tidemark.state.position import WalPosition
from tidemark.state.remedies import START_OVER, START_OVER_NOW

Answer = TypeVar("Answer")

FAILOVER_MAJOR = 17
"""The first version whose standbys keep copies of logical slots."""
_POLL_SECONDS = 0.1
PATIENCE_SECONDS = 2.0
"""How long the planner lets another reader of the job's slot go on. Then it ends it."""
READER_SECONDS = 30.0
"""How long another reader of the job's slot is waited for."""
FLUSH_SECONDS = 60.0
_UNASKED_FLUSH_SECONDS = 0.5
_FLUSH_POLL_SECONDS = 0.02
_TIMED_OUT = "57014"

# After the crash of one of its processes a standby replays again what it has, and has new statistics.
_STARTED = """(extract(epoch FROM CASE WHEN pg_is_in_recovery()
     THEN greatest(pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_bgwriter))
     ELSE pg_postmaster_start_time() END) * 1000000)::bigint"""
_SLOT = f"""
SELECT to_jsonb(s) || jsonb_build_object(
  'here', s.database IS NOT DISTINCT FROM current_database(),
  'confirmed', s.confirmed_flush_lsn - '0/0',
  'restart', s.restart_lsn - '0/0',
  'in_recovery', pg_is_in_recovery(),
  'flushed', CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END - '0/0',
  'started', {_STARTED},
  'holder', (SELECT application_name FROM pg_stat_activity AS a WHERE a.pid = s.active_pid))
FROM pg_replication_slots AS s WHERE s.slot_name = %s
"""

_ENDS = """
SELECT (CASE WHEN standby THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END - '0/0'::pg_lsn)::bigint,
       (CASE WHEN standby THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END - '0/0'::pg_lsn)::bigint
FROM (SELECT pg_is_in_recovery() AS standby OFFSET 0) AS server
"""


@dataclass(frozen=True, slots=True)
class SlotSource:
    """Where a job reads its log: server, slot and publication."""

    identity: ServerIdentity
    slot: str
    publication: str


SET_WAL_LEVEL = "ALTER SYSTEM SET wal_level = logical, and restart the server."
MAKE_ROOM_FOR_SLOT = (
    "Drop slots that nobody uses (SELECT * FROM pg_replication_slots), or raise max_replication_slots and restart the "
    "server."
)
_ONE_JOB = "Stop whoever reads from it: a slot belongs to one job."


def create_slot(connection: Connection, slot: str, *, needs_older_log: bool = True) -> WalPosition:
    """Creates the slot unless it exists. Replaces one that the server has invalidated, or whose log is gone, because nobody can
    read it any more. Returns the position from which it has the log. Every transaction that commits before that position is
    visible to every snapshot taken after the call.

    `needs_older_log` False: the log is read from its present end on. So the slot is moved there, and is replaced if a file of
    the log in between is gone: each query about the log would begin before it.

    The publication must exist already: it must be older than the log that is read through it. The connection must be in
    autocommit mode. Raises SourceNotUsableError.
    """
    found = _find(connection, slot)
    if found is not None and not _is_lost(found):
        _check_kind(found, slot)
    if found is not None and (
        _is_lost(found) or lacks_log(connection, slot) or (not needs_older_log and not _moved_to_end(connection, slot))
    ):
        drop_slot(connection, slot)
        failpoint("slot.dropped")
        found = None
    elif not needs_older_log:
        found = _find(connection, slot)  # it was moved
    if found is None:
        _create(connection, slot)
        found = _find(connection, slot)
        if found is None:
            raise SourceNotUsableError(f"The slot {slot} disappeared while it was created.", "Run the job again.")
    waits.wait_for_open_transactions(connection)
    return WalPosition(int(found["confirmed"]))


def _moved_to_end(connection: Connection, slot: str) -> bool:
    """Moves the slot to the log's end, for which the server reads all log that the slot has. Returns False if a file of it is
    gone, or the slot. Raises SourceNotUsableError if somebody else keeps reading from the slot."""
    end, began = log_end(connection), time.monotonic()
    reads = f"The server reads the log that the slot {slot} has kept, to move the slot to its end."
    try:
        while (found := _find(connection, slot)) is not None and int(found["confirmed"]) <= end.lsn:
            if found["active"]:
                _let_end(connection, slot, _in_use(slot, found), time.monotonic() - began, READER_SECONDS)
            elif _wait_telling(connection, partial(_advance, connection, slot, end), reads):
                break
    except psycopg2.Error as exc:
        if is_removed_log(exc):
            return False
        raise
    return found is not None


def check_slot(
    connection: Connection, slot_source: SlotSource, position: WalPosition, *, until: WalPosition | None = None
) -> None:
    """Checks that the slot still has the log from `position` on, and that the log reaches `until`. Raises
    LogPositionLostError, SourceNotUsableError, or ConnectionLostError if somebody reads from the slot now."""
    require_same(connection, slot_source.identity)
    found = check_position(connection, slot_source.slot, position)
    if until is not None:
        _check_end(connection, found, until)
    if found["active"]:
        raise _in_use(slot_source.slot, found)


def _in_use(slot: str, found: dict[str, Any]) -> ConnectionLostError:
    return ConnectionLostError(
        f"the slot {slot} is in use by process {found['active_pid']} ({found['holder'] or 'unknown'})"
    )


def require_slot(
    connection: Connection, slot_source: SlotSource, position: WalPosition, *, seconds: float = READER_SECONDS
) -> None:
    """Checks the slot as `check_slot` does, for the planner, which has the job's lease: waits for another reader of the
    slot, then raises SourceNotUsableError. If the reader is one of Tidemark's and does not end soon, its session is ended:
    the server goes on with what a killed driver has asked for."""
    began = time.monotonic()
    while True:
        try:
            check_slot(connection, slot_source, position)
        except ConnectionLostError as exc:
            _let_end(connection, slot_source.slot, exc, time.monotonic() - began, seconds)
        else:
            return


def _let_end(
    connection: Connection, slot: str, reader: ConnectionLostError, waited_seconds: float, seconds: float
) -> None:
    """Waits a little for another reader of the slot, and after a while ends it if it is one of Tidemark's. Raises
    SourceNotUsableError if that has lasted for `seconds`."""
    if waited_seconds > PATIENCE_SECONDS:
        end_own_reader(connection, slot)
    if waited_seconds > seconds:
        raise SourceNotUsableError(f"The source's log can't be read: {reader}.", _ONE_JOB) from reader
    time.sleep(_POLL_SECONDS)


def end_own_reader(connection: Connection, slot: str) -> None:
    """Ends the session that reads from the slot if it is one of Tidemark's with the same role, and waits for its end."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(a.pid, %s) FROM pg_replication_slots AS s JOIN pg_stat_activity AS a "
            "ON a.pid = s.active_pid WHERE s.slot_name = %s AND a.application_name = %s AND a.usename = current_user",
            (round(PATIENCE_SECONDS * 1000), slot, APPLICATION_NAME),
        )


def check_position(connection: Connection, slot: str, position: WalPosition) -> dict[str, Any]:
    """Checks the slot as `check_slot` does, but not the server's identity and other readers. Returns the slot's row of
    pg_replication_slots."""
    found = _find(connection, slot)
    if found is None:
        if is_in_recovery(connection):
            raise LogPositionLostError(
                f"The standby does not have the job's replication slot {slot}, with the log from {position} on.",
                f"If another standby has it, name that one in source.url and run the job again: nothing is lost. Otherwise "
                f"{START_OVER}: a new start creates a new slot.",
            )
        raise LogPositionLostError(
            f"The replication slot {slot} is gone, and with it the log from {position} on.",
            "If source.slot was changed, undo that and run the job again: nothing is lost. Otherwise "
            f"{START_OVER}: a new start creates a new slot.",
        )
    _check_kind(found, slot)
    _check_kept(found, slot)
    _check_position(found, slot, position)
    _check_end(connection, found, position)
    return found


def can_be_read(connection: Connection, slot: str, position: WalPosition) -> bool:
    """Returns whether the slot has the log from `position` on. Raises SourceNotUsableError for a slot of another kind."""
    found = _find(connection, slot)
    if found is None:
        return False
    _check_kind(found, slot)
    return not _is_lost(found) and int(found["confirmed"]) <= position.lsn and not lacks_log(connection, slot)


def lacks_log(connection: Connection, slot: str) -> bool:
    """Returns whether the file of the log is gone in which reading the slot begins, though the server has not invalidated the
    slot. False if somebody reads from it now."""
    try:
        _one(connection, _FIRST_RECORD, slot)
    except psycopg2.Error as exc:
        if is_removed_log(exc):
            return True
        if error_code(exc) != _IN_USE:
            raise
    return False


# Nothing before a slot's position is given to pgoutput, so the name of the publication does not matter.
_FIRST_RECORD = """
SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, '0/1', NULL, 'proto_version', '1', 'publication_names', 'none')
"""


def copy_slot(connection: Connection, slot: str, name: str) -> None:
    """Creates a slot at the same position as `slot`, which others may read from meanwhile. Standbys of the server keep no copy
    of the new one. Raises SourceNotUsableError."""
    try:
        _one(connection, "SELECT pg_copy_logical_replication_slot(%s, %s)", slot, name)
    except psycopg2.Error as exc:
        if will_pass(exc, connection):
            raise
        raise _refused(connection, exc) from exc


def slot_extent(connection: Connection, slot: str) -> WalExtent:
    """Returns the extent of the log that the slot has. Raises LogPositionLostError, SourceNotUsableError."""
    found = _find(connection, slot)
    if found is None:
        raise LogPositionLostError(f"The replication slot {slot} is gone.", START_OVER_NOW)
    _check_kind(found, slot)
    _check_kept(found, slot)
    return WalExtent(
        WalPosition(int(found["confirmed"])),
        log_end(connection),
        decoded_from=WalPosition(int(found["restart"])),
        server_started_us=int(found["started"]),
    )


def started_us(connection: Connection) -> int:
    """Returns when the server began to write or to replay its log, in microseconds since 1970, by its clock."""
    return int(_one(connection, f"SELECT {_STARTED}")[0])


@dataclass(frozen=True, slots=True)
class UntouchedSlot:
    """A slot that is as it was created. `catalog_xid`: all transactions with an id (32 bits) below it had ended then."""

    start: WalPosition
    catalog_xid: int


_RECORD_BYTES = 128
"""The most that a slot's position is after its restart_lsn when it was created: one record, of the open transactions. There are
none while pg_upgrade creates slots."""


def untouched_slot(connection: Connection, slot: str, beside: str) -> UntouchedSlot | None:
    """Returns the slot if it and the one `beside` it are as pg_upgrade creates them, one after the other, near the beginning of
    the log. None if somebody has read from one of them or advanced it since, or created it, or if one is missing."""
    first, second = (_find(connection, name) for name in (slot, beside))
    if first is None or second is None or not (_is_as_created(first) and _is_as_created(second)):
        return None
    file_bytes, slots = _one(connection, _LOG_SETTINGS)
    start, other = int(first["confirmed"]), int(second["confirmed"])
    begins = [
        position // int(file_bytes) for position in (start, other) if position % int(file_bytes) < int(file_bytes) // 8
    ]
    is_near = 0 < abs(start - other) <= _RECORD_BYTES * int(slots)
    if len(begins) < 2 or begins[0] != begins[1] or not is_near or first["catalog_xmin"] != second["catalog_xmin"]:
        return None
    return UntouchedSlot(WalPosition(start), int(first["catalog_xmin"]))


_LOG_SETTINGS = """
SELECT (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size'),
       current_setting('max_replication_slots')::int"""


def _is_as_created(found: dict[str, Any]) -> bool:
    is_ours = found["plugin"] == "pgoutput" and found["here"] and not found["active"] and not _is_lost(found)
    return is_ours and int(found["confirmed"]) - int(found["restart"]) <= _RECORD_BYTES


def log_end(connection: Connection, *, seconds: float = FLUSH_SECONDS) -> WalPosition:
    """Returns the log's end, once it is flushed: only then can it be read. No snapshot's high is after it. Raises
    SourceNotUsableError after `seconds`. A standby's log ends where it has replayed it, and all before that is visible."""
    end, flushed = _one(connection, _ENDS)
    _await_flush(connection, end, flushed, lambda: connection, seconds)
    return WalPosition(end)


def await_flush(connection: Connection, position: WalPosition, another: Callable[[], Connection] | None = None) -> None:
    """Waits until the log before `position` is flushed: a crash of the server could lose transactions after that, though
    snapshots see asynchronous commits at once. `position`: where the log ended when this connection asked last. `another`
    opens a connection, if this one is inside a transaction. Raises SourceNotUsableError after FLUSH_SECONDS."""
    flushed = _one(connection, _ENDS)[1]
    _await_flush(connection, position.lsn, flushed, another or (lambda: connection), FLUSH_SECONDS)


def _await_flush(
    connection: Connection, end: int, flushed: int, asked_on: Callable[[], Connection], seconds: float
) -> None:
    """The server flushes at each commit. It flushes asynchronous commits and pruning by SELECTs in the background, and writes
    of open transactions late: assigning an unused transaction id makes it flush these too."""
    started, asked = time.monotonic(), False
    while flushed < end:
        waited = time.monotonic() - started
        if waited > seconds:
            raise SourceNotUsableError(
                f"The server has not flushed its log in {seconds:.0f} s: {WalPosition(flushed)} of {WalPosition(end)}.",
                "Check the server's disk, then run the job again: it continues.",
            )
        if waited > _UNASKED_FLUSH_SECONDS and not asked:
            asking = asked_on()
            _one(asking, "SELECT pg_current_xact_id()")
            if asking is not connection:
                asking.close()
            asked = True
        time.sleep(_FLUSH_POLL_SECONDS)
        flushed = _one(connection, _ENDS)[1]


def advance_slot(connection: Connection, slot: str, position: WalPosition) -> bool:
    """Tells the server that it may remove the log before `position`, which sink and checkpoint hold. Returns False if the
    slot is in use or missing: the next call makes up for it. Raises SourceNotUsableError."""
    found = _find(connection, slot)
    if found is not None and int(found["confirmed"]) >= position.lsn:
        return True
    return found is not None and not found["active"] and _advance(connection, slot, position)


def _advance(connection: Connection, slot: str, position: WalPosition) -> bool:
    """Returns False if somebody reads from the slot."""
    try:
        _one(connection, "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", slot, str(position))
    except psycopg2.Error as exc:
        if error_code(exc) == _IN_USE:
            return False
        if will_pass(exc, connection):
            raise  # the connection was lost, which is no refusal
        raise _refused(connection, exc) from exc
    return True


def survives_failover(connection: Connection, slot: str) -> bool | None:
    """Returns whether standbys may keep a copy of the slot; None if there is no slot."""
    found = _find(connection, slot)
    return None if found is None else bool(found.get("failover"))


def let_survive_failover(endpoint: Endpoint, tls: Tls | None, slot: str) -> None:
    """Lets standbys keep copies of the slot, which only a replication connection can. Where none is allowed, the checks of the
    next start say so. Raises nothing."""
    quoted = quote_identifier(slot)
    with contextlib.suppress(psycopg2.Error):
        connection = psycopg2.connect(
            **connection_settings(endpoint, tls, APPLICATION_NAME),
            connection_factory=psycopg2.extras.LogicalReplicationConnection,
        )
        with contextlib.closing(connection), connection.cursor() as cursor:
            cursor.execute(f"ALTER_REPLICATION_SLOT {quoted} (FAILOVER true)")


def slot_exists(connection: Connection, slot: str) -> bool:
    return _find(connection, slot) is not None


def drop_slot(connection: Connection, slot: str) -> bool:
    """Drops the slot. Returns False if there is none. Raises SourceNotUsableError, also for a slot that is in use, of another
    kind, or of another database."""
    found = _find(connection, slot)
    if found is None:
        return False
    _check_kind(found, slot)
    try:
        _one(connection, "SELECT pg_drop_replication_slot(%s)", slot)
    except psycopg2.Error as exc:
        if will_pass(exc, connection):
            raise
        raise _refused(connection, exc) from exc
    return True


def _create(connection: Connection, slot: str) -> None:
    older = waits.open_transactions(connection)
    try:
        _one(connection, "SELECT set_config('statement_timeout', %s, false)", f"{waits.SETTLE_SECONDS:.0f}s")
        # Since 17 a standby may keep a copy of the slot, with which the job goes on after a failover. Not of one of its own.
        is_standby = is_in_recovery(connection)
        failover = ", true" if version_of(connection)[0] >= FAILOVER_MAJOR and not is_standby else ""
        create = f"SELECT lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput', false, false{failover})"
        if is_standby:
            _create_on_standby(connection, partial(_one, connection, create, slot))
        else:
            _one(connection, create, slot)
        _one(connection, "SELECT set_config('statement_timeout', '0', false)")
    except psycopg2.Error as exc:
        if error_code(exc) == _TIMED_OUT:
            _one(connection, "SELECT set_config('statement_timeout', '0', false)")
            if is_in_recovery(connection):
                remedy = stopped_replay(connection)
                if remedy is None:
                    remedy = f"Run the job again. {_ON_PRIMARY}"
                raise SourceNotUsableError(
                    f"The standby has not created the slot {slot} in {waits.SETTLE_SECONDS:.0f} s: it waits until the primary "
                    "logs which transactions run, and until older ones have ended.",
                    remedy,
                ) from exc
            now = waits.open_transactions(connection)
            raise waits.open_for_long(connection, older & now or now) from exc
        if will_pass(exc, connection):
            raise
        raise _refused(connection, exc) from exc


_ON_PRIMARY = (
    "On the primary, while the job starts: SELECT pg_log_standby_snapshot(). If that does not help, end the oldest "
    "transactions there: SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY "
    "xact_start, and SELECT * FROM pg_prepared_xacts."
)
_WAITS_FOR_PRIMARY = (
    f"The standby creates the job's slot once the primary has logged which transactions run, which it does every 15 s if it is "
    f"not idle. {_ON_PRIMARY}"
)


_CREATE_ATTEMPTS = 5
"""The primary learns only after some seconds which rows of its catalogs a new slot needs. If it has removed them before, the
standby ends the statement."""


def _create_on_standby(connection: Connection, create: Callable[[], object]) -> None:
    for attempt in range(1, _CREATE_ATTEMPTS + 1):
        try:
            _wait_telling(connection, create, _WAITS_FOR_PRIMARY)
        except psycopg2.errors.SerializationFailure:
            if attempt == _CREATE_ATTEMPTS or connection.closed:
                raise
        else:
            return


def _wait_telling(connection: Connection, query: Callable[[], Answer], text: str) -> Answer:
    """Runs the query in a thread, and tells `text` if it takes long. An interrupt ends the query."""
    wait, failed, found = LongWait(), list[BaseException](), list[Answer]()

    def run() -> None:
        try:
            found.append(query())
        except BaseException as error:  # noqa: BLE001  raised below
            failed.append(error)

    thread = threading.Thread(target=run, name="slot", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            wait.goes_on(lambda: text)
    except BaseException:
        connection.cancel()
        thread.join()
        raise
    if failed:
        raise failed[0]
    return found[0]


def require_own_standby(connection: Connection, slot: str) -> None:
    """Raises SourceNotUsableError if a standby answers that does not have the job's slot. Others may have replayed less, or
    follow a primary that was replaced."""
    if is_in_recovery(connection) and not slot_exists(connection, slot):
        raise SourceNotUsableError(
            f"A standby answers that does not have the job's replication slot {slot}.",
            "Name one standby in source.url, not an address that leads to several.",
        )


def _find(connection: Connection, slot: str) -> dict[str, Any] | None:
    """Returns the slot's row of pg_replication_slots, with LSNs as numbers; None if there is no slot."""
    with connection.cursor() as cursor:
        cursor.execute(_SLOT, (slot,))
        row = cursor.fetchone()
    return None if row is None else dict(row[0])


def _check_kind(found: dict[str, Any], slot: str) -> None:
    """Raises SourceNotUsableError unless the slot is a permanent pgoutput slot of this database."""
    if found["plugin"] != "pgoutput" or not found["here"] or found["temporary"] or found.get("two_phase"):
        raise SourceNotUsableError(
            f"Tidemark can't read the replication slot {slot}: plugin {found['plugin']}, database "
            f"{found['database']}, temporary {found['temporary']}, two_phase {found.get('two_phase')}.",
            "Name another slot in source.slot. Tidemark creates it.",
        )


def _check_kept(found: dict[str, Any], slot: str) -> None:
    """Raises LogPositionLostError for a slot that the server invalidated."""
    if _is_lost(found):
        reason = found.get("invalidation_reason")
        if found["in_recovery"] and found.get("conflicting"):
            raise LogPositionLostError(
                f"The standby invalidated the replication slot {slot} ({reason or 'it conflicts with recovery'}).",
                f"{START_OVER_NOW} {_KEEP_ON_STANDBY}",
            )
        raise LogPositionLostError(
            f"The source invalidated the replication slot {slot} ({reason or found['wal_status']}): its log is gone.",
            KEEP_MORE_LOG,
        )


_KEEP_ON_STANDBY = (
    "Then see that the primary keeps what the slot needs: on the standby hot_standby_feedback = on and primary_slot_name, on "
    "the primary wal_level = logical."
)


def _is_lost(found: dict[str, Any]) -> bool:
    return found["wal_status"] == "lost" or bool(found.get("conflicting") or found.get("invalidation_reason"))


def _check_position(found: dict[str, Any], slot: str, position: WalPosition) -> None:
    confirmed = WalPosition(int(found["confirmed"]))
    if confirmed.lsn > position.lsn:
        raise LogPositionLostError(
            f"The replication slot {slot} is at {confirmed}, but the job must continue from {position}: somebody else read "
            "from it, or it was dropped and created again.",
            f"{START_OVER_NOW} A slot belongs to one job.",
        )


def _check_end(connection: Connection, found: dict[str, Any], position: WalPosition) -> None:
    if int(found["flushed"]) >= position.lsn:
        return
    await_replay(connection, position)
    if (end := log_end(connection)).lsn < position.lsn:
        raise LogPositionLostError(
            f"The source's log ends at {end}, before {position}, which the job has read: the server was restored from an "
            "older copy, or lost the end of its log.",
            START_OVER_NOW,
        )


def _refused(connection: Connection, error: psycopg2.Error) -> SourceNotUsableError:
    code = error_code(error)
    remedy = {
        _DENIED: let_replicate(connection.info.user),
        _IN_USE: _ONE_JOB,
        _TOO_MANY: MAKE_ROOM_FOR_SLOT,
        _NOT_READY: SET_WAL_LEVEL,
    }.get(code or "", CORRECT)
    return SourceNotUsableError(f"The source refuses the job's replication slot: {error_text(error)}.", remedy)


_DENIED, _IN_USE, _TOO_MANY, _NOT_READY = "42501", "55006", "53400", "55000"


def _one(connection: Connection, sql: str, *arguments: object) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(sql, arguments or None)
        row = cursor.fetchone()
    if row is None:
        raise SourceNotUsableError("The source gave no answer to a query about its log.", "Run the job again.")
    return tuple(row)
