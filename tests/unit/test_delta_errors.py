"""Which errors of Spark and Delta are about one table, and which about the whole job."""

import pytest
from pyspark.errors import AnalysisException, PySparkException, SparkRuntimeException

from tidemark.sinks.delta.errors import spark_errors
from tidemark.sinks.sink import SinkBusyError
from tidemark.state.errors import SinkError
from tidemark.state.table import TableId

ORDERS = TableId("shop", "orders")
OVERFLOW = (
    "[TASK_WRITE_FAILED] Task failed while writing rows to file:/lake. SQLSTATE: 58030\n"
    'Caused by: [CAST_OVERFLOW] The value 4711 of the type "INT" cannot be cast to "TINYINT". SQLSTATE: 22003'
)

OF_THE_TABLE = {
    "a column that is gone": AnalysisException("[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `v` cannot be resolved."),
    "a feature": SparkRuntimeException("[DELTA_UNSUPPORTED_FEATURES_FOR_WRITE] Unsupported Delta write feature: x"),
    "a generated column": SparkRuntimeException(OVERFLOW),
}
OF_THE_JOB = {
    "a metastore that is away": AnalysisException(
        "org.apache.hadoop.hive.ql.metadata.HiveException: Unable to fetch table orders. Connection refused"
    ),
    "a folder that is away": AnalysisException("[PATH_NOT_FOUND] Path does not exist: file:/lake/shop.orders."),
    "a right": AnalysisException("[INSUFFICIENT_PERMISSIONS] Insufficient privileges: no USE CATALOG."),
    "another driver": SparkRuntimeException("[DELTA_CONCURRENT_TRANSACTION] ConcurrentTransactionException: …"),
    "a full disk": SparkRuntimeException("[TASK_WRITE_FAILED] Task failed while writing rows. SQLSTATE: 58030"),
}


def made_of(error: PySparkException, table: TableId | None) -> SinkError:
    with pytest.raises(SinkError) as caught, spark_errors("lake/shop.orders", table):
        raise error
    assert not isinstance(caught.value, SinkBusyError)
    return caught.value


@pytest.mark.parametrize("name", OF_THE_TABLE)
def test_an_error_of_the_copy_is_about_its_table(name: str) -> None:
    found = made_of(OF_THE_TABLE[name], ORDERS)
    assert found.table == ORDERS
    assert "delete the table and let the job create it" in found.remedy
    assert "4711" not in str(found)
    assert made_of(OF_THE_TABLE[name], None).table is None


@pytest.mark.parametrize("name", OF_THE_JOB)
def test_an_error_of_all_tables_is_about_the_job(name: str) -> None:
    assert made_of(OF_THE_JOB[name], ORDERS).table is None


def test_a_task_that_could_not_write_says_why() -> None:
    error = SparkRuntimeException(OF_THE_JOB["a full disk"].getMessage() or "")
    error._stackTrace = (
        f"x\nCaused by: a.B: {error}\n\tat x\nCaused by: java.io.IOException: No space left on device\n\tat y\n"  # type: ignore[attr-defined]
    )
    assert "java.io.IOException: No space left on device" in made_of(error, None).message
    assert "4711" not in made_of(SparkRuntimeException(OVERFLOW), None).message
