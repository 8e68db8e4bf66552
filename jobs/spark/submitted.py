"""Tells whether spark-submit started this process, and where its tasks run. Imports no pyspark."""

import os
import re

from tidemark.conf.model import JobFile

_LOCAL = re.compile(r"local(?:\[(?P<slots>\*|\d+)(?:,\s*\d+)?])?")


def was_submitted() -> bool:
    """True under spark-submit."""
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


def local_slots(job: JobFile) -> int | None:
    """Returns how many tasks run at the same time in local mode, where they run on this machine. None on a cluster."""
    match = _LOCAL.fullmatch(job.spark.master)
    if match is None or was_submitted():
        return None
    return (os.cpu_count() or 1) if match["slots"] == "*" else int(match["slots"] or 1)
