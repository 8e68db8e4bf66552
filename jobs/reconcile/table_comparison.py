"""Compares one table: first all ranges once, then the ranges with suspects until each suspect is judged."""

import itertools
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from tidemark.conf.model import JobFile
from tidemark.jobs.reconcile.copy_progress import CopyProgress
from tidemark.jobs.reconcile.folded_copy import FoldedCopy, folded_copy
from tidemark.jobs.reconcile.hashed_copy import HashedCopy
from tidemark.jobs.reconcile.hashed_ranges import HashedRanges
from tidemark.jobs.reconcile.key_ranges import MAX_RANGES, has_own_key, joined, keys_of, ranges_around
from tidemark.jobs.reconcile.range_looks import MAX_SURPLUS, RangeLook, RangeLooks, TableLook
from tidemark.jobs.reconcile.ranges import Range, ranges_of
from tidemark.jobs.reconcile.suspects import DIFFERENCES, Suspect, Verdict
from tidemark.jobs.reconcile.tasks import RANGES_OF_A_TASK, RunsFolding, RunsTasks, dealt
from tidemark.jobs.reconcile.unread_log import may_have_changed
from tidemark.jobs.tables.key_orders import copied_orders
from tidemark.readers.source import PlannerAccess, SourceServer, SplitReading
from tidemark.sinks.comparing import ComparableSink, ComparesTable, Comparisons, Key, Pair
from tidemark.sinks.files.comparing import FilesComparison
from tidemark.state.errors import TidemarkError
from tidemark.state.position import Position
from tidemark.state.projection import TableProjection
from tidemark.state.split import KeyRange, Split
from tidemark.state.table import TableSchema

PAUSE_SECONDS = 0.5
"""The least time between two looks: a source may show a commit a moment later in a SELECT than in its log."""
MAX_SUSPECTS = 50_000
"""More suspects are judged before the next range is read: their keys are in memory."""
MAX_DIFFERENCES = 10_000
"""A table with more differences is not compared to its end."""
RANGES_WITHOUT_SPARK = 64
"""The command's process looks at so many ranges of a table before Spark is started for the others."""
LEAST_HASHED_ROWS = 1000
"""The first range may have one row, the newest one of the table, which the copy lacks: that says nothing of the others."""
MAX_UNLISTED_LOOKS = 10
"""So often a range is looked at again of which not all surplus rows could be listed."""


@dataclass(frozen=True, slots=True)
class Example:
    kind: str
    key: Key


@dataclass(frozen=True, slots=True)
class Repair:
    """`keys`: those that differ. `ranges`: of the source's key, read for these keys only. `whole`: ranges of which all rows are
    written."""

    keys: tuple[Key, ...]
    ranges: tuple[KeyRange, ...]
    whole: tuple[KeyRange, ...]


@dataclass(slots=True)
class TableResult:
    """The result for one table. `rows`: of the source, as far as they were compared. `behind`: rows that differ where the job
    has not come yet. `kept`: those that only the copy has, where TRUNCATE is ignored; nothing tells which rows a TRUNCATE has
    left there. `cut`: there were too many differences to go on. `skipped`: why the table was not compared, None if it was."""

    schema: TableSchema
    rows: int = 0
    counts: Counter[Verdict] = field(default_factory=Counter)
    behind: int = 0
    unlisted: int = 0
    """Those of `behind` that could not be looked at again, because more may differ than are kept in memory."""
    kept: int = 0
    cut: bool = False
    skipped: str | None = None
    passes: bool = True
    """False if a table that was skipped can't be compared later either."""
    error: TidemarkError | None = None
    """That for which the table was skipped, if it has a remedy of its own."""
    examples: list[Example] = field(default_factory=list)
    keys: dict[int, list[Key]] = field(default_factory=dict)
    """All keys that differ, by the number of their range; EVERYWHERE for keys that may be in any."""
    ranges: dict[int, Range] = field(default_factory=dict)
    """Those ranges whose keys the copy orders in the same way."""
    repair: Repair | None = None
    """The rows to read again. None if there are none, or if the whole table is to be read."""

    @property
    def differences(self) -> int:
        return sum(self.counts[verdict] for verdict in DIFFERENCES)

    @property
    def moving(self) -> int:
        """How many rows changed at every look."""
        return self.counts[Verdict.MOVING]


class Watcher(Protocol):
    """Receives the progress of a table's comparison."""

    def ranges(self, done: int, rows: int) -> None: ...
    def looking(self, suspects: int, look: int) -> None: ...


