"""Who started this process: spark-submit or not. Imports no pyspark."""

import os


def was_submitted() -> bool:
    """True under spark-submit."""
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
