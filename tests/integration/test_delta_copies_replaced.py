"""The copy in Delta of a table whose rows are read again stays readable: each epoch of splits replaces what the copy has in
their ranges, in one commit (docs/adr/0056)."""

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.change_parts import column, replacing_part, snapshot_part
from tests.support.delta import Held, commits_of, newest_version, rows_of_delta, transactions_of, wait_for, write_epochs
from tests.support.epochs import die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName, parse_table_template
from tidemark.enumerator import enumerator
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.sinks.delta import epoch as delta_epoch
from tidemark.sinks.delta.epoch_rows import RowsOfTasks
from tidemark.sinks.delta.locations import CatalogLake
from tidemark.sinks.delta.sink import DeltaSink
from tidemark.sinks.sink import JobIdentity
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import SinkError
from tidemark.state.failpoints import failpoint
from tidemark.state.integer_range import IntegerRange
from tidemark.state.table import TableId, TableSchema

pytestmark = pytest.mark.integration

JOB = JobIdentity("7b7b7b7b-0000-4000-8000-000000000056", "lake")
KINDS = TableSchema(
    TableId("shop", "kinds"),
    1,
    (
        column("the first, (a)", "tinyint", "int8", key=True),
        column("b", "smallint", "int16", key=True),
        column("c", "bigint", "int64", key=True),
        column("d", "bigint unsigned", "decimal(20,0)", key=True),
        column("note", "text", "string"),
    ),
    ("the first, (a)", "b", "c", "d"),
)
SCHEMAS = {(KINDS.table, 1): KINDS}
LEAST, MIDDLE, GREATEST = (-128, -(2**15), -(2**63), 0), (127, 2**15 - 1, 5, 2**64 - 2), (127, 2**15 - 1, 2**63 - 1, 7)