@dataclass(frozen=True, slots=True)
class FollowedLog:
    """A `tidemark.jobs.reconcile.folded_copy.CopiedLog`."""

    access: PlannerAccess
    progress: CopyProgress

    @property
    def version_offset(self) -> int:
        return self.progress.version_offset()

    def end(self) -> Position:
        return self.access.log_end()

    def wait(self) -> None:
        self.progress.wait_until(self.end())


@dataclass(frozen=True, slots=True)
class Sides:
    """Source, copy and job, as one table's comparison needs them. `schemas`, `projections`: of all tables of the job.
    `examples`: how many keys are kept. `tasks`, `folding`: None if Spark would run only one task at a
    time."""

    job: JobFile
    job_uuid: str
    server: SourceServer
    schemas: Sequence[TableSchema]
    access: PlannerAccess
    sink: ComparableSink
    progress: CopyProgress
    projections: Sequence[TableProjection]
    examples: int
    tasks: RunsTasks | None = None
    folding: RunsFolding | None = None

    @contextmanager
    def reading(self, schema: TableSchema) -> Iterator[SplitReading]:
        with self.server.split_reading([schema], self.job_uuid) as reader:
            yield reader


EVERYWHERE = -1
"""The number under which suspects are kept that may be in any range."""
Suspects = dict[int, dict[Key, Suspect]]


