"""The layout of a job's checkpoint: the name of every file in it, and the ways to read, write and remove them.

No other module spells such a name. Names that sort by epoch have ten digits. "The planner" is the part of the driver that
plans epochs; "a task" reads and writes a part of an epoch, in the driver or on an executor.

    job                     what the job is (JobState).
                            Written by the driver at the first start, before the first read. Never removed.
    joined/0000000001-0000000007
                            tables that join or come back; rows that are read again by key; another position or server from
                            which the job continues (Joined). The name has the record's number and the driver's, as in
                            `left` and `altered` (records.py).
                            Written by the driver at a start, before anything of them is read. Removed once merged.
    joined/m0000000064      the first 64 of them in one file, when there are many. It replaces their files, and is replaced by a
                            longer one.
    left/…                  tables that left the job (Left).
                            Written by the driver when it finds them in exclude_tables, or parks or pauses them. Never removed.
    altered/…               a table that got, lost or widened columns (Altered).
                            Written by the driver when it finds the change, before the log is read with it. Never removed.
    again/…                 an epoch that is begun again (Again): its plan is made, or its log read, once more, and what was
                            written of it before no longer counts. The record's number is that of the attempt. The names of
                            what is written from then on end with it: `plans/e0000000042-0000000003`, `logs/…`,
                            `rereads/…` and `published/e42-p…`.
                            Written by the driver when it finds a torn plan, or may forget what was read. Never removed.
    signals/0000000001      a request to the job (Signal).
                            Written by `tidemark signal` and `reconcile --repair`, or by the driver for a row of the signal
                            table. Never removed.
    answers/0000000001      what the job did with the signal of that number (Answer).
                            Written by the driver. Never removed.
    first_rows/0000000001   the rows that a signal table had when the job first looked at it (FirstRows): they are no signals.
                            Written by the driver. Never removed.
    outcomes/0000000001     the rows that a signal had read again are written, or why not (Answer).
                            Written by the driver, or by an epoch's task that finds that the copy may be wrong. Never removed.
    repairs/n1-1700…        rows that were read again for signal 1. Those of n0 were because of a failover.
                            Written by the driver, before it takes them into `joined`. Removed once they are written.
    upgrade_marks/0000000001
                            PostgreSQL: how far the job had read before the server was to be upgraded (UpgradeMark).
                            Written by `tidemark run --before-upgrade`, before it creates the slot that the file names, under a
                            number that is not less than the driver's. Removed
                            with that slot: once the job goes on at the upgraded server, or at the old one after more writes.
    sink                    which copy the job writes (SinkIdentity).
                            Written by the driver before the first row is written. Never removed.
    lease                   a random text that names the job's lease, however the checkpoint's folder is written.
                            Written by the first driver, before it takes the lease. Never removed.
    owners/0000000007       the number of a driver: its host, process and time, for people.
                            Written by the driver when it has the lease, and before it writes to the target. Removed by the
                            next driver.
    cuts/0000000007         how many files `joined`, `left` and `altered` had when this driver took the job over (Cut).
                            Written by the driver after its number, before it reads any of them. Removed by the next driver.
    plans/e0000000042       an epoch's plan and the enumerator's state after it (PlanRecord).
                            Written by the planner, before the epoch runs. Removed KEPT_PLANS epochs after its commit or later.
    partitions/9f2c…-0000000007  PostgreSQL: tables, their storage files and their partitions; named by its content and the
                            driver.
                            Written by the planner before the plan that names it. Removed after those plans, once a newer one
                            is in a plan.
    published/e42-s7        the rows of a split of epoch 42, with their report.
    published/e42-p9-3      rows that epoch 42 read again (docs/adr/0016), named by the position of their first change.
                            Written by a task. Removed by the planner when the epoch is committed and the next is planned.
    staged/g5-1200          a chunk of a table without a key (docs/adr/0017): attempt 5, from page 1200 on.
    staged/g5-7d0c…-2       the same of a table that was read beside the epochs (docs/adr/0084): by reader 7d0c…, number 2.
                            Written by a task. Removed by the planner when no plan needs the attempt.
    withheld/e0000000042-9f2c…  changes of a table, of epoch 42, that wait until the table's rows are written (docs/adr/0062).
                            Written by the epoch's task, before its log report. Removed by the planner once no plan needs them.
    logs/e0000000042        what an epoch's log range contained (LogReport), and which keys it touched (docs/adr/0073).
                            Written by the epoch's task. Removed together with the plan.
    rereads/e0000000042     keys whose rows an epoch read again (KeyReread).
                            Written by the epoch's task, before its log report. Removed together with `finished`.
    finished/e0000000042    the splits that an epoch finished, for the gap filter.
    finished/m…1-…256       the same for several epochs. It replaces their files.
                            Written by the planner when the epoch is committed. Removed when the log has passed all highs.
    copies/shop.orders      which table of the target is the copy. Only the Delta sink has such files.
                            Written by the driver before the first row is written. Never removed.
    seen_copies/0000000007  what a run has seen of the copies (SeenCopy): if they are still so, the next one does not ask Spark.
                            May be missing or unreadable. Only the Delta sink has such a file.
                            Written by the driver at the end of a run. Each file replaces the one before it.
    for_spark/…             an epoch's changes as Parquet files that Spark reads. Only the Delta sink has such files. Unlike
                            others they may be incomplete: only the attempt that wrote them reads them, and it knows which are.
                            In a bucket, each driver has one folder there.
                            Written by tasks. Removed when the epoch is written, or by the next driver.
    history/epochs-…        what the job did, for people; also splits-…, events-… and run-…. May be missing or unreadable.
                            Written by the planner (events, run: by the driver). Each file replaces the one before it.
    probe-…                 tells whether the storage can create a file only where there is none.
                            Written and removed by the driver at the first start.
    committed/e0000000042   the sink has all of the epoch. Only the newest epoch has such a file: older ones are committed,
                            because a later one is planned.
                            Written by the driver once the sink has the epoch. Removed when the next one is committed.
    spark/                  Spark's own checkpoint of a streaming query, in which earlier versions ran. Only read.

Every file is written once and never changed. A missing or damaged file is an error, never read as "nothing there yet".

A driver may freeze between any two steps, and go on when another one has taken the job over. So no name that a driver removes
is written by a later one, and what a driver writes late is not taken for a later one's (docs/adr/0092 says why, for each).
"""

