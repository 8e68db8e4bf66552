"""Remedies for trouble with copies in Delta, done as they are printed, all in one job: the tables come back, and the copies are
those of the source."""

import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.cli import CommandLine
from tests.support.epochs import before_the_next_epoch, die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.remedies import commands_in, run_command, run_through, setting_in, what_is_told
from tests.support.remedy_ways import Settings, get_over_all, told_by, told_of
from tests.support.servers import Database
from tidemark.jobs.spark.sessions import SparkSessions

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

AUDIT = {"deleted": "_deleted", "synced_at": "_synced_at"}


@dataclass(frozen=True)
class Trouble:
    """`says`: the remedy, a pattern. `before`: a statement on the copy of a table `(id, v)`, as `{copy}`, before the job
    starts. `made`: such statements later. `written`: what the source writes then, as `{table}`. `done`: one on the copy,
    "" for the one in the pattern's group. None: the copy is deleted. `v`: the type in the source."""

    says: str
    made: str = ""
    written: str = "UPDATE {table} SET v = v + 1"
    done: str | None = None
    v: str = "INT"
    before: str = ""


OWNED = "_deleted BOOLEAN, _synced_at TIMESTAMP"
TAKE_BACK = r"Take back what somebody has changed in the Delta table, such as a constraint, a column or a property\."
RECREATE = TAKE_BACK + r" Or delete the table and let the job create it\."
RULE = r"Remove that rule from the Delta table, or delete the table and let the job create it\."
TROUBLES = {
    "a_check": Trouble(
        RULE,
        "ALTER TABLE {copy} ADD CONSTRAINT small CHECK (v < 99)",
        "INSERT INTO {table} VALUES (7, 500)",
        "ALTER TABLE {copy} DROP CONSTRAINT small",
    ),
    "only_appended": Trouble(RULE, "ALTER TABLE {copy} SET TBLPROPERTIES ('delta.appendOnly' = 'true')"),
    "not_null": Trouble(
        r"Allow NULL \((ALTER TABLE .* DROP NOT NULL)\)\.",
        written="ALTER TABLE {table} MODIFY v INT; INSERT INTO {table} VALUES (7, NULL)",
        done="",
        v="INT NOT NULL",
        before="CREATE TABLE {copy} (id INT, v INT NOT NULL, _deleted BOOLEAN, _synced_at TIMESTAMP) USING delta",
    ),
    "another_key": Trouble(
        r"keeps deleted rows by the key \(id\), and the table's key is \(id, v\) now\. "
        r"Delete that table and let the job create it",
        written="ALTER TABLE {table} DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)",
        v="INT NOT NULL",
    ),
    "a_division": Trouble(
        TAKE_BACK,
        "ALTER TABLE {copy} ADD CONSTRAINT divided CHECK (100 / (v + 1) < 999)",
        "INSERT INTO {table} VALUES (7, -1)",
        "ALTER TABLE {copy} DROP CONSTRAINT divided",
    ),
    "a_generated_column": Trouble(
        RECREATE,
        written="INSERT INTO {table} VALUES (7, 500)",
        before=f"CREATE TABLE {{copy}} (id INT, v INT, {OWNED}, w TINYINT GENERATED ALWAYS AS (CAST(v AS TINYINT))) "
        "USING delta",
    ),
    "a_new_feature": Trouble(RECREATE, "protocol"),
    "renamed_column": Trouble(
        r"has no column v\. .*Delete that table and let the job create it",
        "ALTER TABLE {copy} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name'); ALTER TABLE {copy} RENAME COLUMN v TO w",
    ),
}


