"""The needs and the identity of a job file's Delta sink, with Spark's JARs and settings."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidemark.conf.sink import DeltaSink as DeltaSettings
from tidemark.sinks.audit import audit_settings
from tidemark.sinks.sink import SinkNeeds, SparkNeeds, folder_names, renames
from tidemark.state.errors import SinkError
from tidemark.state.sink_identity import SinkIdentity, SinkSetting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES: Final = {
    "3.5": "io.delta:delta-spark_2.12:3.3.3",
    "4.0": "io.delta:delta-spark_4.0_2.13:4.4.0",
    "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
}
"""Delta's build for each version of Spark. PySpark 3.5 has Scala 2.12."""
SESSION_CATALOG: Final = "spark_catalog"
DELTA_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_EXCLUDED = (
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "com.google.code.findbugs:*",
    "io.delta:delta-kernel-*",
    "io.unitycatalog:*",
    "org.antlr:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
)
"""Libraries that Spark has in a newer version, and those that only Unity Catalog needs."""


def delta_needs(settings: DeltaSettings) -> SinkNeeds:
    """Returns the sink's needs. Only `style: mirror` needs keys."""
    location = settings.path or f"{settings.catalog}.{settings.table}"
    return SinkNeeds(
        f"delta {location}",
        needs_key=settings.style == "mirror",
        published_format="parquet",
        takes_lists=True,
        holds="rows" if settings.style == "mirror" else "changes",
        commits_tables=True,
        spark=SparkNeeds(delta_settings, how_to_have_delta()),
    )


def delta_identity(settings: DeltaSettings) -> SinkIdentity:
    fixed = (SinkSetting("sink.type", "delta"), SinkSetting("sink.style", settings.style))
    audit = audit_settings(settings.audit_columns)
    if settings.catalog is None:
        names = folder_names(settings.copies)
        return SinkIdentity((*fixed, *names, *audit), SinkSetting("sink.path", settings.path or ""))
    return SinkIdentity(
        (*fixed, SinkSetting("sink.table", str(settings.table)), *renames(settings.copies), *audit),
        SinkSetting("sink.catalog", settings.catalog),
    )


def delta_settings(given: Mapping[str, str], *, submitted: bool) -> dict[str, str]:
    """Returns the settings to add to `given`. `submitted`: spark-submit has already chosen the session's jars."""
    extensions = [name for name in given.get("spark.sql.extensions", "").split(",") if name]
    settings = {
        f"spark.sql.catalog.{SESSION_CATALOG}": DELTA_CATALOG,
        # The number of tasks that list a table's files, several times per commit. Starting a task takes longer than listing
        # thousands of files. Delta's default, 50, is for tables with millions.
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    settings = {name: value for name, value in settings.items() if name not in given}
    settings["spark.sql.extensions"] = ",".join(dict.fromkeys([*extensions, _EXTENSION]))
    if not submitted and not given.keys() & {"spark.jars", "spark.jars.packages"}:
        settings |= {"spark.jars.packages": delta_package(), "spark.jars.excludes": ",".join(_EXCLUDED)}
    return settings


def delta_package() -> str:
    """Returns Delta's build for the installed version of Spark. Raises SinkError if there is none."""
    from pyspark.version import __version__

    package = PACKAGES.get(".".join(__version__.split(".")[:2]))
    if package is None:
        raise SinkError(
            f"Tidemark knows no build of Delta Lake for Spark {__version__}.",
            f"Use Spark {', '.join(PACKAGES)}, or give Spark the jars of a build for its version, delta-spark and "
            "delta-storage, by spark.jars.",
        )
    return package


def require_delta(session: "SparkSession") -> None:
    """Raises SinkError if the session has no Delta Lake."""
    formats = "org.apache.spark.sql.delta.sources.DeltaDataSource"
    loader = session.sparkContext._gateway.jvm.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
    if loader.getResource(formats.replace(".", "/") + ".class") is None:
        raise SinkError("This Spark has no Delta Lake.", how_to_have_delta())
    if _EXTENSION not in (session.conf.get("spark.sql.extensions", "") or ""):
        raise SinkError(
            "This Spark session was started without Delta Lake's extension.",
            f"Start it with --conf spark.sql.extensions={_EXTENSION} "
            f"--conf spark.sql.catalog.{SESSION_CATALOG}={DELTA_CATALOG}.",
        )


def how_to_have_delta() -> str:
    try:
        package = delta_package()
    except SinkError as error:
        return error.remedy
    return (
        f"Let Spark download {package} (spark-submit --packages, or spark.conf spark.jars.packages in the job file), or give "
        "its jars, delta-spark and delta-storage, by spark.jars."
    )