import hashlib
import itertools
import json
import os
import socket
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from tidemark.state.checkpoint.codec import (
    AGAIN,
    ALTERED,
    ANSWER,
    CUT,
    FIRST_ROWS,
    JOB,
    JOINED,
    JOINED_LIST,
    KEY_REREADS,
    LEFT,
    LOG_REPORT,
    PARTITIONS,
    PLAN,
    SEEN_COPIES,
    SIGNAL,
    SINK,
    UPGRADE_MARK,
    is_torn,
)
from tidemark.state.checkpoint.records import Again, Cut, counting, number_and_driver
from tidemark.state.checkpoint.store import (
    CheckpointStore,
    open_store,
    remove_leftovers,
    require_create_if_absent,
    require_writable_folder,
)
from tidemark.state.errors import CheckpointError, JobHeldError, ReadsDifferError
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import Altered, JobState, Joined, Left
from tidemark.state.key_rereads import KeyReread
from tidemark.state.log_range import LogReport
from tidemark.state.partitions import KeptPartitions, Partitions
from tidemark.state.plan import PlanRecord
from tidemark.state.position import BinlogPosition
from tidemark.state.projection import TableProjection
from tidemark.state.remedies import ONE_DRIVER, RESTORE_CHECKPOINT
from tidemark.state.seen_copy import SeenCopy
from tidemark.state.signals import Answer, FirstRows, Signal
from tidemark.state.sink_identity import SinkIdentity
from tidemark.state.table import TableId, TableSchema
from tidemark.state.upgrade_mark import UpgradeMark

MERGED_JOINED = 64
"""Files of `joined` that are merged into one. Reading a large part of a table again makes many."""
KEPT_PLANS = 100
"""The newest plans of committed epochs that are kept, for `tidemark checkpoints JOB.yaml list`."""

JOB_FILE = "job"
SINK_FILE = "sink"
LEASE_FILE = "lease"
JOINED_FOLDER = "joined"
LEFT_FOLDER = "left"
ALTERED_FOLDER = "altered"
AGAIN_FOLDER = "again"
SIGNALS_FOLDER = "signals"
ANSWERS_FOLDER = "answers"
OUTCOMES_FOLDER = "outcomes"
REPAIRS_FOLDER = "repairs"
FIRST_ROWS_FOLDER = "first_rows"
UPGRADE_MARKS_FOLDER = "upgrade_marks"
OWNERS_FOLDER = "owners"
CUTS_FOLDER = "cuts"
PLANS_FOLDER = "plans"
PARTITIONS_FOLDER = "partitions"
PUBLISHED_FOLDER = "published"
STAGED_FOLDER = "staged"
WITHHELD_FOLDER = "withheld"
LOGS_FOLDER = "logs"
REREADS_FOLDER = "rereads"
FINISHED_FOLDER = "finished"
COPIES_FOLDER = "copies"
SEEN_COPIES_FOLDER = "seen_copies"
HISTORY_FOLDER = "history"
COMMITTED_FOLDER = "committed"
SPARK_FOLDER = "spark"
FOR_SPARK_FOLDER = "for_spark"
"""Files of one attempt at an epoch, which only it needs."""

_FOLDERS_OF_A_STARTED_JOB = (
    JOINED_FOLDER,
    PLANS_FOLDER,
    PUBLISHED_FOLDER,
    LOGS_FOLDER,
    FINISHED_FOLDER,
    SPARK_FOLDER,
)

NOT_SHARED_REMEDY = (
    "Put `checkpoint` on storage that the driver and all executors can write to, under the same path on each of them."
)


def record_file(folder: str, number: int, driver: int) -> str:
    """`folder`: JOINED_FOLDER, LEFT_FOLDER, ALTERED_FOLDER or AGAIN_FOLDER."""
    return f"{folder}/{number:010d}-{driver:010d}"


def merged_joined_file(last: int) -> str:
    return f"{JOINED_FOLDER}/m{last:010d}"


def signal_file(number: int) -> str:
    return f"{SIGNALS_FOLDER}/{number:010d}"


def answer_file(number: int) -> str:
    return f"{ANSWERS_FOLDER}/{number:010d}"


def first_rows_file(number: int) -> str:
    return f"{FIRST_ROWS_FOLDER}/{number:010d}"


def outcome_file(number: int) -> str:
    return f"{OUTCOMES_FOLDER}/{number:010d}"


def repair_file(signal: int, at_us: int) -> str:
    return f"{REPAIRS_FOLDER}/n{signal}-{at_us}"


def upgrade_mark_file(number: int) -> str:
    return f"{UPGRADE_MARKS_FOLDER}/{number:010d}"


def owner_file(number: int) -> str:
    return f"{OWNERS_FOLDER}/{number:010d}"


def cut_file(driver: int) -> str:
    return f"{CUTS_FOLDER}/{driver:010d}"


def plan_file(epoch: int, attempt: int = 0) -> str:
    """`attempt`: the number of the newest record of `again` that is of the epoch when it is planned, 0 if there is none."""
    return f"{PLANS_FOLDER}/{_epoch(epoch)}{_attempt(attempt)}"


def partitions_file(name: str) -> str:
    return f"{PARTITIONS_FOLDER}/{name}"


def published_split_file(epoch: int, split_id: int) -> str:
    return f"{PUBLISHED_FOLDER}/e{epoch}-s{split_id}"


