"""`tidemark signal resnapshot --keys` and `--where`, and `reconcile --repair`, for copies in Delta (docs/adr/0060)."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.delta import newest_version
from tests.support.epochs import die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.reconciling import compared, found_keys
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.reconcile import reconcile
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.signals import repairs
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import DifferencesError
from tidemark.state.key_source import KeySource
from tidemark.state.position import Position

pytestmark = pytest.mark.integration

DAMAGE = """
INSERT OVERWRITE {copy} BY NAME
SELECT * EXCEPT (id, n), IF(id IN ({changed}), -1, n) AS n, explode(CASE
    WHEN id IN (7, 21) THEN array()
    WHEN id = 1 THEN array(1, -5, 77, 78)
    WHEN id IN ({twice}) THEN array(id, id)
    ELSE array(id) END) AS id
FROM {copy}
"""
"""Changed cells, missing rows, rows of nobody (-5, 77, 78), and in a mirror a row that is there twice. One statement, because
each costs seconds."""
CHANGED_AND_TWICE = {"mirror": ("5, 9, 20, 39", "8"), "changelog": ("5, 8, 9, 20, 39", "NULL")}
WRONG = {
    "different": {("5",), ("8",), ("9",), ("20",), ("39",)},
    "missing": {("7",), ("21",)},
    "surplus": {("-5",), ("77",), ("78",)},
}


@pytest.mark.every_server
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("style", "source_database"),
    [
        ("mirror", "mysql_database"),
        ("changelog", "postgres18_database"),
    ],
)
def test_parts_of_a_copy_are_read_again_and_repaired(
    style: str,
    source_database: str,
    delta_session: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deaths before and after commits, changes before and after the rows are read, batches, and then a repair by keys."""
    source: Database = request.getfixturevalue(source_database)
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    source.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, n INT, note TEXT)",
        *(f"INSERT INTO t VALUES ({n}, 0, repeat('x', {n * 100}))" for n in range(40)),
    )
    job = write_job(
        tmp_path,
        source=source_of(source),
        snapshot={"split_rows": 15, "parallelism": 1},
        sink={"type": "delta", "path": "./lake", "style": style},
    )
    table = TableName(source.schema, "t")
    folder = tmp_path / "lake" / f"{source.schema}.t"
    copy = f"delta.`{folder}`"

    def damage() -> None:
        changed, twice = CHANGED_AND_TWICE[style]
        delta_session.sql(DAMAGE.format(copy=copy, changed=changed, twice=twice))

    run_epochs(job)
    damage()
    assert found_keys(compared(job)["t"]) == WRONG
    resnapshot(load_job_file(job), [table], keys=["5", "7", "0..30"])
    resnapshot(load_job_file(job), [table], where="id > 35")
    await_visible, write_repair = repairs.await_visible, repairs.write_repair

    def before(keys: KeySource, position: Position) -> None:
        source.execute("UPDATE t SET n = n + 1 WHERE id IN (3, 5)", "UPDATE t SET id = 50, n = 1 WHERE id = 11")
        await_visible(keys, position)

    def after(*arguments: Any) -> int:
        source.execute("UPDATE t SET n = n + 1 WHERE id IN (5, 6)", "DELETE FROM t WHERE id = 12")
        return write_repair(*arguments)

    monkeypatch.setattr(repairs, "await_visible", before)
    monkeypatch.setattr(repairs, "write_repair", after)
    for point in ("sink.before_commit", "sink.after_commit"):
        die_at(job, point)
    run_epochs(job)
    monkeypatch.setattr(repairs, "await_visible", await_visible)
    monkeypatch.setattr(repairs, "write_repair", write_repair)
    outcomes = Checkpoint.at(load_job_file(job).checkpoint).outcomes()
    assert [outcome.accepted for outcome in outcomes.values()] == [True] * 3
    assert found_keys(compared(job)["t"]) == {"surplus": {("-5",), ("77",), ("78",)}}, "they are in no range"
    damage()
    with pytest.raises(DifferencesError, match="read again"):
        reconcile(load_job_file(job), [], as_json=False, repair=True, patience_seconds=0.0)
    known = newest_version(folder)
    run_epochs(job)
    assert newest_version(folder) == known + 1
    source.execute("UPDATE t SET n = n + 1", "INSERT INTO t VALUES (77, 7, 'seven')")
    run_epochs(job)
    assert found_keys(compared(job)["t"]) == {}


@pytest.mark.every_server
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("style", "source_database"), [("changelog", "mysql_database"), ("mirror", "postgres18_database")]
)
def test_a_repair_goes_on_after_a_death_at_each_step(
    style: str,
    source_database: str,
    delta_session: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One after the other, while the source moves on."""
    source: Database = request.getfixturevalue(source_database)
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    source.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, n INT, note TEXT)",
        *(f"INSERT INTO t VALUES ({n}, 0, repeat('x', {n * 100}))" for n in range(40)),
    )
    job = write_job(
        tmp_path,
        source=source_of(source),
        snapshot={"split_rows": 15, "parallelism": 1},
        sink={"type": "delta", "path": "./lake", "style": style},
    )
    run_epochs(job)
    changed, twice = CHANGED_AND_TWICE[style]
    copy = f"delta.`{tmp_path / 'lake' / f'{source.schema}.t'}`"
    delta_session.sql(DAMAGE.format(copy=copy, changed=changed, twice=twice))
    with pytest.raises(DifferencesError, match="read again"):
        reconcile(load_job_file(job), [], as_json=False, repair=True, patience_seconds=0.0)
    steps = (
        "repairs.read",
        "repairs.joined",
        "planner.after_plan",
        "repairs.emitted",
        "log.before_report",
        "sink.before_commit",
        "sink.after_commit",
        "driver.epoch_written",
    )
    for step in steps:
        die_at(job, step)
        source.execute("UPDATE t SET n = n + 1 WHERE id IN (5, 6, 7)")
    run_epochs(job)
    outcomes = Checkpoint.at(load_job_file(job).checkpoint).outcomes()
    assert [outcome.accepted for outcome in outcomes.values()] == [True]
    assert found_keys(compared(job)["t"]) == {}
