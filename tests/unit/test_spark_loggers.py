"""Spark's libraries print no log lines beside those of Tidemark."""

import logging

import pytest

from tidemark.jobs.spark.session import _silence_spark_loggers


def test_an_error_that_py4j_logs_while_the_jvm_ends_is_not_printed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second SIGTERM may come while it waits for the JVM. Then it logs that it could not close its connection."""
    monkeypatch.setattr(logging.getLogger("py4j"), "propagate", True)
    logger = logging.getLogger("py4j.clientserver")
    logger.error("before")
    _silence_spark_loggers()
    logger.error("after")
    assert [record.message for record in caplog.records] == ["before"]
