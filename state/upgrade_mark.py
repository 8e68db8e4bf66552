"""The mark of a PostgreSQL server before it is upgraded: with it, the job can prove that the new server's log has all that
follows (docs/adr/0070)."""

from dataclasses import dataclass

from tidemark.state.job_state import Membership
from tidemark.state.partitions import Partitions
from tidemark.state.position import Position
from tidemark.state.table import TableId


@dataclass(frozen=True, slots=True)
class UpgradeMark:
    """`server_identity`: as in JobState, before the upgrade. `position`: the job has read the log up to there, and with it
    all transactions below `next_xid` (64 bits), the server's next one. `transactions`: the sum in LogTotals at that
    position, of which a job that reads further has more. `slot`: a replication slot with a name that nobody else gives: a
    server that has it, and another identity, was made from this one by pg_upgrade. `at_us`: microseconds since 1970."""

    server_identity: str
    position: Position
    next_xid: int
    transactions: int
    slot: str
    at_us: int


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The facts that are proven of a server that was upgraded. `start`: its log has all changes from there on, and there
    were none between the mark's position and it. `memberships`, `partitions`: of the tables that go on, as in JobState.
    `unproven`: the others, with the reasons."""

    start: Position
    memberships: tuple[Membership, ...]
    partitions: Partitions
    unproven: tuple[tuple[TableId, str], ...] = ()
