"""Rows whose value of a partition Delta can't hold have their table parked, and the other tables go on."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.cli import CommandLine
from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.remedies import run_command, run_through
from tests.support.servers import Database
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.state.errors import SinkError, TablesParkedError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

CORRECT = "Correct the row in the source. Or take the column out of sink.partition_by, and delete the Delta table"


@pytest.fixture
def rows_of(
    delta_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path], list[tuple[object, ...]]]:
    """Jobs use the session of the tests. Reads the copy in a folder."""
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    return lambda place: sorted(map(tuple, delta_session.read.format("delta").load(str(place)).collect()))


@pytest.mark.every_server
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("__HIVE_DEFAULT_PARTITION__", "column k of a row is __HIVE_DEFAULT_PARTITION__"),
        ("é" * 150, "is too long"),
        (r"a\0b", "has a NUL character"),
    ],
    ids=["null", "long", "nul"],
)
def test_a_value_that_can_not_be_a_partition_parks_its_table(
    rows_of: Callable[[Path], list[tuple[object, ...]]],
    mysql_database: Database,
    tidemark: CommandLine,
    tmp_path: Path,
    value: str,
    why: str,
) -> None:
    source = mysql_database
    source.execute(
        "CREATE TABLE parts (k VARCHAR(300) COLLATE utf8mb4_bin, id INT, v INT, PRIMARY KEY (k, id))",
        "CREATE TABLE others (id INT PRIMARY KEY)",
        "INSERT INTO parts VALUES ('a/b', 1, 0)",
    )
    partition_by = {f"{source.schema}.parts": ["k"]}
    sink = {"type": "delta", "path": "./lake", "on_schema_change": "evolve", "partition_by": partition_by}
    job = write_job(tmp_path, source=source_of(source, on_table_error="park"), sink=sink)
    run_through(job)
    lake = tmp_path / "lake"
    places = {table: lake / f"{source.schema}.{table}" for table in ("parts", "others")}

    def parked() -> str:
        """Has one such row come, and a row of the other table. Returns what a person is told."""
        source.execute(f"INSERT INTO parts VALUES ('{value}', 2, 0)", "INSERT INTO others SELECT COUNT(*) FROM others")
        source.execute("UPDATE parts SET v = v + 1")
        run_epochs(job)
        assert rows_of(places["others"]) == source.query("SELECT id FROM others ORDER BY id")
        with pytest.raises(TablesParkedError) as caught:
            run_through(job)
        assert why in str(caught.value)
        assert CORRECT in str(caught.value)
        return str(caught.value)

    told = parked()
    source.execute("DELETE FROM parts WHERE id = 2")
    run_command(told, job, tidemark)
    run_through(job)
    assert rows_of(places["parts"]) == source.query("SELECT k, id, v FROM parts ORDER BY id")
    told = parked()
    shutil.rmtree(places["parts"])
    run_command(told, job, tidemark, "--set", "sink.partition_by={}")
    for _ in range(2):
        run_through(job, "sink.partition_by={}")
        assert rows_of(places["parts"]) == sorted(source.query("SELECT k, id, v FROM parts"))
        source.execute("UPDATE parts SET v = v + 1")


@pytest.mark.every_server
def test_a_copy_that_is_written_again_without_its_partitions(
    rows_of: Callable[[Path], list[tuple[object, ...]]],
    delta_session: SparkSession,
    mysql_database: Database,
    tidemark: CommandLine,
    tmp_path: Path,
) -> None:
    """It has NULL for empty texts, until somebody does what docs/delta.md says. With the setting, the copy is refused."""
    source = mysql_database
    source.execute(
        "CREATE TABLE parts (k VARCHAR(30), id INT, v VARCHAR(9), PRIMARY KEY (k, id))",
        "INSERT INTO parts VALUES ('', 1, ''), ('', 2, NULL), ('b', 1, '')",
    )
    sink = {"type": "delta", "path": "./lake", "partition_by": {f"{source.schema}.parts": ["k", "v"]}}
    job = write_job(tmp_path, source=source_of(source, on_table_error="park"), sink=sink)
    run_through(job)
    place = tmp_path / "lake" / f"{source.schema}.parts"
    copy = f"delta.`{place}`"
    rows = delta_session.table(copy).collect()
    again = delta_session.createDataFrame(rows, delta_session.table(copy).schema)
    again.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(place))
    says = re.search(
        r"without its partitions.*?`(tidemark signal.*?)`",
        (Path(__file__).parents[2] / "docs/delta.md").read_text(),
        re.DOTALL,
    )
    assert says is not None
    run_command(
        says[1].replace("shop.orders", f"{source.schema}.parts"), job, tidemark, "--set", "sink.partition_by={}"
    )
    source.execute("INSERT INTO parts VALUES ('', 3, '')", "DELETE FROM parts WHERE k = 'b'")
    for _ in range(2):
        run_through(job, "sink.partition_by={}")
        assert rows_of(place) == source.query("SELECT k, id, v FROM parts ORDER BY id")
        source.execute("UPDATE parts SET v = '1' WHERE id = 1")
    with pytest.raises(SinkError, match="is partitioned by nothing, not by k"):
        run_through(job)


@pytest.mark.parametrize(
    "sink", [{}, {"partition_by": ["k"]}, {"audit_columns": {"deleted": "_gone"}}], ids=["plain", "parts", "kept"]
)
def test_an_empty_text_is_a_key(
    rows_of: Callable[[Path], list[tuple[object, ...]]],
    delta_session: SparkSession,
    mysql_database: Database,
    tmp_path: Path,
    sink: dict[str, Any],
) -> None:
    """Also one that comes and goes within one epoch, so that the copy has no such row. As a partition it is NULL."""
    source = mysql_database
    source.execute(
        "CREATE TABLE texts (k VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY, v INT)",
        "INSERT INTO texts VALUES ('a', 0), ('b', 0)",
    )
    settings = {
        key: {f"{source.schema}.texts": value} if key == "partition_by" else value for key, value in sink.items()
    }
    job = write_job(tmp_path, source=source_of(source), sink={"type": "delta", "path": "./lake", **settings})
    run_through(job)
    insert, update, delete = (
        "INSERT INTO texts VALUES ('', 1)",
        "UPDATE texts SET v = v + 1",
        "DELETE FROM texts WHERE k = ''",
    )
    for statements in ([insert, delete, update], [insert], [update], [delete], [update, insert]):
        source.execute(*statements)
        run_through(job)
        copy = delta_session.read.format("delta").load(str(tmp_path / "lake" / f"{source.schema}.texts"))
        held = sorted((k or "", v) for k, v, *gone in map(tuple, copy.collect()) if not any(gone))
        assert held == source.query("SELECT k, v FROM texts ORDER BY k")
