"""Settings and fixtures for every test."""

import os
import sys

import pytest
from hypothesis import settings

pytest_plugins = [
    "tests.support.servers",
    "tests.support.server_deaths",
    "tests.support.cli",
    "tests.support.dist",
    "tests.support.delta",
]

# Spark's workers must be this Python with these packages, and the driver must be reachable without a name service.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

# The first example may compile a loop or wait for a busy machine; a failure prints how to repeat it.
settings.register_profile("tidemark", deadline=None, print_blob=True)
settings.load_profile("tidemark")


@pytest.fixture(scope="session")
def chaos_rounds() -> int:
    """The number of rounds of a chaos test: few in `make test`, N in `make chaos N=…`."""
    return int(os.environ.get("TIDEMARK_CHAOS_ROUNDS", "2"))
