"""Temporary files in memory: those of tests, and the data folders of database servers."""

import os
import re
import shutil
import tempfile
from pathlib import Path

FOLDER = Path("/dev/shm")
NEEDED_BYTES = 20 << 30
"""With three workers `make test` needs 13 GB for its processes, and 7 GB for these files."""


def keep_temporary_files_in_memory() -> None:
    """Makes this process and those that it starts keep temporary files in memory, if there is room and TMPDIR is not set.

    Statements such as CREATE TABLE wait for the disk several times, and a database of PostgreSQL is 300 files.
    """
    if "TMPDIR" not in os.environ and _free_bytes() >= NEEDED_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = str(FOLDER)


def _free_bytes() -> int:
    if not FOLDER.is_mount():
        return 0
    available = re.search(r"^MemAvailable: *(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return 0 if available is None else min(shutil.disk_usage(FOLDER).free, int(available[1]) << 10)
