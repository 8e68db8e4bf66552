"""Runs `tidemark` as its users do: a job file and a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support.servers import Database

ROOT = Path(__file__).resolve().parents[2]
SPARK = {
    "master": "local[2]",
    "conf": {
        "spark.driver.memory": "700m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -Xss4m",  # these JVMs live for seconds
        "spark.sql.codegen.wholeStage": "false",
    },
}


def source_of(database: Database, **settings: Any) -> dict[str, Any]:
    """A job file's section `source` for all tables of a database."""
    section: dict[str, Any] = {"url": database.server.url, "tables": [f"{database.schema}.*"]}
    if database.kind == "postgres":
        section |= {"url": database.url, "slot": database.name, "publication": database.name}
    return section | settings


def write_job(folder: Path, **changes: Any) -> Path:
    """A job file in `folder`, with the checkpoint beside it; sections in `changes` are merged over the defaults."""
    job: dict[str, Any] = {
        "job": "test-job",
        "mode": "full+incremental",
        "trigger": "once",
        "checkpoint": "./checkpoint",
        "snapshot": {"split_rows": 500, "parallelism": 2},
        "spark": SPARK,
    }
    job.update(changes)
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    return path


@dataclass
class Process:
    """One `tidemark run`; its output goes to files, for a killed process must not block on a pipe."""

    popen: "subprocess.Popen[bytes]"
    out: Path
    err: Path
    started: float = field(default_factory=time.monotonic)

    def events(self) -> list[dict[str, Any]]:
        """The JSON lines so far; a torn last line is left out."""
        found = []
        for line in self.out.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found

    def wait(self, timeout_seconds: float = 400) -> int:
        return self.popen.wait(timeout_seconds)

    def kill(self) -> None:
        """The driver with its JVM and workers, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(30)

    def wait_until(self, condition: Callable[[], bool], timeout_seconds: float = 300) -> None:
        """Polls until `condition` holds; fails if the process ends or time runs out first."""
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            if self.popen.poll() is not None and not condition():
                raise AssertionError(f"the job ended with {self.popen.returncode}: {self.error_text()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"nothing after {timeout_seconds} s: {self.error_text()}")
            time.sleep(0.05)

    def error_text(self) -> str:
        return self.err.read_text()[-4000:]


def start_process(
    folder: Path, *argv: str, environment: dict[str, str] | None = None, working_folder: Path = ROOT
) -> Process:
    """In a session of its own, with its output in `folder`."""
    number = len(list(folder.glob("out-*")))
    out, err = folder / f"out-{number}", folder / f"err-{number}"
    bytecode = {"PYTHONDONTWRITEBYTECODE": ""}  # five processes start anew each time
    with out.open("wb") as stdout, err.open("wb") as stderr:
        popen = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=working_folder,
            start_new_session=True,
            env={**os.environ, **bytecode, **(environment or {})},
        )
    return Process(popen, out, err)


def start_tidemark(
    job: Path, *arguments: str, command: str = "run", environment: dict[str, str] | None = None
) -> Process:
    argv = (sys.executable, "-m", "jobs.cli", command, str(job), *arguments)
    return start_process(job.parent, *argv, environment=environment)


@contextlib.contextmanager
def running(job: Path, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[Process]:
    """A run that is killed when the block ends, if it still lives."""
    process = start_tidemark(job, *arguments, environment=environment)
    try:
        yield process
    finally:
        process.kill()


def run_to_end(job: Path, *arguments: str, command: str = "run", expect: int = 0) -> Process:
    """Runs until the end and checks the exit code."""
    process = start_tidemark(job, *arguments, command=command)
    try:
        code = process.wait()
    except BaseException:
        process.kill()
        raise
    assert code == expect, f"exit code {code}, {expect} expected: {process.error_text()}"
    return process
