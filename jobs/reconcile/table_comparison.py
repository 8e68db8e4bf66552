"""Compares one table: first all ranges once, then the ranges with suspects until each suspect is judged."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tidemark.conf.model import JobFile
from tidemark.jobs.reconcile.copy_progress import CopyProgress
from tidemark.jobs.reconcile.ranges import Range, ranges_of
from tidemark.jobs.reconcile.suspects import DIFFERENCES, Suspect, Verdict
from tidemark.jobs.reconcile.unread_log import may_have_changed
from tidemark.readers.projection.projector import Projector
from tidemark.readers.snapshot.publish import change_batches
from tidemark.readers.source import PlannerAccess, SourceServer, SplitReading
from tidemark.sinks.comparing import ComparableSink, Comparisons, CopyComparison, Key, Pair
from tidemark.state.change_batch import batch_schema
from tidemark.state.position import Position
from tidemark.state.split import KeyRange
from tidemark.state.table import TableSchema

PAUSE_SECONDS = 0.5
"""The least time between two looks: a source may show a commit a moment later in a SELECT than in its log."""
MAX_SUSPECTS = 50_000
"""More suspects are judged before the next range is read: their keys are in memory."""
MAX_DIFFERENCES = 10_000
"""A table with more differences is not compared to its end."""
MAX_SURPLUS = 100_000
"""The most rows of the copy without a row in the source that one statement looks at."""


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
    kept: int = 0
    cut: bool = False
    skipped: str | None = None
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
class Sides:
    """Source, copy and job, as one table's comparison needs them. `schemas`: of all tables of the job. `examples`: how many
    keys are kept."""

    job: JobFile
    job_uuid: str
    server: SourceServer
    schemas: Sequence[TableSchema]
    access: PlannerAccess
    sink: ComparableSink
    progress: CopyProgress
    projector: Projector
    examples: int

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
        self._sides, self._schema, self._output, self._columns = sides, schema, output, columns
        self._watcher = watcher
        self._has_condition = sides.job.snapshot.condition(schema.table.database, schema.table.name) is not None
        self._ranges: list[Range] = []
        self.result = TableResult(output)

    def run(self) -> TableResult:
        """Compares the table. Raises NotComparableError, TidemarkError."""
        sides, result = self._sides, self.result
        sides.progress.require_complete(self._schema)
        suspects: Suspects = {}
        keeps_keys = False
        with sides.reading(self._schema) as reader, sides.sink.comparable(self._output) as comparison:
            with comparison() as copy:
                for each in ranges_of(sides.access.keys, sides.job, self._schema, self._output, self._columns):
                    self._ranges.append(each)
                    self._stage(copy, reader, each)
                    result.rows += copy.row_count
                    _suspect(suspects, each.number, copy.differing())
                    if self._has_own_surplus(each):
                        _suspect(suspects, each.number, copy.surplus(each.in_copy, MAX_SURPLUS))
                    elif not self._has_condition:
                        copy.keep_keys()
                        keeps_keys = True
                    copy.clear()
                    self._watcher.ranges(len(self._ranges), result.rows)
                    if sum(map(len, suspects.values())) > MAX_SUSPECTS:
                        self._judge(reader, comparison, suspects)
                        suspects = {}
                    if result.cut:
                        break
                if keeps_keys and not result.cut:
                    _suspect(suspects, EVERYWHERE, copy.surplus_of_all(MAX_SURPLUS))
                copy.close()
            self._judge(reader, comparison, suspects)
        sides.progress.require_complete(self._schema)
        return result

    def _has_own_surplus(self, each: Range) -> bool:
        """True if surplus rows can be found from the range alone. With `snapshot.where` the copy may have rows that the
        condition leaves out: they changed later."""
        return not self._has_condition and (each.in_copy is not None or each.is_whole)

    def _stage(self, copy: CopyComparison, reader: SplitReading, each: Range) -> None:
        _, position = self._sides.progress.now()
        read = reader.read(each.split, self._schema, position.position)
        read, _ = self._sides.projector.split(read)
        copy.stage(change_batches(read, batch_schema(self._output)))

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
            quiet = sides.progress.had_no_change(self._schema.table, since)
            pairs, all_listed = self._look(reader, comparison, suspects)
            sides.progress.require_complete(self._schema)
            for number, of_range in suspects.items():
                self._take(number, of_range, pairs, quiet=quiet, all_listed=all_listed)
            if result.differences > MAX_DIFFERENCES:
                result.cut = True
                return

    def _may_have_changed(self, until: Position) -> bool:
        """True if the log that a stopped job has not read may have changes of the table."""
        sides, table = self._sides, self._schema.table
        return may_have_changed(sides.progress, sides.server, sides.access, sides.schemas, table=table, until=until)

    def _take(
        self, number: int, suspects: dict[Key, Suspect], pairs: Mapping[Key, Pair], *, quiet: bool, all_listed: bool
    ) -> None:
        for key, suspect in list(suspects.items()):
            pair = pairs.get(key)
            if pair is None and not all_listed:
                continue
            verdict = Verdict.EQUAL if pair is None else suspect.look(pair.expected, pair.held, quiet=quiet)
            if verdict is Verdict.PENDING:
                continue
            del suspects[key]
            if verdict is Verdict.SURPLUS and self._sides.job.sink.on_schema_change.truncate == "ignore":
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

    def _look(self, reader: SplitReading, comparison: Comparisons, suspects: Suspects) -> tuple[dict[Key, Pair], bool]:
        """Returns what differs now among the suspects, and whether that is all."""
        wanted = {key for of_range in suspects.values() for key in of_range}
        everywhere = bool(suspects.get(EVERYWHERE))
        found: dict[Key, Pair] = {}
        all_listed = True
        with comparison(wanted) as copy:
            for each in self._ranges:
                if not everywhere and not suspects.get(each.number):
                    continue
                self._stage(copy, reader, each)
                listed = copy.differing()
                if self._has_own_surplus(each):
                    surplus = copy.surplus(each.in_copy, MAX_SURPLUS)
                    all_listed = all_listed and len(surplus) < MAX_SURPLUS
                    listed += surplus
                elif everywhere:
                    copy.keep_keys()
                copy.clear()
                found |= {pair.key: pair for pair in listed if pair.key in wanted}
            if everywhere:
                surplus = copy.surplus_of_all(MAX_SURPLUS)
                all_listed = all_listed and len(surplus) < MAX_SURPLUS
                found |= {pair.key: pair for pair in surplus if pair.key in wanted}
            copy.close()
        return found, all_listed


def _suspect(suspects: Suspects, number: int, pairs: list[Pair]) -> None:
    for pair in pairs:
        suspects.setdefault(number, {})[pair.key] = Suspect(pair.expected, pair.held)
