"""What is done with a session before a query runs in it."""

import pytest
from pyspark.sql import SparkSession

from jobs.session import run_a_task

pytestmark = pytest.mark.integration


def test_workers_are_started_by_a_task_of_their_own(delta_session: SparkSession) -> None:
    assert run_a_task(delta_session) == 1
