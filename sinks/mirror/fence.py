"""The fence of a mirror: rows for each job in the target, `owner` and `log`.

The transaction of every part locks the owner's row shared, so that parts are written side by side. A driver that takes over
locks it exclusively: it waits for the transactions that run, or ends them, and refuses all later ones of other drivers. The
transaction of a log part also moves the row `log` on, from the log epoch before it. So a log epoch takes effect only after what
precedes it.

Several transactions may write the tables of one epoch of the log (`sinks/mirror/shares.py`). Each but the last one to commit
locks the row `log` shared, and leaves ledger entries of its tables. The last one moves the row on. A row `whole` names an epoch
that is not to be written so.

The ledger forgets a log part when the next one is written, and a split when another driver takes over and a later log epoch
has been written. Until then a late task of the same driver may still come, and finds the entry.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from tidemark.sinks.fencing import require_order, require_owner, taken_over
from tidemark.sinks.sink import JobIdentity, Written
from tidemark.state.change_batch import LOG_PART
from tidemark.state.errors import SinkError
from tidemark.state.reached import Reached

_OWNER, _LOG, _WHOLE = "owner", "log", "whole"
_OF_LOG = f"{LOG_PART}%"
"""The ledger entries of an epoch of the log: the part's, and those of single tables of it."""


class Statements(Protocol):
    """The methods that the fence needs of a session."""

    def execute(self, sql: str, arguments: tuple[Any, ...] = (), *, doing: str = "being asked") -> int: ...
    def query(self, sql: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]: ...
    def start_transaction(self) -> None: ...
    def end_transaction(self, doing: str) -> None: ...
    def rollback(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Fence:
    """`table` and `ledger` are full names for SQL. `insert`, `skip_existing`: an INSERT that leaves out existing rows.
    `lock_shared`: what follows a SELECT that locks its rows shared."""

    session: Statements
    table: str
    ledger: str
    insert: str
    skip_existing: str
    lock_shared: str

    def take_over(self, job: JobIdentity) -> None:
        """Makes the job's driver the owner. Waits until the transactions of other drivers have ended. Raises JobHeldError if
        a later driver is the owner."""
        doing = "taking over the job"
        self.session.start_transaction()
        for name in (_OWNER, _LOG):
            self.session.execute(
                f"{self.insert} {self.table} (job_uuid, name, value) VALUES (%s, %s, 0) {self.skip_existing}",
                (job.uuid, name),
                doing=doing,
            )
        self.session.end_transaction(doing)
        self.session.start_transaction()
        found = self._value(job.uuid, _OWNER, "FOR UPDATE")
        if found is not None and found > job.owner:
            self.session.rollback()
            raise taken_over(job, found, self.table)
        self._set(job.uuid, _OWNER, job.owner)
        reached = self._value(job.uuid, _LOG) or 0
        self.session.execute(
            f"DELETE FROM {self.ledger} WHERE job_uuid = %s AND epoch < %s", (job.uuid, reached), doing=doing
        )
        self.session.end_transaction(doing)

    def is_owner(self, job: JobIdentity) -> bool:
        return self._value(job.uuid, _OWNER) == job.owner

    def enter(self, job: JobIdentity) -> None:
        """Locks the owner's row shared until the transaction's end. Raises unless the job's driver is the owner."""
        require_owner(job, self._value(job.uuid, _OWNER, self.lock_shared), self.table)

    def require_next(self, job: JobIdentity, epoch: int, after: Reached | None) -> None:
        """Raises SinkError if this epoch of the log is not the next one. No transaction records it before this one ends."""
        self._next(job, epoch, after, self.lock_shared)

    def _next(self, job: JobIdentity, epoch: int, after: Reached | None, lock: str) -> Written:
        written = Written(self._value(job.uuid, _LOG, lock) or 0)
        if after is not None and after.splits:
            written = Written(written.log_epoch, self._splits(job.uuid, written.log_epoch))
        require_order(epoch, after, written, self.table)
        return written

    def move_on(self, job: JobIdentity, epoch: int, after: Reached | None) -> None:
        """Records that the transaction writes this epoch of the log. Raises SinkError if it is not the next one."""
        written = self._next(job, epoch, after, "FOR UPDATE")
        if self._set(job.uuid, _LOG, epoch) != 1:
            raise SinkError(f"{self.table} does not take epoch {epoch}.", "Check that table for triggers.")
        self.session.execute(
            f"DELETE FROM {self.ledger} WHERE job_uuid = %s AND epoch = %s AND part LIKE %s",
            (job.uuid, written.log_epoch, _OF_LOG),
        )

    def keep_whole(self, job: JobIdentity, epoch: int) -> None:
        """Records that this epoch of the log is to be written by one connection."""
        doing = "noting how an epoch is written"
        self.session.execute(
            f"{self.insert} {self.table} (job_uuid, name, value) VALUES (%s, %s, 0) {self.skip_existing}",
            (job.uuid, _WHOLE),
            doing=doing,
        )
        self._set(job.uuid, _WHOLE, epoch)

    def is_whole(self, job: JobIdentity, epoch: int) -> bool:
        return self._value(job.uuid, _WHOLE) == epoch

    def written(self, job: JobIdentity) -> Written:
        reached = self._value(job.uuid, _LOG) or 0
        ((begun,),) = self.session.query(
            f"SELECT max(epoch) FROM {self.ledger} WHERE job_uuid = %s AND epoch > %s AND part LIKE %s",
            (job.uuid, reached, _OF_LOG),
        )
        splits = self._splits(job.uuid, reached)
        newest = self.session.query(
            f"SELECT part FROM {self.ledger} WHERE job_uuid = %s AND epoch = %s AND part NOT LIKE %s",
            (job.uuid, max(splits, default=0), _OF_LOG),
        )
        return Written(reached, splits, begun or 0, frozenset(part for (part,) in newest))

    def _splits(self, job_uuid: str, after: int) -> dict[int, int]:
        found = self.session.query(
            f"SELECT epoch, count(*) FROM {self.ledger} WHERE job_uuid = %s AND epoch > %s AND part NOT LIKE %s GROUP BY epoch",
            (job_uuid, after, _OF_LOG),
        )
        return {int(epoch): int(count) for epoch, count in found}

    def _value(self, job_uuid: str, name: str, lock: str = "") -> int | None:
        found = self.session.query(
            f"SELECT value FROM {self.table} WHERE job_uuid = %s AND name = %s {lock}", (job_uuid, name)
        )
        return int(found[0][0]) if found else None

    def _set(self, job_uuid: str, name: str, value: int) -> int:
        return self.session.execute(
            f"UPDATE {self.table} SET value = %s WHERE job_uuid = %s AND name = %s",
            (value, job_uuid, name),
            doing="moving the fence",
        )
