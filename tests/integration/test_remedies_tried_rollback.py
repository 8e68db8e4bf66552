"""Remedies for epochs that a job can not go back to, done as printed: the job goes on, and its copy is that of the source."""

from pathlib import Path

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import run_epochs
from tests.support.lost_logs import drop_kept_slots
from tests.support.remedies import run_command
from tests.support.remedy_ways import mirror_job, require_copies, told_by
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.plan import LogWork

pytestmark = [pytest.mark.integration, pytest.mark.every_server]

LONG = "(SELECT string_agg(md5(j::text), '') FROM generate_series(1, 100) AS j)"
NEWER = "hoose a newer epoch: tidemark checkpoints JOB.yaml list shows those that are kept."


def committed(job: Path) -> int:
    return Checkpoint.at(load_job_file(job).checkpoint).committed_epoch()


def test_epochs_that_a_job_can_not_go_back_to(
    postgres18_database: Database, mysql_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    """While its first load runs, where the slot has no log any more, and before a key changed beside a long value."""
    source = postgres18_database
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
        f"INSERT INTO orders SELECT i, {LONG} FROM generate_series(1, 40) AS i",
    )
    job = mirror_job(tmp_path, source, mysql_database, on_log_lost="stop")

    def back(epoch: int) -> str:
        return tidemark("checkpoints", job, "rollback", epoch).last_line

    epoch = 0
    while "Let the job run until it follows the log." not in (told := back(epoch) if epoch else ""):
        assert epoch < 40, told
        source.execute("UPDATE orders SET id = id + 100 WHERE id % 100 = 1")
        run_epochs(job, "snapshot.split_rows=3", "snapshot.parallelism=1", at_most=1)
        epoch = committed(job)
    assert told_by(job) is None
    source.execute("UPDATE orders SET note = 'b' WHERE id = 2")
    assert told_by(job) is None
    first = committed(job)
    source.execute("UPDATE orders SET id = 200 WHERE id = 3")
    assert told_by(job) is None
    told = back(first)
    assert f"Or c{NEWER}" in told
    run_command(told, job, tidemark)
    assert told_by(job) is None
    for note in ("c", "d"):
        source.execute(f"UPDATE orders SET note = '{note}' WHERE id = 4")
        assert told_by(job) is None
    newest = committed(job)
    work = Checkpoint.at(load_job_file(job).checkpoint).plan(newest).plan.work
    assert isinstance(work, LogWork)
    drop_kept_slots(source)
    source.query("SELECT pg_replication_slot_advance(%s, %s)", (source.name, str(work.range.stop)))
    assert f"Nothing was changed. C{NEWER}" in back(newest - 1)
    assert tidemark("checkpoints", job, "rollback", committed(job)).code == 0
    assert told_by(job) is None
    require_copies(source, mysql_database)


def test_a_table_whose_rows_are_appended_is_read_again(
    postgres18_database: Database, mysql_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    source = postgres18_database
    source.execute(
        "CREATE TABLE orders (note text)", "ALTER TABLE orders REPLICA IDENTITY FULL", "INSERT INTO orders VALUES ('a')"
    )
    job = mirror_job(tmp_path, source, mysql_database, sink={"keyless": "append"})
    for note in "bc":
        assert told_by(job) is None
        source.execute(f"INSERT INTO orders VALUES ('{note}')")
    told = tidemark("checkpoints", job, "rollback", committed(job)).last_line
    assert "Let the job continue, and read single tables again:" in told
    run_command(told.replace("NAME", "public.orders"), job, tidemark)
    for note in "de":
        assert told_by(job) is None
        require_copies(source, mysql_database)
        source.execute(f"INSERT INTO orders VALUES ('{note}')")
