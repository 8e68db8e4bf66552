"""Tidemark's own tables in a mirror's target: the ledger of written parts, the fence, and the registry of the tables' owners.

Both kinds of server share everything here but a few words of SQL. A part's ledger entry is the first write of the part's
transaction, behind the fence: of two attempts at a part, the second waits for the first one's entry, and then finds it or not.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

from tidemark.sinks.mirror.fence import Fence
from tidemark.sinks.mirror.target import Dialect, Owner, TargetName, TargetTable
from tidemark.sinks.sink import JobIdentity, SinkBusyError, Written
from tidemark.state.change_batch import LOG_PART
from tidemark.state.errors import SinkError
from tidemark.state.reached import Reached
from tidemark.state.remedies import START_OVER
from tidemark.state.table import FENCE_TABLE, LEDGER_TABLE, REGISTRY_TABLE, REJECTS_TABLE, Column

LOCK_WAIT_SECONDS = 900
"""Longer than the time after which a server ends an idle writer, so that a second attempt at a part waits until the locks of a
dead first one are released."""
KEY_LOCK_SECONDS = 10
"""How long a copy that gets another key is waited for. Readers that come meanwhile wait, too."""
PATIENCE_SECONDS = 2
"""How long a take-over lets transactions of earlier drivers run. Then it ends their sessions."""
_ROWS_A_STATEMENT = 500
_OWNER_COLUMNS = "target_schema, target_table, job_uuid, job_name, source_table"


def writer_name(job_uuid: str, owner: int | None = None) -> str:
    """Returns the name of a writer's session in the server, or without `owner` its prefix. PostgreSQL keeps 63 characters."""
    return f"tidemark mirror {job_uuid} {'' if owner is None else owner}"