class Lake:
    """The copies of a job."""

    def __init__(self, session: SparkSession, source: Database, folder: Path) -> None:
        self.session, self.source, self.folder = session, source, folder

    def place(self, table: str) -> Path:
        return self.folder / "lake" / f"{self.source.schema}.{table}"

    def sql(self, statements: str, table: str) -> None:
        if statements == "protocol":
            self.raise_protocol(table)
            return
        for statement in filter(None, statements.split("; ")):
            self.session.newSession().sql(statement.format(copy=f"delta.`{self.place(table)}`"))

    def raise_protocol(self, table: str) -> None:
        """As a newer Delta does for a feature that this one does not know."""
        log = self.place(table) / "_delta_log"
        actions = [json.loads(line) for path in sorted(log.glob("*.json")) for line in path.read_text().splitlines()]
        protocol = [action["protocol"] for action in actions if "protocol" in action][-1]
        protocol["writerFeatures"] = [*protocol.get("writerFeatures", []), "writtenInAnotherWay"]
        protocol["minWriterVersion"] = 7
        commit = {"commitInfo": {"timestamp": time.time_ns() // 1_000_000, "operation": "UPGRADE PROTOCOL"}}
        number = len(list(log.glob("*.json")))
        lines = [json.dumps(action) for action in (commit, {"protocol": protocol})]
        (log / f"{number:020d}.json").write_text("\n".join(lines) + "\n")

    def there(self, table: str) -> list[tuple[Any, ...]]:
        copy = self.session.read.format("delta").load(str(self.place(table))).where("NOT _deleted").select("id", "v")
        return list(map(tuple, copy.collect()))

    def assert_equal(self, *tables: str) -> None:
        for table in tables:
            there = self.source.query(f"SELECT id, v FROM {table}")
            assert Counter(self.there(table)) == Counter(there), table


@pytest.fixture
def lake(
    delta_session: SparkSession, mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Lake:
    """Jobs use the session of the tests."""
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    return Lake(delta_session, mysql_database, tmp_path)


@pytest.mark.every_server
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("a_check", "another_key"), id="some"),
        pytest.param(
            ("a_division", "a_generated_column", "a_new_feature"), id="unforeseen", marks=pytest.mark.every_server
        ),
        pytest.param(("only_appended", "not_null", "renamed_column"), id="others", marks=pytest.mark.every_server),
    ],
)
def test_copies_that_can_not_have_their_rows(lake: Lake, tidemark: CommandLine, names: tuple[str, ...]) -> None:
    source, troubles = lake.source, {name: TROUBLES[name] for name in names}
    for table, trouble in {**troubles, "others": Trouble("")}.items():
        source.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, v {trouble.v})",
            f"INSERT INTO {table} VALUES (1, 0), (2, 0), (3, 0)",
        )
        lake.sql(trouble.before, table)
    sink = {"type": "delta", "path": "./lake", "on_schema_change": "evolve", "audit_columns": AUDIT}
    job = write_job(lake.folder, source=source_of(source, on_table_error="park"), sink=sink)
    run_epochs(job)
    for table, trouble in troubles.items():
        lake.sql(trouble.made, table)
        source.execute(f"DELETE FROM {table} WHERE id = 2", *trouble.written.format(table=table).split("; "))
    source.execute("INSERT INTO others VALUES (4, 0)")
    advice = what_is_told(job)
    assert advice is not None
    assert (4, 0) in lake.there("others"), advice
    for table, trouble in troubles.items():
        follow(lake, table, trouble, advice)
    while advice is not None:  # the text has the command of one table at a time
        run_command(advice, job, tidemark)
        advice, before = what_is_told(job), advice
        assert advice != before
    lake.assert_equal(*names, "others")
    for table in names:
        source.execute(f"UPDATE {table} SET v = v + 1 WHERE id = 3", f"INSERT INTO {table} VALUES (9, 0)")
    run_through(job)
    lake.assert_equal(*names, "others")


def follow(lake: Lake, table: str, trouble: Trouble, advice: str) -> None:
    """Does what the part of the text about the table says."""
    _, found, text = advice.partition(f"{lake.source.schema}.{table}")
    assert found, advice
    said = re.search(trouble.says, text)
    assert said is not None, advice
    if trouble.done is None:
        shutil.rmtree(lake.place(table))
    else:
        lake.sql(trouble.done or said[1], table)


