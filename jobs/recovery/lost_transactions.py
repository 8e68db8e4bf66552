"""Finds and reads again the rows that transactions changed which are before the job's position on one of two servers only.

A promoted server may lack the last transactions that the job has read (asynchronous replication). The job goes on there from
the position that leaves them out. The reports of the epochs that had them say which keys they touched: these rows are read
again at the new server, and written before its log. Tables of which the keys are not all known are read again as a whole
(docs/adr/0073).

Or the server has all of them, but others in between which the job has not read: it committed transactions that do not depend on
each other in another order, or has some of its own. Their keys are in its log (docs/adr/0098).
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa

from tidemark.conf.model import JobFile
from tidemark.jobs.reconcile.key_ranges import MAX_RANGES, has_own_key
from tidemark.jobs.recovery.proven_log import require_known_log
from tidemark.jobs.signals.repairs import RowsReading, await_visible, same_columns
from tidemark.jobs.sinks import sink_needs
from tidemark.readers.log.touched_keys import TouchedKeysNote, keys_of_note
from tidemark.readers.projection.settings import projector
from tidemark.readers.snapshot.repairs import key_values, write_repair
from tidemark.readers.snapshot.split_read import MAX_REREADS, reread_seq
from tidemark.readers.source import (
    BoundsKeys,
    FindsLost,
    FindsPlace,
    FindsUnread,
    FoundSource,
    LostTransactions,
    UnreadTransactions,
)
from tidemark.state.change_batch import is_truncation
from tidemark.state.checkpoint.layout import Checkpoint, repair_file
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError, TableLockedError, TidemarkError
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState, Joined
from tidemark.state.key_repair import KeyRepair
from tidemark.state.key_source import KeySource
from tidemark.state.log_range import TouchedKeys
from tidemark.state.plan import EnumeratorState, LogWork, PlanRecord, SnapshotWork
from tidemark.state.position import Position
from tidemark.state.projection import outputs_of
from tidemark.state.split import Bound, KeyRange
from tidemark.state.table import TableId, TableSchema

MAX_KEYS = 10_000
"""Tables with more keys to read are read again as a whole."""
NEAR = 100
"""Keys of integers that differ by no more than this are read by one statement."""
LOST = 0
"""`KeyRepair.signal` of such rows."""


@dataclass(frozen=True, slots=True)
class LostRows:
    """The rows that lost or unread transactions changed. `place`: the position of the new server's log that leaves lost ones
    out, and has all others that the job has read. `lost`, `unread`: if there are any. `keys`: by table, each key once. `whole`:
    the tables of which the keys are not all known, with the reason. `holds`: as in SinkNeeds."""

    place: Position
    lost: LostTransactions | None
    unread: UnreadTransactions | None
    keys: Mapping[TableId, pa.RecordBatch]
    whole: Mapping[TableId, str]
    holds: Literal["rows", "changes"]

    @property
    def is_nothing(self) -> bool:
        """True if the transactions changed no rows of the job's tables."""
        return not self.keys and not self.whole

    def with_whole(self, more: Mapping[TableId, str]) -> "LostRows":
        """Returns the same with more tables that are read again as a whole."""
        whole = {**more, **self.whole}
        return replace(self, keys={t: keys for t, keys in self.keys.items() if t not in whole}, whole=whole)

    def text(self) -> str:
        told = [
            f"{count:,} {'key' if count == 1 else 'keys'} of {table}"
            for table, count in sorted((table, keys.num_rows) for table, keys in self.keys.items())
        ]
        told += [f"all rows of {table} ({reason})" for table, reason in sorted(self.whole.items())]
        why = []
        if self.lost is not None:
            why.append(f"It lacks transactions that the job has read: {self.lost}. Only the other server had them.")
        if self.unread is not None:
            why.append("Before the last one that the job has read, its log has transactions that the job has not read.")
        lacks = " ".join(why)
        if not told:
            return f"{lacks} They changed no rows of the job's tables."
        told_rows = f"{lacks} The rows that they changed are read again: {', '.join(told)}."
        if self.unread is None or self.holds == "rows":
            return told_rows
        return f"{told_rows} The copy gets these rows as they are now, and lacks the changes that the job has not read."


