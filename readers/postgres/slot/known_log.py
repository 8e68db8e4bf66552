"""Finds out whether the log is the one that the job has read.

A server that was restored from an older copy of its files, without a new timeline, gives the same positions again to other
transactions. Once its log has grown beyond what the job has read, only the transactions tell. Two standbys of one server
that are promoted independently of each other may begin timelines of the same number. Timeline histories tell neither.
"""

from tidemark.readers.postgres.connect import Connection
from tidemark.readers.postgres.pgoutput.stream import peek_query
from tidemark.readers.postgres.slot.slot import SlotSource, check_position, require_slot
from tidemark.state.errors import LogPositionLostError
from tidemark.state.log_extent import KnownLog
from tidemark.state.position import WalPosition, wal_position
from tidemark.state.remedies import START_OVER_NOW

_BEGIN = ord("B")
_EPOCH_MICROSECONDS = 946_684_800_000_000
"""2000-01-01, from which pgoutput counts microseconds."""


def require_known_log(connection: Connection, slot_source: SlotSource, position: WalPosition, known: KnownLog) -> None:
    """Compares the newest commit that the job has read before `position` with the one in the log. The server decodes what the
    slot keeps of it. Raises LogPositionLostError if they differ, and what `require_slot` raises.

    A copy of the server has all of the log up to the slot's position in it: the job advances the slot only over log that the
    server has. So an earlier commit need not be compared.
    """
    require_slot(connection, slot_source, position)
    kept = int(check_position(connection, slot_source.slot, position)["confirmed"])
    since = max(kept, wal_position(known.since).lsn)
    commit = None if known.commit is None else wal_position(known.commit)
    expected = None if commit is None or commit.lsn < since else (commit.lsn, known.commit_us)
    found = _last_commit(connection, slot_source, since, position)
    if found == expected:
        return
    has = "no transaction of the job's tables" if found is None else f"a transaction at {WalPosition(found[0])}"
    read = "none" if expected is None else f"one at {WalPosition(expected[0])}"
    raise LogPositionLostError(
        f"Before {position}, the last thing that the source's log has is {has}, where the job has read {read}: the server was "
        "restored from an older copy, and was written since. Or it comes from such a server, or from a standby that had not "
        "followed the job's.",
        START_OVER_NOW,
    )


def _last_commit(
    connection: Connection, slot_source: SlotSource, since: int, until: WalPosition
) -> tuple[int, int] | None:
    """Returns where the last commit record in [since, until) starts, and its time in microseconds since 1970."""
    log = peek_query(slot_source.slot, slot_source.publication, until)
    at = "substring(data FROM 2 FOR 8)"  # big-endian: in the order of the numbers
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {at}, substring(data FROM 10 FOR 8) FROM ({log}) AS log WHERE get_byte(data, 0) = {_BEGIN} "
            f"AND {at} >= %s AND {at} < %s ORDER BY 1 DESC LIMIT 1",
            (since.to_bytes(8, "big"), until.lsn.to_bytes(8, "big")),
        )
        row = cursor.fetchone()
    if row is None:
        return None
    lsn, time = (int.from_bytes(value, "big", signed=True) for value in row)
    return lsn, time + _EPOCH_MICROSECONDS
