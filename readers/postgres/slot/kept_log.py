"""Keeps the log for longer than the job needs it (`checkpoints.keep`): for a rollback, or a target that was set back.

The job's slot stays close to the job's position, because the server decodes all log from there for each range. So copies of the
slot keep the older log: nobody reads from them, and they cost no decoding. A copy is made as often as `keep` says, and dropped
once a newer one is old enough. So there are two, and the log is kept for `keep` to twice that. Their names say when they were
made, by the server's clock, and on which timeline: a server that was promoted since has others. Standbys keep no copies of
them. The name says if they do of the job's slot.

To go back, the job's slot is made again from a copy (pg_copy_logical_replication_slot), and moved to the position.
"""

import hashlib
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import psycopg2

from tidemark.conf.redaction import redact
from tidemark.readers.postgres.connect import Connection, error_text, is_removed_log
from tidemark.readers.postgres.session import will_pass
from tidemark.readers.postgres.slot.slot import (
    SlotSource,
    advance_slot,
    can_be_read,
    copy_slot,
    drop_slot,
    end_own_reader,
    lacks_log,
    survives_failover,
)
from tidemark.state.errors import SourceNotUsableError
from tidemark.state.failpoints import failpoint
from tidemark.state.position import WalPosition

SPARE_SLOTS = 1
"""The slots of the server that stay free for others."""
RETRY_SECONDS = 60.0
_NAME_CHARACTERS = 31
_FAILOVER = "f"

_KEPT = """
SELECT s.slot_name, (s.confirmed_flush_lsn - '0/0'::pg_lsn)::bigint,
       s.wal_status = 'lost' OR to_jsonb(s) ->> 'conflicting' = 'true' OR to_jsonb(s) ->> 'invalidation_reason' IS NOT NULL,
       extract(epoch FROM clock_timestamp())::bigint
FROM pg_replication_slots AS s
WHERE starts_with(s.slot_name, %s) AND s.database = current_database() AND s.plugin = 'pgoutput'
"""
_SAME_PLACE = """
SELECT s.slot_name FROM pg_replication_slots AS s JOIN pg_replication_slots AS j
ON (s.restart_lsn, s.confirmed_flush_lsn) = (j.restart_lsn, j.confirmed_flush_lsn) WHERE j.slot_name = %s
"""
_FREE = "SELECT current_setting('max_replication_slots')::bigint - (SELECT count(*) FROM pg_replication_slots)"


@dataclass(frozen=True, slots=True)
class KeptSlot:
    """A copy of the job's slot. `start`: it has the log from there on. `age_seconds`: negative if the clock was set back.
    `survives_failover`: standbys kept copies of the job's slot when it was made."""

    name: str
    timeline: int
    start: WalPosition
    survives_failover: bool
    is_lost: bool
    age_seconds: int


def kept_slots(connection: Connection, slot: str) -> list[KeptSlot]:
    """Returns the copies of the job's slot that keep older log, the oldest first."""
    prefix = _prefix(slot)
    with connection.cursor() as cursor:
        cursor.execute(_KEPT, (prefix,))
        rows = cursor.fetchall()
    found = []
    for name, start, is_lost, now in rows:
        match = re.fullmatch(rf"(\d+)_(\d+)({_FAILOVER}?)", name[len(prefix) :])
        if match is not None and start is not None:
            timeline, at, failover = match.groups()
            kept = KeptSlot(name, int(timeline), WalPosition(int(start)), bool(failover), bool(is_lost), now - int(at))
            found.append(kept)
    return sorted(found, key=lambda kept: -kept.age_seconds)


def keep_log(connection: Connection, slot_source: SlotSource, keep_seconds: float) -> float:
    """Makes and drops copies of the job's slot where that is due. Returns after how many seconds it may be due again. What the
    server refuses is logged: the job does not need the copies. `keep_seconds` 0: there are to be none."""
    try:
        if not keep_seconds:
            forget_kept_log(connection, slot_source.slot)
            return math.inf
        return _keep_log(connection, slot_source, keep_seconds)
    except SourceNotUsableError as error:
        _warn(error.message)
    except psycopg2.Error as error:
        if will_pass(error, connection):
            raise
        _warn(error_text(error))
    return max(keep_seconds, RETRY_SECONDS)