def find_lost_rows(
    job: JobFile, state: JobState, now: EnumeratorState, found: FoundSource, places: FindsPlace
) -> LostRows | None:
    """Returns None if nothing is known of such transactions, or of where the new server's log leaves them out. `now`: with the
    newest epoch, if it was read."""
    holds = sink_needs(job.sink).holds
    if job.mode != "full+incremental" or holds is None:
        return None
    search, place, unread, since = _Search(Checkpoint.at(job.checkpoint), state), None, None, None
    lost = places.lost(state, now.position) if isinstance(places, FindsLost) else None
    if lost is not None:
        assert isinstance(places, FindsLost)
        since = search.since(lost, now.epoch if now.awaited is None else now.epoch - 1)
        if since is None:
            return None
        try:
            place = places.place_without(state, since.position, now.position, lost)
            require_known_log(found, state, since.position, since.known_log)
        except LogPositionLostError:
            place = None
    if place is None:
        if not isinstance(places, FindsUnread):
            return None
        try:
            if since is not None:
                places.unread(state, since.position)  # proves that both servers' logs are of one topology
            unread = places.unread(state, now.position, lost)
            search.take_unread(job, unread)
        except (LogPositionLostError, SourceNotUsableError):
            return None
        place = unread.place
    wanted = {table: keys for table, keys in search.keys.items() if table not in search.whole}
    same = same_columns(found, state, wanted)
    columns = {split_key.table: split_key.columns for split_key in state.split_keys}
    outputs, schemas = ({s.table: s for s in facts} for facts in (state.outputs, state.schemas))
    keys = dict[TableId, pa.RecordBatch]()
    for table, notes in wanted.items():
        schema, output = schemas[table], outputs[table]
        condition = job.snapshot.condition(table.database, table.name)
        if condition is not None or not has_own_key(job, schema, output, columns.get(table, ())):
            search.whole[table] = "they can't be read by key"
        elif table not in same:
            search.whole[table] = "its columns were changed"
        else:
            keys[table] = _distinct(notes)
            if keys[table].num_rows > MAX_KEYS:
                search.whole[table] = f"more than {MAX_KEYS:,} keys"
    known = {table: batch for table, batch in keys.items() if table not in search.whole}
    return LostRows(place, lost, unread, known, search.whole, holds)


