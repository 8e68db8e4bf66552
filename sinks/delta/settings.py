"""What Spark needs to have Delta Lake: jars, and extensions of the session."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from state.errors import SinkError

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""Built for Spark 4.2, which jobs run on."""
SESSION_CATALOG: Final = "spark_catalog"
DELTA_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_EXCLUDED = (
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "com.google.code.findbugs:*",
    "io.delta:delta-kernel-*",
    "io.unitycatalog:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
)
"""What Spark has itself, newer, and what only Unity Catalog needs."""


def delta_settings(given: Mapping[str, str], *, submitted: bool) -> dict[str, str]:
    """The settings that a session lacks. `submitted`: its jars were settled by spark-submit."""
    extensions = [name for name in given.get("spark.sql.extensions", "").split(",") if name]
    settings = {
        f"spark.sql.catalog.{SESSION_CATALOG}": DELTA_CATALOG,
        # As many tasks as this list the files of a table, several times for each commit, and a task takes longer to begin
        # than to list thousands of files; Delta's 50 are for tables of millions.
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    settings = {name: value for name, value in settings.items() if name not in given}
    settings["spark.sql.extensions"] = ",".join(dict.fromkeys([*extensions, _EXTENSION]))
    if not submitted and not given.keys() & {"spark.jars", "spark.jars.packages"}:
        settings |= {"spark.jars.packages": PACKAGE, "spark.jars.excludes": ",".join(_EXCLUDED)}
    return settings


def require_delta(session: SparkSession) -> None:
    """Raises SinkError where the session has no Delta Lake."""
    formats = "org.apache.spark.sql.delta.sources.DeltaDataSource"
    loader = session.sparkContext._gateway.jvm.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
    if loader.getResource(formats.replace(".", "/") + ".class") is None:
        raise SinkError("This Spark has no Delta Lake.", how_to_have_delta())
    if _EXTENSION not in (session.conf.get("spark.sql.extensions", "") or ""):
        raise SinkError(
            "This Spark session was started without Delta Lake's extension.",
            f"Start it with --conf spark.sql.extensions={_EXTENSION}.",
        )


def how_to_have_delta() -> str:
    return (
        f"Let Spark download {PACKAGE} (spark-submit --packages, or spark.conf spark.jars.packages in the job file), or give "
        "its jars, delta-spark and delta-storage, by spark.jars."
    )