class TableComparison:
    """One for each table. `schema`: as the source has it, `output`: as the copy does."""

    def __init__(
        self, sides: Sides, schema: TableSchema, output: TableSchema, columns: tuple[str, ...], watcher: Watcher
    ) -> None:
        self._sides, self._columns, self._watcher = sides, columns, watcher
        self._look = TableLook(
            sides.job, sides.job_uuid, sides.server, schema, output, tuple(sides.projections), sides.sink
        )
        self._ranges: list[Range] = []
        self._keeps_keys = False
        self._hashed: HashedCopy
        self._folded: FoldedCopy | None = None
        self.result = TableResult(output)

    def run(self) -> TableResult:
        """Compares the table. Raises NotComparableError, TidemarkError."""
        sides = self._sides
        sides.progress.require_complete(self._look.schema)
        least_rows = min(LEAST_HASHED_ROWS, sides.job.snapshot.split_rows)
        with (
            closing(HashedCopy(self._look.output, least_rows)) as self._hashed,
            sides.reading(self._look.schema) as reader,
            sides.sink.comparable(self._look.output) as comparison,
        ):
            suspects, unlisted = self._look_first(reader, comparison)
            self._judge(reader, comparison, suspects)
            self._judge_unlisted(reader, comparison, unlisted)
        sides.progress.require_complete(self._look.schema)
        return self.result

    def _look_first(self, reader: SplitReading, comparison: Comparisons) -> tuple[Suspects, set[int]]:
        """Looks at all ranges once. Returns the suspects that are not judged yet, and the ranges of which not all surplus rows
        are listed."""
        result, suspects, unlisted = self.result, Suspects(), set[int]()
        with (
            self._look.opened(reader, comparison, hashed=self._hashed) as looks,
            closing(self._first_looks(looks)) as first_looks,
        ):
            for look in first_looks:
                result.rows += look.row_count
                _suspect(suspects, look.number, look.pairs)
                if not look.all_listed:
                    unlisted.add(look.number)
                self._watcher.ranges(look.number + 1, result.rows)
                is_much = sum(map(len, suspects.values())) > MAX_SUSPECTS
                if is_much or self._must_be_judged_now(look.number, suspects.get(look.number, {})):
                    looks.wait()
                    self._judge(reader, comparison, suspects)
                    self._hashed.forget_noted()
                    suspects = {}
                if result.cut:
                    break
            found: dict[int, list[Pair]] | None = {}
            if self._keeps_keys and not result.cut:
                surplus = looks.surplus_of_all(MAX_SURPLUS)
                found = None if surplus is None else {EVERYWHERE: surplus[0]}
                if surplus is not None and not surplus[1]:
                    unlisted.add(EVERYWHERE)
            looks.copy.close()
        if found is None:  # the copy's server is to compare all rows
            self.result, self._ranges, self._keeps_keys = TableResult(result.schema), [], False
            return self._look_first(reader, comparison)
        for number, pairs in found.items():
            _suspect(suspects, number, pairs)
        return suspects, unlisted

    def _first_looks(self, looks: RangeLooks) -> Generator[RangeLook]:
        """Looks at each range once: at the first ones in this process, then Spark's tasks do."""
        drawn = self._drawn(looks)
        keeps_keys = not self._look.has_condition
        run_tasks, run_folding = self._sides.tasks, self._sides.folding
        if run_tasks is not None and run_folding is not None and isinstance(looks.copy, FilesComparison):
            first = list(itertools.islice(drawn, RANGES_WITHOUT_SPARK + 1))
            if len(first) > RANGES_WITHOUT_SPARK:
                ranges = [*first, *drawn]
                log = FollowedLog(self._sides.access, self._sides.progress)
                self._folded = folded_copy(self._look, looks.copy, ranges, run_tasks, run_folding, log=log)
                if self._folded is not None:
                    yield from self._looks_at_folded(looks, self._folded, keeps_keys=keeps_keys)
                    return
                first = ranges
            drawn = iter(first)
        yield from self._looks_here(looks, itertools.islice(drawn, RANGES_WITHOUT_SPARK), keeps_keys=keeps_keys)
        yield from self._looks_in_tasks(looks, drawn, keeps_keys=keeps_keys)

    def _looks_in_tasks(self, looks: RangeLooks, ranges: Iterable[Range], *, keeps_keys: bool) -> Generator[RangeLook]:
        """Looks at ranges, in tasks where that is possible. `keeps_keys`: of ranges whose surplus rows are found at the end."""
        run_tasks, waiting = self._sides.tasks, list[Range]()
        at_once = self._sides.job.snapshot.parallelism * RANGES_OF_A_TASK
        if run_tasks is not None and self._folded is not None:
            of_folded = HashedRanges(looks, self._folded, run_tasks, keeps_keys)
            for each in ranges:
                of_folded.add(each)
                if len(of_folded.waiting) >= at_once:
                    yield from of_folded.looked()
            while of_folded.waiting:
                yield from of_folded.looked()
            return
        if run_tasks is None or not isinstance(looks.copy, ComparesTable):
            yield from self._looks_here(looks, ranges, keeps_keys=keeps_keys)
            return
        to_hash = HashedRanges(looks, self._hashed, run_tasks, keeps_keys)
        for each in ranges:
            if self._look.has_own_surplus(each):
                waiting.append(each)
                if len(waiting) == at_once:
                    yield from self._looked_in_tasks(run_tasks, waiting)
            elif self._hashed.is_useful:
                self._keeps_keys |= keeps_keys
                look = to_hash.add(each)
                if look is not None:
                    yield look
                if len(to_hash.waiting) >= at_once:
                    yield from to_hash.looked()
            else:
                yield from self._looks_here(looks, [each], keeps_keys=keeps_keys)
        while waiting:
            yield from self._looked_in_tasks(run_tasks, waiting)
        while to_hash.waiting:
            yield from to_hash.looked()

    def _looks_at_folded(self, looks: RangeLooks, folded: FoldedCopy, *, keeps_keys: bool) -> Generator[RangeLook]:
        """Looks once more at rows that may differ, after tasks have compared all."""
        self._keeps_keys |= keeps_keys
        self._look = replace(self._look, is_folded=True)
        self.result.unlisted = folded.unlisted + (0 if self._keeps_surplus else folded.unlisted_surplus)
        self.result.behind += self.result.unlisted
        yield RangeLook(self._ranges[-1].number, folded.row_count, [])
        for look in self._looks_in_tasks(replace(looks, table=self._look), self._ranges, keeps_keys=keeps_keys):
            yield replace(look, row_count=0)

    def _looked_in_tasks(self, run_tasks: RunsTasks, waiting: list[Range]) -> list[RangeLook]:
        """Looks at some of the ranges that wait, and removes them."""
        found = run_tasks(self._look, self._look, dealt(waiting, self._sides.job.snapshot.parallelism))
        seen = {look.number for look in found}
        waiting[:] = [each for each in waiting if each.number not in seen]
        return found

    def _drawn(self, looks: RangeLooks) -> Iterator[Range]:
        """Yields the table's ranges, and keeps them."""
        sides, copy = self._sides, looks.copy
        table = self._look.schema, self._look.output, self._columns
        orders = copied_orders(sides.job, *table, looks.reader) if isinstance(copy, ComparesTable) else None
        if orders is not None and isinstance(copy, ComparesTable) and not copy.orders_alike(orders):
            orders = None
        for each in ranges_of(sides.access.keys, sides.job, *table, orders):
            self._ranges.append(each)
            yield each

    def _looks_here(self, looks: RangeLooks, ranges: Iterable[Range], *, keeps_keys: bool) -> Generator[RangeLook]:
        with closing(looks.with_expected(ranges)) as read:
            for each, expected in read:
                keeps = keeps_keys and not self._look.has_own_surplus(each)
                self._keeps_keys |= keeps
                yield looks.compared(each, expected, keeps_keys=keeps)

    def _judge(self, reader: SplitReading, comparison: Comparisons, suspects: Suspects) -> None:
        """Looks at the suspects' ranges again until all are judged, or the job does not come on."""
        sides, result = self._sides, self.result
        since: int | None = None
        look = 0
        while any(suspects.values()):
            look += 1
            time.sleep(PAUSE_SECONDS)
            self._watcher.looking(sum(map(len, suspects.values())), look)
            end = sides.access.log_end()
            if not sides.progress.wait_until(end) and self._may_have_changed(end):
                result.behind += sum(map(len, suspects.values()))
                return
            since = sides.progress.committed() if since is None else since
            quiet = sides.progress.had_no_change(self._look.schema.table, since)
            pairs, unlisted = self._look_again(reader, comparison, suspects)
            sides.progress.require_complete(self._look.schema)
            for number, of_range in suspects.items():
                self._take(number, of_range, pairs, quiet=quiet, all_listed=number not in unlisted)
            if result.differences > MAX_DIFFERENCES:
                result.cut = True
                return

    def _may_have_changed(self, until: Position) -> bool:
        """True if the log that a stopped job has not read may have changes of the table."""
        sides, table = self._sides, self._look.schema.table
        return may_have_changed(sides.progress, sides.server, sides.access, sides.schemas, table=table, until=until)

    @property
    def _keeps_surplus(self) -> bool:
        """True if rows that only the copy has are no differences."""
        return self._sides.job.sink.on_schema_change.truncate == "ignore"

    def _take(
        self, number: int, suspects: dict[Key, Suspect], pairs: Mapping[Key, Pair], *, quiet: bool, all_listed: bool
    ) -> None:
        for key, suspect in list(suspects.items()):
            pair = pairs.get(key)
            if pair is None and not all_listed and not self._keeps_surplus:  # it may be a surplus row
                if not suspect.look_unlisted():
                    del suspects[key]
                    self.result.behind += 1
                continue
            verdict = Verdict.EQUAL if pair is None else suspect.look(pair.expected, pair.held, quiet=quiet)
            if verdict is Verdict.PENDING:
                continue
            del suspects[key]
            if verdict is Verdict.SURPLUS and self._keeps_surplus:
                self.result.kept += 1
            elif verdict is not Verdict.EQUAL:
                self.result.counts[verdict] += 1
                if verdict not in DIFFERENCES:
                    continue
                self.result.keys.setdefault(number, []).append(key)
                if number != EVERYWHERE and self._ranges[number].in_copy is not None:
                    self.result.ranges[number] = self._ranges[number]
                if len(self.result.examples) < self._sides.examples:
                    self.result.examples.append(Example(verdict.value, key))

    def _judge_unlisted(self, reader: SplitReading, comparison: Comparisons, unlisted: set[int]) -> None:
        """Judges surplus rows that the looks at some ranges have not listed, because there were too many. That many are no
        differences (else the comparison was cut), so the job had not come to where they were deleted. One range is judged
        after the other: the rows of all might not fit into the memory."""
        if not self._keeps_surplus and not self.result.behind:
            for number in sorted(unlisted):
                self._judge_unlisted_of(reader, comparison, number)

    def _judge_unlisted_of(self, reader: SplitReading, comparison: Comparisons, number: int) -> None:
        result, unlisted = self.result, {number}
        looks, behind = 0, result.behind
        while unlisted and not result.cut and result.behind == behind:
            suspects: Suspects = {}
            found, unlisted = self._looked(reader, comparison, {number}, None)
            for of_range, pairs in found.items():
                _suspect(suspects, of_range, pairs)
            looks += 1
            if unlisted and looks == MAX_UNLISTED_LOOKS:
                result.behind += sum(map(len, suspects.values()))
                return
            self._judge(reader, comparison, suspects)

    def _look_again(
        self, reader: SplitReading, comparison: Comparisons, suspects: Suspects
    ) -> tuple[dict[Key, Pair], set[int]]:
        """Returns what differs now among the suspects, and the ranges of which not all surplus rows are listed."""
        wanted = {key for of_range in suspects.values() for key in of_range}
        numbers = {number for number, of_range in suspects.items() if of_range}
        found, unlisted = self._looked(reader, comparison, numbers, wanted, self._around(suspects))
        return {pair.key: pair for pairs in found.values() for pair in pairs}, unlisted

    def _around(self, suspects: Suspects) -> dict[int, list[Range]]:
        """Returns ranges that have all rows of the source with the keys of suspects that may be anywhere, and of those in the
        range that grows. Others are not known: for these, all ranges or the whole range are looked at."""
        schema, columns, around = self._look.schema, self._columns, dict[int, list[Range]]()
        everywhere = suspects.get(EVERYWHERE, {})
        if (self._hashed.is_useful or self._folded is not None) and 0 < len(everywhere) <= len(self._ranges):
            split = Split(EVERYWHERE, schema.table, schema.version, columns, KeyRange(None, None))
            around[EVERYWHERE] = self._parts_around(Range(EVERYWHERE, split, None), everywhere)
        for each in self._ranges:
            if each.is_open and suspects.get(each.number):
                around[each.number] = self._parts_around(each, suspects[each.number])
        return {number: parts for number, parts in around.items() if parts}

    def _must_be_judged_now(self, number: int, keys: Collection[Key]) -> bool:
        """True if further looks at suspects of a range are to read all of it, and it grows: soon it may have any number of
        rows."""
        each = self._ranges[number]
        return bool(keys) and each.is_open and not self._parts_around(each, keys)

    def _parts_around(self, each: Range, keys: Collection[Key]) -> list[Range]:
        """Returns parts of a range that have all its rows of the source with these keys of the copy; [] if these are not
        known, or too many."""
        sides, schema, output, columns = self._sides, self._look.schema, self._look.output, self._columns
        if len(keys) > MAX_RANGES or not has_own_key(sides.job, schema, output, columns):
            return []
        of_copy = self._hashed if self._folded is None else self._folded
        if each.in_copy is None and not of_copy.has_exact_keys(sides.job.sink):
            return []
        values = keys_of(tuple(keys), output)
        found = None if values is None else ranges_around(sides.access.keys, schema, columns, values)
        return [each.narrowed(part, sides.job.source.url.kind) for part in joined(found or ())]

    def _looked(
        self,
        reader: SplitReading,
        comparison: Comparisons,
        numbers: set[int],
        wanted: set[Key] | None,
        around: Mapping[int, Sequence[Range]] | None = None,
    ) -> tuple[dict[int, list[Pair]], set[int]]:
        """Looks at the ranges with these numbers, EVERYWHERE for all. Returns the pairs by number, and the numbers of which not
        all surplus rows are listed. `wanted`: only these keys. `around`: what to look at instead for some of the numbers."""
        around = around or {}
        everywhere = EVERYWHERE in numbers
        if everywhere and wanted is None:
            self._hashed.begin()
        if self._folded is not None and wanted is not None:
            self._folded.look_for(wanted)
        found: dict[int, list[Pair]] = {}
        unlisted: set[int] = set()
        with self._look.opened(reader, comparison, wanted, self._hashed) as looks:
            all_ranges = everywhere and EVERYWHERE not in around
            again = [each for each in self._ranges if all_ranges or each.number in numbers - around.keys()]
            parts = () if all_ranges else [each for of_number in around.values() for each in of_number]
            for look in self._looks_again(looks, again, parts, keeps_keys=everywhere):
                pairs = look.pairs if wanted is None else [pair for pair in look.pairs if pair.key in wanted]
                found.setdefault(look.number, []).extend(pairs)
                if not look.all_listed:
                    unlisted.add(look.number)
            surplus = looks.surplus_of_all(MAX_SURPLUS) if everywhere else ([], True)
            looks.copy.close()
        if surplus is None:  # the copy's server is to compare all rows
            return self._looked(reader, comparison, numbers, wanted)
        if everywhere:
            found.setdefault(EVERYWHERE, []).extend(pair for pair in surplus[0] if wanted is None or pair.key in wanted)
            if not surplus[1]:
                unlisted.add(EVERYWHERE)
        return found, unlisted

    def _looks_again(
        self, looks: RangeLooks, again: Sequence[Range], parts: Sequence[Range], *, keeps_keys: bool
    ) -> Generator[RangeLook]:
        if len(again) > RANGES_WITHOUT_SPARK:
            yield from self._looks_in_tasks(looks, again, keeps_keys=keeps_keys)
            again = ()
        for each in (*again, *parts):
            yield looks.at(each, keeps_keys=keeps_keys and not self._look.has_own_surplus(each))


def _suspect(suspects: Suspects, number: int, pairs: list[Pair]) -> None:
    for pair in pairs:
        suspects.setdefault(number, {})[pair.key] = Suspect(pair.expected, pair.held)
