"""Compares one table: first all ranges once, then the ranges with suspects until each suspect is judged."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from tidemark.conf.model import JobFile
from tidemark.jobs.reconcile.copy_progress import CopyProgress
from tidemark.jobs.reconcile.copy_reading import CopyReading, copy_reading
from tidemark.jobs.reconcile.ranges import Range, ranges_of
from tidemark.jobs.reconcile.suspects import DIFFERENCES, Suspect, Verdict
from tidemark.jobs.reconcile.unread_log import may_have_changed
from tidemark.jobs.tables.key_orders import copied_orders
from tidemark.readers.projection.projector import Projector
from tidemark.readers.snapshot.publish import change_batches
from tidemark.readers.source import PlannerAccess, SourceServer, SplitReading
from tidemark.sinks.comparing import ComparableSink, ComparesTable, Comparisons, CopyComparison, Key, Pair
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


@dataclass(frozen=True, slots=True)
class _Looked:
    """What one look at a range found. `row_count`: of the rows that the copy should have. `all_listed`: `pairs` has all surplus
    rows."""

    row_count: int
    pairs: list[Pair]
    all_listed: bool = True


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
            with comparison() as copy, copy_reading(copy, self._output) as reading:
                for each in self._ranges_of(reader, copy):
                    self._ranges.append(each)
                    keeps = not self._has_own_surplus(each) and not self._has_condition
                    looked = self._look_at(each, reader, copy, reading, keeps_keys=keeps)
                    result.rows += looked.row_count
                    _suspect(suspects, each.number, looked.pairs)
                    keeps_keys |= keeps
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

    def _ranges_of(self, reader: SplitReading, copy: CopyComparison) -> Iterator[Range]:
        sides, table = self._sides, (self._schema, self._output, self._columns)
        orders = copied_orders(sides.job, *table, reader) if isinstance(copy, ComparesTable) else None
        if orders is not None and isinstance(copy, ComparesTable) and not copy.orders_alike(orders):
            orders = None
        return ranges_of(sides.access.keys, sides.job, *table, orders)

    def _look_at(
        self,
        each: Range,
        reader: SplitReading,
        copy: CopyComparison,
        reading: CopyReading | None,
        *,
        keeps_keys: bool = False,
    ) -> _Looked:
        """Compares a range once. `keeps_keys`: for `surplus_of_all`."""
        expected = self._read(each, reader)
        others = None
        if reading is not None and self._has_own_surplus(each):
            others = reading.others(expected.select([column.name for column in self._output.captured]), each.in_copy)
        if others is not None and not len(others.rows):
            return _Looked(expected.num_rows, [])
        staged = expected if others is None else expected.take(pa.array(others.rows))
        copy.stage(staged.to_batches())
        looked = _Looked(expected.num_rows - staged.num_rows + copy.row_count, copy.differing())
        if others is None and self._has_own_surplus(each):
            surplus = copy.surplus(each.in_copy, MAX_SURPLUS)
            looked = replace(looked, pairs=[*looked.pairs, *surplus], all_listed=len(surplus) < MAX_SURPLUS)
        if keeps_keys:
            copy.keep_keys()
        copy.clear()
        return looked

    def _read(self, each: Range, reader: SplitReading) -> pa.Table:
        """Returns the source's rows of a range as they should be in the copy."""
        _, position = self._sides.progress.now()
        read = reader.read(each.split, self._schema, position.position)
        read, _ = self._sides.projector.split(read)
        schema = batch_schema(self._output)
        return pa.Table.from_batches(change_batches(read, schema), schema)

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
        with comparison(wanted) as copy, copy_reading(copy, self._output) as reading:
            for each in self._ranges:
                if not everywhere and not suspects.get(each.number):
                    continue
                keeps = everywhere and not self._has_own_surplus(each)
                looked = self._look_at(each, reader, copy, reading, keeps_keys=keeps)
                all_listed = all_listed and looked.all_listed
                found |= {pair.key: pair for pair in looked.pairs if pair.key in wanted}
            if everywhere:
                surplus = copy.surplus_of_all(MAX_SURPLUS)
                all_listed = all_listed and len(surplus) < MAX_SURPLUS
                found |= {pair.key: pair for pair in surplus if pair.key in wanted}
            copy.close()
        return found, all_listed


def _suspect(suspects: Suspects, number: int, pairs: list[Pair]) -> None:
    for pair in pairs:
        suspects.setdefault(number, {})[pair.key] = Suspect(pair.expected, pair.held)
