"""The preparation of a Spark session before a query runs in it."""

import logging
from logging.handlers import BufferingHandler

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tidemark.jobs.spark.session import run_a_task

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
