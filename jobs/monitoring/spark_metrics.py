"""The counts of each epoch that Spark shows in the query's progress (`DataFrame.observe`)."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tidemark.state.change_batch import LOG_PART

NAME = "tidemark"


def with_spark_metrics(batches: DataFrame) -> DataFrame:
    """Returns `batches`, rows of TRANSPORT, with the counts `snapshot_rows`, `log_changes`, `splits` and `batches`."""
    is_end, is_log = f.col("table").isNull(), f.col("part") == LOG_PART
    rows = f.when(is_end, f.col("row_count"))
    return batches.observe(
        NAME,
        f.coalesce(f.sum(f.when(~is_log, rows)), f.lit(0)).alias("snapshot_rows"),
        f.coalesce(f.sum(f.when(is_log, rows)), f.lit(0)).alias("log_changes"),
        f.count(f.when(is_end & ~is_log, f.lit(1))).alias("splits"),
        f.count(f.when(~is_end, f.lit(1))).alias("batches"),
    )