@pytest.mark.every_server
def test_tables_that_a_job_can_not_have(lake: Lake) -> None:
    source, settings = lake.source, Settings()
    names = ("files", "owned", "filled", "narrow")
    for table in names:
        source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {table} VALUES (1, 0)")
    source.execute("ALTER TABLE files ADD COLUMN `a``b` INT")
    place = lake.place("files")
    place.mkdir(parents=True)
    (place / "notes.txt").write_text("")
    columns = "(id INT, v INT, _deleted BOOLEAN, _synced_at TIMESTAMP)"
    owner = "TBLPROPERTIES ('tidemark.job' = 'other', 'tidemark.job_uuid' = 'x')"
    lake.sql(f"CREATE TABLE {{copy}} {columns} USING delta {owner}", "owned")
    lake.sql(f"CREATE TABLE {{copy}} {columns} USING delta; INSERT INTO {{copy}} (id) VALUES (7)", "filled")
    lake.sql("CREATE TABLE {copy} (id INT) USING delta", "narrow")
    settings["sink.partition_by"] = f"{{{source.name}.files: [w]}}"
    sink = {"type": "delta", "path": "./lake", "audit_columns": AUDIT}
    job = write_job(lake.folder, source=source_of(source), sink=sink)
    get_over_all(
        lambda: told_by(job, *settings.overrides),
        {
            "Exclude it: ": lambda told: settings.update([setting_in(told).split("=", 1)]),
            "Correct sink.partition_by.": settings.setting("sink.partition_by", f"{{{source.name}.files: [v]}}"),
            "Remove what is there, or change sink.path.": lambda _: shutil.rmtree(place),
            "Change sink.path, or delete that table.": lambda _: shutil.rmtree(lake.place("owned")),
            "Empty or delete that table": lambda _: lake.sql("DELETE FROM {copy}", "filled"),
            "Delete that table and let the job create it, or": lambda _: shutil.rmtree(lake.place("narrow")),
        },
    )
    lake.assert_equal(*names)
    kept = lake.folder / "kept"
    place.rename(kept)
    source.execute("UPDATE files SET v = 1")
    told_of(job, "Put it back, or start over", *settings.overrides)
    kept.rename(place)
    number = len(list(place.glob("_delta_log/*.json")))
    damaged = place / "_delta_log" / f"{number:020d}.json"
    damaged.write_text("damaged")
    told_of(job, "Correct the cause, then start the job again: it continues where it was.", *settings.overrides)
    damaged.unlink()
    forget_logs(lake)
    assert told_by(job, *settings.overrides) is None
    lake.assert_equal(*names)


@pytest.mark.every_server
def test_files_of_a_copy_that_are_put_back(lake: Lake) -> None:
    source, place, older = lake.source, lake.place("orders"), lake.folder / "older"
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY, v INT)", "INSERT INTO orders VALUES (1, 0)")
    sink = {"type": "delta", "path": "./lake", "audit_columns": AUDIT}
    job = write_job(lake.folder, source=source_of(source), sink=sink)
    assert told_by(job) is None
    shutil.copytree(place, older)
    source.execute("UPDATE orders SET v = 1")
    assert told_by(job) is None
    place.rename(lake.folder / "newest")
    older.rename(place)
    forget_logs(lake)
    told_of(job, "Put back its newest files, and start the job again")
    shutil.rmtree(place)
    (lake.folder / "newest").rename(place)
    forget_logs(lake)
    source.execute("UPDATE orders SET v = 2")
    assert told_by(job) is None
    lake.assert_equal("orders")


def forget_logs(lake: Lake) -> None:
    jvm: Any = lake.session._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


