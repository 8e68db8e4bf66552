"""Reading some rows of tables again while everything else goes on (`tidemark reconcile JOB.yaml --repair`,
`tidemark signal JOB.yaml resnapshot --table T --keys …` or `--where …`).

    joining_start: a position X; every SELECT from now on sees all before it
    → the keys' rows are read, exact at their highs, and kept in the checkpoint → X, file and highs are in `joined`, durable
    → the signal is answered → the log is read up to exactly X
    → one epoch: a DELETE for each key that the source lacks, the rows, then the log from X to beyond all highs

The rows have all that the copy has at X. What they contain beyond X is in that epoch's range of the log, too: its last change
of a key decides, so nothing is lost or goes back. The epoch is one transaction of the target (docs/adr/0037). A copy that keeps
all changes gets the rows that have none in that range, at X (docs/adr/0060).

A range of keys or a condition may be about many rows. They are read in batches, each as above. `KeyRepair.rest` has what is
still to be read once a batch is written; then the job is opened again (docs/adr/0046).
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidemark.conf.model import JobFile
from tidemark.jobs.epoch.planner import LEFT_BEFORE, NOT_WRITTEN
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.reconcile.key_ranges import keys_of
from tidemark.jobs.recovered_state import recover_state
from tidemark.jobs.signals.steering import RESUME, steering_at
from tidemark.jobs.signals.table_parts import PartRefusedError, copied_keys, range_of, require_part, with_ranges
from tidemark.jobs.sinks import sink_needs
from tidemark.readers.projection.projector import Projector
from tidemark.readers.projection.settings import projector
from tidemark.readers.snapshot.repairs import key_values, write_repair
from tidemark.readers.snapshot.split_read import MAX_REREADS, SplitRead, reread_seq
from tidemark.readers.source import ChecksConditions, FoundSource, SourceServer, SplitReading, TakesConditions
from tidemark.state.checkpoint.layout import Checkpoint, repair_file
from tidemark.state.errors import (
    PausedError,
    SchemaChangedError,
    SinkError,
    SourceNotUsableError,
    TableLockedError,
    UnreadableRowsError,
)
from tidemark.state.failpoints import failpoint
from tidemark.state.integer_range import IntegerRange
from tidemark.state.job_state import JobState, Joined
from tidemark.state.key_repair import KeyRepair
from tidemark.state.key_source import KeySource
from tidemark.state.phase import Phase
from tidemark.state.plan import EnumeratorState
from tidemark.state.position import Position
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.signals import Answer, Signal, Steering
from tidemark.state.split import KeyRange, Split
from tidemark.state.table import TableId, TableSchema, arrow_type_of

VISIBLE_SECONDS = 60.0
"""How long a start waits until a MariaDB snapshot has all that the log has."""
POLL_SECONDS = 0.05
ACCEPTED = "The rows of its keys were read again. They are written once the log has been read up to there."
PART_ACCEPTED = "Its rows are read while the job continues."
BATCH_SECONDS = 5.0
"""A batch ends after the range in which so much time has passed: meanwhile no epoch runs."""


def read_again(job: JobFile, found: FoundSource, state: JobState, events: Events, seen: Collection[int]) -> JobState:
    """Reads the rows that signals ask for, or their next batch, and takes them into the job, durably. Answers these
    signals. `seen`: those that were open when this start began. Raises what reading raises; a signal without an answer is
    taken again."""
    checkpoint = Checkpoint.at(job.checkpoint)
    _tell_lost(checkpoint, job, state)
    _answer_parts(checkpoint, job, found, state, seen)
    wanted = _repairs(checkpoint, job, state, seen) | _next_batches(checkpoint, job, found, state)
    if not wanted:
        return state
    server = found.server(state)
    keys = server.planner_access(state).keys
    try:
        start = found.joining_start(())
        await_visible(keys, start)
    except SourceNotUsableError as error:  # the log can be followed: commits may wait for a replica
        for number, wish in wanted.items():
            _refuse(checkpoint, number, wish.signal, str(error))
        return state
    _require_same_columns(found, state, {wish.signal.table for wish in wanted.values()})
    unknown = set(checkpoint.repair_files()) - {r.file for joined in state.joined for r in joined.rereads}
    reading = RowsReading(job, state, server, keys, projector(job, state.schemas, state.projections), start)
    state, taken = _taken(checkpoint, reading, wanted)
    if taken:  # so no other driver has taken rows in meanwhile: the files are of an earlier one that died
        checkpoint.forget_repairs(unknown)
    for number in taken:
        signal = wanted[number].signal
        events.note("repair", table=str(signal.table), keys=len(signal.keys), start=str(start), text=ACCEPTED)
        if signal.kind == "repair":
            _answer(checkpoint, number, ACCEPTED, accepted=True)
    return state


@dataclass(frozen=True, slots=True)
class Wish:
    """The rows that are to be read for a signal. `rest`: of the range that it is about; None for all of it."""

    signal: Signal
    rest: KeyRange | None = None


def _repairs(checkpoint: Checkpoint, job: JobFile, state: JobState, seen: Collection[int]) -> dict[int, Wish]:
    """Returns the signals of `reconcile --repair` that are to be taken. Answers those that are not, or were."""
    taken = {reread.signal for joined in state.joined for reread in joined.rereads}
    wanted = dict[int, Wish]()
    for number, signal in _open_signals(checkpoint).items():
        if signal.kind != "repair" or number not in seen:
            continue
        why = None if number in taken else _refusal(job, checkpoint, state, signal)
        if why is not None:
            _answer(checkpoint, number, why, accepted=False)
        elif number in taken:
            _answer(checkpoint, number, ACCEPTED, accepted=True)
        else:
            wanted[number] = Wish(signal)
    return wanted


def _answer_parts(
    checkpoint: Checkpoint, job: JobFile, found: FoundSource, state: JobState, seen: Collection[int]
) -> None:
    """Answers the signals about parts of tables, before anything of them is read. An accepted one ends with an outcome."""
    for number, signal in _open_signals(checkpoint).items():
        if signal.kind == "repair" or number not in seen:
            continue
        try:
            require_part(job, state, signal)
            _require_condition(found, signal)
            _answer(checkpoint, number, PART_ACCEPTED, accepted=True)
        except PartRefusedError as error:
            _answer(checkpoint, number, str(error), accepted=False)


def _require_condition(found: FoundSource, signal: Signal) -> None:
    if not signal.where:
        return
    assert signal.table is not None
    if not isinstance(found, ChecksConditions):
        raise PartRefusedError("This source takes no conditions.")
    problem = found.condition_problem(signal.table, signal.where)
    if problem is not None:
        raise PartRefusedError(f"The source refuses the condition: {problem}.")


def _next_batches(checkpoint: Checkpoint, job: JobFile, found: FoundSource, state: JobState) -> dict[int, Wish]:
    """Returns what is to be read now of the accepted parts of tables. Ends those that can't go on, or need not."""
    wanted = dict[int, Wish]()
    for number, wish in unfinished(checkpoint, state).items():
        table = wish.signal.table
        assert table is not None
        back = state.came_back.get(table)
        if table not in {schema.table for schema in state.schemas}:
            _end(checkpoint, number, LEFT_BEFORE, done=False)
        elif back is not None and back.at_us > wish.signal.at_us:
            _end(checkpoint, number, "All rows of the table are read again instead.", done=True)
        else:
            try:
                _require_condition(found, wish.signal)  # its columns may be gone since
                wanted[number] = wish
            except PartRefusedError as error:
                _end(checkpoint, number, str(error), done=False)
    if not wanted:
        return wanted
    steering, now = steering_at(checkpoint), recover_state(checkpoint, job, state)
    reads = steering.paused_us is None and steering.stopped_us is None and goes_on(now, state)
    return wanted if reads else {}