def published_reread_file(epoch: int, commit_version: int, seq: int, attempt: int = 0) -> str:
    return f"{PUBLISHED_FOLDER}/e{epoch}-p{commit_version}-{seq}{_attempt(attempt)}"


def published_files(store: CheckpointStore, epoch: int) -> list[str]:
    """Returns the files that the tasks of an epoch have published so far."""
    return [name for name in store.list(PUBLISHED_FOLDER) if name.startswith(f"{PUBLISHED_FOLDER}/e{epoch}-")]


def staged_chunk_file(attempt: int, first: int, reader: str = "") -> str:
    """`first`: the chunk's first page, or, if `reader` is set, its number."""
    return f"{STAGED_FOLDER}/g{attempt}-{reader}-{first}" if reader else f"{STAGED_FOLDER}/g{attempt}-{first}"


def withheld_file(epoch: int, table: TableId) -> str:
    return f"{WITHHELD_FOLDER}/{_epoch(epoch)}-{_withheld_suffix(table)}"


def withheld_files(store: CheckpointStore, table: TableId, *, after_epoch: int, before_epoch: int) -> list[str]:
    """Returns the files of a table's changes that the epochs in between have withheld, oldest first."""
    of_table = (name for name in store.list(WITHHELD_FOLDER) if name.endswith(f"-{_withheld_suffix(table)}"))
    return [name for name in of_table if after_epoch < _epoch_of_withheld_file(name) < before_epoch]


def _withheld_suffix(table: TableId) -> str:
    return hashlib.sha256(json.dumps([table.database, table.name]).encode()).hexdigest()[:32]


def _epoch_of_withheld_file(name: str) -> int:
    return _epoch_of(name.partition("-")[0])


def log_report_file(epoch: int, attempt: int = 0) -> str:
    return f"{LOGS_FOLDER}/{_epoch(epoch)}{_attempt(attempt)}"


def rereads_file(epoch: int, attempt: int = 0) -> str:
    return f"{REREADS_FOLDER}/{_epoch(epoch)}{_attempt(attempt)}"


def finished_file(first_epoch: int, last_epoch: int) -> str:
    """The file of the splits that these epochs finished; a single epoch is first and last."""
    if first_epoch == last_epoch:
        return f"{FINISHED_FOLDER}/{_epoch(first_epoch)}"
    return f"{FINISHED_FOLDER}/m{first_epoch:010d}-{last_epoch:010d}"


def epochs_of_finished_file(name: str) -> tuple[int, int]:
    """The first and the last epoch of a file that `finished_file` has named."""
    first, _, last = name.removeprefix(f"{FINISHED_FOLDER}/")[1:].partition("-")
    return int(first), int(last or first)


def committed_file(epoch: int) -> str:
    return f"{COMMITTED_FOLDER}/{_epoch(epoch)}"


def copy_file(table_folder: str) -> str:
    return f"{COPIES_FOLDER}/{table_folder}"


def seen_copies_file(number: int) -> str:
    return f"{SEEN_COPIES_FOLDER}/{number:010d}"


def history_file(kind: str, number: int) -> str:
    return f"{HISTORY_FOLDER}/{kind}-{number:010d}"


def history_files(store: CheckpointStore, kind: str) -> list[str]:
    """The files of a kind, oldest first."""
    return [name for name in store.list(HISTORY_FOLDER) if name.startswith(f"{HISTORY_FOLDER}/{kind}-")]


def number_of(name: str) -> int:
    """The number that is the whole name of a file in its folder."""
    return int(name.rpartition("/")[2])


def number_of_history_file(name: str) -> int:
    return int(name.rpartition("-")[2])


