"""Processes are killed at every phase boundary and at random times; the copy must end right.

The oracle is the files sink's history (tests/support/history.py), and for the mirror the source itself.
"""

import contextlib
import random
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql
import pytest

from scripts.servers import start_server
from tests.support.history import assert_copied
from tests.support.jobs import Process, running, start_tidemark, write_job
from tests.support.servers import Database, fresh_database
from tests.support.workload import KEYS, Uids, Writers, create_tables

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(900)]

FAILPOINTS = (
    "planner.before_plan",
    "planner.after_plan",
    "planner.after_routes",
    "driver.epoch_written",
    "snapshot.after_low",
    "snapshot.after_select",
    "publish.before",
    "publish.after",
    "log.before_report",
    "sink.before_commit",
    "sink.after_commit",
)
MOST_RUNS = 30
SHORT_ROUNDS = 2
_BUSY_CONNECTIONS = (
    "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() "
    "AND (info LIKE %s OR command LIKE 'Binlog%%') LIMIT 1"
)


def _files_job(folder: Path, database: Database) -> Path:
    return write_job(
        folder,
        source={"url": database.server.url, "tables": [f"{database.name}.*"]},
        sink={"type": "files", "path": str(folder / "out")},
    )


@contextmanager
def _armed(folder: Path, failpoints: tuple[str, ...]) -> Iterator[dict[str, str]]:
    armed = folder / "failpoints"
    armed.mkdir()
    for name in failpoints:
        (armed / name).write_text("kill")
    yield {"TIDEMARK_FAILPOINTS": str(armed)}
    left = sorted(path.name for path in armed.iterdir() if not path.name.startswith("."))
    assert not left, f"these failpoints were never reached: {left}"


def _run_until_done(job: Path, environment: dict[str, str]) -> int:
    """Starts the job again and again until a run ends by itself with 0; how many runs it took."""
    for count in range(1, MOST_RUNS + 1):
        with running(job, environment=environment) as process:
            if process.wait() == 0:
                return count
    raise AssertionError(f"{MOST_RUNS} runs did not finish: {process.error_text()}")


@pytest.fixture(params=["mysql_database", "mysql_nogtid_database", "mariadb_database"])
def chaos_source(request: pytest.FixtureRequest, chaos_rounds: int) -> Database:
    """The short version kills on one server, `make chaos` on each."""
    if chaos_rounds <= SHORT_ROUNDS and request.param != "mysql_database":
        pytest.skip("make chaos runs it")
    database: Database = request.getfixturevalue(request.param)
    return database


@pytest.fixture
def long_version(chaos_rounds: int) -> None:
    if chaos_rounds <= SHORT_ROUNDS:
        pytest.skip("make chaos runs it")


@pytest.mark.pitfall(8)
@pytest.mark.pitfall(70)
@pytest.mark.pitfall(71)
@pytest.mark.pitfall(74)
def test_kill_at_each_phase_boundary(chaos_source: Database, tmp_path: Path) -> None:
    uids = Uids()
    create_tables(chaos_source, rows=1500, uids=uids)
    job = _files_job(tmp_path, chaos_source)
    with _armed(tmp_path, FAILPOINTS) as environment:
        with Writers(chaos_source, uids, count=2, seed=11, pause_seconds=0.02):
            _run_until_done(job, environment)
        _run_until_done(job, environment)
    assert_copied(tmp_path / "out", chaos_source)


@pytest.mark.pitfall(7)
@pytest.mark.pitfall(48)
@pytest.mark.usefixtures("long_version")
def test_kill_at_random_times(mysql_database: Database, tmp_path: Path, chaos_rounds: int) -> None:
    """Everything at once dies: driver, JVM and workers. Printed seed repeats a round's times, not its interleaving."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    uids = Uids()
    create_tables(mysql_database, rows=4000, uids=uids)
    job = _files_job(tmp_path, mysql_database)
    with Writers(mysql_database, uids, count=2, seed=seed, pause_seconds=0.002):
        for _ in range(chaos_rounds):
            with running(job, "--set", "trigger=100ms") as process:
                process.wait_until(lambda process=process: len(process.events()) >= 1)
                _die_within(process, generator.uniform(0, 12))
    _run_until_done(job, {})
    assert_copied(tmp_path / "out", mysql_database)


def _die_within(process: Process, seconds: float) -> None:
    try:
        code = process.popen.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    else:
        raise AssertionError(f"the job ended with {code}: {process.error_text()}")


@pytest.mark.pitfall(28)
@pytest.mark.usefixtures("long_version")
def test_killed_database_connections(tmp_path: Path) -> None:
    """Every connection of the job that works is killed on the server, again and again, until the job is done."""
    uids = Uids()
    with start_server("mysql") as server, fresh_database(server) as database:
        create_tables(database, rows=3000, uids=uids)
        job = _files_job(tmp_path, database)
        process = start_tidemark(job)
        try:
            with Writers(database, uids, count=1, seed=5, pause_seconds=0.02) as writers:
                while process.popen.poll() is None:
                    for (connection,) in database.query(_BUSY_CONNECTIONS, (f"%{database.name}%",)):
                        with contextlib.suppress(pymysql.err.OperationalError):  # it has ended meanwhile
                            database.execute(f"KILL {connection}")
                    _pause(process, 0.5)
            assert writers.transactions
        finally:
            process.kill()
        _run_until_done(job, {})
        assert_copied(tmp_path / "out", database)


def _pause(process: Process, seconds: float) -> None:
    try:
        process.popen.wait(seconds)
    except subprocess.TimeoutExpired:
        return


@pytest.mark.parametrize("target", ["mysql", "postgres"])
def test_mirror_survives_kills(
    target: str, mysql_database: Database, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if target == "mysql":
        request.getfixturevalue("long_version")
    copy: Database = request.getfixturevalue("mariadb_database" if target == "mysql" else "postgres_database")
    uids = Uids()
    create_tables(mysql_database, rows=1500, uids=uids)
    url = copy.url.replace("postgres://", "postgresql://")
    job = write_job(
        tmp_path,
        source={"url": mysql_database.server.url, "tables": [f"{mysql_database.name}.*"]},
        sink={"type": "mirror", "url": url, "table": "{table}"},
    )
    reached = ("planner.after_plan", "driver.epoch_written", "publish.after", "sink.before_commit", "sink.after_commit")
    with _armed(tmp_path, reached) as environment:
        with Writers(mysql_database, uids, count=2, seed=21, pause_seconds=0.02):
            _run_until_done(job, environment)
        _run_until_done(job, environment)
    for table in KEYS:
        rows = f"SELECT uid, version, note FROM {table}"
        assert sorted(_plain(copy.query(rows))) == sorted(_plain(mysql_database.query(rows)))


def _plain(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """psycopg2 gives bytes as memoryviews; None sorts nowhere."""
    return [
        tuple(
            ""
            if v is None
            else v.tobytes().hex()
            if isinstance(v, memoryview)
            else v.hex()
            if isinstance(v, bytes)
            else v
            for v in row
        )
        for row in rows
    ]