def goes_on(now: EnumeratorState, state: JobState) -> bool:
    """True if the next batch of a part of a table may be read: nothing else is being read, and the last one was written."""
    return now.phase is Phase.STREAM and not now.rereads and now.joined == len(state.joined)


def require_parts_read(checkpoint: Checkpoint, state: JobState, steering: Steering) -> None:
    """For the end of a run that ends by itself: raises PausedError if rows of accepted signals were not read because another
    signal has stopped the reading of rows."""
    if steering.stopped_us is None:
        return
    waiting = dict.fromkeys(str(wish.signal.table) for wish in unfinished(checkpoint, state).values())
    if waiting:
        raise PausedError(
            f"A signal has stopped the reading of rows: rows of {', '.join(waiting)} that other signals ask for are not read "
            "again. The log was followed.",
            f"{RESUME}, then run the job again.",
        )


def unfinished(checkpoint: Checkpoint, state: JobState) -> dict[int, Wish]:
    """Returns what is still to be read for accepted signals about parts of tables, by signal. Only durable files decide it."""
    outcomes, found = checkpoint.outcomes(), dict[int, Wish]()
    newest = {reread.signal: reread for joined in state.joined for reread in joined.rereads}
    for number, (signal, answer) in checkpoint.signals().items():
        if signal.kind == "repair" or not signal.is_partial or number in outcomes:
            continue
        if answer is None or not answer.accepted:
            continue
        reread = newest.get(number)
        if reread is None or reread.rest is not None:
            found[number] = Wish(signal, None if reread is None else reread.rest)
    return found


