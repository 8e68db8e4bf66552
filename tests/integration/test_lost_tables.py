"""The source fails over to a server that never had a table which the job had found on the dead one: that is the table's
trouble alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from devtools.server import Server
from tests.support.epochs import die_at, run_epochs
from tests.support.failover import await_replica, on, promote, replicated, reset, stop_receiving
from tests.support.history import assert_newest_rows, read_history
from tests.support.jobs import source_of, write_workload_job
from tests.support.postgres_standby import primary_and_standby
from tests.support.servers import Database, fresh_database
from tests.support.workload import UPDATE_ALL, Uids, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.state.checkpoint.layout import Checkpoint

pytestmark = pytest.mark.integration

CREATE = ("CREATE TABLE lost_one (id INT PRIMARY KEY, a INT)", "INSERT INTO lost_one VALUES (1, 1)")


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def own_pair(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    with replicated(request.param) as servers:
        yield servers


@pytest.fixture
def source(own_pair: tuple[Server, Server]) -> Iterator[Database]:
    reset(*own_pair)
    with fresh_database(own_pair[0]) as database:
        create_tables(database, rows=60, uids=Uids())
        yield database


def write(folder: Path, source: Database, **settings: object) -> Path:
    return write_workload_job(
        folder, source_of(source, on_log_lost="resnapshot", on_table_error="park", **settings), None
    )


def with_table(source: Database) -> dict[str, Any]:
    """Settings that name the table beside the others."""
    return {"tables": [f"{source.schema}.*", f"{source.schema}.lost_one"]}


def go_until(job: Path, source: Database, point: str) -> None:
    """The job finds the table, reads it, and dies in the epoch of its rows, or in that of a later change."""
    when, _, point = point.partition(" ")
    if when == "later":
        run_epochs(job)
        source.execute("INSERT INTO lost_one VALUES (2, 1)", *UPDATE_ALL)
    if point:
        die_at(job, point)
    else:
        run_epochs(job)


def has_left(folder: Path) -> set[str]:
    """The tables that have left the job: parked, or waiting to come back. A run ends with an error that names them."""
    state = Checkpoint.at(str(folder / "checkpoint")).job_state()
    assert state is not None
    return {table.name for table in state.left_tables}


CASES = [
    ("later", False),
    ("first planner.after_plan", True),
    ("first sink.before_commit", True),
    ("later sink.before_commit", True),
]
"""Where the job dies, and whether the job file names the table."""


@pytest.mark.servers_in_turn("own_pair")
@pytest.mark.parametrize(("point", "is_named"), CASES)
def test_the_others_go_on(
    own_pair: tuple[Server, Server], source: Database, tmp_path: Path, point: str, *, is_named: bool
) -> None:
    settings = with_table(source) if is_named else {}
    for _ in range(2):
        run_epochs(write(tmp_path, source))
        source.execute(*UPDATE_ALL)
    await_replica(*own_pair)
    stop_receiving(own_pair[1])
    source.execute(*CREATE)
    go_until(write(tmp_path, source, **settings), source, point)
    promote(own_pair[1])
    there = on(own_pair[1], source)
    there.execute(*UPDATE_ALL)
    job = write(tmp_path, there, **settings)
    run_epochs(job)
    assert has_left(tmp_path) == {"lost_one"}
    assert_newest_rows(tmp_path / "out", there)
    comes_back(job, there, tmp_path / "out")


def comes_back(job: Path, there: Database, out: Path) -> None:
    """The table, with other rows, if somebody creates it again."""
    there.execute("CREATE TABLE lost_one (id INT PRIMARY KEY, a INT)", "INSERT INTO lost_one VALUES (7, 7)")
    resnapshot(load_job_file(job), [TableName(there.schema, "lost_one")])
    run_epochs(job)
    rows = read_history(out, there.schema, "lost_one")
    versions = rows.filter(pc.equal(rows["_change_type"], "insert"))
    assert versions["id"].to_pylist()[-1] == 7


@pytest.mark.every_server
def test_the_others_go_on_after_a_standby_was_promoted(tmp_path: Path) -> None:
    """Each job has another point at which it died."""
    with primary_and_standby("shop") as pair:
        create_tables(pair.database, rows=60, uids=Uids())
        pair.database.execute(
            "CREATE PUBLICATION shop FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = true)"
        )
        jobs = []
        for number, (point, is_named) in enumerate(CASES):
            name = f"job{number}"
            (tmp_path / name).mkdir()
            pair.create_slot(name)
            places = {"url": pair.url, "slot": name, "publication": "shop"}
            jobs.append((name, point, places, with_table(pair.database) if is_named else {}))
        for _ in range(2):
            for name, _, places, _ in jobs:
                run_epochs(write(tmp_path / name, pair.database, **places))
            pair.database.execute(*UPDATE_ALL)
        pair.await_standby()
        pair.fall_behind()
        pair.database.execute(*CREATE)
        for name, point, places, settings in jobs:
            go_until(write(tmp_path / name, pair.database, **places, **settings), pair.database, point)
            pair.database.execute("DELETE FROM lost_one WHERE id = 2")
        pair.fail_over()
        pair.promoted.execute(*UPDATE_ALL)
        for name, _, places, settings in jobs:
            run_epochs(write(tmp_path / name, pair.database, **places, **settings))
            assert has_left(tmp_path / name) == {"lost_one"}, name
            assert_newest_rows(tmp_path / name / "out", pair.promoted)