@pytest.mark.every_server
def test_names_of_a_catalog(lake: Lake) -> None:
    source, settings = lake.source, Settings()
    source.execute("CREATE TABLE `odd-name` (id INT PRIMARY KEY, v INT)", "INSERT INTO `odd-name` VALUES (1, 0)")
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY, v INT)")
    schema = f"c{source.name}"
    settings["sink.table"] = f'"{schema}.{{table}}"'
    sink = {"type": "delta", "catalog": "spark_catalog", "table": f"{schema}.{{table}}"}
    job = write_job(lake.folder, source=source_of(source), sink=sink)

    def renamed(to: str) -> Callable[[str], None]:
        return settings.setting("sink.rename", f"[{{match: odd-name(.*), to: '{to}'}}]")

    get_over_all(
        lambda: told_by(job, *settings.overrides),
        {
            "Choose another name by sink.table or sink.rename, leave that table out, or write to a sink.path.": renamed(
                r"\1"
            ),
            "Correct sink.rename.": renamed("ORDERS"),
            "Give them different names by sink.table or sink.rename": renamed("odd"),
        },
    )
    assert lake.session.sql(f"SELECT id, v FROM {schema}.odd").collect() == [(1, 0)]


def test_the_copy_of_a_table_that_left_the_job(lake: Lake) -> None:
    source, both = lake.source, f"source.tables=[{lake.source.name}.orders, {lake.source.name}b.orders]"
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY, v INT)", "INSERT INTO orders VALUES (1, 0)")
    source.execute(f"CREATE DATABASE {source.name}b", f"CREATE TABLE {source.name}b.orders (id INT PRIMARY KEY, v INT)")
    try:
        sink = {"type": "delta", "path": "./lake", "table": "{table}"}
        job = write_job(lake.folder, source=source_of(source), sink=sink)
        assert told_by(job) is None
        told_of(
            job, "Exclude this table (source.exclude_tables).", both, f"source.exclude_tables=[{source.name}.orders]"
        )
        assert told_by(job, both, f"source.exclude_tables=[{source.name}b.orders]") is None
    finally:
        source.execute(f"DROP DATABASE {source.name}b")
    held = lake.session.read.format("delta").load(str(lake.folder / "lake" / "orders")).collect()
    assert list(map(tuple, held)) == [(1, 0)]


@pytest.mark.every_server
def test_rows_without_a_key_are_corrected(lake: Lake, tidemark: CommandLine) -> None:
    """MySQL keeps invalid dates in a key."""
    source, invalid = lake.source, ("SET sql_mode = ''", "INSERT INTO bad VALUES ('0000-00-00', 7)")
    source.execute("CREATE TABLE bad (id DATE PRIMARY KEY, v INT)", "CREATE TABLE others (id INT PRIMARY KEY, v INT)")
    source.execute("INSERT INTO bad VALUES ('2020-01-01', 0)", *invalid)
    sink = {"type": "delta", "path": "./lake", "audit_columns": AUDIT}
    job = write_job(lake.folder, source=source_of(source, on_table_error="park"), sink=sink)
    for _ in range(2):  # by the rows, then by the log
        source.execute("INSERT INTO others SELECT COUNT(*), 0 FROM others")
        told = told_of(job, "has an invalid date (such as 0000-00-00) in its key column id")
        assert "Correct these rows, or name another key" in told
        lake.assert_equal("others")
        source.execute("SET sql_mode = ''", "UPDATE bad SET id = '2020-01-02' WHERE id = 0")
        run_command(told, job, tidemark)
        assert told_by(job) is None
        lake.assert_equal("bad", "others")
        source.execute("DELETE FROM bad WHERE v = 7", *invalid)


