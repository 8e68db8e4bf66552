"""Reading rows again by key while everything else goes on (`tidemark reconcile JOB.yaml --repair`).

    joining_start: a position X; every SELECT from now on sees all before it
    → the keys' rows are read, exact at their highs, and kept in the checkpoint → X, file and highs are in `joined`, durable
    → the signal is answered → the log is read up to exactly X
    → one epoch: a DELETE for each key that the source lacks, the rows, then the log from X to beyond all highs

The rows have all that the copy has at X. What they contain beyond X is in that epoch's range of the log, too: its last change
of a key decides, so nothing is lost or goes back. The epoch is one transaction of the target (docs/adr/0037).
"""

import time
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tidemark.conf.model import JobFile
from tidemark.conf.sink import MirrorSink
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.reconcile.repair import keys_of
from tidemark.jobs.recovered_state import recover_state
from tidemark.readers.projection.projector import Projector
from tidemark.readers.projection.settings import projector
from tidemark.readers.snapshot.repairs import key_values, write_repair
from tidemark.readers.snapshot.split_read import SplitRead
from tidemark.readers.source import FoundSource, SplitReading
from tidemark.state.checkpoint.layout import Checkpoint, repair_file
from tidemark.state.errors import SourceNotUsableError
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState, Joined
from tidemark.state.key_source import KeySource
from tidemark.state.phase import Phase
from tidemark.state.position import Position
from tidemark.state.reread import Reread
from tidemark.state.signals import Answer, Signal
from tidemark.state.split import KeyRange, Split
from tidemark.state.table import TableSchema

VISIBLE_SECONDS = 60.0
"""How long a start waits until a MariaDB snapshot has all that the log has."""
POLL_SECONDS = 0.05
ACCEPTED = "The rows of its keys were read again. They are written once the log has been read up to there."


def read_again(job: JobFile, found: FoundSource, state: JobState, events: Events, seen: Collection[int]) -> JobState:
    """Reads the rows that open signals ask for, and takes them into the job, durable. Answers these signals. `seen`: those that
    were open when the opening began. Raises what reading raises; a signal without an answer is taken again."""
    checkpoint = Checkpoint.at(job.checkpoint)
    _tell_lost(checkpoint, job, state)
    signals = {n: s for n, s in _open_repairs(checkpoint).items() if n in seen}
    if not signals:
        return state
    taken = {reread.signal for joined in state.joined for reread in joined.rereads}
    new = dict[int, Signal]()
    for number, signal in signals.items():
        why = None if number in taken else _refusal(job, checkpoint, state, signal)
        if why is not None:
            _answer(checkpoint, number, why, accepted=False)
        elif number in taken:
            _answer(checkpoint, number, ACCEPTED, accepted=True)
        else:
            new[number] = signal
    if not new:
        return state
    try:
        start = found.joining_start(())
    except SourceNotUsableError as error:
        for number in new:
            _answer(checkpoint, number, str(error), accepted=False)
        return state
    for name in set(checkpoint.repair_files()) - {r.file for joined in state.joined for r in joined.rereads}:
        checkpoint.forget_repairs([name])  # of an earlier driver that died
    state = _taken(checkpoint, job, found, state, new, start)
    for number, signal in new.items():
        events.note("repair", table=str(signal.table), keys=len(signal.keys), start=str(start), text=ACCEPTED)
        _answer(checkpoint, number, ACCEPTED, accepted=True)
    return state


