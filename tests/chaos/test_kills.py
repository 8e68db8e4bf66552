"""Processes are killed at every phase boundary and at random times; the copy must end right.

The oracle is the files sink's history (tests/support/history.py), and for the mirror the source itself.
"""

import contextlib
import random
import secrets
import subprocess
from pathlib import Path

import pymysql
import pytest

from devtools.servers import start_server
from tests.support.history import assert_copied
from tests.support.jobs import BY_DRIVER, BY_SPARK, Process, running, source_of, start_tidemark, write_job
from tests.support.keyless import CREATE, CREATE_MYSQL, KeylessWriter, assert_keyless_copied
from tests.support.kills import armed, run_until_done
from tests.support.servers import Database, fresh_database
from tests.support.workload import KEYS, Uids, Writers, XaWriters, create_tables

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(900)]

OF_DRIVERS = (
    "planner.before_plan",
    "planner.after_plan",
    "planner.after_finished_splits",
    "driver.epoch_written",
    "driver.epoch_committed",
)
OF_TASKS = (
    "snapshot.after_low",
    "snapshot.after_select",
    "publish.before",
    "publish.after",
    "log.before_report",
    "sink.before_commit",
    "sink.after_commit",
)
FAILPOINTS = OF_DRIVERS + OF_TASKS
WITH_SOMETHING_WRITTEN = (*OF_DRIVERS, "publish.after", "sink.before_commit", "sink.after_commit")
"""Those at which a driver that reads everything itself leaves something behind that the one before had not."""
_BUSY_CONNECTIONS = (
    "SELECT id FROM {processlist} WHERE id <> CONNECTION_ID() AND (info LIKE %s OR command LIKE 'Binlog%%') LIMIT 1"
)
_TERMINATE_ONE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND application_name = 'tidemark' "
    "AND state = 'active' LIMIT 1"
)


def _files_job(folder: Path, database: Database) -> Path:
    return write_job(
        folder,
        source=source_of(database),
        sink={"type": "files", "path": str(folder / "out")},
    )


@pytest.fixture(params=["mysql_database", "mysql_nogtid_database", "mariadb_database", "postgres18_database"])
def chaos_source(request: pytest.FixtureRequest) -> Database:
    """The short version kills on two servers, `make chaos` on each."""
    if request.param not in {"mysql_database", "postgres18_database"}:
        request.getfixturevalue("long_version")
    database: Database = request.getfixturevalue(request.param)
    return database


@pytest.mark.pitfall(8)
@pytest.mark.pitfall(70)
@pytest.mark.pitfall(71)
@pytest.mark.pitfall(74)
def test_kill_at_each_phase_boundary(chaos_source: Database, tmp_path: Path, is_long: bool) -> None:
    """The short version kills drivers, and so starts again, where they read everything themselves at each point that leaves
    something behind, and at one where Spark's workers do. Spark repeats the tasks of workers that are killed."""
    uids = Uids()
    create_tables(chaos_source, rows=1500, uids=uids)
    job = _files_job(tmp_path, chaos_source)
    by_spark = chaos_source.kind == "mysql"
    arguments = BY_SPARK if by_spark else BY_DRIVER
    short = ("driver.epoch_written", *OF_TASKS) if by_spark else WITH_SOMETHING_WRITTEN
    failpoints = FAILPOINTS if is_long else short
    with armed(tmp_path, failpoints) as environment:
        with Writers(chaos_source, uids, count=2, seed=11, pause_seconds=0.02):
            run_until_done(job, environment, *arguments)
        run_until_done(job, environment, *arguments)
    assert_copied(tmp_path / "out", chaos_source)


