"""Spark's Python daemon, which forks the workers, with our modules preloaded: `spark.python.daemon.module`.

Importing Arrow, the kernels and our modules takes a second of processor time. Without preloading each worker spends it
again, and holds a copy in memory. Spark itself imports after the fork because libraries may start threads, which a fork does
not copy. Here the only thread is jemalloc's, which handles forks. If another thread is found, this module starts Spark's own
daemon instead.
"""

import contextlib
import importlib
import os
import sys
from pathlib import Path

_PRELOADED = (
    "pyspark.worker",
    "pandas",
    "pyspark.sql.pandas.serializers",
    "tidemark.jobs.epoch.read_parts",
    "tidemark.jobs.epoch.write_parts",
    "tidemark.readers.mysql.snapshot.split_reader",
)
_KNOW_ABOUT_FORKS = frozenset({"jemalloc_bg_thd"})


def main() -> None:
    """Runs `python -m tidemark.jobs.spark.worker_daemon pyspark.worker`. Preloads nothing for Spark's other workers."""
    if sys.argv[1:] == ["pyspark.worker"]:
        for name in _PRELOADED:
            importlib.import_module(name)
        if _other_threads():
            os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    from pyspark.daemon import manager

    manager()


def _other_threads() -> list[str]:
    """The names of other threads that a fork would lose."""
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return ["unknown"]
    names = []
    for task in tasks.iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended since
            names.append((task / "comm").read_text().strip() if task.name != str(os.getpid()) else "")
    return [name for name in names if name and name not in _KNOW_ABOUT_FORKS]


if __name__ == "__main__":
    main()