@pytest.mark.every_server
def test_a_copy_that_can_not_be_claimed_parks_its_table(lake: Lake, tidemark: CommandLine) -> None:
    """It joins a job that has started."""
    source = lake.source
    source.execute("CREATE TABLE others (id INT PRIMARY KEY, v INT)")
    sink = {"type": "delta", "path": "./lake", "audit_columns": AUDIT}
    job = write_job(lake.folder, source=source_of(source, on_table_error="park"), sink=sink)
    assert told_by(job) is None
    lake.sql(f"CREATE TABLE {{copy}} (id INT, v INT, {OWNED}) USING delta", "late")
    lake.raise_protocol("late")
    source.execute("CREATE TABLE late (id INT PRIMARY KEY, v INT)", "INSERT INTO late VALUES (1, 1)")
    source.execute("INSERT INTO others VALUES (1, 1)")
    told = told_by(job)
    assert told is not None
    assert re.search(RECREATE, told), told
    lake.assert_equal("others")
    shutil.rmtree(lake.place("late"))
    if commands_in(told):
        run_command(told, job, tidemark)
    assert told_by(job) is None
    lake.assert_equal("late", "others")


@pytest.mark.every_server
def test_a_key_that_is_no_integer_any_more(lake: Lake, tidemark: CommandLine) -> None:
    """Somebody changes its column in the copy while ranges of the copy are replaced."""
    source = lake.source
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY, v INT)", "INSERT INTO orders VALUES (1, 0), (2, 0)")
    sink = {"type": "delta", "path": "./lake", "audit_columns": {"synced_at": "_synced_at"}}
    job = write_job(lake.folder, source=source_of(source, on_table_error="park"), sink=sink)
    assert told_by(job) is None
    again = f"tidemark signal JOB.yaml resnapshot --table {source.name}.orders"
    run_command(again, job, tidemark)
    mapped = "ALTER TABLE {copy} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    other = "ALTER TABLE {copy} RENAME COLUMN id TO old; ALTER TABLE {copy} ADD COLUMN id STRING"
    with pytest.MonkeyPatch.context() as patch:
        before_the_next_epoch(patch, lambda: lake.sql(f"{mapped}; {other}", "orders"))
        told = told_of(job, "the key's columns (id) are no integers any more")
    assert "Delete that table and let the job create it." in told
    shutil.rmtree(lake.place("orders"))
    run_command(told, job, tidemark)
    for _ in range(2):
        assert told_by(job) is None
        held = lake.session.read.format("delta").load(str(lake.place("orders"))).select("id", "v").collect()
        assert sorted(map(tuple, held)) == source.query("SELECT id, v FROM orders ORDER BY id")
        source.execute("UPDATE orders SET v = v + 1")


@pytest.mark.every_server
def test_a_column_that_is_renamed_while_the_job_runs(lake: Lake, tidemark: CommandLine) -> None:
    """The check at the start has found it. Spark can't resolve the MERGE."""
    source = lake.source
    for table in ("orders", "others"):
        source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {table} VALUES (1, 0)")
    sink = {"type": "delta", "path": "./lake", "audit_columns": AUDIT}
    job = write_job(lake.folder, source=source_of(source, on_table_error="park"), sink=sink)
    assert told_by(job) is None
    source.execute("UPDATE orders SET v = 1", "UPDATE others SET v = 1")
    mapped = "ALTER TABLE {copy} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    renamed = "ALTER TABLE {copy} RENAME COLUMN v TO w"
    with pytest.MonkeyPatch.context() as patch:
        before_the_next_epoch(patch, lambda: lake.sql(f"{mapped}; {renamed}", "orders"))
        told = told_of(job, f"orders does not fit {source.name}.orders any more")
    assert re.search(TAKE_BACK, told)
    lake.assert_equal("others")
    lake.sql("ALTER TABLE {copy} RENAME COLUMN w TO v", "orders")
    run_command(told, job, tidemark)
    for _ in range(2):
        assert told_by(job) is None
        lake.assert_equal("orders", "others")
        source.execute("UPDATE orders SET v = v + 1")


BROKEN = {
    "gone": ("Put it back", lambda lake: None),
    "without its log": ("Remove what is there", lambda lake: shutil.rmtree(lake.place("orders"))),
    "of other types": ("Delete that table and let the job create it", lambda lake: shutil.rmtree(lake.place("orders"))),
}
"""By what becomes of the copy: what the text says, and how it is done."""


