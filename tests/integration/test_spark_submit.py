"""`spark-submit --py-files tidemark.zip jobs/sync.py JOB.yaml`: the same job as `tidemark run` is, with the same ends."""

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import run_epochs
from tests.support.history import assert_copied
from tests.support.jobs import BY_SPARK, ROOT, SPARK, Process, start_process, write_job
from tests.support.servers import Database
from tests.support.workload import Uids, Writers, create_tables

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SPARK_SUBMIT = str(Path(sys.executable).with_name("spark-submit"))


def submit(job: Path, our_zip: Path, *arguments: str) -> Process:
    settings = [f"--conf={name}={value}" for name, value in SPARK["conf"].items() if name != "spark.driver.memory"]
    options = ["--master", "local[2,4]", "--driver-memory", "700m", *settings, "--py-files", str(our_zip)]
    return start_process(job.parent, SPARK_SUBMIT, *options, str(ROOT / "jobs" / "sync.py"), str(job), *arguments)


def test_it_runs_the_job_as_run_does(mysql_database: Database, our_zip: Path, tmp_path: Path) -> None:
    uids = Uids()
    create_tables(mysql_database, rows=800, uids=uids)
    job = write_job(
        tmp_path,
        source={"url": mysql_database.server.url, "tables": ["nothing.*"]},
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    named = f"source.tables=['{mysql_database.name}.*']"
    tables = ("--set", named)
    with Writers(mysql_database, uids, count=2, seed=1, pause_seconds=0.02):
        submitted = submit(job, our_zip, *tables, *BY_SPARK, "--summary", str(tmp_path / "summary.json"))
        assert submitted.wait() == 0, submitted.error_text()
        going_on = submit(job, our_zip, *tables, "--set", "trigger=200ms")
        going_on.wait_until(lambda: any(event.get("changes") for event in going_on.events()))
        going_on.popen.send_signal(signal.SIGTERM)  # to the JVM, whose child the driver is
        assert going_on.wait() == 130
        assert going_on.events()[-1]["interrupted"]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["phase"] in {"catch_up", "stream"}
    assert summary["rows"] >= 2400
    finished = submitted.events()[-1]
    assert {name: finished[name] for name in summary} == summary
    run_epochs(job, named)  # goes on from the same checkpoint
    assert assert_copied(tmp_path / "out", mysql_database) > 2400


@pytest.mark.every_server
def test_its_failures_end_as_those_of_run(
    tidemark: CommandLine, mysql_database: Database, our_zip: Path, tmp_path: Path
) -> None:
    job = write_job(
        tmp_path,
        source={"url": mysql_database.server.url, "tables": [f"{mysql_database.name}.missing"]},
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    for arguments, code in (((), 3), (("--set", "snapshot.split_rows=none"), 2)):
        run = tidemark("run", job, *arguments)
        assert run.code == code
        submitted = submit(job, our_zip, *arguments)
        assert submitted.wait() == code, submitted.error_text()
        # Spark merges a driver's stderr into its stdout.
        assert submitted.out.read_text().splitlines()[-1] == run.last_line
