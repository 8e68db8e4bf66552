"""A Spark standalone cluster on this machine, from the pip package alone: a master and workers as plain processes."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import pyspark

from devtools.server_process import free_port
from tests.support.jobs import ROOT, SPARK, Process, start_process

HOME = Path(pyspark.__file__).parent
DAEMON, EXECUTOR, WORKER = "pyspark.daemon", "CoarseGrainedExecutorBackend", "deploy.worker.Worker"
"""Words of the command lines of an executor's Python daemon, of executors, and of the cluster's workers."""

START_SECONDS = 60
_ADDRESS = "127.0.0.1"
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SETTINGS = {
    **{name: value for name, value in SPARK["conf"].items() if name != "spark.driver.memory"},
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.task.maxFailures": "8",
}


@dataclass
class Cluster:
    """A cluster whose workers have one core each and hand `executor_environment` on. `python` runs driver and
    executors, and has no package of Tidemark."""

    folder: Path
    python: Path
    our_zip: Path
    executor_environment: dict[str, str] = field(default_factory=dict)
    workers: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    master_port: int = field(default_factory=free_port)

    def submit(
        self,
        job: Path,
        *arguments: str,
        environment: dict[str, str] | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        folder: Path = ROOT,
    ) -> Process:
        """`spark-submit … jobs/sync.py JOB`, started in `folder`. `settings` are Spark's, besides the usual."""
        given = [f"--conf={name}={value}" for name, value in (_SETTINGS | settings).items()]
        options = ["--master", self._url, "--driver-memory", "700m", *given, "--py-files", str(self.our_zip)]
        command = (str(HOME / "bin" / "spark-submit"), *options, str(ROOT / "jobs" / "sync.py"), str(job), *arguments)
        return start_process(
            job.parent, *command, environment=self._environment | (environment or {}), working_folder=folder
        )

    def add_worker(self) -> None:
        """Adds a worker. Returns once the master knows it."""
        count = len(self._registered())
        work = self.folder / f"worker-{len(self.workers)}"
        options = ("-h", _ADDRESS, "-c", "1", "-m", "1g", "-d", str(work), "--webui-port", str(free_port()), self._url)
        self.workers.append(self._java("worker.Worker", *options))
        self._wait_for(count + 1)

    def executors(self) -> list[int]:
        """Process ids of the executors' JVMs."""
        return [pid for pid in _children([worker.pid for worker in self.workers]) if b"java" in _command_line(pid)]

    def daemons(self) -> list[int]:
        """Process ids of the executors' Python daemons."""
        return [pid for pid in _children(self.executors()) if b"pyspark.daemon" in _command_line(pid)]

    @property
    def _url(self) -> str:
        return f"spark://{_ADDRESS}:{self.master_port}"

    @property
    def _environment(self) -> dict[str, str]:
        return {
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": _ADDRESS,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JAVA_OPTIONS,
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
        }

    def _java(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}-{len(self.workers)}.log").open("wb") as log:
            return subprocess.Popen(
                [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
                env=os.environ | self._environment | self.executor_environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _registered(self) -> list[str]:
        log = self.folder / "master.Master-0.log"
        return re.findall(r"Registering worker .*", log.read_text()) if log.exists() else []

    def _wait_for(self, worker_count: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while len(self._registered()) < worker_count:
            if time.monotonic() > deadline:
                raise AssertionError("\n".join(log.read_text()[-1000:] for log in self.folder.glob("*.log")))
            time.sleep(0.05)

    @contextmanager
    def running(self, worker_count: int) -> Iterator["Cluster"]:
        options = ("-h", _ADDRESS, "-p", str(self.master_port), "--webui-port", str(free_port()))
        master = self._java("master.Master", *options)
        try:
            for _ in range(worker_count):
                self.add_worker()
            yield self
        finally:
            for process in [*self.workers, master]:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # executors are of their worker's group
                process.wait(30)


def _children(parents: list[int]) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) in parents:
                found.append(int(stat.parent.name))
    return found


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""