def _keep_log(connection: Connection, slot_source: SlotSource, keep_seconds: float) -> float:
    timeline, kept = slot_source.identity.timeline, []
    for found in kept_slots(connection, slot_source.slot):
        if found.timeline != timeline or found.is_lost or found.age_seconds < 0:
            drop_slot(connection, found.name)
        else:
            kept.append(found)
    newest_age = kept[-1].age_seconds if kept else None
    if newest_age is not None and newest_age < keep_seconds:
        return keep_seconds - newest_age
    while len(kept) > 1:
        drop_slot(connection, kept.pop(0).name)
    if newest_age is not None and newest_age >= 2 * keep_seconds and _free_slots(connection) <= SPARE_SLOTS:
        drop_slot(connection, kept.pop().name)  # it keeps more log than is wanted
    if _free_slots(connection) <= SPARE_SLOTS:
        return min(max(keep_seconds, 1.0), RETRY_SECONDS)
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())::bigint")
        ((now,),) = cursor.fetchall()
    failover = _FAILOVER if survives_failover(connection, slot_source.slot) else ""
    copy_slot(connection, slot_source.slot, f"{_prefix(slot_source.slot)}{timeline}_{now}{failover}")
    return max(keep_seconds, 1.0)


def forget_kept_log(connection: Connection, slot: str) -> None:
    """Drops the copies of the job's slot."""
    for kept in kept_slots(connection, slot):
        drop_slot(connection, kept.name)


def lost_failover(connection: Connection, slot: str) -> bool:
    """Returns whether the job's slot was made again from a copy, and nobody has told the server yet that standbys are to keep
    copies of it, as they did before: a driver died half-way."""
    if survives_failover(connection, slot) is not False:
        return False
    with connection.cursor() as cursor:
        cursor.execute(_SAME_PLACE, (slot,))
        same = {name for (name,) in cursor.fetchall()}
    return any(kept.survives_failover and kept.name in same for kept in kept_slots(connection, slot))


def regain_log(
    connection: Connection, slot_source: SlotSource, position: WalPosition, then: Callable[[], None]
) -> bool:
    """Makes the job's slot again from a copy, if it is missing, lost or beyond `position` and a copy has the log from there on.
    Returns False otherwise. `then` is called once it is made. If it dies half-way the job's slot may be missing, and the next
    call makes it, or is at the copy's place. Raises SourceNotUsableError."""
    slot, timeline = slot_source.slot, slot_source.identity.timeline
    if can_be_read(connection, slot, position):
        return False
    older = [
        kept
        for kept in kept_slots(connection, slot)
        if kept.timeline == timeline
        and not kept.is_lost
        and kept.start.lsn <= position.lsn
        and not lacks_log(connection, kept.name)
    ]
    if not older:
        return False
    end_own_reader(connection, slot)
    drop_slot(connection, slot)
    failpoint("kept_log.dropped")
    copy_slot(connection, max(older, key=lambda kept: kept.start.lsn).name, slot)
    failpoint("kept_log.copied")
    then()
    # As in the ordinary course of the job: what is before is not decoded again, tables were published meanwhile.
    try:
        advance_slot(connection, slot, position)
    except psycopg2.Error as error:
        if is_removed_log(error):
            return False
        raise
    return True


def _free_slots(connection: Connection) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_FREE)
        ((free,),) = cursor.fetchall()
    return int(free)


def _prefix(slot: str) -> str:
    """Two jobs' names may begin alike."""
    return f"{slot[:_NAME_CHARACTERS]}_{hashlib.sha256(slot.encode()).hexdigest()[:8]}_"


def _warn(text: str) -> None:
    logging.getLogger("tidemark").warning("the log is not kept for longer (checkpoints.keep): %s", redact(text))
