"""Who started this process, spark-submit or not, and where its tasks run. Imports no pyspark."""

import os

from tidemark.conf.model import JobFile


def was_submitted() -> bool:
    """True under spark-submit."""
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


def is_local(job: JobFile) -> bool:
    """True if Spark's tasks run on this machine, in a session that we start."""
    return not was_submitted() and job.spark.master.startswith("local")
