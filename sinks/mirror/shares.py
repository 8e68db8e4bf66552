"""One epoch of the log, written into a mirror by several connections side by side (`log.apply_parallelism`).

A share is some tables of the epoch, with a connection and a transaction of its own. All changes of a table are in one share, in
the order of the log, so no key is reordered. A share is committed with ledger entries of its tables:

    all shares have written all their rows → one share after the other is committed → the first one last, with the fence

So an error in a share leaves nothing of the epoch. After a death between two commits, the ledger says which tables are there.
The next attempt leaves these out. It may divide the others as it likes, or write them by one connection.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

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
"""An epoch with fewer changes is written by one connection: a second transaction would cost more than it saves."""


class Division:
    """Divides tables among `count` shares, the largest first, each to the share that has the least. A table stays in its
    share."""

    def __init__(self, count: int) -> None:
        self._bytes = [0] * count
        self._share_of: dict[TableId, int] = {}

    def divided(self, chunk: Chunk) -> dict[int, Chunk]:
        """Returns the chunk of each share that has changes among the next ones."""
        sizes = sizes_of(chunk)
        for table in self._share_of.keys() & sizes.keys():
            self._bytes[self._share_of[table]] += sizes[table]
        for table in sorted(sizes.keys() - self._share_of.keys(), key=lambda table: (-sizes[table], table)):
            share = self._bytes.index(min(self._bytes))
            self._share_of[table] = share
            self._bytes[share] += sizes[table]
        shares: dict[int, Chunk] = {}
        for key, batches in chunk.items():
            shares.setdefault(self._share_of[key[0]], {})[key] = batches
        return shares


def sizes_of(chunk: Chunk) -> dict[TableId, int]:
    """Returns the bytes of changes by table."""
    sizes: dict[TableId, int] = {}
    for (table, _), batches in chunk.items():
        sizes[table] = sizes.get(table, 0) + sum(batch.nbytes for batch in batches)
    return sizes


class Shares:
    """One attempt at a log part. `session_of` opens the session of a share, from 0 on, at its first use. `filling_of` begins to
    write a part in a session's transaction."""

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
        division = Division(count)
        with ThreadPoolExecutor(count, "share") as threads:
            for chunk in chunks:
                for share, changes in division.divided(chunk).items():
                    filling = self._filling(share, part)
                    self._wait_for(share)
                    self._running[share] = threads.submit(filling.apply, changes)
            for share in self._running:
                self._wait_for(share)
        bad_values = self._commit(part)
        return PartResult(part.epoch, part.name, part.row_count, skipped=False, bad_values=bad_values)

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
