"""`spark-submit` on a standalone cluster of two workers, whose Python has nothing of ours: copied whole through kills, and a
checkpoint that is not shared found before anything is read."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.cluster import DAEMON, EXECUTOR, WORKER, Cluster
from tests.support.history import assert_copied
from tests.support.jobs import run_to_end, write_job
from tests.support.servers import Database
from tests.support.workload import Uids, Writers, create_tables
from tidemark.sinks.delta.settings import delta_settings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the names of failpoints. They kill on the executors, never on the driver."""
    return tmp_path_factory.mktemp("failpoints")


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, bare_python: Path, our_zip: Path, failpoints: Path
) -> Iterator[Cluster]:
    environment = {"TIDEMARK_FAILPOINTS": str(failpoints)}
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), bare_python, our_zip, environment)
    with cluster.running(2):
        yield cluster


@pytest.mark.every_server
def test_an_unshared_checkpoint_is_found_at_the_start(
    cluster: Cluster, mysql_database: Database, tmp_path: Path
) -> None:
    """Each process has a working folder of its own."""
    create_tables(mysql_database, rows=10, uids=Uids())
    job = _job(tmp_path, mysql_database, checkpoint="/proc/self/cwd/checkpoint")
    (tmp_path / "driver").mkdir()
    submitted = cluster.submit(job, folder=tmp_path / "driver")
    assert submitted.wait() == 1, submitted.error_text()
    last_line = submitted.out.read_text().splitlines()[-1]
    assert "Executors don't share the checkpoint /proc/self/cwd/checkpoint." in last_line
    assert "is empty" in last_line
    assert "Remedy: Put `checkpoint` on storage that" in last_line
    assert {path.name for path in (tmp_path / "driver" / "checkpoint").iterdir()} == {
        "cuts",
        "history",
        "job",
        "lease",
        "owners",
        "sink",
    }  # nothing was planned
    shared = tmp_path / "shared"
    shutil.move(tmp_path / "driver" / "checkpoint", shared)
    submitted = cluster.submit(_job(tmp_path, mysql_database, checkpoint=str(shared)), folder=tmp_path / "driver")
    assert submitted.wait() == 0, submitted.error_text()
    assert assert_copied(tmp_path / "out", mysql_database) == 30


@pytest.mark.pitfall(74)
def test_it_copies_through_kills(cluster: Cluster, failpoints: Path, mysql_database: Database, tmp_path: Path) -> None:
    """Kills a Python daemon, an executor and a whole worker, while splits are read and while executors read the log."""
    uids = Uids()
    create_tables(mysql_database, rows=800, uids=uids)
    job = _job(tmp_path, mysql_database)
    split_kills = {"snapshot.after_select": DAEMON, "publish.after": EXECUTOR, "sink.before_commit": WORKER}
    log_kills = (EXECUTOR, WORKER)  # of one task, whose next attempt comes by there again
    for name, victim in {**split_kills, "log.before_report": DAEMON}.items():
        _arm_kill(failpoints / name, victim)
    with Writers(mysql_database, uids, count=2, seed=3, pause_seconds=0.05):
        summary = tmp_path / "summary.json"
        submitted = cluster.submit(job, "--summary", str(summary))
        submitted.wait_until(lambda: _killed_workers(cluster) == 1)
        cluster.add_worker()
        for victim in log_kills:
            submitted.wait_until(lambda: not (failpoints / "log.before_report").exists())
            _arm_kill(failpoints / "log.before_report", victim)
        assert submitted.wait() == 0, submitted.error_text()
    assert [path.name for path in failpoints.iterdir() if not path.name.startswith(".")] == []
    assert _killed_workers(cluster) == 2
    assert json.loads(summary.read_text())["rows"] >= 2400
    # What was written last. Without a cluster, and without Spark, it goes on from the same checkpoint.
    run_to_end(job, "--set", "log.driver_bytes=16MiB")
    assert assert_copied(tmp_path / "out", mysql_database) > 2400
    assert not list((tmp_path / "checkpoint").glob("seen-*"))


@pytest.mark.every_server
def test_delta_tables_are_written_by_its_executors(
    cluster: Cluster, mysql_database: Database, tmp_path: Path, delta_session: SparkSession
) -> None:
    """Writes rows, then changes. The executors get the jars through settings of spark-submit."""
    database = mysql_database
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))")
    database.execute(f"INSERT INTO t VALUES {', '.join(f'({n}, {n})' for n in range(900))}")
    sink = {"type": "delta", "path": str(tmp_path / "lake")}
    job = _job(tmp_path, database, sink=sink, trigger="1s", snapshot={"split_rows": 300})
    table = tmp_path / "lake" / f"{database.name}.t"
    jars = {name: value for name, value in delta_settings({}, submitted=False).items() if ".jars." in name}
    submitted = cluster.submit(job, settings=jars)
    submitted.wait_until((table / "_delta_log" / f"{1:020}.json").exists)
    changes = (
        "UPDATE t SET v = 'new' WHERE id % 3 = 0",
        "DELETE FROM t WHERE id < 100",
        "INSERT INTO t VALUES (-1, NULL)",
    )
    database.execute("START TRANSACTION", *changes, "COMMIT")
    submitted.wait_until((table / "_delta_log" / f"{2:020}.json").exists)
    submitted.popen.send_signal(signal.SIGTERM)
    assert submitted.wait() == 130, submitted.error_text()
    copied = delta_session.read.format("delta").load(str(table)).collect()
    assert sorted(map(tuple, copied)) == sorted(database.query("SELECT id, v FROM t"))


def _killed_workers(cluster: Cluster) -> int:
    return [worker.poll() for worker in cluster.workers].count(-signal.SIGKILL)


def _arm_kill(name: Path, victim: str) -> None:
    """Arms a failpoint. The file is renamed into place, because a process may be waiting for it."""
    new = name.with_name(f".{name.name}.new")
    new.write_text(f"kill above {victim}")
    new.rename(name)


def _job(folder: Path, database: Database, **settings: Any) -> Path:
    source = {"url": database.server.url, "tables": [f"{database.name}.*"]}
    sink = {"type": "files", "path": str(folder / "out")}
    by_spark = {"snapshot": {"split_rows": 500, "parallelism": 2, "driver_rows": 0}, "log": {"driver_bytes": 0}}
    return write_job(folder, **{"source": source, "sink": sink} | by_spark | settings)
