"""Runs `tidemark` as its users do: in a separate process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
"""The root folder of the repository."""


@dataclass
class Process:
    """One `tidemark run`. Its output goes to files, so that it never blocks on a pipe that nobody reads."""

    popen: "subprocess.Popen[bytes]"
    out: Path
    err: Path
    started: float = field(default_factory=time.monotonic)

    def events(self) -> list[dict[str, Any]]:
        """Returns the JSON lines so far, without an incomplete last line."""
        found = []
        for line in self.out.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found

    def wait(self, timeout_seconds: float = 400) -> int:
        return self.popen.wait(timeout_seconds)

    def kill(self) -> None:
        """Sends SIGKILL to the driver, its JVM and workers at once."""
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
                raise AssertionError(f"the condition is false after {timeout_seconds} s: {self.error_text()}")
            time.sleep(0.05)

    def error_text(self) -> str:
        return self.err.read_text()[-4000:]


def start_process(
    folder: Path, *argv: str, environment: dict[str, str] | None = None, working_folder: Path = ROOT
) -> Process:
    """Starts a process in a new session, with its output in `folder`."""
    number = len(list(folder.glob("out-*")))
    out, err = folder / f"out-{number}", folder / f"err-{number}"
    bytecode = {"PYTHONDONTWRITEBYTECODE": ""}  # every run starts five processes
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
    argv = (sys.executable, "-m", "tidemark.jobs.cli", command, str(job), *arguments)
    return start_process(job.parent, *argv, environment=environment)
