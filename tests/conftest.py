"""Settings and fixtures for every test."""

import gc
import os
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from tests.support.examples import SHORT_ROUNDS, chaos_rounds

pytest_plugins = [
    "tests.support.servers",
    "tests.support.server_deaths",
    "tests.support.cli",
    "tests.support.dist",
    "tests.support.delta",
    "tests.support.s3a",
    "tests.support.order",
    "tests.support.reconciling",
]

# Spark's workers must be this Python with these packages, and the driver must be reachable without a name service.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

# The first example may compile a loop or wait for a busy machine; a failure prints how to repeat it.
settings.register_profile("tidemark", deadline=None, print_blob=True)
settings.load_profile("tidemark")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the garbage collector away from the modules and items of all tests, which live to the end. Otherwise it takes a
    fourth of the time of collecting them, and looks at them again during the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _without_syncs() -> Iterator[None]:
    """Lets this process leave writes to the operating system: a run of one epoch waits for the disk about twenty times.
    Processes that tests start wait. Without it files survive kills, but no power cut; a test of those replaces `os.fsync`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", name="chaos_rounds")
def _chaos_rounds() -> int:
    return chaos_rounds()


@pytest.fixture(scope="session")
def is_long() -> bool:
    """Whether this is `make chaos`."""
    return chaos_rounds() > SHORT_ROUNDS


@pytest.fixture
def long_version(is_long: bool) -> None:
    """Skips the test in `make test`."""
    if not is_long:
        pytest.skip("make chaos runs it")
