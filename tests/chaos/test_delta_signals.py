"""Jobs into Delta tables under random changes, signals and other types, with deaths at random points. They end equal."""

import contextlib
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.each_failpoint import each_failpoint
from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import pause, resnapshot, resume, stop_snapshot
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobFileError, PausedError
from tidemark.state.failpoints import FailpointError

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(1800)]

POINTS = (
    "delta.committed",
    "delta.staged",
    "driver.epoch_committed",
    "driver.epoch_written",
    "log.after_report",
    "log.before_report",
    "planner.after_finished_splits",
    "planner.after_plan",
    "planner.before_plan",
    "publish.after",
    "publish.before",
    "repairs.emitted",
    "repairs.joined",
    "repairs.read",
    "rereads.after_publish",
    "signals.answered",
    "signals.first_rows",
    "signals.joined",
    "signals.left",
    "sink.after_adding",
    "sink.after_commit",
    "sink.before_commit",
    "tables.after_joined",
    "tables.before_joined",
    "tables.parked",
    "withheld.after",
    "withheld.before",
)
TYPES = {
    "mysql": ("INT", "BIGINT", "DECIMAL(12, 2)", "VARCHAR(20)", "SMALLINT"),
    "postgres": ("int", "bigint", "numeric(12, 2)", "varchar(20)", "smallint"),
}
KEYS = ("''", "' '", "'a'", "'a '", "'A'", "'\"'", "'é'", "'\U0001f600'", "'NULL'", "'a\n'", "'%'")
TABLES = ("numbers", "words", "pairs")


class _Workload:
    """Random changes of three tables: keys of numbers, of texts, and of both."""

    def __init__(self, database: Database, generator: random.Random, *, alters: bool) -> None:
        self.database, self.generator, self.alters, self.number = database, generator, alters, 0
        is_postgres = database.kind == "postgres"
        kind = 'text COLLATE "C"' if is_postgres else "VARCHAR(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin"
        note = "text" if is_postgres else "TEXT"
        database.execute(
            f"CREATE TABLE numbers (id int PRIMARY KEY, v int, note {note})",
            f"CREATE TABLE words (k {kind} PRIMARY KEY, v int, note {note})",
            f"CREATE TABLE pairs (x int, k {kind}, v int, note {note}, PRIMARY KEY (x, k))",
        )
        for _ in range(10):
            self.change(60)

    def change(self, count: int) -> None:
        """One transaction."""
        self.database.execute("BEGIN", *(self._statement() for _ in range(count)), "COMMIT")

    def alter(self) -> None:
        table, kind = self.generator.choice(TABLES), self.generator.choice(TYPES[self.database.kind])
        if self.database.kind == "postgres":
            self.database.execute(f"ALTER TABLE {table} ALTER v TYPE {kind} USING v::numeric::{kind}")
        else:
            self.database.execute(f"ALTER TABLE {table} MODIFY v {kind}")

    def _statement(self) -> str:
        choice, self.number = self.generator.choice, self.number + 1
        table, x, k, n = choice(TABLES), self.generator.randrange(120), choice(KEYS), self.number % 1000
        key = {"numbers": f"{x}", "words": k, "pairs": f"{x}, {k}"}[table]
        at = {"numbers": f"id = {x}", "words": f"k = {k}", "pairs": f"x = {x} AND k = {k}"}[table]
        many = {"numbers": f"id % 7 = {x % 7}", "words": f"k > {k}", "pairs": f"x % 9 = {x % 9}"}[table]
        big = "repeat('x', 9000)" if self.generator.random() < 0.05 else f"'{n}'"
        match self.generator.randrange(12):
            case 0:
                return (
                    f"DELETE FROM {table} WHERE {many}"
                    if self.generator.random() < 0.2
                    else f"DELETE FROM {table} WHERE {at}"
                )
            case 1:
                return f"UPDATE {table} SET v = {n} WHERE {many}"
            case 2 | 3:
                return f"UPDATE {table} SET v = {n} WHERE {at}"
            case 4 if table != "words":
                column = "id" if table == "numbers" else "x"
                return f"UPDATE {table} SET {column} = {200 + self.number} WHERE {at}"
            case 5:
                return f"DELETE FROM {table} WHERE {at}"
            case _:
                if self.database.kind == "postgres":
                    return f"INSERT INTO {table} VALUES ({key}, {n}, {big}) ON CONFLICT DO NOTHING"
                return f"INSERT IGNORE INTO {table} VALUES ({key}, {n}, {big})"

    def signal(self, job: Path) -> None:
        file, table = load_job_file(job), self.generator.choice(TABLES)
        schema = "public" if self.database.kind == "postgres" else self.database.schema
        name = [TableName(schema, table)]
        with contextlib.suppress(JobFileError):  # the job reads no splits, or the table is not there now
            match self.generator.randrange(7):
                case 0 | 1:
                    resnapshot(file, name)
                case 2:
                    low = self.generator.randrange(100)
                    resnapshot(file, [TableName(schema, "numbers")], keys=[f"{low}..{low + 30}", "7"])
                case 3:
                    resnapshot(file, name, where="v > 300")
                case 4:
                    pause(file, name)
                case 5:
                    resume(file, name)
                case _:
                    stop_snapshot(file, name)