def test_ranges_are_replaced_in_one_commit_and_once(
    delta_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if somebody else's commit comes in between; keys of each type, up to its ends; a column that only the copy has;
    rows without a key, which only somebody else writes."""
    lake = CatalogLake("spark_catalog", parse_table_template("replaced.{table}"))
    sink = DeltaSink(lake, "mirror", {}, LocalStore(str(tmp_path / "checkpoint")), lambda: delta_session)
    relation = lake.location_of(KINDS.table).relation
    sink.prepare(JOB, [KINDS])

    def write(*parts: list[Any]) -> None:
        write_epochs(sink, JOB, [item for part in parts for item in part], SCHEMAS, staged=False)

    def notes() -> dict[Any, str]:
        return {row[:-1]: row[-1] for row in rows_of_delta(sink, KINDS)}

    others = [(0, 0, 0, n) for n in range(4)]
    write(snapshot_part(1, 1, KINDS, [(*key, "old") for key in (LEAST, *others, MIDDLE, GREATEST)]))
    delta_session.sql(f"ALTER TABLE {relation} ADD COLUMNS (mine INT)")
    delta_session.sql(f"INSERT INTO {relation} VALUES (NULL, 1, 1, 1, 'nobody', 7), (1, 1, 1, NULL, 'nobody', 7)")
    names = KINDS.key
    below = replacing_part(2, 2, KINDS, IntegerRange(names, None, others[1]), [(*LEAST, "new")])
    above = replacing_part(2, 3, KINDS, IntegerRange(names, MIDDLE, None), [(*GREATEST, "new")])
    beside = replacing_part(2, 4, KINDS, IntegerRange(names, others[1], others[2]), [(0, 0, 0, 1, "new")])
    original = RowsOfTasks.read

    def waiting(*given: Any) -> DataFrame:
        rows = original(*given)
        return rows.mapInArrow(Held(tmp_path), rows.schema)

    def write_meanwhile() -> None:
        wait_for(tmp_path / "reached")
        delta_session.newSession().sql(f"UPDATE {relation} SET note = 'other' WHERE note = 'old'")
        (tmp_path / "written").touch()

    other = threading.Thread(target=write_meanwhile)
    other.start()
    with monkeypatch.context() as patch:
        patch.setattr(RowsOfTasks, "read", waiting)
        write(above, below, beside)
    other.join()
    assert (tmp_path / "written").exists()
    after = {LEAST: "new", others[1]: "new", others[2]: "other", others[3]: "other", GREATEST: "new"}
    assert notes() == after
    write(above, below, beside)
    assert notes() == after
    with pytest.raises(SinkError, match="REPLACE_WHERE"):
        write(replacing_part(3, 5, KINDS, IntegerRange(names, others[3], MIDDLE), [(0, 0, 0, 2, "of another range")]))
    assert notes() == after
    write(replacing_part(3, 6, KINDS, IntegerRange(names, others[2], MIDDLE), []))
    assert notes() == {LEAST: "new", others[1]: "new", GREATEST: "new"}
    write(replacing_part(4, 7, KINDS, IntegerRange(names, None, None), [(*MIDDLE, "whole")]))
    assert notes() == {MIDDLE: "whole"}
    commits = [commit["operation"] for commit in commits_of(sink, KINDS)]
    assert commits == ["CREATE TABLE", "WRITE", "ADD COLUMNS", "WRITE", "UPDATE", "WRITE", "WRITE", "WRITE"]
    assert transactions_of(sink, KINDS) == [(f"tidemark/{JOB.uuid}/{KINDS.table}", epoch) for epoch in (1, 2, 3, 4)]
    with pytest.raises(SinkError, match="Only some splits"):
        write(
            replacing_part(5, 8, KINDS, IntegerRange(names, None, MIDDLE), []),
            snapshot_part(5, 9, KINDS, [(*MIDDLE, "x")]),
        )


@pytest.mark.every_server
@pytest.mark.timeout(900)
def test_no_version_of_a_copy_lacks_a_row_while_its_table_is_read_again(
    delta_session: SparkSession, mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that nobody changes in the source are in each version: as before, then as they are, never as before again. Writers
    change the others after each commit, and the run dies between them."""
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    source = mysql_database
    source.execute(
        "CREATE TABLE t (x INT, y SMALLINT UNSIGNED, v INT, PRIMARY KEY (x, y)) STATS_PERSISTENT=1 STATS_AUTO_RECALC=0",
        *(f"INSERT INTO t VALUES ({n // 7}, {n % 7}, 1)" for n in range(-35, 35)),
        "ANALYZE TABLE t",  # the number of splits follows from the server's estimate
    )
    job = write_job(
        tmp_path,
        source=source_of(source),
        snapshot={"split_rows": 13, "parallelism": 1},
        sink={"type": "delta", "path": "./lake", "style": "mirror"},
    )
    # One split an epoch, so the deaths are before the last one. The first load, if quick, would let later epochs have more.
    monkeypatch.setattr(enumerator, "MAX_SPLITS_PER_TASK", 1)
    run_epochs(job, "snapshot.split_rows=1000")
    folder = tmp_path / "lake" / f"{source.schema}.t"

    def copy_at(version: int | None = None) -> list[tuple[Any, ...]]:
        read = delta_session.read.format("delta")
        read = read if version is None else read.option("versionAsOf", version)
        return [tuple(row) for row in read.load(str(folder)).select("x", "y", "v").collect()]

    delta_session.sql(f"UPDATE delta.`{folder}` SET v = -1")
    delta_session.sql(f"INSERT INTO delta.`{folder}` VALUES (-1000, 0, -1), (0, 100, -1), (1000, 0, -1), (0, NULL, -1)")
    before, commits = newest_version(folder), 0

    def reached(name: str) -> None:
        nonlocal commits
        if name == "sink.after_commit":
            commits += 1
            if commits < 10:
                x = commits % 10 - 5
                source.execute(
                    f"INSERT INTO t VALUES ({100 + commits}, 1, 1)",
                    f"UPDATE t SET v = {commits} WHERE y = 1",
                    f"UPDATE t SET x = -x - 100 WHERE y = 0 AND x = {x}",
                    f"UPDATE t SET y = y + 10 WHERE y = 6 AND x = {x}",
                    f"DELETE FROM t WHERE y = 5 AND x = {x}",
                )
        failpoint(name)

    monkeypatch.setattr(delta_epoch, "failpoint", reached)
    resnapshot(load_job_file(job), [TableName(source.schema, "t")])
    for point in ("tables.after_joined", "sink.before_commit", "sink.after_commit"):
        die_at(job, point)
    run_epochs(job, at_most=2)
    for point in ("sink.after_commit", "driver.epoch_written"):
        die_at(job, point)
    state = Checkpoint.at(str(tmp_path / "checkpoint")).job_state()
    assert state is not None
    assert [joined.replaced for joined in state.joined] == [tuple(schema.table for schema in state.schemas)]
    assert {row[-1] for row in copy_at()} > {-1}, "the deaths were before the last split"
    run_epochs(job)
    commits = 10  # nobody writes any more
    run_epochs(job)
    assert sorted(copy_at()) == sorted(source.query("SELECT x, y, v FROM t"))
    calm = {(x, 3) for x in range(-5, 5)}
    stale, mixed = calm, 0
    for version in range(before, newest_version(folder) + 1):
        rows = sorted(row for row in copy_at(version) if row[:-1] in calm)
        assert [row[:-1] for row in rows] == sorted(calm), f"version {version} lacks rows, or has them twice"
        still = {row[:-1] for row in rows if row[-1] == -1}
        assert still <= stale, f"rows are stale again in version {version}"
        stale, mixed = still, mixed + bool(still and still != calm)
    assert not stale
    assert mixed, "it was not replaced range by range"