@pytest.mark.pitfall(7)
@pytest.mark.pitfall(48)
@pytest.mark.usefixtures("long_version")
def test_kill_at_random_times(chaos_source: Database, tmp_path: Path, chaos_rounds: int) -> None:
    """Kills driver, JVM and workers at the same moment. The printed seed repeats a round's times, not its
    interleaving."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    uids = Uids()
    create_tables(chaos_source, rows=4000, uids=uids)
    job = _files_job(tmp_path, chaos_source)
    with Writers(chaos_source, uids, count=2, seed=seed, pause_seconds=0.002):
        for _ in range(chaos_rounds):
            with running(job, "--set", "trigger=100ms", "--set", "snapshot.driver_rows=0") as process:
                process.wait_until(lambda process=process: len(process.events()) >= 1)
                _die_within(process, generator.uniform(0, 12))
    run_until_done(job, {})
    assert_copied(tmp_path / "out", chaos_source)


@pytest.mark.pitfall(107)
@pytest.mark.parametrize("origin", ["mysql_database", "mysql_nogtid_database", "mariadb_database"])
def test_kill_at_random_times_with_xa_transactions_and_ddl_beside(
    origin: str,
    postgres_database: Database,
    tmp_path: Path,
    chaos_rounds: int,
    is_long: bool,
    request: pytest.FixtureRequest,
) -> None:
    """Columns are added that are followed, and some for which a table is read again. XA transactions stay prepared across
    kills. The short version has two rounds without GTIDs."""
    if not is_long and origin != "mysql_nogtid_database":
        pytest.skip("make chaos runs it")
    source: Database = request.getfixturevalue(origin)
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    generator, uids = random.Random(seed), Uids()
    create_tables(source, rows=1500, uids=uids)
    job = write_job(
        tmp_path,
        source=source_of(source, on_table_error="park"),
        sink={"type": "mirror", "url": postgres_database.url, "table": "{table}", "on_schema_change": "evolve"},
    )
    added: dict[str, list[str]] = {table: [] for table in KEYS}
    with (
        Writers(source, uids, count=1, seed=seed, pause_seconds=0.005),
        XaWriters(source, uids, count=2, seed=seed, longest_seconds=1.0) as xa,
    ):
        for number in range(chaos_rounds if is_long else 2):
            with running(job, "--set", "trigger=100ms", *BY_DRIVER) as process:
                process.wait_until(lambda process=process: any(e["event"] == "epoch" for e in process.events()))
                table = generator.choice(list(KEYS))
                default = generator.choice(["", f" DEFAULT {number}"])
                source.execute(f"ALTER TABLE {table} ADD COLUMN more{number} INT{default}")
                added[table].append(f"more{number}")
                source.execute(f"UPDATE {table} SET more{number} = {number}, version = version + 1 WHERE uid % 3 = 0")
                _die_within(process, generator.uniform(0, 6))
    assert xa.committed
    run_until_done(job, {}, *BY_DRIVER)
    for table, columns in added.items():
        rows = f"SELECT {', '.join(('uid', 'version', 'note', *columns))} FROM {table}"
        assert sorted(map(repr, _plain(postgres_database.query(rows)))) == sorted(map(repr, _plain(source.query(rows))))


def _die_within(process: Process, seconds: float) -> None:
    try:
        code = process.popen.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    else:
        raise AssertionError(f"the job ended with {code}: {process.error_text()}")


@pytest.mark.pitfall(28)
@pytest.mark.usefixtures("long_version")
@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_killed_database_connections(kind: str, tmp_path: Path) -> None:
    """Kills every working connection of the job on the server, again and again, until the job is done."""
    uids = Uids()
    with start_server(kind) as server, fresh_database(server) as database:
        create_tables(database, rows=3000, uids=uids)
        job = _files_job(tmp_path, database)
        process = start_tidemark(job, "--set", "snapshot.driver_rows=0")
        try:
            with Writers(database, uids, count=1, seed=5, pause_seconds=0.02) as writers:
                while process.popen.poll() is None:
                    _kill_one_connection(database)
                    _pause(process, 0.5)
            assert writers.transactions
        finally:
            process.kill()
        run_until_done(job, {})
        assert_copied(tmp_path / "out", database)


def _kill_one_connection(database: Database) -> None:
    if database.kind == "postgres":
        database.query(_TERMINATE_ONE, (database.name,))
        return
    for (connection,) in database.query(
        _BUSY_CONNECTIONS.format(processlist=database.server.processlist), (f"%{database.name}%",)
    ):
        with contextlib.suppress(pymysql.err.OperationalError):  # it has ended meanwhile
            database.execute(f"KILL {connection}")


def _pause(process: Process, seconds: float) -> None:
    try:
        process.popen.wait(seconds)
    except subprocess.TimeoutExpired:
        return


@pytest.mark.parametrize(
    ("origin", "target"),
    [
        ("mysql_database", "postgres_database"),
        ("mysql_database", "mariadb_database"),
        ("postgres18_database", "mysql_database"),
    ],
)
def test_mirror_survives_kills(
    origin: str, target: str, tmp_path: Path, is_long: bool, request: pytest.FixtureRequest
) -> None:
    """The driver reads everything itself in the short version."""
    arguments = () if is_long else BY_DRIVER
    if target != "postgres_database":
        request.getfixturevalue("long_version")
    source: Database = request.getfixturevalue(origin)
    copy: Database = request.getfixturevalue(target)
    uids = Uids()
    create_tables(source, rows=1500, uids=uids)
    job = write_job(tmp_path, source=source_of(source), sink={"type": "mirror", "url": copy.url, "table": "{table}"})
    reached = ("planner.after_plan", "driver.epoch_written", "publish.after", "sink.before_commit", "sink.after_commit")
    with armed(tmp_path, reached) as environment:
        with Writers(source, uids, count=2, seed=21, pause_seconds=0.02):
            run_until_done(job, environment, *arguments)
        run_until_done(job, environment, *arguments)
    for table in KEYS:
        rows = f"SELECT uid, version, note FROM {table}"
        assert sorted(_plain(copy.query(rows))) == sorted(_plain(source.query(rows)))


def _plain(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Rows as values that can be sorted. psycopg2 gives bytes as memoryviews, and None has no order."""
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


def test_kill_while_a_table_is_read_by_pages(long_version: None, postgres18_database: Database, tmp_path: Path) -> None:
    postgres18_database.execute(*CREATE)
    job = _files_job(tmp_path, postgres18_database)
    with armed(tmp_path, FAILPOINTS) as environment:
        with KeylessWriter(postgres18_database):
            run_until_done(job, environment)
        run_until_done(job, environment)
    assert_keyless_copied(tmp_path, postgres18_database)


def test_kill_while_a_table_is_read_beside_the_epochs(
    long_version: None, source_database: Database, tmp_path: Path
) -> None:
    source_database.execute(*CREATE_MYSQL)
    job = _files_job(tmp_path, source_database)
    failpoints = ("aside.read", "aside.staged", "planner.after_plan", "sink.before_commit")  # five ends make it a split
    with armed(tmp_path, failpoints) as environment:
        with KeylessWriter(source_database):
            run_until_done(job, environment)
        run_until_done(job, environment)
    assert_keyless_copied(tmp_path, source_database)
