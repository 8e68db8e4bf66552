"""Jobs into Delta tables are killed between the commits of two tables, and between Delta's commits and Spark's."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.delta import with_metastore
from tests.support.history import assert_history
from tests.support.jobs import source_of, write_job
from tests.support.kills import armed, run_until_done
from tests.support.servers import Database
from tests.support.workload import KEYS, Uids, Writers, create_tables

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(900)]

SHORT_ROUNDS = 2
BEFORE, AFTER, NOT_NOTED = "sink.before_commit", "sink.after_commit", "driver.epoch_written"


def _killed(folder: Path, database: Database, sink: dict[str, str], *phases: tuple[str, ...]) -> None:
    """Copies through two kills: at one of the first `phases` in the snapshot, at one of the second in the changes made
    since."""
    uids = Uids()
    create_tables(database, rows=600, uids=uids)
    spark = with_metastore(folder, f"jdbc:derby:;databaseName={folder}/metastore;create=true")
    job = write_job(
        folder, source=source_of(database), sink={"type": "delta"} | sink, snapshot={"split_rows": 5000}, spark=spark
    )
    snapshot, log = phases
    with Writers(database, uids, count=2, seed=5, pause_seconds=0.2), armed(folder, snapshot) as environment:
        run_until_done(job, environment)
    with armed(folder, log) as environment:
        run_until_done(job, environment)


def _table(session: SparkSession, folder: Path) -> Any:
    return session.read.format("delta").load(str(folder))


@pytest.mark.pitfall(61)
@pytest.mark.pitfall(71)
def test_mirror_is_the_source(postgres18_database: Database, tmp_path: Path, delta_session: SparkSession) -> None:
    """Covers tables by name, whose files are those of the metastore's database."""
    source = postgres18_database
    sink = {"catalog": "spark_catalog", "table": "Lake.{table}"}
    _killed(tmp_path, source, sink, (AFTER, NOT_NOTED), (BEFORE, AFTER, NOT_NOTED))
    for name, key in KEYS.items():
        columns = [*key, "uid", "version", "note"]
        copied = _table(delta_session, tmp_path / "warehouse" / "lake.db" / name).select(columns).toArrow()
        rows = source.query(f"SELECT {', '.join(columns)} FROM {name}")
        assert _sorted(zip(*(column.to_pylist() for column in copied.columns), strict=True)) == _sorted(rows)


def _sorted(rows: Any) -> list[tuple[Any, ...]]:
    """Sorts rows. psycopg2 gives bytes as memoryviews, and None has no order."""
    plain = (tuple(v.tobytes() if isinstance(v, memoryview) else v for v in row) for row in rows)
    return sorted(plain, key=repr)


@pytest.mark.pitfall(71)
def test_changelog_is_a_history_of_the_source(
    mysql_database: Database, tmp_path: Path, delta_session: SparkSession, chaos_rounds: int
) -> None:
    if chaos_rounds <= SHORT_ROUNDS:
        pytest.skip("make chaos runs it")
    source = mysql_database
    _killed(tmp_path, source, {"path": "./lake", "style": "changelog"}, (AFTER,), (NOT_NOTED,))
    for name, key in KEYS.items():
        folder = tmp_path / "lake" / f"{source.schema}.{name}"
        changes = _table(delta_session, folder).orderBy("_commit_version", "_seq").toArrow()
        rows = source.query(f"SELECT uid, version, {', '.join(key)} FROM {name}")
        assert_history(changes, {row[2:]: row[:2] for row in rows}, name=name, key=key)
