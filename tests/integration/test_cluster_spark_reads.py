"""Executors of a cluster are asked whether they can read the checkpoint's bucket: once there are some, and each of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import ROOT
from tests.support.s3 import s3_server
from tests.support.s3a import Faults, hadoop_settings, s3a_jars
from tidemark.sinks.delta.spark_reads import PROBE_SECONDS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.every_server]

_ASKING = """
import json, sys, threading, time
from pyspark.sql import SparkSession
from tidemark.sinks.delta.spark_reads import SparkReads
from tidemark.state.checkpoint.store import open_store

url, busy_seconds, settings = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
session = SparkSession.builder.config(map=settings).getOrCreate()
if busy_seconds:
    tasks = session.sparkContext.parallelize([busy_seconds] * 2, 2)
    threading.Thread(target=tasks.foreach, args=(time.sleep,), daemon=True).start()
    tracker = session.sparkContext.statusTracker()
    while not any(tracker.getStageInfo(stage).numActiveTasks == 2 for stage in tracker.getActiveStageIds()):
        time.sleep(0.1)
told = []
can = SparkReads().bucket(lambda: session, open_store(url), told.append)
print(json.dumps([can, told]))
"""


def asked(folder: Path, bucket: str, *, busy_seconds: float = 0.0) -> tuple[bool, list[str]]:
    """Asks two executors, which have other work first. Returns the answer, and what was told."""
    given = {
        "spark.master": "local-cluster[2,1,600]",
        "spark.executor.memory": "600m",
        "spark.ui.enabled": "false",
        "spark.jars": ",".join(map(str, s3a_jars())),
        "spark.local.dir": str(folder),
        **{f"spark.hadoop.{name}": value for name, value in hadoop_settings().items()},
    }
    command = (
        sys.executable,
        "-c",
        _ASKING,
        f"{bucket.replace('s3a', 's3')}/job",
        str(busy_seconds),
        json.dumps(given),
    )
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    can, told = json.loads(ended.stdout.splitlines()[-1])
    return can, told


def test_the_time_until_an_executor_has_room_is_not_counted(tmp_path: Path) -> None:
    """As little as the time until there is one."""
    with s3_server() as bucket:
        assert asked(tmp_path, bucket, busy_seconds=PROBE_SECONDS + 5) == (True, [])


def test_one_executor_that_can_not_read_is_enough(tmp_path: Path) -> None:
    """Spark tries the task again, and another executor could do it."""
    faults = Faults()
    with s3_server(faults) as bucket:
        faults.answer, faults.left = "403 Forbidden", 1
        can, (text,) = asked(tmp_path, bucket)
    assert not can
    assert "Status Code: 403" in text
    assert text.endswith("give Spark the bucket's account, region and endpoint (spark.hadoop.fs.s3a.…).")