def _dying(job: Path, generator: random.Random) -> bool:
    """Runs the job, which dies at a random point if it comes there. Returns whether it did."""
    armed, seen = set(generator.sample(POINTS, 4)), 0
    after = generator.randrange(4)

    def reached(name: str) -> None:
        nonlocal seen
        if name in armed:
            seen += 1
            if seen > after:
                raise FailpointError(name)

    try:
        with each_failpoint(reached):
            run_epochs(job, at_most=generator.choice([1, 2, 4, None]))
    except FailpointError:
        return True
    except PausedError:  # of a `stop-snapshot`
        return False
    return False


def _plain(rows: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(str(v.normalize()) if isinstance(v, Decimal) else v for v in row) for row in rows), key=repr)


@pytest.mark.every_server
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("style", ["mirror", "keeping", "changelog"])
@pytest.mark.parametrize("source", ["mysql_database", "postgres18_database"])
def test_they_end_equal(
    request: pytest.FixtureRequest,
    delta_session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    style: str,
    seed: int,
    *,
    is_long: bool,
) -> None:
    if seed and not is_long:
        pytest.skip("make chaos runs it")
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    database: Database = request.getfixturevalue(source)
    generator = random.Random(seed)
    workload = _Workload(database, generator, alters=style == "mirror")
    sink: dict[str, Any] = {"type": "delta", "path": "./lake", "on_schema_change": "evolve"}
    sink |= {"style": "changelog"} if style == "changelog" else {"style": "mirror"}
    if style == "keeping":
        sink["audit_columns"] = {"deleted": "_deleted", "synced_at": "_synced_at"}
    snapshot = {"split_rows": 15, "parallelism": 2}
    job = write_job(tmp_path, source=source_of(database, on_table_error="park"), sink=sink, snapshot=snapshot)
    deaths = 0
    for turn in range(12 if is_long else 6):
        deaths += _dying(job, generator)
        workload.change(generator.randrange(1, 40))
        if Checkpoint.at(str(tmp_path / "checkpoint")).job_state() is not None and turn:
            for _ in range(generator.randrange(3)):
                workload.signal(job)
        if workload.alters and generator.random() < 0.4:
            workload.alter()
            workload.change(generator.randrange(1, 10))
    schema = "public" if database.kind == "postgres" else database.schema
    with contextlib.suppress(PausedError):
        run_epochs(job)
    resume(load_job_file(job), [TableName(schema, table) for table in TABLES])
    resume(load_job_file(job), [])
    run_epochs(job)
    run_epochs(job)
    state = Checkpoint.at(str(tmp_path / "checkpoint")).job_state()
    assert state is not None
    assert not state.left, [left.why for left in state.left]
    for table in TABLES:
        copy = delta_session.read.format("delta").load(str(tmp_path / "lake" / f"{schema}.{table}"))
        columns = [field for field in ("id", "x", "k", "v", "note") if field in copy.columns]
        if style == "keeping":
            copy = copy.where("NOT _deleted")
        if style == "changelog":
            held = _folded(copy.collect(), [c for c in columns if c not in {"v", "note"}], columns)
        else:
            held = [tuple(row) for row in copy.select(*columns).collect()]
        rows = database.query(f"SELECT {', '.join(columns)} FROM {table}")
        assert _plain(held) == _plain(rows), f"{table} after {deaths} deaths"
    print(f"{deaths} deaths")


def _folded(changes: Any, key: list[str], columns: list[str]) -> list[tuple[Any, ...]]:
    rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for change in sorted(changes, key=lambda row: (row["_commit_version"], row["_seq"])):
        at = tuple(change[name] for name in key)
        match change["_change_type"]:
            case "truncate":
                rows.clear()
            case "delete":
                rows.pop(at, None)
            case _:
                before = rows.get(at, (None,) * len(columns))
                unchanged = change.asDict().get("_unchanged") or ()
                rows[at] = tuple(before[i] if name in unchanged else change[name] for i, name in enumerate(columns))
    return list(rows.values())