@dataclass(slots=True)
class _Search:
    """Collects the notes of the epochs that had lost transactions."""

    checkpoint: Checkpoint
    state: JobState
    keys: dict[TableId, list[pa.Table]] = field(default_factory=dict)
    whole: dict[TableId, str] = field(default_factory=dict)

    def since(self, lost: LostTransactions, newest: int) -> EnumeratorState | None:
        """Goes back to the epoch that had the first of them. Returns the state before it, None if one of the epochs is not
        known any more, or noted nothing."""
        kept = set(self.checkpoint.plan_epochs())
        for epoch in range(newest, 0, -1):
            restarted = any(joined.restarts and joined.after_epoch >= epoch for joined in self.state.joined)
            if epoch not in kept or restarted:
                return None
            record = self.checkpoint.plan(epoch)
            if not self._take(lost, record):
                return None
            if not lost.any_before(record.state.position):
                self._take_joined(record)
                return record.state
        return None

    def _take(self, lost: LostTransactions, record: PlanRecord) -> bool:
        match record.plan.work:
            case SnapshotWork(tasks):
                self._give_up((split.table for task in tasks for split in task), "its rows were being read")
                return True
            case LogWork(log_range, empties=empties, rereads=rereads, backfills=backfills):
                pass
        others = (*empties, *(reread.table for reread in rereads), *(backfill.table for backfill in backfills))
        self._give_up(others, "its rows were being read")
        epoch = record.plan.epoch
        if not self.checkpoint.has_log_report(epoch):
            return False
        report = self.checkpoint.log_report(epoch)
        if not lost.any_before(report.end) or log_range.start.order >= report.end.order:
            return True
        if report.touched is None:
            return False
        for touched in report.touched:
            self._note(touched)
        return True

    def take_unread(self, job: JobFile, unread: UnreadTransactions) -> None:
        """Notes the keys of transactions that the job has not read. Raises SourceNotUsableError if it can't be told which
        tables they changed."""
        schemas = [schema for schema in self.state.schemas if schema.table not in self.whole]
        projections = [p for p in self.state.projections if p.output.table not in self.whole]
        project, unreadable = projector(job, schemas, projections), set[TableId]()
        notes = {output.table: TouchedKeysNote([output]) for output in outputs_of(schemas, projections)}
        for batch in unread.changes(schemas, unreadable):
            if batch.table in unreadable:
                continue
            if is_truncation(batch.rows):
                notes[batch.table].give_up(batch.table)
                continue
            try:
                notes[batch.table].take(batch.table, project.changes(batch.table, batch.rows))
            except TidemarkError as error:
                if error.table != batch.table:
                    raise
                unreadable.add(batch.table)
        self._give_up(unreadable, "its columns were changed")
        for table, note in notes.items():
            for touched in note.touched() if table not in unreadable else ():
                self._note(touched)

    def _note(self, touched: TouchedKeys) -> None:
        versions = {schema.table: schema.version for schema in self.state.schemas}
        if touched.table not in versions:
            return  # it comes back, if it does, with all its rows
        if touched.keys is None or versions[touched.table] != touched.version:
            self._give_up([touched.table], "its keys were not noted")
        else:
            self.keys.setdefault(touched.table, []).append(keys_of_note(touched.keys))

    def _take_joined(self, first: PlanRecord) -> None:
        """Tables that joined the job, or were altered, since the first of the epochs."""
        later = (joined for joined in self.state.joined if joined.after_epoch >= first.plan.epoch - 1)
        self._give_up((schema.table for joined in later for schema in joined.schemas), "its rows were being read")
        since = first.plan.epoch, first.planned_at_us
        altered = (each.schema.table for each in self.checkpoint.altered() if each.is_since(*since))
        self._give_up(altered, "its columns were changed")

    def _give_up(self, tables: Iterable[TableId], reason: str) -> None:
        known = {schema.table for schema in self.state.schemas}
        for table in tables:
            if table in known:
                self.whole.setdefault(table, reason)


def _distinct(notes: list[pa.Table]) -> pa.RecordBatch:
    tables = [_plain(note) for note in notes]
    keys = pa.concat_tables(tables).combine_chunks()
    first = dict[object, int]()
    for i, key in enumerate(key_values(keys, keys.schema.names)):
        first.setdefault(key, i)
    (batch,) = keys.take(pa.array(list(first.values()))).combine_chunks().to_batches()
    return batch


