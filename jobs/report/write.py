"""`tidemark report JOB.yaml -o report.html`."""

import os
import time
import uuid
from pathlib import Path

from tidemark.conf.model import JobFile
from tidemark.jobs.report.facts import read_facts
from tidemark.state.errors import JobFileError


def write_report(job: JobFile, output: Path) -> int:
    """Writes the page completely or not at all. Returns its size in bytes. Raises JobFileError if `output` can't be written or
    packages are missing, CheckpointError if the job was never started."""
    try:
        from tidemark.jobs.report.page import render
    except ImportError as error:
        raise JobFileError(
            f"tidemark report needs packages that are not installed ({error.name}).",
            "Run pip install 'tidemark-cdc[report]'.",
        ) from error
    page = render(job, read_facts(job), time.time_ns() // 1000).encode()
    unfinished = output.with_name(f".{output.name}.{uuid.uuid4().hex}.part")
    try:
        unfinished.write_bytes(page)
        os.replace(unfinished, output)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise JobFileError(
            f"-o {output} can't be written: {error.strerror}.", "Create the folder, or name another file."
        ) from error
    return len(page)