def _taken(checkpoint: Checkpoint, reading: "RowsReading", wanted: dict[int, Wish]) -> tuple[JobState, list[int]]:
    """Returns the job with the rows, and the signals that they are of. Ends signals whose rows can't be read."""
    rereads = list[KeyRepair]()
    for number, wish in wanted.items():
        schema, columns = reading.table(wish.signal)
        count = _reads_before(reading, schema, rereads)
        if count >= MAX_REREADS:
            times = f"Rows of {schema.table} were read again {count:,} times at one position of the log."
            text = f"{times} Have all its rows read again."
            _refuse(checkpoint, number, wish.signal, text)
            continue
        try:
            if wish.signal.kind == "repair":
                read, lacking, output = reading.keys_of_signal(wish.signal, schema, columns)
                rest = None
            else:
                read, lacking, output, rest = reading.part(wish, schema, columns)
        except (PartRefusedError, SourceNotUsableError, TableLockedError, SinkError) as error:
            is_of_rows = isinstance(error, UnreadableRowsError)
            if isinstance(error, SourceNotUsableError) and error.table is not None and not is_of_rows:
                raise  # such as an altered table: the job has a way to go on
            _refuse(checkpoint, number, wish.signal, str(error))
            continue
        name = repair_file(number, _now_us())
        seq = reread_seq(schema.version, count)
        read = reading.placed(read, seq)
        rows = write_repair(checkpoint.store, name, read, lacking, output)
        rereads.append(KeyRepair(number, schema.table, schema.version, name, read.report.high, rows, rest))
        failpoint("repairs.read")
    if not rereads:
        return reading.state, []
    joined = Joined(
        reading.start,
        (),
        (),
        left_files=checkpoint.left_count(),
        after_epoch=max(checkpoint.plan_epochs(), default=0),
        at_us=_now_us(),
        rereads=tuple(rereads),
    )
    state = checkpoint.create_joined(reading.state, joined)
    failpoint("repairs.joined")
    return state, [reread.signal for reread in rereads]


def _reads_before(reading: "RowsReading", schema: TableSchema, now: Sequence[KeyRepair]) -> int:
    """Returns how many times rows of the table have been read again at this position of the log. `now`: those since the last
    entry of `joined`."""
    same = [joined for joined in reading.state.joined if joined.start.version_before == reading.start.version_before]
    found = [*(reread for joined in same for reread in joined.rereads), *now]
    return sum((reread.table, reread.version) == (schema.table, schema.version) for reread in found)


def _require_same_columns(found: FoundSource, state: JobState, wanted: Collection[TableId | None]) -> None:
    """Raises SchemaChangedError if a table was altered before the start position, which was taken just now. The job may not
    have read so far: the rows would lack columns whose values the log has before them."""
    tables = [schema.table for schema in state.schemas if schema.table in wanted]
    altered = sorted(set(tables) - same_columns(found, state, tables))
    if altered:
        raise SchemaChangedError(
            f"{altered[0]} no longer has the columns that the job knows.", START_OVER_NOW, altered[0]
        )


def same_columns(found: FoundSource, state: JobState, tables: Collection[TableId]) -> set[TableId]:
    """Returns those of the job's tables that have the columns that it knows, as far as the source's catalog tells them."""
    schemas = [schema for schema in state.schemas if schema.table in tables]
    now = found.schemas_now([schema.table for schema in schemas])
    return {
        schema.table
        for schema in schemas
        # None: reading it, or the log, says what is wrong
        if (found_now := now.get(schema.table)) is None or _columns(found_now) == _columns(schema)
    }


def _columns(schema: TableSchema) -> list[tuple[str, str, str | None, str | None]]:
    return [(c.name, c.source_type, c.charset, c.collation) for c in schema.captured]