def _divided(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Returns the merged files of `joined`, and the others."""
    found = list(names)
    merged = [name for name in found if name.startswith(f"{JOINED_FOLDER}/m")]
    return merged, [name for name in found if name not in merged]


def _epoch(epoch: int) -> str:
    return f"e{epoch:010d}"


def _epoch_of(name: str) -> int:
    return int(name.rpartition("/e")[2].partition("-")[0])


def _attempt_of_published(name: str) -> int:
    """The attempt of a file that `published_reread_file` has named."""
    return int(name.split("-")[3]) if name.count("-") == 3 else 0


def _attempt(attempt: int) -> str:
    return f"-{attempt:010d}" if attempt else ""


_DRIVERS: dict[str, int] = {}
"""By the checkpoint's URL: the number that this process has taken last, or the newest one when it found no job there."""
_ATTEMPTS: dict[str, tuple[int, Mapping[int, int]]] = {}
"""By the checkpoint's URL: the attempts that count for the driver of that number. Nobody else adds any that do."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`url` is the job file's `checkpoint`. `known_attempts`: those that were known when a task was made, see `attempts`; None:
    as they are now."""

    url: str
    store: CheckpointStore
    known_attempts: Mapping[int, int] | None = None

    @classmethod
    def at(cls, url: str) -> "Checkpoint":
        return cls(url, open_store(url))

    def require_writable(self) -> None:
        """Raises CheckpointError if this machine shows that the checkpoint's folder can't be written. Writes nothing."""
        require_writable_folder(self.store)

    def remove_leftovers(self) -> None:
        """Removes what killed processes were writing."""
        remove_leftovers(self.store)

    def has_job(self) -> bool:
        """False if the job was never started, or if its file `job` is gone."""
        return self.store.read(JOB_FILE) is not None

    def job_state(self) -> JobState | None:
        """The state with the tables that joined and were altered, and without those that left, or None if the job was never
        started. Raises CheckpointError if `job` is gone but other files are there."""
        data = self.store.read(JOB_FILE)
        if data is None:
            if any(self.store.list(folder) for folder in _FOLDERS_OF_A_STARTED_JOB):
                raise self._lost(JOB_FILE)
            return None
        state = JOB.decode(data, JOB_FILE)
        cut = self._cut()
        altered = self._records(ALTERED_FOLDER, cut)
        all_joined = self._joined(cut)  # read first: each entry names `left` files that are there
        left_names = self._records(LEFT_FOLDER, cut)
        left = iter([LEFT.decode(self._read(name), name) for name in left_names])
        taken = 0
        for joined in all_joined:
            if joined.left_files > len(left_names):
                raise self._lost(f"{LEFT_FOLDER}/{joined.left_files:010d}")
            for leaving in itertools.islice(left, joined.left_files - taken):
                state = state.without(leaving)
            taken = joined.left_files
            state = state.with_joined(joined)
        for leaving in left:
            state = state.without(leaving)
        for name in altered:
            state = state.with_altered(ALTERED.decode(self._read(name), name))
        return state

    def newest_schemas(self) -> dict[TableId, tuple[TableSchema, TableProjection | None]]:
        """The newest schema and projection of each table that the job has or had."""
        data = self.store.read(JOB_FILE)
        if data is None:
            return {}
        first = JOB.decode(data, JOB_FILE)
        joined = self._joined(self._cut())
        found: dict[TableId, tuple[TableSchema, TableProjection | None]] = {}
        facts = [(first.schemas, first.projections), *((each.schemas, each.projections) for each in joined)]
        for schemas, projections in facts:
            of_table = {projection.output.table: projection for projection in projections}
            found |= {schema.table: (schema, of_table.get(schema.table)) for schema in schemas}
        for altered in self.altered():
            table = altered.schema.table
            if found[table][0].version == altered.schema.version:
                found[table] = altered.schema, altered.projection
        return found

    def create_joined(self, state: JobState, joined: Joined) -> JobState:
        """Adds tables to the job. Raises JobHeldError if another driver did so, or has taken the job over."""
        self._add_record(JOINED_FOLDER, len(state.joined) + 1, JOINED.encode(joined))
        self._merge_joined()
        return state.with_joined(joined)

    def _joined(self, cut: Cut) -> list[Joined]:
        """Returns the entries that count, oldest first. Raises CheckpointError if one of them is lost."""
        while True:
            names = self.store.list(JOINED_FOLDER)
            merged, single = _divided(names)
            data = [(name, self.store.read(name)) for name in (*merged[-1:], *counting(JOINED_FOLDER, single, cut))]
            if all(content is not None for _, content in data) or self.store.list(JOINED_FOLDER) == names:
                break  # else another process has merged files meanwhile
        found = list[Joined]()
        for name, content in data:
            if content is None:
                raise self._lost(name)
            if name in merged:
                found.extend(JOINED_LIST.decode(content, name))
            elif number_and_driver(name)[0] == len(found) + 1:
                found.append(JOINED.decode(content, name))
            elif number_and_driver(name)[0] > len(found):
                raise self._lost(f"{JOINED_FOLDER}/{len(found) + 1:010d}")
        if len(found) < cut.counts.get(JOINED_FOLDER, 0):
            raise self._lost(f"{JOINED_FOLDER}/{len(found) + 1:010d}")
        return found

    def _merge_joined(self) -> None:
        """Merges the entries into one file if there are many files. The last one is this driver's, which counts: so do all."""
        names = self.store.list(JOINED_FOLDER)
        if len(names) < MERGED_JOINED:
            return
        found = tuple(self._joined(self._cut()))
        self.store.create(merged_joined_file(len(found)), JOINED_LIST.encode(found))
        for name in names:  # none that was written since: this driver may have been frozen
            if name != merged_joined_file(len(found)):  # another one may have written it, and died
                self.store.delete(name)

    def left_before(self) -> list[Left]:
        """Every time that a table has left the job, or stayed parked for another reason, oldest first."""
        return [left for name in self._records(LEFT_FOLDER) for left in LEFT.decode(self._read(name), name)]

    def create_altered(self, state: JobState, altered: Altered) -> JobState:
        """Gives a table new columns. Raises JobHeldError if another driver has taken the job over."""
        self._add_record(ALTERED_FOLDER, len(self._records(ALTERED_FOLDER)) + 1, ALTERED.encode(altered))
        return state.with_altered(altered)

    def altered(self) -> list[Altered]:
        """Every time that a table got new columns, oldest first."""
        return [ALTERED.decode(self._read(name), name) for name in self._records(ALTERED_FOLDER)]

    def left_count(self) -> int:
        """How many times tables have left the job."""
        return len(self._records(LEFT_FOLDER))

    def create_left(self, state: JobState, leaving: tuple[Left, ...]) -> JobState:
        """Takes tables out of the job. Raises JobHeldError if another driver has taken the job over."""
        self._add_record(LEFT_FOLDER, self.left_count() + 1, LEFT.encode(leaving))
        return state.without(leaving)

    def _add_record(self, folder: str, number: int, data: bytes) -> None:
        """Writes the record that follows those that count. Raises JobHeldError if there is another one, or if another driver
        has taken the job over: then the record may not count."""
        driver = self.driver
        name = record_file(folder, number, driver)
        is_next = self._count(folder) == number - 1
        failpoint(f"checkpoint.{folder}")
        if not is_next or not self.store.create(name, data):
            raise self._another_driver(name)
        self.require_driver(driver)

    def _count(self, folder: str) -> int:
        return len(self._joined(self._cut())) if folder == JOINED_FOLDER else len(self._records(folder))

    def _records(self, folder: str, cut: Cut | None = None) -> list[str]:
        """Returns the records that count, oldest first. `cut`: the newest one. Raises CheckpointError if a record is lost."""
        cut = self._cut() if cut is None else cut
        names = counting(folder, self.store.list(folder), cut)
        there = {number_and_driver(name)[0] for name in names}
        for number in range(1, max(cut.counts.get(folder, 0), *there, 0) + 1):
            if number not in there:
                raise self._lost(f"{folder}/{number:010d}")
        return names

    def _cut(self) -> Cut:
        """Returns the newest one. One without counts if none is there: then all records count."""
        while names := self.store.list(CUTS_FOLDER):
            name = max(names)
            if (data := self.store.read(name)) is None:
                continue  # a later driver has removed it
            return CUT.decode(data, name)
        return Cut()

    def signals(self) -> dict[int, tuple[Signal, Answer | None]]:
        """All signals by number, with their answers."""
        answered = {number_of(name): name for name in self.store.list(ANSWERS_FOLDER)}
        found = dict[int, tuple[Signal, Answer | None]]()
        rows = dict[tuple[str, str], int]()
        for name in self.store.list(SIGNALS_FOLDER):
            number, file = number_of(name), answered.get(number_of(name))
            signal = SIGNAL.decode(self._read(name), name)
            answer = None if file is None else ANSWER.decode(self._read(file), file)
            if signal.row is not None:
                first = rows.setdefault((signal.row.table, signal.row.id), number)
                if first != number:  # a driver that was replaced while it was frozen took the row, too
                    answer = Answer(accepted=False, text=f"Signal {first} is of the same row.", at_us=signal.at_us)
            found[number] = signal, answer
        return found

    def answer_repeated(self) -> None:
        """Makes the answers durable of signals whose row is an earlier signal. Only the lease's holder may."""
        if not self.has_open_signals():
            return
        answered = {number_of(name) for name in self.store.list(ANSWERS_FOLDER)}
        for number, (_, answer) in self.signals().items():
            if answer is not None and number not in answered:
                self.create_answer(number, answer)

    def first_rows(self, table: str) -> FirstRows | None:
        """The rows that a signal table had when the job first looked at it, None if it has not looked yet."""
        names = self.store.list(FIRST_ROWS_FOLDER)
        return next(
            (rows for rows in (FIRST_ROWS.decode(self._read(n), n) for n in names) if rows.table == table), None
        )

    def create_first_rows(self, rows: FirstRows) -> None:
        name = first_rows_file(len(self.store.list(FIRST_ROWS_FOLDER)) + 1)
        if not self.store.create(name, FIRST_ROWS.encode(rows)):
            raise self._another_driver(name)

    def has_open_signals(self) -> bool:
        """True if a signal has no answer. Reads no file."""
        answered = {number_of(name) for name in self.store.list(ANSWERS_FOLDER)}
        return any(number_of(name) not in answered for name in self.store.list(SIGNALS_FOLDER))

    def create_signal(self, signal: Signal) -> int:
        """Returns the signal's number. No signal has had it before, also if files were lost: the answer would be there.

        A signal is taken for followed if its table came back to the job, or the job moved, later than it was given. The clock
        of this machine may be behind the driver's, so it is given later than all that the checkpoint has already."""
        state = self.job_state()
        back = None if state is None or signal.table is None else state.came_back.get(signal.table)
        if back is not None and back.at_us >= signal.at_us:
            signal = replace(signal, at_us=back.at_us + 1)
        if state is not None and signal.kind == "accept-server" and state.moved_at_us >= signal.at_us:
            signal = replace(signal, at_us=state.moved_at_us + 1)
        while True:
            names = (
                *self.store.list(SIGNALS_FOLDER),
                *self.store.list(ANSWERS_FOLDER),
                *self.store.list(OUTCOMES_FOLDER),
            )
            number = max(map(number_of, names), default=0) + 1
            if self.store.create(signal_file(number), SIGNAL.encode(signal)):
                return number

    def create_answer(self, number: int, answer: Answer) -> None:
        self.store.create(answer_file(number), ANSWER.encode(answer))

    def upgrade_marks(self) -> dict[int, UpgradeMark]:
        """The marks by number, oldest first."""
        names = self.store.list(UPGRADE_MARKS_FOLDER)
        return {number_of(name): UPGRADE_MARK.decode(self._read(name), name) for name in names}

    def create_upgrade_mark(self, mark: UpgradeMark) -> None:
        """Raises JobHeldError if another driver creates one."""
        name = upgrade_mark_file(max(self.driver, max(self.upgrade_marks(), default=0) + 1))
        if not self.store.create(name, UPGRADE_MARK.encode(mark)):
            raise self._another_driver(name)

    def forget_upgrade_mark(self, number: int) -> None:
        """Raises JobHeldError if another driver has taken the job over, whose mark it may be."""
        self.require_driver()
        self.store.delete(upgrade_mark_file(number))

    def outcomes(self) -> dict[int, Answer]:
        """The outcomes of reading rows again, by the numbers of the signals."""
        names = self.store.list(OUTCOMES_FOLDER)
        return {number_of(name): ANSWER.decode(self._read(name), name) for name in names}

    def create_outcome(self, number: int, outcome: Answer) -> None:
        self.store.create(outcome_file(number), ANSWER.encode(outcome))

    def forget_repairs(self, files: Collection[str]) -> None:
        """Removes rows that were read again, once the epoch that writes them is committed."""
        for name in files:
            self.store.delete(name)

    def repair_files(self) -> list[str]:
        return list(self.store.list(REPAIRS_FOLDER))

    def forget_log_attempt(self, epoch: int) -> None:
        """Lets nothing count of what attempts at an epoch of the log have left that has no report: the epoch will be read
        without some tables. Nothing of it has reached the sink. Raises JobHeldError if another driver has taken the job over,
        which may have read the epoch."""
        self.require_driver()
        attempt = self.attempts().get(epoch, 0)
        published = [name for name in published_files(self.store, epoch) if _attempt_of_published(name) == attempt]
        if published or self.store.read(rereads_file(epoch, attempt)) is not None:
            self._begin_again(epoch)

    def forget_log_report(self, epoch: int) -> None:
        """Begins an epoch of the log again that is not committed. What earlier attempts have left, also the report, no longer
        counts. The caller has proven two things: no earlier attempt can write any more, and the sink has nothing of the epoch,
        or it is known of which tables. Raises JobHeldError if another driver has taken the job over: the report may be its
        own."""
        self._begin_again(epoch)

    def _begin_again(self, epoch: int) -> None:
        self.require_driver()
        self._add_record(AGAIN_FOLDER, len(self._records(AGAIN_FOLDER)) + 1, AGAIN.encode(Again(epoch)))
        _ATTEMPTS.pop(self.url, None)

    def attempts(self) -> Mapping[int, int]:
        """The number of the attempt that counts, by epoch, of those epochs that were begun again: what is written of them has
        it in its name. A driver that was replaced goes on with its own, so nothing of it gets a name of its successor."""
        if self.known_attempts is not None:
            return self.known_attempts
        driver, known = _DRIVERS.get(self.url), _ATTEMPTS.get(self.url)
        if driver is None or known is None or known[0] != driver:
            known = driver or 0, self._attempts_for(driver)
            if driver is not None:
                _ATTEMPTS[self.url] = known
        return known[1]

    def _attempts_for(self, driver: int | None) -> Mapping[int, int]:
        names = self.store.list(AGAIN_FOLDER)
        if not names:
            return {}
        own = [name for name in names if driver is None or number_and_driver(name)[1] <= driver]
        counted = self._records(AGAIN_FOLDER) if own == names else counting(AGAIN_FOLDER, own, self._cut())
        return {AGAIN.decode(self._read(name), name).epoch: number_and_driver(name)[0] for name in counted}

    def with_attempts(self, attempts: Mapping[int, int]) -> "Checkpoint":
        """The checkpoint for a task that was made when these attempts counted, or for a look at many epochs."""
        return replace(self, known_attempts=attempts)

    def require_job(self, job_uuid: str) -> None:
        """Raises CheckpointError if this process does not find the job there: an executor without that storage."""
        data = self.store.read(JOB_FILE)
        found = None if data is None else JOB.decode(data, JOB_FILE).job_uuid
        if found != job_uuid:
            holds = "is empty" if found is None else f"holds job {found}, not {job_uuid}"
            raise CheckpointError(f"On {socket.gethostname()} the checkpoint {self.url} {holds}.", NOT_SHARED_REMEDY)

    def create_job_state(self, state: JobState) -> JobState:
        """Writes the state and returns the one that is there: another driver may have been first. Raises CheckpointError
        if the storage can't decide who was."""
        require_create_if_absent(self.store)
        self.store.create(JOB_FILE, JOB.encode(state))
        written = self.job_state()
        if written is None:
            raise CheckpointError(
                f"The checkpoint {self.url} does not keep its files.",
                "See what else removes files there. Then start the job again.",
            )
        return written

    def sink_identity(self) -> SinkIdentity | None:
        """None where no sink has been prepared for the job yet."""
        data = self.store.read(SINK_FILE)
        return None if data is None else SINK.decode(data, SINK_FILE)

    def create_sink_identity(self, identity: SinkIdentity) -> None:
        """Keeps the one that is there. Raises CheckpointError where it is lost: the job has plans, so it had one."""
        if self.store.read(SINK_FILE) is not None:
            return
        if self.plan_epochs():
            raise self._lost(SINK_FILE)
        self.store.create(SINK_FILE, SINK.encode(identity))

    def seen_copies(self) -> tuple[SeenCopy, ...]:
        """Returns what the last run has seen of its copies, () if there is nothing that can be read: then Spark is asked."""
        name = max(self.store.list(SEEN_COPIES_FOLDER), default=None)
        data = None if name is None else self.store.read(name)
        if name is None or data is None:
            return ()
        try:
            return SEEN_COPIES.decode(data, name)
        except CheckpointError:
            return ()

    def keep_seen_copies(self, copies: tuple[SeenCopy, ...]) -> None:
        """Replaces what is there. If another driver does so now, its file stays: what both say of the copies is true."""
        names = self.store.list(SEEN_COPIES_FOLDER)
        if copies == self.seen_copies():
            return
        if self.store.create(seen_copies_file(max(map(number_of, names), default=0) + 1), SEEN_COPIES.encode(copies)):
            for name in names:
                self.store.delete(name)

    def lease_id(self) -> str:
        """Returns the text that names the job's lease. Copies of this checkpoint have the same."""
        self.store.create(LEASE_FILE, str(uuid.uuid4()).encode())
        return self._read(LEASE_FILE).decode()

    def take_first_owner(self) -> int | None:
        """Takes a number as `take_owner` does, or returns None where the job was never started. Then the driver takes one with
        `again` once the job's state is durable, unless another driver has taken one by then."""
        newest = self.newest_owner()  # before the look: whoever starts the job after it has a greater one
        if self.has_job():
            return self.take_owner()
        _DRIVERS[self.url] = newest
        _ATTEMPTS.pop(self.url, None)
        return None

    def take_owner(self, *, again: bool = False) -> int:
        """Returns a number for this driver that no other driver has, greater than that of each earlier one. From then on
        records that earlier drivers add do not count. To be called before the job's state is read.

        `again`: for a driver that has read the state. Raises JobHeldError if another driver has taken the job over since this
        one has called `take_first_owner`, or has taken its number: the state is old then."""
        facts = {"host": socket.gethostname(), "process": os.getpid(), "taken_at_us": time.time_ns() // 1000}
        known = _DRIVERS.get(self.url, 0) if again else None
        while True:
            cuts = self.store.list(CUTS_FOLDER)  # before the number is taken: none of later drivers
            earlier, number = self.store.list(OWNERS_FOLDER), self.newest_owner() + 1
            if known is not None and number > known + 1:
                raise self._another_driver(owner_file(number - 1))
            created = self.store.create(owner_file(number), json.dumps(facts).encode())
            # Another driver may have taken this number and a third one a greater one, and removed this one's file since.
            if created and self.newest_owner() == number:
                folders = (JOINED_FOLDER, LEFT_FOLDER, ALTERED_FOLDER, AGAIN_FOLDER)
                counts = {folder: self._count(folder) for folder in folders}
                self.store.create(cut_file(number), CUT.encode(Cut(number, counts)))
                _DRIVERS[self.url] = number
                _ATTEMPTS.pop(self.url, None)
                for name in [*earlier, *cuts]:
                    self.store.delete(name)
                return number

    @property
    def driver(self) -> int:
        """The number that this process has taken last. The newest one if it is no driver of the job; while it starts the job,
        the newest one when it began."""
        return _DRIVERS.get(self.url, self.newest_owner())

    def require_driver(self, driver: int | None = None) -> None:
        """Raises JobHeldError if another driver than this one (`driver`) has taken the job over."""
        if (newest := self.newest_owner()) > (self.driver if driver is None else driver):
            raise self._another_driver(owner_file(newest))

    def newest_owner(self) -> int:
        """The number of the driver that took the job over last. 0 before the first one."""
        names = [*self.store.list(OWNERS_FOLDER), *self.store.list(CUTS_FOLDER)]  # one of them may be lost
        return max(map(number_of, names), default=0)

    def written_tables(self, state: JobState) -> frozenset[TableId]:
        """The tables that a sink was prepared for and that may hold rows: those that the newest plan knows."""
        newest = max(self.plan_epochs(), default=0)
        if newest == 0:
            return frozenset()
        return frozenset(schema.table for schema in state.schemas_after(self.plan(newest).state.joined))

    def plan_epochs(self) -> list[int]:
        """The epochs whose plans are there, ascending."""
        return sorted({_epoch_of(name) for name in self.store.list(PLANS_FOLDER)})

    def plan(self, epoch: int) -> PlanRecord:
        name = self._plan_name(epoch)
        return PLAN.decode(self._read(name), name)

    def _plan_name(self, epoch: int) -> str:
        """The epoch may have been begun again before it was planned, or when its log had been read."""
        if epoch not in self.attempts():
            return plan_file(epoch)
        return max((n for n in self.store.list(PLANS_FOLDER) if _epoch_of(n) == epoch), default=plan_file(epoch))

    def heal_newest_plan(self) -> int | None:
        """Removes the newest plan if a power cut has left only a part of it. Returns its epoch.

        Nothing of an epoch runs before its plan is durable, so nothing of this one has run. If the storage had lost a plan
        that was durable, something of its epoch would be there; then the plan stays, and reading it is an error. Called by the
        driver that holds the lease. Raises JobHeldError if another one has taken the job over; the epoch gets a plan of another
        name, so it does not matter when this one is removed.
        """
        newest = max(self.plan_epochs(), default=0)
        name = self._plan_name(newest)
        data = self.store.read(name) if newest else None
        if data is None or not is_torn(data):
            return None
        folders = LOGS_FOLDER, REREADS_FOLDER, COMMITTED_FOLDER, WITHHELD_FOLDER
        traces = [trace for folder in folders for trace in self.store.list(folder) if _epoch_of(trace) == newest]
        if traces or published_files(self.store, newest):
            return None
        self._begin_again(newest)
        self.store.delete(name)
        return newest

    def create_plan(self, record: PlanRecord) -> None:
        """Raises JobHeldError if the epoch has a plan already: another driver runs this job."""
        epoch = record.plan.epoch
        name = plan_file(epoch, self.attempts().get(epoch, 0))
        if not self.store.create(name, PLAN.encode(record)):
            raise self._another_driver(name)

    def keep_partitions(self, partitions: Partitions) -> KeptPartitions:
        """Writes them under a name that follows from the content and the driver. What is there already is not written again."""
        name = f"{hashlib.sha256(PARTITIONS.body(partitions.tables)).hexdigest()[:32]}{_attempt(self.driver)}"
        self.store.create(partitions_file(name), PARTITIONS.encode(partitions.tables))
        return KeptPartitions(name, partitions.ended_xid)

    def partitions(self, kept: KeptPartitions) -> Partitions:
        name = partitions_file(kept.name)
        return Partitions(kept.ended_xid, PARTITIONS.decode(self._read(name), name))

    def has_partitions(self, kept: KeptPartitions) -> bool:
        return self.store.read(partitions_file(kept.name)) is not None

    def forget_partitions(self) -> None:
        """Removes those that no plan names. A driver that was frozen must not remove those of later drivers, whose plans may
        come after their looks: so the plans are read after the looks are listed, nothing is removed that was listed after a
        take-over, and drivers give other names."""
        there = self.store.list(PARTITIONS_FOLDER)
        plans = (self.plan(epoch).partitions for epoch in self.plan_epochs())
        named = {partitions_file(kept.name) for kept in plans if kept is not None}
        for known in there:
            if known in named:
                continue
            if self.newest_owner() > self.driver:
                return
            self.store.delete(known)

    def committed_epoch(self) -> int:
        """The last epoch of which the sink has everything, 0 before the first. The newest planned epoch is committed if it is
        marked so. If the mark is missing, the epoch runs again, and the sink skips what it has."""
        newest = max(self.plan_epochs(), default=0)
        if newest == 0 or self.store.read(committed_file(newest)) is not None or self._committed_by_spark() == newest:
            return newest
        return newest - 1

    def mark_committed(self, epoch: int, former: int | None = None) -> None:
        """Marks an epoch of which the sink has everything. `former`: the one that the same run has marked before."""
        name = committed_file(epoch)
        self.store.create(name, b"committed\n")
        for known in self.store.list(COMMITTED_FOLDER) if former is None else [committed_file(former)]:
            if known < name:
                self.store.delete(known)

    def _committed_by_spark(self) -> int:
        """The last epoch that a streaming query of an earlier version has committed, 0 if there is none."""
        batches = [int(name.rpartition("/")[2]) for name in self.store.list(f"{SPARK_FOLDER}/commits")]
        if not batches:
            return 0
        offsets = self._read(f"{SPARK_FOLDER}/offsets/{max(batches)}").decode()
        return int(json.loads(offsets.splitlines()[-1])["epoch"])

    def has_log_report(self, epoch: int) -> bool:
        return self.store.read(self._log_report_name(epoch)) is not None

    def log_report(self, epoch: int) -> LogReport:
        name = self._log_report_name(epoch)
        return LOG_REPORT.decode(self._read(name), name)

    def _log_report_name(self, epoch: int) -> str:
        return log_report_file(epoch, self.attempts().get(epoch, 0))

    def create_log_report(self, epoch: int, report: LogReport) -> None:
        """Raises CheckpointError if another report is there: every attempt must read the same from a range."""
        if self.store.create(self._log_report_name(epoch), LOG_REPORT.encode(report)):
            return
        found = self.log_report(epoch)
        if isinstance(found.end, BinlogPosition) and found.end.times is None:
            # An earlier version noted no time, the last one, or the greatest one.
            found, report = _without_times(found), _without_times(report)
        if found != report:
            raise _two_reads_differ(epoch)

    def key_rereads_before(self, epoch: int, expected: Collection[int] = ()) -> tuple[KeyReread, ...]:
        """Returns the key re-reads of earlier epochs, in the order of epochs. Raises CheckpointError if those of one of the
        epochs `expected` are lost."""
        listed = [name for name in self.store.list(REREADS_FOLDER) if _epoch_of(name) < epoch]
        names = [name for name in listed if name == self._rereads_name(_epoch_of(name))]
        for name in map(self._rereads_name, expected):
            if name not in names:
                raise self._lost(name)
        return tuple(reread for name in names for reread in self._key_rereads(name))

    def create_key_rereads(self, epoch: int, rereads: tuple[KeyReread, ...]) -> None:
        """Writes what an epoch read again; the caller writes the log report after it. Raises CheckpointError if others are
        there: every attempt must take the same rows."""
        name = self._rereads_name(epoch)
        if not self.store.create(name, KEY_REREADS.encode(rereads)) and self._key_rereads(name) != rereads:
            raise _two_reads_differ(epoch)

    def _rereads_name(self, epoch: int) -> str:
        return rereads_file(epoch, self.attempts().get(epoch, 0))

    def forget_plans(self, epochs: Iterable[int]) -> None:
        """Removes the plans and log reports of the epochs. A plan without its report is no cut that a job goes back to."""
        for epoch in epochs:
            names = [log_report_file(epoch), plan_file(epoch)]
            if epoch in self.attempts():
                there = (*self.store.list(LOGS_FOLDER), *self.store.list(PLANS_FOLDER))
                names = [name for name in there if _epoch_of(name) == epoch]
            for name in names:
                self.store.delete(name)

    def forget_published(self, epoch: int) -> None:
        """Removes what the epoch's tasks published, once it is committed and its reports are kept elsewhere."""
        for name in published_files(self.store, epoch):
            self.store.delete(name)

    def forget_staged(self, kept_attempts: Collection[int], *, before: int) -> None:
        """Removes the staged chunks of all other attempts with numbers less than `before`. A driver that was frozen must not
        remove those of later ones."""
        for name in self.store.list(STAGED_FOLDER):
            attempt = int(name.removeprefix(f"{STAGED_FOLDER}/g").partition("-")[0])
            if attempt < before and attempt not in kept_attempts:
                self.store.delete(name)

    def forget_withheld(self, kept_after: Mapping[TableId, int], *, until: int) -> bool:
        """Removes withheld changes of epochs up to `until`, which is committed, but those of these tables after these epochs.
        Returns False if none are left."""
        kept = {_withheld_suffix(table): epoch for table, epoch in kept_after.items()}
        left = False
        for name in self.store.list(WITHHELD_FOLDER):
            epoch, suffix = _epoch_of_withheld_file(name), name.partition("-")[2]
            if epoch <= until and epoch <= kept.get(suffix, epoch):
                self.store.delete(name)
            else:
                left = True
        return left

    def forget_finished_splits(self, committed: int) -> None:
        """Removes the finished splits and the key re-reads of epochs up to `committed`, once the log has passed all highs."""
        for name in self.store.list(FINISHED_FOLDER):
            if epochs_of_finished_file(name)[1] <= committed:
                self.store.delete(name)
        for name in self.store.list(REREADS_FOLDER):
            if _epoch_of(name) <= committed:
                self.store.delete(name)

    def _key_rereads(self, name: str) -> tuple[KeyReread, ...]:
        return KEY_REREADS.decode(self._read(name), name)

    def _read(self, name: str) -> bytes:
        data = self.store.read(name)
        if data is None:
            self.require_driver()  # else another one has removed it
            raise self._lost(name)
        return bytes(data)

    def _lost(self, name: str) -> CheckpointError:
        return CheckpointError(f"The checkpoint {self.url} has lost its file `{name}`.", RESTORE_CHECKPOINT)

    def _another_driver(self, name: str) -> JobHeldError:
        return JobHeldError(f"Another driver wrote {name} of {self.url}.", ONE_DRIVER)


def _without_times(report: LogReport) -> LogReport:
    if not isinstance(report.end, BinlogPosition):
        return report
    return replace(report, end=replace(report.end, last_at=None, times=None))


def _two_reads_differ(epoch: int) -> ReadsDifferError:
    return ReadsDifferError(
        f"Two reads of the log range of epoch {epoch} gave different results: the source's log, or the checkpoint, changed in "
        "between.",
        "Find out whether the source was restored, its log reset, or the checkpoint's files changed. "
        + RESTORE_CHECKPOINT,
    )
