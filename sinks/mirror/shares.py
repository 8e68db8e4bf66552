"""One epoch of the log, written into a mirror by several connections side by side (`log.apply_parallelism`).

A share is some tables of the epoch, with a connection and a transaction of its own. All changes of a table are in one share,
in the order of the log. A large table whose rows do not depend on each other may be divided: then a share has some of its
buckets (`sinks/mirror/buckets.py`). So no key is reordered. A share is committed with ledger entries of its tables and
buckets:

    all shares have written all their rows → one share after the other is committed → the first one last, with the fence

So an error in a share leaves nothing of the epoch. After a death between two commits, the ledger says which tables and
buckets are there. The next attempt leaves these out. It may divide the others as it likes, or write them by one connection.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from tidemark.sinks.mirror import buckets
from tidemark.sinks.mirror.buckets import Buckets
from tidemark.sinks.mirror.filling import Chunk, Filling
from tidemark.sinks.mirror.target import Session
from tidemark.sinks.parts import Part, check_repeated_part
from tidemark.sinks.sink import BadValues, JobIdentity, PartResult
from tidemark.state.failpoints import failpoint
from tidemark.state.table import TableId

LOCK_SECONDS = 5
"""How long a share waits for locks of other sessions. Another share of the epoch may have them, by a trigger of the target.
The server can't see that these two wait for each other: one of them waits here, until the other one has written all."""
ALIVE_SECONDS = 60.0
"""The least time between two questions to the sessions that have nothing to write: a server ends an idle transaction."""
MIN_BYTES = 1 << 20
"""An epoch with fewer changes is written by one connection: a second transaction would cost more than it saves. So is a
table."""


@dataclass(slots=True)
class Work:
    """The part of a chunk that a share writes. `buckets`: of divided tables, those of the share. The chunk has all of their
    changes."""

    chunk: Chunk = field(default_factory=dict)
    buckets: dict[TableId, Buckets] = field(default_factory=dict)


class Division:
    """Divides tables among `count` shares, the largest first, each to the share that has the least. A table stays in its
    share. A table that has more than a share's part of the first changes with it is divided by buckets, if `may_be_divided`
    allows that; its buckets stay in their shares."""

    def __init__(self, count: int, may_be_divided: Callable[[TableId, Chunk], bool]) -> None:
        self._bytes = [0] * count
        self._buckets: dict[TableId, dict[int, Buckets]] = {}
        self._may_be_divided = may_be_divided

    def divided(self, chunk: Chunk) -> dict[int, Work]:
        """Returns the work of each share that has changes among the next ones."""
        sizes = sizes_of(chunk)
        for table in self._buckets.keys() & sizes.keys():
            self._add(table, sizes[table])
        new = sorted(sizes.keys() - self._buckets.keys(), key=lambda table: (-sizes[table], table))
        least = max(MIN_BYTES, sum(sizes.values()) // len(self._bytes) + 1)
        large = [table for table in new if sizes[table] >= least and self._may_be_divided(table, chunk)]
        for table in new:
            if table not in large:
                self._buckets[table] = {self._least(): buckets.ALL}
                self._add(table, sizes[table])
        for table in large:
            self._divide(table, sizes[table])
        shares: dict[int, Work] = {}
        for key, batches in chunk.items():
            for share, some in self._buckets[key[0]].items():
                work = shares.setdefault(share, Work())
                work.chunk[key] = batches
                if some != buckets.ALL:
                    work.buckets[key[0]] = some
        return shares

    def _divide(self, table: TableId, size: int) -> None:
        found: dict[int, set[int]] = {}
        for bucket in sorted(buckets.ALL):
            share = self._least()
            found.setdefault(share, set()).add(bucket)
            self._bytes[share] += size // buckets.COUNT
        self._buckets[table] = {share: frozenset(some) for share, some in found.items()}

    def _add(self, table: TableId, size: int) -> None:
        for share, some in self._buckets[table].items():
            self._bytes[share] += size * len(some) // buckets.COUNT

    def _least(self) -> int:
        return self._bytes.index(min(self._bytes))


def sizes_of(chunk: Chunk) -> dict[TableId, int]:
    """Returns the bytes of changes by table."""
    sizes: dict[TableId, int] = {}
    for (table, _), batches in chunk.items():
        sizes[table] = sizes.get(table, 0) + sum(batch.nbytes for batch in batches)
    return sizes


class Shares:
    """One attempt at a log part. `session_of` opens the session of a share, from 0 on, at its first use. `filling_of` begins
    to write a part in a session's transaction."""

    def __init__(
        self, job: JobIdentity, session_of: Callable[[int], Session], filling_of: Callable[[Session], Filling]
    ) -> None:
        self._job = job
        self._session_of = session_of
        self._filling_of = filling_of
        self._fillings: dict[int, Filling] = {}
        self._running: dict[int, Future[None]] = {}
        self._asked_at = time.monotonic()

    def write(self, part: Part, chunks: Iterable[Chunk], count: int) -> PartResult:
        """Raises SinkError. Then the sessions must be closed. Returns or raises only when no share is running any more."""
        first = self._session_of(0)
        recorded = first.begin(self._job, part.epoch, part.name)
        if recorded is not None:
            for _ in chunks:
                pass
            check_repeated_part(part, recorded)
            return PartResult(part.epoch, part.name, part.row_count, skipped=True)
        self._fillings[0] = self._filling_of(first)
        division = Division(count, self._may_be_divided)
        with ThreadPoolExecutor(count, "share") as threads:
            for chunk in chunks:
                for share, work in division.divided(chunk).items():
                    filling = self._filling(share, part)
                    self._wait_for(share)
                    self._running[share] = threads.submit(filling.apply, work.chunk, work.buckets)
            for share in self._running:
                self._wait_for(share)
        bad_values = self._commit(part)
        return PartResult(part.epoch, part.name, part.row_count, skipped=False, bad_values=bad_values)

    def _may_be_divided(self, table: TableId, chunk: Chunk) -> bool:
        self._wait_for(0)
        return self._fillings[0].may_be_divided(table, chunk)

    def _filling(self, share: int, part: Part) -> Filling:
        if share not in self._fillings:
            session = self._session_of(share)
            session.begin_share(self._job, part.epoch)
            self._fillings[share] = self._filling_of(session)
        return self._fillings[share]

    def _wait_for(self, share: int) -> None:
        """Waits until the share has written what it was given last. Raises what that has raised."""
        self._keep_alive()
        if share in self._running:
            while not wait([self._running[share]], ALIVE_SECONDS).done:
                self._keep_alive()
            self._running[share].result()

    def _keep_alive(self) -> None:
        if time.monotonic() < self._asked_at + ALIVE_SECONDS:
            return
        self._asked_at = time.monotonic()
        for share, filling in self._fillings.items():
            if share not in self._running or self._running[share].done():
                filling.session.query("SELECT 1")

    def _commit(self, part: Part) -> tuple[BadValues, ...]:
        fillings = self._fillings.values()
        for filling in fillings:
            filling.finish()
        failpoint("shares.filled")
        for share, filling in self._fillings.items():
            if share != 0:
                filling.session.commit_share(part.after)
                failpoint("shares.committed")
        self._fillings[0].session.commit(part.row_count, part.after)
        return tuple(told for filling in fillings for told in filling.told())