def await_visible(keys: KeySource, position: Position) -> None:
    """Waits until every later SELECT sees the log up to the position. Raises SourceNotUsableError after VISIBLE_SECONDS."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    while not keys.sees(position, ()):
        if time.monotonic() > deadline:
            raise SourceNotUsableError(
                f"The server's snapshots do not contain the log up to {position} after {VISIBLE_SECONDS:.0f} s.",
                "Look for transactions whose COMMIT does not end. Then give the signal again, or compare again.",
            )
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class RowsReading:
    """Reads rows again, for signals or after a failover. `start`: they come after it. Each result: the rows, the keys that the
    source lacks, and the table's output schema."""

    job: JobFile
    state: JobState
    server: SourceServer
    keys: KeySource
    project: Projector
    start: Position

    def table(self, signal: Signal) -> tuple[TableSchema, tuple[str, ...]]:
        """Returns the signal's table and its split key."""
        columns = {split_key.table: split_key.columns for split_key in self.state.split_keys}
        assert signal.table is not None
        return next(schema for schema in self.state.schemas if schema.table == signal.table), columns[signal.table]

    def keys_of_signal(
        self, signal: Signal, schema: TableSchema, columns: tuple[str, ...]
    ) -> tuple[SplitRead, pa.RecordBatch, TableSchema]:
        """The rows of a signal's keys, and others of the ranges in `whole`."""
        keys = keys_of(signal.keys, next(o for o in self.state.outputs if o.table == schema.table))
        assert keys is not None, "these keys were read before"
        return self.rows_of_keys(schema, columns, keys, list(_ranges(signal)))

    def rows_of_keys(
        self,
        schema: TableSchema,
        columns: tuple[str, ...],
        keys: pa.RecordBatch,
        ranges: Sequence[tuple[KeyRange, bool]],
    ) -> tuple[SplitRead, pa.RecordBatch, TableSchema]:
        """The rows of these keys, which are in the ranges. Of the ranges with True, others too."""
        reads, output = list[SplitRead](), schema
        wanted = set(key_values(keys, keys.schema.names))
        with self.server.split_reading((schema,), self.state.job_uuid) as reader:
            for key_range, is_whole in ranges:
                read, output = self._split(reader, schema, columns, key_range)
                if not is_whole:
                    mask = [key in wanted for key in key_values(read.rows, output.key)]
                    read = replace(read, rows=read.rows.filter(pa.array(mask, pa.bool_())))
                reads.append(read)
        whole = _gathered(reads)
        return whole, self._lacking(keys, whole, output), output

    def placed(self, read: SplitRead, seq: int) -> SplitRead:
        """Returns the rows as changes at the start position."""
        return replace(read, commit_version=self.start.version_before, seq=seq)

    def part(
        self, wish: Wish, schema: TableSchema, columns: tuple[str, ...]
    ) -> tuple[SplitRead, pa.RecordBatch, TableSchema, KeyRange | None]:
        """The next batch of a part of a table, and what is still to be read after it."""
        signal, output = wish.signal, next(o for o in self.state.outputs if o.table == schema.table)
        if signal.keys:
            signal = with_ranges(self.keys, schema, output, columns, signal)
            return *self.keys_of_signal(signal, schema, columns), None
        server = self.server
        if signal.where:
            assert isinstance(server, TakesConditions), "its FoundSource takes conditions"
            server = server.with_condition(schema.table, signal.where)
        whole = wish.rest or range_of(self.keys, schema, output, columns, signal)
        rest: KeyRange | None = whole
        reads, began = list[SplitRead](), time.monotonic()
        with server.split_reading((schema,), self.state.job_uuid) as reader:
            while rest is not None:
                here, rest = self._cut(schema, columns, rest)
                read, output = self._split(reader, schema, columns, here)
                reads.append(read)
                is_full = sum(read.rows.num_rows for read in reads) >= self.job.snapshot.split_rows
                if is_full or time.monotonic() - began > BATCH_SECONDS:
                    break
        gathered = _gathered(reads)
        if signal.where:
            return gathered, _no_keys(output), output, rest
        within = IntegerRange.of(columns, KeyRange(whole.start, here.end))
        assert within is not None, "its bounds are integers"
        keys = copied_keys(self.job, output, within, gathered.rows.num_rows)
        return gathered, self._lacking(keys, gathered, output), output, rest

    def _cut(self, schema: TableSchema, columns: tuple[str, ...], rest: KeyRange) -> tuple[KeyRange, KeyRange | None]:
        """Divides a range: about `snapshot.split_rows` rows, and what comes after them."""
        rows = self.job.snapshot.split_rows
        bounds = self.keys.next_bounds(schema.table, columns, after=rest.start, until=rest.end, rows=rows, count=1)
        return (KeyRange(rest.start, bounds[0]), KeyRange(bounds[0], rest.end)) if bounds else (rest, None)

    def _split(
        self, reader: SplitReading, schema: TableSchema, columns: tuple[str, ...], key_range: KeyRange
    ) -> tuple[SplitRead, TableSchema]:
        split = Split(0, schema.table, schema.version, columns, key_range)
        return self.project.split(reader.read(split, schema, self.start).after(self.start))

    def _lacking(self, keys: pa.RecordBatch, read: SplitRead, output: TableSchema) -> pa.RecordBatch:
        """Returns those of the keys that were not read. None of a table with `snapshot.where`, which leaves rows out."""
        table = output.table
        has_condition = self.job.snapshot.condition(table.database, table.name) is not None
        found = set(key_values(read.rows, output.key))
        lacks = np.array([key not in found and not has_condition for key in key_values(keys, output.key)], np.bool_)
        return keys.filter(pa.array(lacks))


