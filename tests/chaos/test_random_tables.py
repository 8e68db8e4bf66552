"""Jobs into files and mirrors under random writes, random DDL of tables with odd names and columns, random signals, and targets
that are set back, with deaths and other drivers at random points. What a run has copied that ends by itself is the source's."""

import contextlib
import itertools
import json
import random
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq
import pytest

from tests.support.each_failpoint import each_failpoint
from tests.support.epochs import Notes, run_epochs
from tests.support.frozen import end_lease, of_another_process
from tests.support.jobs import source_of, write_job
from tests.support.lost_logs import lose_log
from tests.support.random_ddl import alter
from tests.support.random_tables import REFUSALS, RandomTables
from tests.support.random_values import as_text
from tests.support.reconciling import compared
from tests.support.restoring import Backups, backups_of
from tests.support.servers import Database, fresh_database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import pause, resnapshot, resume, stop_snapshot
from tidemark.jobs.recovery.rollback import roll_back
from tidemark.readers import lease
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import (
    CheckpointError,
    JobFileError,
    JobHeldError,
    LogPositionLostError,
    PausedError,
    SinkError,
)
from tidemark.state.failpoints import FailpointError
from tidemark.state.job_state import JobState

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(1800)]

OF_THE_LOOP = ("driver", "planner", "signals", "tables", "schema", "repairs")
"""Failpoints at which a driver has no transaction open in the target, for which the next driver would wait."""


class Copy(Protocol):
    def rows(self, tables: RandomTables, table: str) -> list[tuple[str, ...]]:
        """Returns the rows of a copy as `tables.rows` does those of its source."""
        ...

    def take(self) -> Callable[[], None]:
        """Takes a backup. Returns what restores it."""
        ...


class FilesCopy:
    """Reads files as docs/sinks.md says."""

    def __init__(self, folder: Path, schema: str) -> None:
        self.folder, self.schema = folder, schema

    def rows(self, tables: RandomTables, table: str) -> list[tuple[str, ...]]:
        kinds = {column.name: column.type for column in tables.copied_columns(table)}
        changes = sorted(self._changes(table), key=_place)
        emptied = max((_place(row) for row in changes if row["_change_type"] == "truncate"), default=(-1, -1))
        changes = [row for row in changes if _place(row) > emptied]
        key = tables.key(table)
        rows = _newest(changes, key, kinds) if key else _counted(changes, list(kinds))
        return sorted(tuple(as_text(row.get(name), kind) for name, kind in kinds.items()) for row in rows)

    def _changes(self, table: str) -> Iterator[dict[str, Any]]:
        for mark in self.folder.glob("*/_tidemark.json"):
            if json.loads(mark.read_text())["table"] == [self.schema, table]:
                for file in mark.parent.glob("[!._]*.parquet"):
                    yield from pq.ParquetFile(file).read().to_pylist()

    def take(self) -> Callable[[], None]:
        kept = self.folder.with_name("kept")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self.folder, kept)

        def restore() -> None:
            shutil.rmtree(self.folder)
            shutil.copytree(kept, self.folder)

        return restore


def _place(row: dict[str, Any]) -> tuple[int, int]:
    return row["_commit_version"], row["_seq"]


