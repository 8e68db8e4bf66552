"""The whole job into files, on every server that can be a source, under concurrent writers."""

import contextlib
import threading
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from readers.mysql.catalog import load_schema
from state.table import TableId
from tests.support.all_types import create_all_types, insert_edge_rows
from tests.support.history import assert_copied
from tests.support.jobs import run_to_end, running, write_job
from tests.support.reference_rows import differences, reference_rows
from tests.support.servers import Database
from tests.support.workload import Uids, Writers, create_tables

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def _source(database: Database) -> dict[str, object]:
    return {"url": database.server.url, "tables": [f"{database.name}.*"]}


def test_full_then_changes_in_later_runs(source_database: Database, tmp_path: Path) -> None:
    """Among the tables is one with every type: half of its rows come by SELECT, half by log."""
    uids = Uids()
    create_tables(source_database, rows=6000, uids=uids)
    connection = source_database.connect()
    create_all_types(connection)
    insert_edge_rows(connection)
    job = write_job(tmp_path, source=_source(source_database), sink={"type": "files", "path": str(tmp_path / "out")})
    with Writers(source_database, uids, count=3, seed=1, pause_seconds=0.01):
        run_to_end(job)
    run_to_end(job)
    assert assert_copied(tmp_path / "out", source_database) > 18000
    insert_edge_rows(connection, first_id=1000)
    with Writers(source_database, uids, count=2, seed=2, pause_seconds=0.01):
        run_to_end(job)
    run_to_end(job)
    assert_copied(tmp_path / "out", source_database)
    schema = load_schema(connection, TableId(source_database.name, "all_types"))
    typed = ds.dataset(tmp_path / "out" / str(schema.table), format="parquet").to_table().sort_by("id")
    assert set(typed["_is_snapshot"].to_pylist()) == {True, False}
    assert not differences(typed.to_pylist(), reference_rows(source_database.connect(), schema))


def test_mode_full_is_the_state_of_one_moment(source_database: Database, tmp_path: Path) -> None:
    """Writers add to two tables in one transaction; a copy of one moment never has one without the other."""
    source_database.execute(
        "CREATE TABLE a (id BIGINT AUTO_INCREMENT PRIMARY KEY, pair BIGINT)",
        "CREATE TABLE b (id BIGINT AUTO_INCREMENT PRIMARY KEY, pair BIGINT)",
        "INSERT INTO a (pair) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT i FROM n",
        "INSERT INTO b (pair) SELECT pair FROM a",
    )
    job = write_job(
        tmp_path,
        mode="full",
        source=_source(source_database),
        snapshot={"split_rows": 100, "parallelism": 2},
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    stop = threading.Event()

    def write_pairs() -> None:
        with contextlib.closing(source_database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
            pair = 10**6
            while not stop.wait(0.002):
                pair += 1
                cursor.execute("INSERT INTO a (pair) VALUES (%s)", (pair,))
                cursor.execute("INSERT INTO b (pair) VALUES (%s)", (pair,))
                connection.commit()

    writer = threading.Thread(target=write_pairs)
    writer.start()
    try:
        run_to_end(job)
    finally:
        stop.set()
        writer.join()
    pairs = [
        sorted(ds.dataset(tmp_path / "out" / f"{source_database.name}.{t}").to_table().column("pair").to_pylist())
        for t in ("a", "b")
    ]
    assert pairs[0] == pairs[1]
    assert len(pairs[0]) > 900
    again = run_to_end(job)
    assert again.events()[-1]["epochs"] == 0


def test_streaming_until_sigterm_then_resume(source_database: Database, tmp_path: Path) -> None:
    uids = Uids()
    create_tables(source_database, rows=1000, uids=uids)
    job = write_job(tmp_path, source=_source(source_database), sink={"type": "files", "path": str(tmp_path / "out")})
    with (
        Writers(source_database, uids, count=2, seed=3, pause_seconds=0.01),
        running(job, "--set", "trigger=200ms") as process,
    ):
        process.wait_until(lambda: any(e.get("phase") == "stream" for e in process.events()))
        process.popen.terminate()
        assert process.wait() == 130
        assert "safe" in process.error_text().splitlines()[-1]
    run_to_end(job)
    assert_copied(tmp_path / "out", source_database)
