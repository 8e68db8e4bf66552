"""On a standalone cluster, executors, Python daemons and workers are killed at random times; the copy must end right."""

import contextlib
import os
import random
import secrets
import signal
import time
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.history import assert_copied
from tests.support.jobs import run_to_end, source_of, write_job
from tests.support.servers import Database
from tests.support.workload import Uids, Writers, create_tables

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(3600)]


@pytest.mark.usefixtures("long_version")
def test_random_kills_on_a_cluster(request: pytest.FixtureRequest, tmp_path: Path, chaos_rounds: int) -> None:
    """A run that Spark gives up (a task failed too often) is started again."""
    mysql_database: Database = request.getfixturevalue("mysql_database")
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    uids = Uids()
    create_tables(mysql_database, rows=4000, uids=uids)
    job = write_job(
        tmp_path,
        source=source_of(mysql_database),
        sink={"type": "files", "path": str(tmp_path / "out")},
        trigger="200ms",
        snapshot={"split_rows": 500, "parallelism": 2, "driver_rows": 0},
        log={"driver_bytes": 0},
    )
    cluster = Cluster(tmp_path / "cluster", request.getfixturevalue("bare_python"), request.getfixturevalue("our_zip"))
    cluster.folder.mkdir()
    with cluster.running(2):
        submitted = cluster.submit(job)
        with Writers(mysql_database, uids, count=2, seed=seed, pause_seconds=0.01):
            for _ in range(chaos_rounds):
                time.sleep(generator.uniform(1, 10))
                if submitted.popen.poll() is not None:
                    submitted = cluster.submit(job)
                _kill_one(cluster, generator)
        submitted.kill()
    run_to_end(job, "--set", "trigger=once")
    assert_copied(tmp_path / "out", mysql_database)


def _kill_one(cluster: Cluster, generator: random.Random) -> None:
    """A worker that dies is replaced at once."""
    worker = generator.choice([worker for worker in cluster.workers if worker.poll() is None])
    victims = generator.choice([cluster.executors(), cluster.daemons(), [worker.pid]])
    for victim in victims[:1]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    if worker.pid in victims[:1]:
        worker.wait(30)
        cluster.add_worker()