@pytest.mark.parametrize(
    "how", ["gone", *(pytest.param(how, marks=pytest.mark.every_server) for how in BROKEN if how != "gone")]
)
def test_a_copy_that_breaks_before_its_last_epoch_counts(lake: Lake, tidemark: CommandLine, how: str) -> None:
    """Both copies have the epoch, and the mark of that in the checkpoint is missing. No table must be parked."""
    source, (says, done) = lake.source, BROKEN[how]
    for table in ("orders", "others"):
        source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {table} VALUES (1, 0)")
    sink = {"type": "delta", "path": "./lake", "on_schema_change": "evolve", "audit_columns": AUDIT}
    job = write_job(lake.folder, source=source_of(source, on_table_error="stop"), sink=sink)
    run_epochs(job)
    for table in ("orders", "others"):
        source.execute(f"INSERT INTO {table} VALUES (2, 0)")
    die_at(job, "driver.epoch_written")
    break_copy(lake, how)
    told = told_of(job, says)
    assert "To leave its copy as it is, name it in source.exclude_tables." in told
    done(lake)
    forget_logs(lake)
    run_command(told, job, tidemark)
    for _ in range(2):
        assert told_by(job) is None
        lake.assert_equal("orders", "others")
        source.execute("UPDATE orders SET v = v + 1", "UPDATE others SET v = v + 1")


def break_copy(lake: Lake, how: str) -> None:
    place = lake.place("orders")
    if how == "of other types":
        rows = lake.session.read.format("delta").load(str(place)).selectExpr("id", "'a' v", "_deleted", "_synced_at")
        rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(place))
    else:
        shutil.rmtree(place if how == "gone" else place / "_delta_log")
    forget_logs(lake)


@pytest.mark.parametrize(
    ("kind", "policy", "is_alone"),
    [
        pytest.param("STRING", "stop", True, id="after a run that died, of the only table"),
        pytest.param("STRING", "park", False, id="text", marks=pytest.mark.every_server),
        pytest.param("BIGINT", "stop", False, id="wider", marks=pytest.mark.every_server),
        pytest.param("SMALLINT", "park", False, id="narrower", marks=pytest.mark.every_server),
        pytest.param("", "stop", False, id="no such column", marks=pytest.mark.every_server),
    ],
)
def test_columns_that_somebody_changes_in_a_copy_are_put_right_by_the_signal(
    lake: Lake, tidemark: CommandLine, kind: str, policy: str, *, is_alone: bool
) -> None:
    source, tables = lake.source, ["orders"] if is_alone else ["orders", "others"]
    for table in tables:
        source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {table} VALUES (1, 0)")
    sink = {"type": "delta", "path": "./lake", "on_schema_change": "evolve"}
    job = write_job(lake.folder, source=source_of(source, on_table_error=policy), sink=sink)
    assert told_by(job) is None
    source.execute(*(f"INSERT INTO {table} VALUES (2, 2)" for table in tables))
    if is_alone:
        die_at(job, "driver.epoch_written")
    place, columns = str(lake.place("orders")), ["id", *([f"CAST(v AS {kind}) v"] if kind else [])]
    rows = lake.session.read.format("delta").load(place).selectExpr(*columns)
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(place)
    forget_logs(lake)
    told = told_of(job, "It changes the copy so that it fits.")
    assert "elete" not in told
    run_command(told, job, tidemark)
    for _ in range(2):
        assert told_by(job) is None
        for table in tables:
            held = lake.session.read.format("delta").load(str(lake.place(table)))
            assert [kind for _, kind in held.dtypes] == ["int", "int"]
            assert Counter(map(tuple, held.collect())) == Counter(source.query(f"SELECT id, v FROM {table}"))
        source.execute(*(f"UPDATE {table} SET v = v + 1" for table in tables))