class LedgerSession(ABC):
    """The part of a `tidemark.sinks.mirror.target.Session` that reads and writes Tidemark's own tables."""

    home: str
    _INSERT: ClassVar[str]
    """An INSERT that leaves out rows whose key exists, up to the table's name, and what follows its VALUES."""
    _SKIP_EXISTING: ClassVar[str]
    _LOCK_SHARED: ClassVar[str]
    """The end of a SELECT that locks its rows shared."""
    locks_only_rows: ClassVar[bool]
    rolls_back_ddl: ClassVar[bool]
    _job: JobIdentity
    _part: tuple[str, int, str]

    @abstractmethod
    def execute(self, sql: str, arguments: tuple[Any, ...] = (), *, doing: str = "being asked") -> int:
        """Returns the number of affected rows."""

    @abstractmethod
    def query(self, sql: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def end_transaction(self, doing: str) -> None:
        """COMMIT."""

    @abstractmethod
    def start_transaction(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None: ...

    @abstractmethod
    def wait_for_locks(self, seconds: int) -> None:
        """Sets how long later statements wait for locks of other sessions. Then they raise SinkBusyError."""

    @abstractmethod
    def writers(self, prefix: str) -> dict[int, str]:
        """Returns the other sessions of this account whose name begins with `prefix`, as far as the server tells: names by
        id."""

    @abstractmethod
    def end_session(self, session_id: int) -> None:
        """Ends another session, which rolls back its transaction. Does nothing if it is gone."""

    @abstractmethod
    def exists(self, target: TargetName) -> bool:
        """True if a table or view of this name exists."""

    @abstractmethod
    def full_name(self, target: TargetName) -> str:
        """Schema and name, quoted."""

    @abstractmethod
    def registered_name(self, target: TargetName) -> tuple[str, str]:
        """One spelling for a table, also where the server ignores the case of names."""

    @abstractmethod
    def inspect_all(self, targets: Iterable[TargetName]) -> dict[TargetName, TargetTable]:
        """Returns those of the tables that exist."""

    @property
    @abstractmethod
    def dialect(self) -> Dialect: ...

    def make_types(self, target: TargetName, columns: Sequence[Column], taken: Collection[str] = ()) -> Dialect:
        """See `tidemark.sinks.mirror.target.Session`. Of a target that has no types of this kind."""
        return self.dialect

    def add_labels(self, enum: str, labels: Sequence[str]) -> None:
        raise NotImplementedError(f"{enum}: no column of the target is an enum of PostgreSQL")

    def inspect(self, target: TargetName) -> TargetTable | None:
        return self.inspect_all([target]).get(target)

    def owners(self, targets: Iterable[TargetName]) -> dict[TargetName, Owner]:
        registry = TargetName(self.home, REGISTRY_TABLE)
        if not self.exists(registry):
            return {}
        incarnation = "incarnation" if self.has_column(registry, "incarnation") else "NULL"
        found = {
            (schema, table): Owner(JobIdentity(uuid, name), source, bool(created), seen)
            for schema, table, uuid, name, source, created, seen in self.query(
                f"SELECT target_schema, target_table, job_uuid, job_name, source_table, created, {incarnation} "
                f"FROM {self.full_name(registry)}"  # without arguments, so percent signs are not doubled
            )
        }
        named = ((target, self.registered_name(target)) for target in targets)
        return {target: found[name] for target, name in named if name in found}

    def claim(self, tables: Mapping[TargetName, str], job: JobIdentity) -> dict[TargetName, Owner]:
        doing = f"entering tables into {REGISTRY_TABLE}"
        rows = [(*self.registered_name(target), job.uuid, job.name, source) for target, source in tables.items()]
        for some in _batches(rows):
            self.execute(
                f"{self._INSERT} {self._registry} ({_OWNER_COLUMNS}) VALUES "
                f"{', '.join(['(%s, %s, %s, %s, %s)'] * len(some))} {self._SKIP_EXISTING}",
                tuple(chain.from_iterable(some)),
                doing=doing,
            )
        self.end_transaction(doing)
        owners = self.owners(tables)
        if missing := [str(target) for target in tables if target not in owners]:
            raise SinkError(
                f"{missing[0]} was entered into {self._registry}, but is not there.",
                "Check that table for triggers, and that the server keeps what is committed; then start the job again.",
            )
        return owners

    def mark_created(self, targets: Iterable[TargetName]) -> None:
        doing = f"marking tables as created in {REGISTRY_TABLE}"
        for some in _batches([self.registered_name(target) for target in targets]):
            self.execute(
                f"UPDATE {self._registry} SET created = TRUE WHERE (target_schema, target_table) IN "
                f"({', '.join(['(%s, %s)'] * len(some))})",
                tuple(chain.from_iterable(some)),
                doing=doing,
            )
        self.end_transaction(doing)

    def has_column(self, target: TargetName, column: str) -> bool:
        sql = (
            "SELECT 1 FROM information_schema.columns WHERE table_schema = %s AND table_name = %s AND column_name = %s"
        )
        return bool(self.query(sql, (target.schema, target.table, column)))

    def incarnations(self, targets: Iterable[TargetName]) -> dict[TargetName, str]:
        named = {self.registered_name(target): target for target in targets}
        found = dict[TargetName, str]()
        for some in _batches(list(named)):
            rows = self.query(
                f"SELECT target_schema, target_table, incarnation FROM {self._registry} WHERE incarnation IS NOT NULL "
                f"AND (target_schema, target_table) IN ({', '.join(['(%s, %s)'] * len(some))})",
                tuple(chain.from_iterable(some)),
            )
            found |= {named[schema, table]: seen for schema, table, seen in rows}
        return found

    def note_incarnations(self, tables: Mapping[TargetName, TargetTable]) -> None:
        for target, table in tables.items():
            self.execute(
                f"UPDATE {self._registry} SET incarnation = %s WHERE target_schema = %s AND target_table = %s",
                (table.incarnation, *self.registered_name(target)),
                doing=f"noting a table in {REGISTRY_TABLE}",
            )

    def _add_incarnation(self) -> None:
        """Adds the column to a registry that an older version made."""
        registry = TargetName(self.home, REGISTRY_TABLE)
        if not self.has_column(registry, "incarnation"):
            self.execute(f"ALTER TABLE {self.full_name(registry)} ADD COLUMN incarnation varchar(64)")

    def require_writable(self) -> None:
        """Raises ReadOnlyError if the server accepts no writes. What a standby lacks it may only not have yet."""
        if self.exists(TargetName(self.home, FENCE_TABLE)):
            self._begin_writing()
            self.rollback()

    def _begin_writing(self) -> None:
        """Begins a transaction at the server that takes writes, if a balancer chooses one by the statement. Raises
        ReadOnlyError."""
        self.rollback()
        self.start_transaction()
        self.execute(f"DELETE FROM {self.full_name(TargetName(self.home, FENCE_TABLE))} WHERE 1 = 0")

    def take_over(self, job: JobIdentity) -> None:
        self.wait_for_locks(PATIENCE_SECONDS)
        try:
            self._fence.take_over(job)
        except SinkBusyError:
            self.rollback()
            self._end_late_writers(job)
        else:
            self.wait_for_locks(LOCK_WAIT_SECONDS)
            return
        self.wait_for_locks(LOCK_WAIT_SECONDS)
        self._fence.take_over(job)

    def _end_late_writers(self, job: JobIdentity) -> None:
        """Ends the sessions of earlier drivers' writers. Such a driver may be frozen, or its machine dead, with a transaction
        that the server would keep open for long. What it has not committed is in the plan of its epoch."""
        for session_id, name in self.writers(writer_name(job.uuid)).items():
            if int(name.rpartition(" ")[2]) < job.owner:
                self.end_session(session_id)

    def hold_fence(self, job: JobIdentity) -> None:
        self.start_transaction()
        is_owner = self._fence.is_owner(job)
        self.rollback()
        if not is_owner:
            # Never twice: late tasks of the driver itself still need the ledger's entries, which a take-over removes.
            self.take_over(job)
        self.start_transaction()
        self._fence.enter(job)

    def written(self, job: JobIdentity) -> Written:
        self._begin_writing()
        found = self._fence.written(job)
        self.rollback()
        return found

    def begin(self, job: JobIdentity, epoch: int, part: str) -> int | None:
        self.start_transaction()
        self._job, self._part = job, (job.uuid, epoch, part)
        try:
            self._fence.enter(job)
        except SinkError:
            self.require_writable()
            raise
        entered = self.execute(
            f"{self._INSERT} {self._ledger} (job_uuid, epoch, part) VALUES (%s, %s, %s) {self._SKIP_EXISTING}",
            self._part,
            doing="entering the part into the ledger",
        )
        if entered:
            return None
        found = self.query(
            f"SELECT row_count FROM {self._ledger} WHERE job_uuid = %s AND epoch = %s AND part = %s", self._part
        )
        self.rollback()
        if not found or found[0][0] is None:
            raise SinkError(
                f"The ledger {self._ledger} neither takes nor has an entry for part {part} of epoch {epoch}.",
                f"Check that table for triggers and changed rows. If it was changed, {START_OVER}.",
            )
        return int(found[0][0])

    def begin_share(self, job: JobIdentity, epoch: int) -> None:
        self.start_transaction()
        self._job, self._part = job, (job.uuid, epoch, LOG_PART)
        self._fence.enter(job)

    def claim_entries(self, parts: Collection[str]) -> None:
        job_uuid, epoch, _ = self._part
        for some in _batches([(part,) for part in sorted(parts)]):
            self.execute(
                f"{self._INSERT} {self._ledger} (job_uuid, epoch, part) VALUES "
                f"{', '.join(['(%s, %s, %s)'] * len(some))} {self._SKIP_EXISTING}",
                tuple(chain.from_iterable((job_uuid, epoch, part) for (part,) in some)),
                doing="entering tables into the ledger",
            )

    def entries_written(self) -> dict[str, int]:
        job_uuid, epoch, _ = self._part
        found = self.query(
            f"SELECT part, row_count FROM {self._ledger} WHERE job_uuid = %s AND epoch = %s AND part LIKE %s "
            "AND row_count IS NOT NULL",
            (job_uuid, epoch, f"{LOG_PART}_%"),
        )
        return {part: int(row_count) for part, row_count in found}

    def note_entries(self, row_counts: Mapping[str, int]) -> None:
        job_uuid, epoch, _ = self._part
        for part, row_count in row_counts.items():
            self.execute(
                f"UPDATE {self._ledger} SET row_count = %s WHERE job_uuid = %s AND epoch = %s AND part = %s",
                (row_count, job_uuid, epoch, part),
                doing="entering tables into the ledger",
            )

    def commit_share(self, after: Reached | None) -> None:
        _, epoch, _ = self._part
        self._fence.require_next(self._job, epoch, after)
        self.end_transaction("committing")

    def keep_whole(self, job: JobIdentity, epoch: int) -> None:
        self.start_transaction()
        self._fence.enter(job)
        self._fence.keep_whole(job, epoch)
        self.end_transaction("noting how an epoch is written")

    def is_whole(self, job: JobIdentity, epoch: int) -> bool:
        self.start_transaction()
        found = self._fence.is_whole(job, epoch)
        self.rollback()
        return found

    def commit(self, row_count: int, after: Reached | None) -> None:
        _, epoch, part = self._part
        if part == LOG_PART:
            self._fence.move_on(self._job, epoch, after)
        self.execute(
            f"UPDATE {self._ledger} SET row_count = %s WHERE job_uuid = %s AND epoch = %s AND part = %s",
            (row_count, *self._part),
        )
        self.end_transaction("committing")

    @property
    def _fence(self) -> Fence:
        table = _escape_percent(self.full_name(TargetName(self.home, FENCE_TABLE)))
        return Fence(self, table, self._ledger, self._INSERT, self._SKIP_EXISTING, self._LOCK_SHARED)

    @property
    def _ledger(self) -> str:
        return _escape_percent(self.full_name(TargetName(self.home, LEDGER_TABLE)))

    @property
    def rejects(self) -> str:
        return _escape_percent(self.full_name(TargetName(self.home, REJECTS_TABLE)))

    @property
    def _registry(self) -> str:
        return _escape_percent(self.full_name(TargetName(self.home, REGISTRY_TABLE)))


def _batches(rows: Sequence[tuple[str, ...]]) -> Iterator[Sequence[tuple[str, ...]]]:
    for start in range(0, len(rows), _ROWS_A_STATEMENT):
        yield rows[start : start + _ROWS_A_STATEMENT]


def _escape_percent(name: str) -> str:
    """Escapes SQL with arguments: the driver reads a percent sign as a placeholder."""
    return name.replace("%", "%%")
