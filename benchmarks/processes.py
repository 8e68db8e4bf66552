"""Memory and processor time of all processes that this process started, by role, sampled from /proc while they run."""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from devtools.server_supervisor import descendants

JVM, DRIVER, PLANNER, WORKERS = "JVM", "Python driver", "planner", "Python workers"
POSTGRES, READER, OTHER = "PostgreSQL", "reader", "other"
JOB = (JVM, DRIVER, PLANNER, WORKERS)
INTERVAL_SECONDS = 0.2
TICKS = os.sysconf("SC_CLK_TCK")


class Sampler:
    """A context manager that samples. `servers`: the role of a server, by the port in its command line.

    With `memory` the proportional set size (PSS) is read too, which takes processor time. In PSS each page counts once: a
    page that n processes share counts as 1/n for each.
    """

    def __init__(self, servers: Mapping[int, str] | None = None, *, memory: bool = False) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._servers = {f"--port={port}": name for port, name in (servers or {}).items()}
        self._memory = memory
        self._ended = threading.Event()
        self._roles: dict[int, str] = {}
        self._first_ticks: dict[int, int] = {}
        self._last_ticks: dict[int, int] = {}
        self.peak_bytes: Counter[str] = Counter()
        self.peak_of_job_bytes = 0
        self.seconds = 0.0

    def __enter__(self) -> "Sampler":
        self._started = time.monotonic()
        self._sample(first=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._sample()
        self.seconds = time.monotonic() - self._started

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_SECONDS):
            self._sample()

    def cpu_seconds(self) -> Counter[str]:
        """Returns the processor seconds by role while sampling. Processes that lived shorter than the interval are missing."""
        found: Counter[str] = Counter()
        for pid, ticks in self._last_ticks.items():
            found[self._roles[pid]] += (ticks - self._first_ticks[pid]) / TICKS  # type: ignore[assignment]
        return found

    def _sample(self, *, first: bool = False) -> None:
        held: Counter[str] = Counter()
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):  # it may end while we look
                process = Path("/proc", str(pid))
                if self._roles.get(pid) in {None, OTHER}:  # a child may not have become its program yet
                    self._roles[pid] = self._role(process)
                fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
                ticks = int(fields[11]) + int(fields[12])
                self._first_ticks.setdefault(pid, ticks if first else 0)
                self._last_ticks[pid] = ticks
                if self._memory and self._roles[pid] in JOB:
                    held[self._roles[pid]] += _pss_bytes(process)
        self.peak_bytes |= held
        self.peak_of_job_bytes = max(self.peak_of_job_bytes, held.total())

    def _role(self, process: Path) -> str:
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        for word, name in self._servers.items():
            if word in words:
                return name
        if any(word.endswith("peer_readers.py") for word in words):
            return READER
        line = " ".join(words)
        if words[0].startswith("postgres:") or words[0].endswith("/postgres"):
            return POSTGRES
        if words[0].endswith("java"):
            return JVM
        if "python_streaming_source_runner" in line:
            return PLANNER
        if {"pyspark.daemon", "tidemark.jobs.spark.worker_daemon"}.intersection(words):
            return WORKERS
        return DRIVER if "tidemark.jobs.cli" in words else OTHER


def _pss_bytes(process: Path) -> int:
    for line in (process / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0