def _taken(
    checkpoint: Checkpoint,
    job: JobFile,
    found: FoundSource,
    state: JobState,
    signals: dict[int, Signal],
    start: Position,
) -> JobState:
    tables = {signal.table for signal in signals.values()}
    schemas = {schema.table: schema for schema in state.schemas if schema.table in tables}
    columns = {split_key.table: split_key.columns for split_key in state.split_keys}
    server = found.server(state)
    await_visible(server.planner_access(state).keys, start)
    project = projector(job, state.schemas, state.projections)
    rereads = []
    with server.split_reading(tuple(schemas.values()), state.job_uuid) as reader:
        for number, signal in signals.items():
            assert signal.table is not None
            schema = schemas[signal.table]
            read, lacking, output = _read(job, signal, schema, columns[signal.table], reader, project, start)
            name = repair_file(number, time.time_ns() // 1000)
            rows = write_repair(checkpoint.store, name, read, lacking, output)
            rereads.append(Reread(number, schema.table, schema.version, name, read.report.high, rows))
            failpoint("repairs.read")
    joined = Joined(
        start,
        (),
        (),
        left_files=checkpoint.left_count(),
        after_epoch=max(checkpoint.plan_epochs(), default=0),
        at_us=_now_us(),
        rereads=tuple(rereads),
    )
    state = checkpoint.create_joined(state, joined)
    failpoint("repairs.joined")
    return state


def await_visible(keys: KeySource, position: Position) -> None:
    """Waits until every later SELECT sees the log up to the position. Raises SourceNotUsableError after VISIBLE_SECONDS."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    while not keys.sees(position, ()):
        if time.monotonic() > deadline:
            raise SourceNotUsableError(
                f"The server's snapshots do not contain the log up to {position} after {VISIBLE_SECONDS:.0f} s.",
                "Look for transactions whose COMMIT does not end, and start the job again.",
            )
        time.sleep(POLL_SECONDS)


def _read(
    job: JobFile,
    signal: Signal,
    schema: TableSchema,
    columns: tuple[str, ...],
    reader: SplitReading,
    project: Projector,
    start: Position,
) -> tuple[SplitRead, pa.RecordBatch, TableSchema]:
    """Returns the rows, the keys that the source lacks, and the table's output schema."""
    reads, wanted = list[SplitRead](), set[object]()
    output, keys = schema, pa.RecordBatch.from_pylist([])
    for key_range, is_whole in _ranges(signal):
        split = Split(len(reads), schema.table, schema.version, columns, key_range)
        read, output = project.split(reader.read(split, schema, start).after(start))
        if not wanted:
            found_keys = keys_of(signal.keys, output)
            assert found_keys is not None, "reconcile has read these keys"
            keys, wanted = found_keys, set(key_values(found_keys, output.key))
        if not is_whole:
            mask = [key in wanted for key in key_values(read.rows, output.key)]
            read = replace(read, rows=read.rows.filter(pa.array(mask, pa.bool_())))
        reads.append(read)
    rows = pa.concat_tables([read.rows for read in reads]).combine_chunks()
    high = max((read.report.high for read in reads), key=lambda position: position.order)
    whole = replace(reads[-1], rows=rows, report=replace(reads[-1].report, high=high, row_count=rows.num_rows))
    has_condition = job.snapshot.condition(schema.table.database, schema.table.name) is not None
    found = set(key_values(rows, output.key))
    lacks = np.array([key not in found and not has_condition for key in key_values(keys, output.key)], np.bool_)
    return whole, keys.filter(pa.array(lacks)), output


def _ranges(signal: Signal) -> Iterator[tuple[KeyRange, bool]]:
    yield from ((key_range, False) for key_range in signal.ranges)
    yield from ((key_range, True) for key_range in signal.whole)


def _refusal(job: JobFile, checkpoint: Checkpoint, state: JobState, signal: Signal) -> str | None:
    if job.mode != "full+incremental" or not isinstance(job.sink, MirrorSink):
        return "Only a mirror of mode full+incremental can have rows read again by key."
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
    pending = {reread.signal for reread in now.rereads} | _planned(checkpoint)
    for joined in state.joined[: now.joined]:
        for reread in joined.rereads:
            if reread.signal not in pending and reread.signal not in outcomes:
                text = "The log was read from another position on, so these rows were not written. Compare again."
                checkpoint.create_outcome(reread.signal, Answer(False, text, _now_us()))


def _planned(checkpoint: Checkpoint) -> set[int]:
    """The signals whose rows the newest planned epoch writes."""
    newest = max(checkpoint.plan_epochs(), default=0)
    work = checkpoint.plan(newest).plan.work if newest else None
    return {reread.signal for reread in getattr(work, "rereads", ())}


def _open_repairs(checkpoint: Checkpoint) -> dict[int, Signal]:
    if not checkpoint.has_open_signals():
        return {}
    found = checkpoint.signals().items()
    return {n: signal for n, (signal, answer) in found if answer is None and signal.kind == "repair"}


def _answer(checkpoint: Checkpoint, number: int, text: str, *, accepted: bool) -> None:
    checkpoint.create_answer(number, Answer(accepted, text, _now_us()))


def _now_us() -> int:
    return time.time_ns() // 1000
