"""Runs all benchmarks, or those named: `python -m benchmarks [SUBJECT]... [--rows N]`."""

import argparse
import os
import platform

from benchmarks import (
    catch_up,
    delta,
    latency,
    log,
    memory,
    planning,
    postgres_log,
    readers,
    reconcile,
    reconcile_files,
    reconcile_texts,
    snapshot,
)
from benchmarks.bench import Bench

SUBJECTS = {
    "snapshot": snapshot.run,
    "postgres_snapshot": snapshot.run_postgres,
    "readers": readers.run,
    "log": log.run,
    "postgres_log": postgres_log.run,
    "catch_up": catch_up.run,
    "delta": delta.run,
    "reconcile": reconcile.run,
    "reconcile_files": reconcile_files.run,
    "reconcile_texts": reconcile_texts.run,
    "latency": latency.run,
    "memory": memory.run,
    "postgres_memory": memory.run_postgres,
    "planning": planning.run,
}
ROWS = 5_000_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"any of {', '.join(SUBJECTS)}; none named: all")
    parser.add_argument(
        "--rows", type=int, default=ROWS, help=f"rows of the large table; other sizes follow from it ({ROWS:,})"
    )
    given = parser.parse_args()
    unknown = [name for name in given.subjects if name not in SUBJECTS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: not one of {', '.join(SUBJECTS)}")
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    print(f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, Python {platform.python_version()}", flush=True)
    with Bench(given.rows) as bench:
        for name in given.subjects or SUBJECTS:
            SUBJECTS[name](bench)


if __name__ == "__main__":
    main()