def _plain(keys: pa.Table) -> pa.Table:
    """Returns the keys without dictionaries, which differ from epoch to epoch."""
    kinds = [(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in keys.schema]
    return keys.cast(pa.schema(kinds))


def read_lost_rows(
    job: JobFile, state: JobState, found: FoundSource, rows: LostRows, leaving: Collection[TableId]
) -> tuple[tuple[KeyRepair, ...], Mapping[TableId, str]]:
    """Reads the rows at the new server, without those of tables that leave, and keeps them in the checkpoint. Nothing names
    them there yet. Returns them, and the tables whose rows can't be read by key, with the reason."""
    wanted = {table: keys for table, keys in rows.keys.items() if table not in leaving}
    if not wanted:
        return (), {}
    checkpoint, place = Checkpoint.at(job.checkpoint), rows.place
    there = state.with_joined(Joined(place, (), (), restarts=True, server_identity=found.identity()))
    server = found.server(there)
    source = server.planner_access(there).keys
    await_visible(source, place)
    reading = RowsReading(job, there, server, source, projector(job, there.schemas, there.projections), place)
    columns = {split_key.table: split_key.columns for split_key in there.split_keys}
    schemas = {schema.table: schema for schema in there.schemas}
    rereads, whole = list[KeyRepair](), dict[TableId, str]()
    for number, (table, keys) in enumerate(sorted(wanted.items())):
        schema = schemas[table]
        # Its commit version may be that of rows that were read again before.
        before = sum((r.table, r.version) == (table, schema.version) for j in state.joined for r in j.rereads)
        if before >= MAX_REREADS:
            whole[table] = "its rows were read again too often"
            continue
        try:
            ranges = list(_ranges(source, schema, columns[table], keys) or ())
            if not ranges or len(ranges) > MAX_RANGES:
                whole[table] = "too many keys, or keys that the server can't be given"
                continue
            read, lacking, output = reading.rows_of_keys(schema, columns[table], keys, ranges)
        except (SourceNotUsableError, TableLockedError) as error:
            whole[table] = str(error)
            continue
        read = reading.placed(read, reread_seq(schema.version, before))
        name = repair_file(LOST, time.time_ns() // 1000 + number)
        count = write_repair(checkpoint.store, name, read, lacking, output)
        rereads.append(KeyRepair(LOST, table, schema.version, name, read.report.high, count))
        failpoint("lost_transactions.read")
    return tuple(rereads), whole


def _ranges(
    source: KeySource, schema: TableSchema, columns: tuple[str, ...], keys: pa.RecordBatch
) -> Iterator[tuple[KeyRange, bool]] | None:
    """Returns ranges that have all keys: each from a key to the one after the next one that the source has. With True: all
    rows of the range are to be written, since the source may take another text as the same key. None if the source can't be
    given one of the keys."""
    bounds = source.bounds_of(schema.table, columns, keys) if isinstance(source, BoundsKeys) else None
    if bounds is None:
        return None

    def following(bound: Bound) -> Bound | None:
        found = source.next_bounds(schema.table, columns, after=bound, until=None, rows=1, count=1)
        return found[0] if found else None

    return _divided(bounds, columns, keys, following)


def _divided(
    bounds: Iterable[Bound],
    columns: tuple[str, ...],
    keys: pa.RecordBatch,
    following: Callable[[Bound], Bound | None],
) -> Iterator[tuple[KeyRange, bool]]:
    values = keys.column(columns[0])
    if len(columns) > 1 or not pa.types.is_integer(values.type):
        yield from ((KeyRange(bound, following(bound)), True) for bound in bounds)
        return
    ordered = sorted(zip(values.to_pylist(), bounds, strict=True), key=lambda pair: int(pair[0]))
    start, (last, end) = ordered[0][1], ordered[0]
    for value, bound in ordered[1:]:
        if value - last > NEAR:
            yield KeyRange(start, following(end)), False
            start = bound
        last, end = value, bound
    yield KeyRange(start, following(end)), False


def unwritten(checkpoint: Checkpoint, state: JobState, now: EnumeratorState) -> set[TableId]:
    """Returns the tables of which rows that a former failover had read again are not written yet, and never will be if the job
    goes on from another position."""
    rereads = [*now.rereads, *(reread for joined in state.joined[now.joined :] for reread in joined.rereads)]
    if now.awaited is not None:
        work = checkpoint.plan(now.epoch).plan.work
        rereads += work.rereads if isinstance(work, LogWork) else ()
    versions = {schema.table: schema.version for schema in state.schemas}
    return {r.table for r in rereads if r.signal == LOST and versions.get(r.table) == r.version}
