"""Remedies for a Spark without what a Delta sink needs, done as they are printed: the job goes on, and its copy is that of the
source."""

import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.delta import jars_of
from tests.support.history import read_history
from tests.support.jobs import SPARK, Process, source_of, start_process, start_tidemark, write_job
from tests.support.servers import Database

pytestmark = [pytest.mark.integration, pytest.mark.every_server, pytest.mark.timeout(900)]

OF_AN_UNKNOWN_SPARK = """
import sys
from tidemark.jobs.cli import main
from tidemark.sinks.delta import settings
settings.PACKAGES.clear()
main(["run", sys.argv[1]])
"""
IN_A_SESSION = """
import sys
from pyspark.sql import SparkSession
SparkSession.builder.getOrCreate()
from tidemark.jobs.cli import main
main(["run", sys.argv[1]])
"""


@pytest.fixture
def source(mysql_database: Database) -> Database:
    mysql_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (1), (2)")
    return mysql_database


def job_with(folder: Path, source: Database, conf: dict[str, str], **sink: str) -> Path:
    spark: dict[str, Any] = {**SPARK, "conf": {**SPARK["conf"], **conf}}
    delta = {"type": "delta", **(sink or {"path": str(folder / "lake")})}
    return write_job(folder, source=source_of(source), sink=delta, spark=spark)


def refused(process: Process) -> str:
    """Returns the last line of a run that the sink has ended."""
    assert process.wait() == 5, process.error_text()
    return process.error_text().splitlines()[-1]


EMPTY_IVY = """
<ivysettings>
  <settings defaultResolver="none"/>
  <resolvers>
    <filesystem name="none"><artifact pattern="{folder}/[artifact]-[revision].[ext]"/></filesystem>
  </resolvers>
</ivysettings>
"""


@pytest.mark.parametrize("by", ["jars", "repositories"])
def test_packages_come_from_elsewhere(source: Database, tmp_path: Path, by: str) -> None:
    """Those that the job file names and no repository has. A fetch of unknown packages from the net is not waited for."""
    (settings := tmp_path / "ivy.xml").write_text(EMPTY_IVY.format(folder=tmp_path / "nowhere"))
    package = {"spark.jars.packages": "org.example:more:1.0"}
    conf = {"spark.jars.ivySettings": str(settings), "spark.jars.ivy": str(tmp_path / "ivy")}
    files = {"type": "files", "path": str(tmp_path / "out"), "format": "parquet"}

    def run(more: dict[str, str]) -> Process:
        job = write_job(
            tmp_path,
            source=source_of(source),
            sink=files,
            spark={**SPARK, "conf": {**SPARK["conf"], **conf, **more}},
            snapshot={"driver_rows": 0},
        )
        return start_tidemark(job)

    told = refused(run(package))
    assert "Spark did not start; perhaps org.example:more:1.0 can't be downloaded." in told
    place, says = {
        "jars": ("spark.jars", "jars by spark.jars in place of spark.jars.packages"),
        "repositories": ("spark.jars.repositories", "a repository that has them by spark.jars.repositories."),
    }[by]
    assert says in told
    folder = tmp_path / "repository" / "org" / "example" / "more" / "1.0"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "more-1.0.jar", "w"):
        pass
    (folder / "more-1.0.pom").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId><artifactId>more</artifactId>"
        "<version>1.0</version></project>"
    )
    jar = {place: str(folder / "more-1.0.jar")}
    process = run(jar if by == "jars" else {**package, place: (tmp_path / "repository").as_uri()})
    assert process.wait() == 0, process.error_text()
    assert read_history(tmp_path / "out", source.name, "orders").num_rows == 2


def require_copy(session: SparkSession, source: Database, process: Process, place: Path) -> None:
    assert process.wait() == 0, process.out.read_text()[-2000:] + process.error_text()[-2000:]
    held = sorted(map(tuple, session.read.format("delta").load(str(place)).collect()))
    assert held == source.query("SELECT id FROM orders ORDER BY id")


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_the_jars_of_delta_are_given(
    source: Database, delta_session: SparkSession, tmp_path: Path, is_known: bool
) -> None:
    """Also for a version of Spark of which no build of Delta is known."""

    def run(conf: dict[str, str]) -> Process:
        job = job_with(tmp_path, source, conf)
        if is_known:
            return start_tidemark(job)
        return start_process(tmp_path, sys.executable, "-c", OF_AN_UNKNOWN_SPARK, str(job))

    with zipfile.ZipFile(tmp_path / "other.jar", "w"):
        pass
    told = refused(run({"spark.jars": str(tmp_path / "other.jar")} if is_known else {}))
    says = (
        r"or give (its jars|Spark the jars of a build for its version), delta-spark and delta-storage, by spark\.jars\."
    )
    assert re.search(says, told), told
    require_copy(delta_session, source, run(jars_of(delta_session)), tmp_path / "lake" / f"{source.name}.orders")


def test_a_session_gets_the_extension(source: Database, delta_session: SparkSession, tmp_path: Path) -> None:
    """A program that was submitted has begun a session before the job."""
    program = tmp_path / "program.py"
    program.write_text(IN_A_SESSION)
    job = job_with(tmp_path, source, {})

    def submit(*options: str) -> Process:
        settings = {**SPARK["conf"], **jars_of(delta_session)}
        given = [f"--conf={name}={value}" for name, value in settings.items() if name != "spark.driver.memory"]
        command = str(Path(sys.executable).with_name("spark-submit"))
        return start_process(tmp_path, command, "--master", "local[2]", *given, *options, str(program), str(job))

    process = submit()
    assert process.wait() == 5, process.error_text()
    told = re.search(r"Start it with (--conf \S+ --conf \S+)\.", process.out.read_text() + process.error_text())
    assert told is not None
    require_copy(delta_session, source, submit(*told[1].split()), tmp_path / "lake" / f"{source.name}.orders")


def test_a_catalog_in_memory_gets_a_metastore(source: Database, delta_session: SparkSession, tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    conf = {
        **jars_of(delta_session),
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:{tmp_path}/metastore;create=true",
    }
    sink = {"catalog": "spark_catalog", "table": "copies.{table}"}
    told = refused(start_tidemark(job_with(tmp_path, source, conf, **sink)))
    setting = re.search(r"Give Spark a metastore \(spark\.conf: \{(\S+): (\w+)\}\), or write to a sink\.path\.", told)
    assert setting is not None, told
    process = start_tidemark(job_with(tmp_path, source, {**conf, setting[1]: setting[2]}, **sink))
    require_copy(delta_session, source, process, warehouse / "copies.db" / "orders")
