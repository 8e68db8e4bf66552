"""The daemon that forks Spark's workers: what it loads must be fit to be forked."""

import os
import subprocess
import sys

LOAD = """
import importlib
from tidemark.jobs.spark.worker_daemon import _PRELOADED, _other_threads
for name in _PRELOADED:
    importlib.import_module(name)
"""


def test_what_is_loaded_before_the_fork_starts_no_thread_that_a_fork_would_lose() -> None:
    assert _printed(f"{LOAD}print(_other_threads())") == "[]"


def test_a_thread_is_noticed() -> None:
    thread = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    assert _printed(f"{LOAD}{thread}; print(len(_other_threads()))") == "1"


def _printed(code: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # Spark gives workers as many as a task has cores
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    return done.stdout.strip()
