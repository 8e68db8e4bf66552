"""Jobs into Delta tables are killed between the commits of two tables, and between Delta's commits and Spark's."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.delta import jars_of, with_metastore
from tests.support.epochs import run_epochs
from tests.support.history import assert_history
from tests.support.jobs import SPARK, running, source_of, write_job
from tests.support.kills import armed, run_until_done
from tests.support.servers import Database
from tests.support.workload import KEYS, Uids, Writers, create_tables
from tidemark.jobs.spark.sessions import SparkSessions

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(900)]

BEFORE, AFTER, NOT_NOTED = "sink.before_commit", "sink.after_commit", "driver.epoch_written"


def _job(folder: Path, database: Database, sink: dict[str, str], spark: dict[str, Any]) -> Path:
    create = {"source": source_of(database), "sink": {"type": "delta"} | sink, "snapshot": {"split_rows": 5000}}
    return write_job(folder, spark=spark, **create)


def _killed(job: Path, database: Database, uids: Uids, snapshot: tuple[str, ...], log: tuple[str, ...]) -> None:
    """Copies through kills: at each of `snapshot`, and at each of `log` in the changes made since."""
    with Writers(database, uids, count=2, seed=5, pause_seconds=0.2), armed(job.parent, snapshot) as environment:
        run_until_done(job, environment)
    with armed(job.parent, log) as environment:
        run_until_done(job, environment)


def _killed_twice(job: Path, database: Database, uids: Uids) -> None:
    """Copies through a kill in the snapshot, and one in the epoch of the changes made meanwhile. Each is a start of Spark.
    The last run is in this process, and so in its session."""
    with armed(job.parent, (AFTER,)) as environment:
        with (
            Writers(database, uids, count=2, seed=5, pause_seconds=0.2) as writers,
            running(job, environment=environment) as process,
        ):
            assert process.wait() == -signal.SIGKILL
        assert writers.transactions
        with running(job, environment=environment) as process:
            process.wait_until(lambda: any(event.get("committed_epoch") == 1 for event in process.events()))
            Path(environment["TIDEMARK_FAILPOINTS"], NOT_NOTED).write_text("kill")
            assert process.wait() == -signal.SIGKILL
    run_epochs(job)


def _table(session: SparkSession, folder: Path) -> Any:
    return session.read.format("delta").load(str(folder))


def _assert_mirrored(session: SparkSession, folder_of: Callable[[str], Path], source: Database) -> None:
    for name, key in KEYS.items():
        columns = [*key, "uid", "version", "note"]
        copied = _table(session, folder_of(name)).select(columns).toArrow()
        rows = source.query(f"SELECT {', '.join(columns)} FROM {name}")
        assert _sorted(zip(*(column.to_pylist() for column in copied.columns), strict=True)) == _sorted(rows)


@pytest.mark.pitfall(61)
@pytest.mark.pitfall(71)
def test_mirror_is_the_source(
    postgres18_database: Database, tmp_path: Path, delta_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    source, uids = postgres18_database, Uids()
    create_tables(source, rows=600, uids=uids)
    spark = SPARK | {"conf": SPARK["conf"] | jars_of(delta_session)}
    _killed_twice(_job(tmp_path, source, {"path": "./lake"}, spark), source, uids)
    _assert_mirrored(delta_session, lambda name: tmp_path / "lake" / f"{source.schema}.{name}", source)


@pytest.mark.pitfall(61)
@pytest.mark.pitfall(71)
def test_mirror_by_name_is_the_source(
    long_version: None, postgres18_database: Database, tmp_path: Path, delta_session: SparkSession
) -> None:
    """The files of tables by name are in the folder of the metastore's database."""
    source, uids = postgres18_database, Uids()
    create_tables(source, rows=600, uids=uids)
    sink = {"catalog": "spark_catalog", "table": "Lake.{table}"}
    job = _job(tmp_path, source, sink, _with_metastore(tmp_path, delta_session))
    _killed(job, source, uids, (AFTER, NOT_NOTED), (BEFORE, AFTER, NOT_NOTED))
    _assert_mirrored(delta_session, lambda name: tmp_path / "warehouse" / "lake.db" / name, source)


def _with_metastore(folder: Path, session: SparkSession) -> dict[str, Any]:
    spark = with_metastore(folder, f"jdbc:derby:;databaseName={folder}/metastore;create=true")
    return spark | {"conf": spark["conf"] | jars_of(session)}


def _sorted(rows: Any) -> list[tuple[Any, ...]]:
    """Sorts rows. psycopg2 gives bytes as memoryviews, and None has no order."""
    plain = (tuple(v.tobytes() if isinstance(v, memoryview) else v for v in row) for row in rows)
    return sorted(plain, key=repr)


@pytest.mark.pitfall(71)
def test_changelog_is_a_history_of_the_source(
    long_version: None, mysql_database: Database, tmp_path: Path, delta_session: SparkSession
) -> None:
    source, uids = mysql_database, Uids()
    create_tables(source, rows=600, uids=uids)
    sink = {"path": "./lake", "style": "changelog"}
    job = _job(tmp_path, source, sink, _with_metastore(tmp_path, delta_session))
    _killed(job, source, uids, (AFTER,), (NOT_NOTED,))
    for name, key in KEYS.items():
        folder = tmp_path / "lake" / f"{source.schema}.{name}"
        changes = _table(delta_session, folder).orderBy("_commit_version", "_seq").toArrow()
        rows = source.query(f"SELECT uid, version, {', '.join(key)} FROM {name}")
        assert_history(changes, {row[2:]: row[:2] for row in rows}, name=name, key=key)
