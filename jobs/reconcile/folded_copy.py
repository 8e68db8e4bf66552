"""A copy in files that Spark's tasks have folded and compared: what may differ, for all further looks.

The command keeps hashes of the keys that may differ and what the copy has of these, and takes in what the files get meanwhile.
So its memory grows with what may differ, not with the table. Tasks read the source for these keys alone, too.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidemark.conf.sink import Sink
from tidemark.jobs.reconcile.copy_hashing import Keys, in_order
from tidemark.jobs.reconcile.folding_tasks import FoldedBucket, FoldingBuckets, HashingFiles, NamingKeys, Work
from tidemark.jobs.reconcile.key_ranges import has_exact_keys
from tidemark.jobs.reconcile.range_looks import TableLook
from tidemark.jobs.reconcile.ranges import Range
from tidemark.jobs.reconcile.tasks import RunsFolding, RunsTasks, dealt
from tidemark.sinks.comparing import Key
from tidemark.sinks.files.comparing import FilesComparison
from tidemark.sinks.files.hashing import ChangesFile, FileHashing
from tidemark.sinks.folded.hashed_rows import HashedRows, gone, together
from tidemark.sinks.folded.hashing import probe
from tidemark.sinks.folded.rows_by_key import places_of
from tidemark.state.position import Position

FILES_OF_A_TASK = 1000
BYTES_OF_A_TASK = 128 << 20
ROWS_OF_A_BUCKET = 1 << 20
BYTES_OF_A_BUCKET = 32 << 20
"""A bucket has so many bytes of files. A task keeps on its disk what does not fit into its memory."""
MAX_BUCKETS = 8192
MAX_OTHERS = 2 << 20
"""So many rows that may differ are taken, and so many that only the copy has. Of others nothing is known."""
_NO_KEYS = np.zeros(0, np.uint64), np.zeros(0, np.uint64)


class CopiedLog(Protocol):
    """The source's log, which the job follows. `version_offset`: as in `JobState`."""

    @property
    def version_offset(self) -> int: ...

    def end(self) -> Position: ...

    def wait(self) -> None:
        """Returns once the copy has the log up to its end of now, or the job commits nothing any more."""


@dataclass(slots=True)
class FoldedCopy:
    """`row_count`: of expected rows. `others`: hashes of the keys of those that may differ, in their order, by the numbers of
    their ranges. `unlisted`, `unlisted_surplus`: as in `FoldedBucket`."""

    copy: FilesComparison
    hashing: FileHashing
    row_count: int
    others: dict[int, Keys]
    unlisted: int
    unlisted_surplus: int
    _wanted: Keys = field(default=_NO_KEYS, init=False)

    def look_for(self, keys: Collection[Key]) -> None:
        """Begins a further look, at these keys."""
        self._wanted = self.copy.hashes_of(keys)

    def wanted(self, number: int, *, is_first: bool) -> Keys:
        """Returns hashes of the keys to look for in a range, in their order. `is_first`: all that may differ; else those of
        `look_for`."""
        return self.others.get(number, _NO_KEYS) if is_first else self._wanted

    def has_exact_keys(self, sink: Sink) -> bool:
        """True if the sink writes each key of the source unchanged."""
        output = self.hashing.schema
        return has_exact_keys(output, output.arrow_schema(), sink)


def folded_copy(
    look: TableLook,
    copy: FilesComparison,
    ranges: Sequence[Range],
    run_tasks: RunsTasks,
    run_folding: RunsFolding,
    *,
    log: CopiedLog,
) -> FoldedCopy | None:
    """Lets tasks compare a whole table. None if they can't: the log left out values of a row that got another key."""
    hashing = copy.hashing
    files = [replace(file, is_early=True) for file in copy.to_fold()]
    offset = (
        log.version_offset
    )  # known before files have it; before the log's end, because the job may go on in another log
    since = log.end().version_before + offset
    groups, size = _groups(files)
    parallelism, split_rows = look.job.snapshot.parallelism, look.job.snapshot.split_rows
    least = max(len(ranges) * split_rows // ROWS_OF_A_BUCKET, size // BYTES_OF_A_BUCKET, parallelism)
    buckets = min(least, MAX_BUCKETS)
    work: list[Work] = [*dealt(ranges, parallelism), *groups]

    def later() -> Sequence[Work]:
        nonlocal files
        log.wait()
        early, files = {file.path for file in files}, copy.to_fold()
        return _groups([file for file in files if file.path not in early])[0]

    hashing_files = HashingFiles(look, hashing, probe(hashing.rows.seed), buckets, since, offset)
    folding = FoldingBuckets(hashing.schema, hashing.rows.seed, MAX_OTHERS // buckets, not look.has_condition, since)
    found = run_folding(look, hashing_files, work, later, buckets, folding)
    if not all(bucket.is_folded for bucket in found):
        return None

    def read_keys(keys: Keys) -> Iterator[pa.Table]:
        of_files, _ = _groups(copy.to_fold())
        yield from run_tasks(look, NamingKeys(look, hashing.of_keys(), keys), of_files)

    copy.take_folded(files, _known(found), read_keys)
    return FoldedCopy(
        copy,
        hashing,
        sum(bucket.row_count for bucket in found),
        _by_ranges(found),
        sum(bucket.unlisted for bucket in found),
        sum(bucket.unlisted_surplus for bucket in found),
    )


def _groups(files: Sequence[ChangesFile]) -> tuple[list[list[ChangesFile]], int]:
    """Returns the files of each task, and the bytes of all."""
    groups, of_group, total = list[list[ChangesFile]](), 0, 0
    for file in files:
        if not groups or of_group >= BYTES_OF_A_TASK or len(groups[-1]) == FILES_OF_A_TASK:
            groups.append([])
            of_group = 0
        groups[-1].append(file)
        try:
            size = file.path.stat().st_size
        except FileNotFoundError:  # it was merged
            continue
        of_group, total = of_group + size, total + size
    return groups, total


def _known(found: Sequence[FoldedBucket]) -> HashedRows:
    """Returns the last changes that the copy has of all keys that may differ. A key of which it has none is one whose row is
    gone, since ever."""
    held = together([bucket.held for bucket in found])
    keys = tuple(np.concatenate(columns) for columns in zip(*(bucket.keys for bucket in found), strict=True))
    lacking = places_of(keys, held.newest().keys) < 0
    return together([held, gone(tuple(column[lacking] for column in keys), held)])


def _by_ranges(found: Sequence[FoldedBucket]) -> dict[int, Keys]:
    numbers = np.concatenate([bucket.numbers for bucket in found])
    keys = tuple(np.concatenate(columns) for columns in zip(*(bucket.keys for bucket in found), strict=True))
    order = np.argsort(numbers, kind="stable")
    kinds, starts = np.unique(numbers[order], return_index=True)
    return {
        int(number): in_order(tuple(column[rows] for column in keys))
        for number, rows in zip(kinds, np.split(order, starts)[1:], strict=True)
    }