def _no_keys(output: TableSchema) -> pa.RecordBatch:
    kinds = [(name, arrow_type_of(output.column(name).arrow_type)) for name in output.key]
    return pa.RecordBatch.from_pylist([], pa.schema(kinds))


def _gathered(reads: Sequence[SplitRead]) -> SplitRead:
    rows = pa.concat_tables([read.rows for read in reads]).combine_chunks()
    high = max((read.report.high for read in reads), key=lambda position: position.order)
    return replace(reads[-1], rows=rows, report=replace(reads[-1].report, high=high, row_count=rows.num_rows))


def _ranges(signal: Signal) -> Iterator[tuple[KeyRange, bool]]:
    yield from ((key_range, False) for key_range in signal.ranges)
    yield from ((key_range, True) for key_range in signal.whole)


def _refusal(job: JobFile, checkpoint: Checkpoint, state: JobState, signal: Signal) -> str | None:
    if job.mode != "full+incremental" or sink_needs(job.sink).holds is None:
        return "Only a job of mode full+incremental can have rows read again by key, and none with sink console."
    if signal.table not in {schema.table for schema in state.schemas}:
        return "The job does not copy this table."
    back = state.came_back.get(signal.table)
    if back is not None and back.at_us > signal.at_us:
        return "The whole table was read again since."
    if recover_state(checkpoint, job, state).phase is not Phase.STREAM:
        return "Rows are still being copied. Give the signal again once the copies are complete."
    return None


def _tell_lost(checkpoint: Checkpoint, job: JobFile, state: JobState) -> None:
    """Says of rows that were read again and will never be written: the job went on from another position of the log."""
    if not any(joined.rereads for joined in state.joined):
        return
    now, outcomes = recover_state(checkpoint, job, state), checkpoint.outcomes()
    parts = {number for number, (signal, _) in checkpoint.signals().items() if signal.kind != "repair"}
    pending = {reread.signal for reread in now.rereads} | _planned(checkpoint)
    for count, joined in enumerate(state.joined[: now.joined], 1):
        for reread in joined.rereads:
            if reread.signal in outcomes or not reread.signal:
                continue
            if reread.signal in parts:  # a batch that was written has no outcome of its own
                is_lost, again = state.restarts_after(count), "Give the signal again."
            else:
                is_lost, again = reread.signal not in pending, "Compare again."
            if is_lost:
                _end(checkpoint, reread.signal, f"{NOT_WRITTEN} {again}", done=False)


def _planned(checkpoint: Checkpoint) -> set[int]:
    """The signals whose rows the newest planned epoch writes."""
    newest = max(checkpoint.plan_epochs(), default=0)
    work = checkpoint.plan(newest).plan.work if newest else None
    return {reread.signal for reread in getattr(work, "rereads", ())}


def _open_signals(checkpoint: Checkpoint) -> dict[int, Signal]:
    """Those about parts of tables that are not answered yet."""
    if not checkpoint.has_open_signals():
        return {}
    found = checkpoint.signals().items()
    return {n: signal for n, (signal, answer) in found if answer is None and signal.is_partial}


def _refuse(checkpoint: Checkpoint, number: int, signal: Signal, why: str) -> None:
    if signal.kind == "repair":
        _answer(checkpoint, number, why, accepted=False)
    else:
        _end(checkpoint, number, why, done=False)  # it was accepted before


def _end(checkpoint: Checkpoint, number: int, text: str, *, done: bool) -> None:
    checkpoint.create_outcome(number, Answer(done, text, _now_us()))


def _answer(checkpoint: Checkpoint, number: int, text: str, *, accepted: bool) -> None:
    checkpoint.create_answer(number, Answer(accepted, text, _now_us()))


def _now_us() -> int:
    return time.time_ns() // 1000