def _newest(changes: list[dict[str, Any]], key: list[str], kinds: dict[str, str]) -> list[dict[str, Any]]:
    """The newest row of each key. Values that the log left out are those of the row before."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    removed: dict[tuple[int, int], dict[str, Any]] = {}
    for row in changes:
        at = tuple(as_text(row.get(name), kinds[name]) for name in key)
        if row["_change_type"] == "delete":
            if at in rows:
                removed[_place(row)] = rows.pop(at)
            continue
        if unchanged := row.get("_unchanged"):
            version, seq = _place(row)
            before = removed[version, seq - 1] if row["_change_type"] == "insert" else rows[at]
            row |= {name: before.get(name) for name in unchanged}
        rows[at] = row
    return list(rows.values())


def _counted(changes: list[dict[str, Any]], columns: list[str]) -> list[dict[str, Any]]:
    """The rows of a table without a key: those that were inserted more often than deleted."""
    of_splits = [row for row in changes if row["_is_snapshot"]]
    of_the_log = {_place(row): row for row in changes if not row["_is_snapshot"]}
    found, examples = Counter[str](), {}
    for row in [*of_splits, *of_the_log.values()]:
        text = repr([row.get(name) for name in columns])
        examples[text] = row
        found[text] += -1 if row["_change_type"] == "delete" else 1
    assert min(found.values(), default=0) >= 0, found
    return [examples[text] for text in found.elements()]


class MirrorCopy:
    def __init__(self, backups: Backups) -> None:
        self.target, self.take = backups.database, backups.take

    def rows(self, tables: RandomTables, table: str) -> list[tuple[str, ...]]:
        columns = tables.copied_columns(table)
        mark = '"' if self.target.kind == "postgres" else "`"
        copy, *chosen = (
            mark + name.replace(mark, mark * 2) + mark
            for name in (f"copy_{table}", *(column.name for column in columns))
        )
        return sorted(
            tuple(as_text(value, column.type) for value, column in zip(row, columns, strict=True))
            for row in self.target.query(f"SELECT {', '.join(chosen)} FROM {copy}")
        )


class Chaos:
    def __init__(self, job: Path, tables: RandomTables, copy: Copy) -> None:
        self.job, self.tables, self.copy, self.generator, self.log = job, tables, copy, tables.generator, tables.done
        self.file, self.schema = load_job_file(job), tables.database.schema
        self.backup: Callable[[], None] | None = None
        self.counts = Counter[str]()
        self.is_replaced = False

    def note(self, what: str, more: object = "") -> None:
        self.counts[what] += 1
        self.log.append(f"== {what} {more}")

    def state(self) -> JobState | None:
        return Checkpoint.at(self.file.checkpoint).job_state()

    def name(self, table: str) -> TableName:
        return TableName(self.schema, table)

    # runs

    def run(self, *, dies: bool) -> bool:
        """Returns whether the run has done all that there was to do. `dies`: perhaps, and other things happen meanwhile."""
        generator, lock = self.generator, threading.Lock()
        left = generator.choice((None, 2, 5, 9, 15, 25, 40))
        chance = generator.choice((0, 0.1, 0.3))

        def reached(point: str) -> None:
            nonlocal left
            if not lock.acquire(blocking=False):  # what happens here reaches some, too
                return
            try:
                if left is not None:
                    left -= 1
                    if left < 0:
                        self.note("dies", point)
                        raise FailpointError(point)
                if generator.random() < chance:
                    self._happens(point)
            finally:
                lock.release()

        notes = Notes()
        self.note("runs")
        self.is_replaced = False
        try:
            with each_failpoint(reached) if dies else contextlib.nullcontext(), pytest.MonkeyPatch.context() as patch:
                patch.setattr(lease, "PING_SECONDS", 3600.0)  # a frozen driver does not notice that its lease is lost
                patch.setattr(lease, "PROOF_SECONDS", 3600.0)
                most = generator.choice((1, 2, 4, None)) if dies else None
                run_epochs(self.job, at_most=most, notes=notes)
        except FailpointError:
            return False
        except PausedError:
            return False
        except JobHeldError:
            assert self.is_replaced
            return False
        except SinkError as error:
            self._follow(error)
            return False
        finally:
            self.log.extend(f"   {str(facts)[:400]}" for event, facts in notes.found if event == "warning")
        return not dies

    def _happens(self, point: str) -> None:
        self.note("acts", point)
        chance = self.generator.random()
        if chance < 0.05 and self.backup is not None:
            self.restore()
        elif chance < 0.08 and point.partition(".")[0] in OF_THE_LOOP and not self.is_replaced:
            self._replace()
        elif chance < 0.3:
            alter(self.tables)
        else:
            self.tables.change()

    def _replace(self) -> None:
        """The driver is frozen at this point. Another one takes the job over."""
        self.note("replaced")
        self.is_replaced = True
        source, errors = self.tables.database, list[BaseException]()
        if source.kind == "postgres":
            source.query("SELECT pg_terminate_backend(pid, 5000) FROM pg_locks JOIN pg_database d ON d.oid = database "
                         "WHERE locktype = 'advisory' AND datname = current_database()")  # fmt: skip
        else:
            end_lease(source, self.job)

        def other() -> None:
            try:
                run_epochs(self.job, of_another_process(self.job))
            except PausedError:
                pass
            except BaseException as error:  # noqa: BLE001 -- raised below
                errors.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(600)
        assert not thread.is_alive()
        for error in errors:
            raise error

    def _follow(self, error: SinkError) -> None:
        """Does what the error says: the target was set back to before it had any rows."""
        self.note("stopped", error)
        assert self.counts["restored"]
        assert "resnapshot --table" in error.remedy
        state = self.state()
        assert state is not None
        for table in (schema.table for schema in state.schemas):
            if table.name in error.remedy.replace("``", "`").replace('""', '"'):
                resnapshot(self.file, [self.name(table.name)])

    def restore(self) -> None:
        assert self.backup is not None
        self.note("restored")
        self.backup()
        self.backup = None

    # steps

    def turn(self) -> None:
        generator = self.generator
        self.run(dies=True)
        for _ in range(generator.randrange(3)):
            self.tables.change()
        if generator.random() < 0.7:
            alter(self.tables)
            self.tables.change()
        if self.state() is not None:
            for _ in range(generator.randrange(3)):
                self.signal()
            if self.backup is not None and generator.random() < 0.4:
                self.restore()
            elif generator.random() < 0.5:
                self.note("backs up")
                self.backup = self.copy.take()
            if generator.random() < 0.15:
                self._roll_back()
            elif generator.random() < 0.1 and not self.tables.prepared:
                self.note("loses the log")
                lose_log(self.tables.database)
        if generator.random() < 0.6 and self.run(dies=False):
            self.compare()

    def _roll_back(self) -> None:
        epoch = Checkpoint.at(self.file.checkpoint).committed_epoch() - self.generator.randrange(4)
        try:
            roll_back(self.file, epoch, standby=True)
        except (CheckpointError, LogPositionLostError) as error:
            self.note("refused", error)
        else:
            self.note("rolled back", epoch)

    def signal(self) -> None:
        tables, choice = self.tables, self.generator.choice
        if not (names := tables.names()):
            return
        table = choice(names)
        name, column = [self.name(table)], tables.q(choice(tables.columns(table)).name)
        kinds: dict[str, Callable[[], None]] = {
            "resnapshot": lambda: resnapshot(self.file, name),
            "resnapshot --keys": lambda: resnapshot(self.file, name, keys=["3..12", "7"]),
            "resnapshot --where": lambda: resnapshot(self.file, name, where=f"{column} IS NOT NULL"),
            "pause": lambda: pause(self.file, name),
            "stop-snapshot": lambda: stop_snapshot(self.file, name),
            "resume": lambda: resume(self.file, name),
        }
        kind = choice(list(kinds))
        self.note(kind, table)
        with contextlib.suppress(JobFileError):  # the table is not the job's now, or has no such key
            kinds[kind]()

    def compare(self) -> None:
        """Compares what is in the job now."""
        state = self.state()
        assert state is not None
        joined = {schema.table.name for schema in state.schemas}
        for table in joined & set(self.tables.names()):
            source, copy = Counter(self.tables.rows(table)), Counter(self.copy.rows(self.tables, table))
            lacks, has = list((source - copy).elements()), list((copy - source).elements())
            assert (lacks, has) == ([], []), f"{table} of {source.total()} rows"
            self.counts["compared"] += 1
        for name, result in compared(self.job).items():
            assert result.differences == 0, (name, result)

    def end(self) -> None:
        """Brings all tables back. Then each is equal."""
        for xid in self.tables.prepared:
            self.tables.finish(xid)
        self.run(dies=False)
        for _ in range(2):
            state = self.state()
            assert state is not None
            names = {schema.table.name for schema in state.schemas} | {left.table.name for left in state.left}
            for table in names & set(self.tables.names()):
                with contextlib.suppress(JobFileError):  # it is neither paused nor parked
                    resume(self.file, [self.name(table)])
            for left in state.left:
                if left.is_parked and left.table.name in self.tables.names():
                    self.note("parked", f"{left.table}: {left.why}")
                    resnapshot(self.file, [self.name(left.table.name)])
            self.run(dies=False)
        assert self.run(dies=False)
        state = self.state()
        assert state is not None
        assert {schema.table.name for schema in state.schemas} >= set(self.tables.names()), state.left
        self.compare()


@contextlib.contextmanager
def _writing_beside(tables: RandomTables) -> Iterator[None]:
    """Another session writes and alters all the time."""
    beside, stopped, errors = (
        RandomTables(tables.database, random.Random(tables.generator.random()), plain=tables.plain),
        threading.Event(),
        [],
    )
    beside.numbers = itertools.count(10**6 + next(tables.numbers) * 1000)

    def write() -> None:
        try:
            while not stopped.wait(0.02):
                with contextlib.suppress(*REFUSALS):  # a table is gone since it was looked at
                    if beside.generator.random() < 0.15:
                        alter(beside)
                    else:
                        beside.change()
        except BaseException as error:  # noqa: BLE001 -- raised below
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        tables.done.extend(["== beside", *beside.done, "== after it"])
        tables.prepared.extend(beside.prepared)
    for error in errors:
        raise error


def _chaos(
    database: Database,
    copy: Callable[[], Copy],
    folder: Path,
    sink: dict[str, Any],
    *,
    plain: bool,
    turns: int,
    seed: int,
) -> None:
    print(f"seed {seed}")
    generator = random.Random(seed)
    tables = RandomTables(database, generator, plain=plain)
    tables.begin()
    job = write_job(
        folder,
        source=source_of(database, on_table_error="park", on_log_lost="resnapshot"),
        snapshot={"split_rows": 10, "parallelism": 2, "interleave": generator.random() < 0.7},
        log={"max_batch_bytes": generator.choice(("16KiB", "64MiB"))},
        sink=sink,
    )
    chaos = Chaos(job, tables, copy())
    try:
        for turn in range(turns):
            with _writing_beside(tables) if turn % 3 == 2 else contextlib.nullcontext():  # not in the short version
                chaos.run(dies=True)
            chaos.turn()
        chaos.end()
    finally:
        (folder / "done.sql").write_text("\n".join(tables.done))
    print(dict(chaos.counts))


@pytest.mark.parametrize("merges", [True, False], ids=["merged", "kept"])
@pytest.mark.parametrize("origin", ["mysql", "mysql_nogtid", "mariadb", "postgres18"])
def test_files(
    request: pytest.FixtureRequest, tmp_path: Path, origin: str, merges: bool, is_long: bool, chaos_rounds: int
) -> None:
    """The short version runs the same on two servers each time, as far as threads let it."""
    if not is_long and (origin, merges) not in {("mysql", True), ("postgres18", False)}:
        pytest.skip("make chaos runs it")
    source: Database = request.getfixturevalue(f"{origin}_database")
    sink = {"type": "files", "path": str(tmp_path / "out"), "merge_small_files": merges, "on_schema_change": "evolve"}
    turns, seed = (chaos_rounds, secrets.randbits(32)) if is_long else (2, 7)
    copy = FilesCopy(tmp_path / "out", source.schema)
    _chaos(source, lambda: copy, tmp_path, sink, plain=False, turns=turns, seed=seed)


@pytest.mark.parametrize("target", ["mysql_nogtid", "mariadb", "postgres"])
@pytest.mark.parametrize("origin", ["mysql", "mariadb", "postgres18"])
def test_mirrors(
    request: pytest.FixtureRequest, tmp_path: Path, origin: str, target: str, is_long: bool, chaos_rounds: int
) -> None:
    if not is_long and (origin, target) != ("mariadb", "postgres"):
        pytest.skip("make chaos runs it")
    source: Database = request.getfixturevalue(f"{origin}_database")
    with fresh_database(request.getfixturevalue(f"{target}_server")) as database, backups_of(database) as backups:
        turns, seed = (chaos_rounds, secrets.randbits(32)) if is_long else (2, 7)
        sink = {"type": "mirror", "url": database.url, "table": "copy_{table}", "on_schema_change": "evolve"}
        if seed % 2 == 0:
            sink |= {"on_schema_change": {"drop_column": "drop"}, "audit_columns": {"synced_at": "_synced_at"}}
        _chaos(source, lambda: MirrorCopy(backups), tmp_path, sink, plain=True, turns=turns, seed=seed)
