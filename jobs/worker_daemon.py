"""Spark's Python daemon, which forks the workers, with what they need loaded before: `spark.python.daemon.module`.

Importing Arrow, the kernels and our modules takes a second of processor time, in each worker anew if it is done there;
and what is loaded before the fork stands in memory once. Spark imports workers after the fork because libraries may start
threads, which a fork does not copy. Here none is running but jemalloc's, which takes care of forks itself; should there be
another one some day, this is Spark's daemon and nothing more.
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
    "jobs.read_parts",
    "jobs.write_parts",
    "readers.mysql.snapshot",
)
_KNOW_ABOUT_FORKS = frozenset({"jemalloc_bg_thd"})


def main() -> None:
    """Of `python -m jobs.worker_daemon pyspark.worker`; for Spark's other workers it loads nothing."""
    if sys.argv[1:] == ["pyspark.worker"]:
        for name in _PRELOADED:
            importlib.import_module(name)
        if _other_threads():
            os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    from pyspark.daemon import manager

    manager()


def _other_threads() -> list[str]:
    """Names of the threads beside this one that a fork would lose."""
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
