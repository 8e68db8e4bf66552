"""Finds out if spark-submit started this process. Imports no pyspark."""

import os


def was_submitted() -> bool:
    """True under spark-submit."""
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
