"""The whole job with PostgreSQL as its source, under concurrent writers."""

from pathlib import Path

import pytest

from tests.support.epochs import run_epochs
from tests.support.history import assert_copied
from tests.support.jobs import BY_SPARK, run_to_end, source_of, write_job
from tests.support.servers import Database
from tests.support.workload import KEYS, Uids, Writers, create_tables

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.mark.every_server
@pytest.mark.pitfall(3)
def test_files_full_then_changes_in_later_runs(postgres_database: Database, tmp_path: Path) -> None:
    """Runs on the oldest version that tests have; test_job_files.py takes the newest."""
    uids = Uids()
    create_tables(postgres_database, rows=2400, uids=uids)
    job = write_job(
        tmp_path, source=source_of(postgres_database), sink={"type": "files", "path": str(tmp_path / "out")}
    )
    with Writers(postgres_database, uids, count=3, seed=1, pause_seconds=0.02):
        run_to_end(job, *BY_SPARK)
    with Writers(postgres_database, uids, count=3, seed=2, pause_seconds=0.02):
        run_epochs(job)
    run_epochs(job)
    assert assert_copied(tmp_path / "out", postgres_database) > 7200


def test_mirror_keeps_values_that_the_log_does_not_repeat(
    postgres18_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    uids = Uids()
    source = postgres18_database
    create_tables(source, rows=3000, uids=uids)
    job = write_job(
        tmp_path,
        source=source_of(source),
        sink={"type": "mirror", "url": mysql_database.url, "table": "{table}"},
    )
    with Writers(source, uids, count=2, seed=5, pause_seconds=0.02):
        run_epochs(job)
    source.execute("UPDATE customers SET version = version + 1 WHERE length(note) > 100")
    run_epochs(job)
    for table in KEYS:
        rows = f"SELECT uid, version, note FROM {table} ORDER BY uid"
        copied, wanted = mysql_database.query(rows), source.query(rows)
        assert [row[:2] for row in copied] == [row[:2] for row in wanted]
        assert [_text(row[2]) for row in copied] == [_text(row[2]) for row in wanted]


def _text(value: object) -> object:
    return bytes(value) if isinstance(value, memoryview | bytes) else value
