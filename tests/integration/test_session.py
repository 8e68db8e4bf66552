"""The preparation of a Spark session before a query runs in it."""

import logging
from logging.handlers import BufferingHandler
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.support.jobs import write_job
from tidemark.conf.load import load_job_file
from tidemark.jobs.spark.session import open_session, run_a_task

pytestmark = pytest.mark.integration


def test_workers_are_started_by_a_task_of_their_own(delta_session: SparkSession) -> None:
    assert run_a_task(delta_session) == 1


def test_an_error_of_sql_is_raised_and_not_printed_too(delta_session: SparkSession) -> None:
    logger, printed = logging.getLogger("SQLQueryContextLogger"), BufferingHandler(capacity=10)
    logger.addHandler(printed)
    try:
        with pytest.raises(AnalysisException, match="cannot be found"):
            delta_session.sql("SELECT * FROM nowhere")
    finally:
        logger.removeHandler(printed)
    assert printed.buffer == []


def test_a_session_that_is_opened_again_keeps_its_python_daemon(delta_session: SparkSession, tmp_path: Path) -> None:
    source = {"url": "mysql://nobody@localhost/", "tables": ["a.b"]}
    job = load_job_file(write_job(tmp_path, source=source, sink={"type": "files", "path": "./out"}))
    environments = [dict(open_session(job, None).sparkContext.environment) for _ in range(2)]
    assert environments[0] == environments[1]
