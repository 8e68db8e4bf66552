"""Tables that are altered while a job copies them into Delta: their copies get the columns, or are read again. So are all
tables after the source has lost its log, and one that RESTORE has set back."""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

from tests.support.delta import newest_version
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.jobs import ROOT, source_of, write_job
from tests.support.lost_logs import lose_log
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.enumerator import enumerator
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.sinks.delta.epoch import EpochWriter, session_settings
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import SinkError, TablesParkedError
from tidemark.state.failpoints import FailpointError

pytestmark = pytest.mark.integration


@pytest.fixture
def read(delta_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Reads columns of a copy. Jobs use the session of the tests."""
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)

    def rows(database: Database, *columns: str, table: str = "t") -> list[Any]:
        copy = delta_session.read.format("delta").load(str(tmp_path / "lake" / f"{database.schema}.{table}"))
        return [tuple(row) for row in copy.select(*columns).orderBy("id").collect()]

    return rows


CHANGES = {
    "added": ("ADD COLUMN more INT", ("id", "name", "more"), ["altered"]),
    "with_default": ("ADD COLUMN more INT DEFAULT 5", ("id", "name", "more"), ["left", "joined"]),
    "with_features": (
        "ADD COLUMN more INT, ADD COLUMN at DATETIME, ADD COLUMN `b c` INT",
        ("id", "name", "more", "at", "`b c`"),
        ["altered"],
    ),
    "and_dropped": ("ADD COLUMN more INT, DROP COLUMN name", ("id", "more"), ["left", "joined"]),
}
"""By table: the change, the columns after it, and what is told of it. `at` and `b c` need features that Delta does not turn on
by itself for a table that is there."""


def rows_of(database: Database, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return database.query(f"SELECT {', '.join(columns)} FROM {table} ORDER BY id")


def test_mirrors_get_new_columns(read: Callable[..., list[Any]], mysql_database: Database, tmp_path: Path) -> None:
    database, notes = mysql_database, Notes()
    for table in CHANGES:
        database.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, name VARCHAR(20))",
            f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        )
    sink = {"type": "delta", "path": "./lake", "style": "mirror", "on_schema_change": "evolve"}
    job = write_job(tmp_path, source=source_of(database, on_table_error="park"), sink=sink)
    run_epochs(job)
    for table, (change, _, _) in CHANGES.items():
        database.execute(
            f"DELETE FROM {table} WHERE id = 3",
            f"ALTER TABLE {table} {change}",
            f"UPDATE {table} SET more = 7 WHERE id = 2",
            f"INSERT INTO {table} (id, more) VALUES (4, 9)",
        )
    run_epochs(job, notes=notes)
    for table, (_, columns, outcome) in CHANGES.items():
        told = [event for event, facts in notes.found if facts.get("table") == f"{database.schema}.{table}"]
        assert [event for event in told if event in {"altered", "parked", "left", "joined"}][-len(outcome) :] == outcome
        assert read(database, *columns, table=table) == rows_of(database, table, columns)
        database.execute(f"UPDATE {table} SET more = more + 1")
    run_epochs(job)
    for table, (_, columns, _) in CHANGES.items():
        assert read(database, *columns, table=table) == rows_of(database, table, columns)


TYPES = {
    "wider": "MODIFY n BIGINT",
    "of_key": "MODIFY id BIGINT UNSIGNED",
    "digits": "MODIFY d DECIMAL(30, 6), ADD COLUMN more INT DEFAULT 5",
    "texts": "MODIFY n VARCHAR(30)",
    "numbers": "MODIFY name INT",
    "and_dropped": "DROP COLUMN name, MODIFY n SMALLINT",
    "times": "DROP COLUMN name, ADD COLUMN name DATETIME DEFAULT '2026-02-03 04:05:06', ADD COLUMN `b c` INT",
}
"""By table: the change of its types. Those of `times` need features that Delta does not turn on by itself."""
SOME_TYPES = ("wider", "of_key", "times")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("settings", "tables"),
    [
        ({"path": "./lake"}, SOME_TYPES),
        pytest.param({"path": "./lake"}, tuple(TYPES), marks=pytest.mark.every_server),
        pytest.param(
            {"catalog": "spark_catalog", "table": "{schema}.{table}"}, tuple(TYPES), marks=pytest.mark.every_server
        ),
    ],
    ids=["some", "folder", "catalog"],
)
def test_mirrors_get_other_types(
    delta_session: SparkSession,
    mysql_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    tables: tuple[str, ...],
) -> None:
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    database, notes = mysql_database, Notes()
    for table in tables:
        columns = "id INT PRIMARY KEY, n INT, d DECIMAL(20, 4), p INT NOT NULL, name VARCHAR(20)"
        database.execute(
            f"CREATE TABLE {table} ({columns})", f"INSERT INTO {table} VALUES (1, 1, 1.5, 3, '7'), (2, NULL, 2, 4, '8')"
        )
    partition_by = {f"{database.schema}.{table}": ["p"] for table in {"wider", "texts"} & set(tables)}
    sink = {"type": "delta", "style": "mirror", "on_schema_change": "evolve", "partition_by": partition_by, **settings}
    job = write_job(tmp_path, source=source_of(database, on_table_error="park"), sink=sink)
    run_epochs(job)
    for table in tables:
        database.execute(
            f"DELETE FROM {table} WHERE id = 1",
            f"ALTER TABLE {table} {TYPES[table]}",
            f"INSERT INTO {table} (id, n, p) VALUES (4, 9, 3)",
        )

    def relation(table: str) -> str:
        name = f"{database.schema}.{table}"
        return f"delta.`{tmp_path}/lake/{name}`" if "path" in settings else f"spark_catalog.{name}"

    def facts(table: str) -> Any:
        detail = delta_session.sql(f"DESCRIBE DETAIL {relation(table)}").collect()[0]
        comments = {field.name: field.metadata.get("comment") for field in delta_session.table(relation(table)).schema}
        return detail["id"], detail["properties"], detail["partitionColumns"], comments

    def assert_equal() -> None:
        for table in tables:
            columns = [f"`{column}`" for column, *_ in database.query(f"SHOW COLUMNS FROM {table}")]
            held = sorted(map(tuple, delta_session.table(relation(table)).select(*columns).collect()))
            assert held == database.query(f"SELECT {', '.join(columns)} FROM {table} ORDER BY id"), table

    for statement in (
        "SET TBLPROPERTIES (mine = 'kept')",
        "ALTER COLUMN n COMMENT 'a number'",
        "ALTER COLUMN p COMMENT 'a part'",
        "ADD CONSTRAINT above CHECK (p > 0)",
    ):
        delta_session.sql(f"ALTER TABLE {relation('wider')} {statement}")
    before = facts("wider")
    run_epochs(job, notes=notes)
    assert "parked" not in {event for event, _ in notes.found}
    assert_equal()
    assert facts("wider") == before
    for table in tables:
        database.execute(
            f"UPDATE {table} SET d = d + 1",
            f"INSERT INTO {table} (id, p) VALUES (5, 6)",
            f"DELETE FROM {table} WHERE id = 2",
        )
    run_epochs(job)
    assert_equal()


WHOLE = {
    "wider": ("v INT", "MODIFY v BIGINT", [("1", 1), ("-2", -2), ("NULL", None)]),
    "key": ("v INT", "MODIFY id BIGINT UNSIGNED", [("1", 1), ("-2", -2), ("NULL", None)]),
    "narrower": ("v DECIMAL(9, 2)", "MODIFY v SMALLINT", [("1", 1), ("-2.00", -2), ("NULL", None)]),
    "time": ("v DATE", "MODIFY v DATETIME", [("'2026-02-03'", datetime(2026, 2, 3)), ("NULL", None)]),
}
"""The column, the change of a type, and values with what they are in the new type."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "case", ["wider", *(pytest.param(case, marks=pytest.mark.every_server) for case in WHOLE if case != "wider")]
)
def test_no_version_of_a_copy_lacks_a_row_while_its_columns_get_other_types(
    delta_session: SparkSession,
    mysql_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
) -> None:
    """One commit changes the types, and has the first split. The run dies before and after it. Columns of the copy alone stay
    in rows that are not read yet."""
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    monkeypatch.setattr(enumerator, "MAX_SPLITS_PER_TASK", 1)  # one split an epoch
    database, (column, change, values) = mysql_database, WHOLE[case]
    database.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {column}) STATS_PERSISTENT=1 STATS_AUTO_RECALC=0")
    held = {number: values[number % len(values)] for number in range(30)}
    database.execute(*(f"INSERT INTO t VALUES ({number}, {value})" for number, (value, _) in held.items()))
    database.execute("ANALYZE TABLE t")  # the number of splits follows from the server's estimate
    sink = {"type": "delta", "path": "./lake", "style": "mirror", "on_schema_change": "evolve"}
    snapshot = {"split_rows": 13, "parallelism": 1}
    job = write_job(tmp_path, source=source_of(database, on_table_error="park"), sink=sink, snapshot=snapshot)
    run_epochs(job, "snapshot.split_rows=1000")
    folder = tmp_path / "lake" / f"{database.schema}.t"
    delta_session.sql(f"ALTER TABLE delta.`{folder}` ADD COLUMNS (mine INT)")
    delta_session.sql(f"UPDATE delta.`{folder}` SET mine = 7")
    database.execute(f"ALTER TABLE t {change}")
    before = newest_version(folder)
    for point in ("tables.after_joined", "planner.after_plan", "sink.before_commit", "sink.after_commit"):
        if case == "key" or point.startswith("sink."):
            die_at(job, point)
    run_epochs(job)
    kinds, marked = [], []
    for version in range(before, newest_version(folder) + 1):
        copy = delta_session.read.format("delta").option("versionAsOf", version).load(str(folder))
        rows = sorted(tuple(row) for row in copy.select("id", "v", "mine").collect())
        assert [row[0] for row in rows] == list(held)
        kinds.append(copy.select("id", "v").dtypes)
        if kinds[-1] != kinds[0]:
            assert [row[1] for row in rows] == [value for _, value in held.values()]
        marked.append(sum(row[2] == 7 for row in rows))
    assert [version for version, kind in enumerate(kinds[1:]) if kind != kinds[version]] == [kinds.index(kinds[-1]) - 1]
    assert kinds[0] != kinds[-1]
    assert (marked[0], marked[-1]) == (len(held), 0)
    assert len(set(marked)) > 2, "it was not replaced range by range"


NOT_WHOLE: dict[str, tuple[str, str, Callable[[int], Any]]] = {
    "fractions": ("DECIMAL(9, 2)", "INT", lambda n: n + n % 2 / 4),
    "zeros": ("INT(5) ZEROFILL", "VARCHAR(9)", lambda n: n),
    "labels": ("ENUM('20', '10')", "INT", lambda n: 10 + n % 2 * 10),
}
"""The type, another one which does not hold the same value of each row, and the value of a row."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("key", "case"),
    [
        ("INT", "fractions"),
        *(
            pytest.param(key, case, marks=pytest.mark.every_server)
            for key, case in [("VARCHAR(9)", "fractions"), ("INT", "zeros"), ("INT", "labels")]
        ),
    ],
)
def test_rows_that_the_new_types_can_not_hold_are_missing_until_they_are_read(
    read: Callable[..., list[Any]],
    mysql_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    case: str,
) -> None:
    """A copy that is emptied, as its key is no number, has its types by the commit that empties it."""
    monkeypatch.setattr(enumerator, "MAX_SPLITS_PER_TASK", 1)
    database, (before, after, value_of) = mysql_database, NOT_WHOLE[case]
    database.execute(f"CREATE TABLE t (id {key} PRIMARY KEY, v {before}) STATS_PERSISTENT=1 STATS_AUTO_RECALC=0")
    database.execute(*(f"INSERT INTO t VALUES ({n}, '{value_of(n)}')" for n in range(10, 50)), "ANALYZE TABLE t")
    sink = {"type": "delta", "path": "./lake", "style": "mirror", "on_schema_change": "evolve"}
    snapshot = {"split_rows": 13, "parallelism": 1}
    job = write_job(tmp_path, source=source_of(database, on_table_error="park"), sink=sink, snapshot=snapshot)
    run_epochs(job)
    database.execute(f"ALTER TABLE t MODIFY v {after}")
    die_at(job, "sink.before_commit")
    assert len(read(database, "id")) == 40
    die_at(job, "sink.after_commit")
    held = read(database, "id", "v")
    if key == "INT":
        assert set(held) < set(rows_of(database, "t", ("id", "v")))
        assert {n for n, _ in held} >= set(range(10, 50, 2) if case == "fractions" else [])
    else:
        assert held == []
    run_epochs(job)
    assert read(database, "id", "v") == rows_of(database, "t", ("id", "v"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("key", ["INT", pytest.param("VARCHAR(9)", marks=pytest.mark.every_server)])
@pytest.mark.parametrize(
    "back", [pytest.param(False, marks=pytest.mark.every_server), True], ids=["same_types", "types_are_back"]
)
def test_a_driver_that_was_frozen_at_the_commit_of_types(
    read: Callable[..., list[Any]],
    mysql_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    *,
    back: bool,
) -> None:
    """It wakes once another driver has read the rows, with the same types or with those of before: Delta skips its commit."""
    database, commit, frozen = mysql_database, EpochWriter._commit_types, list[Callable[[], None]]()

    def freeze(writer: EpochWriter, rows: Any, *given: Any) -> None:
        session = given[3]
        named = [name for name in session_settings_now(session) if name.startswith("spark.databricks.delta.")]
        settings = {name: session.conf.get(name) for name in named}
        kept = [rows.read(session, given[0], shape) for shape in (("rest",) if given[1].truncates else ("rows",))]
        content = session.createDataFrame(kept[0].collect(), kept[0].schema)  # its files are removed
        held = SimpleNamespace(read=lambda *_: content)

        def wake() -> None:
            with session_settings(session, settings):
                commit(writer, held, *given)

        frozen.append(wake)
        raise FailpointError("frozen")

    job = mirror_of_numbers(database, tmp_path, key=key)
    database.execute("ALTER TABLE t MODIFY v BIGINT", "INSERT INTO t VALUES (3, 3)")
    with monkeypatch.context() as patch:
        patch.setattr(EpochWriter, "_commit_types", freeze)
        with pytest.raises(FailpointError):
            run_epochs(job)
    if back:
        database.execute("ALTER TABLE t MODIFY v INT", "UPDATE t SET v = 8 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    run_epochs(job)
    before = newest_version(tmp_path / "lake" / f"{database.schema}.t")
    assert len(frozen) == 1
    frozen[0]()
    assert newest_version(tmp_path / "lake" / f"{database.schema}.t") == before
    assert read(database, "id", "v") == rows_of(database, "t", ("id", "v"))
    database.execute("INSERT INTO t VALUES (4, 4)", "UPDATE t SET v = 9 WHERE id = 1")
    run_epochs(job, notes=(notes := Notes()))
    assert "joined" not in {event for event, _ in notes.found}
    assert read(database, "id", "v") == rows_of(database, "t", ("id", "v"))


@pytest.mark.every_server
@pytest.mark.timeout(900)
@pytest.mark.parametrize("look", ["_commit", "_write_once"])
def test_somebody_gives_a_copy_other_types_while_it_is_read_again(
    read: Callable[..., list[Any]],
    delta_session: SparkSession,
    mysql_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    look: str,
) -> None:
    """Before the look at the copy, or between the look and the commit, where Spark casts the rows without a word, to 7 for
    007. The rows are read once more, in the same run."""
    monkeypatch.setattr(enumerator, "MAX_SPLITS_PER_TASK", 1)
    database = mysql_database
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9)) STATS_PERSISTENT=1 STATS_AUTO_RECALC=0")
    database.execute(*(f"INSERT INTO t VALUES ({n}, '00{n}')" for n in range(40)), "ANALYZE TABLE t")
    sink = {"type": "delta", "path": "./lake", "style": "mirror", "on_schema_change": "evolve"}
    snapshot = {"split_rows": 13, "parallelism": 1}
    job = write_job(tmp_path, source=source_of(database, on_table_error="park"), sink=sink, snapshot=snapshot)
    run_epochs(job, "snapshot.split_rows=1000")
    relation, done, calls = f"delta.`{tmp_path}/lake/{database.schema}.t`", getattr(EpochWriter, look), list[str]()

    def change(*given: Any, **more: Any) -> Any:
        calls.append(look)
        if len(calls) == 2:
            copy = delta_session.table(relation)
            rows = copy.withColumn("v", copy["v"].cast("int"))
            rows.writeTo(relation).option("overwriteSchema", "true").overwrite(lit(True))
        return done(*given, **more)

    monkeypatch.setattr(EpochWriter, look, change)
    resnapshot(load_job_file(job), [TableName(database.schema, "t")])
    run_epochs(job, notes=(notes := Notes()))
    assert "has v as int, not as string" in str([facts for event, facts in notes.found if event == "left"])
    assert read(database, "id", "v") == rows_of(database, "t", ("id", "v"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "settings",
    [
        {"style": "changelog"},
        pytest.param({"audit_columns": {"deleted": "_deleted"}}, marks=pytest.mark.every_server),
    ],
    ids=["changelog", "deleted_rows"],
)
def test_a_copy_with_a_history_keeps_its_types_until_it_is_deleted(
    read: Callable[..., list[Any]], mysql_database: Database, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Emptied, it would lose what can't be read again. Its table is parked, and comes back as the message says."""
    database = mysql_database
    job = mirror_of_numbers(database, tmp_path, **settings)
    database.execute("DELETE FROM t WHERE id = 2", "ALTER TABLE t MODIFY v VARCHAR(9)", "INSERT INTO t VALUES (3, 'x')")
    with pytest.raises(TablesParkedError, match="has v as int, not as string") as parked:
        run_epochs(job)
    assert read(database, "id")[:1] == [(1,)]
    assert "Delete that table and let the job create it" in str(parked.value)
    shutil.rmtree(tmp_path / "lake" / f"{database.schema}.t")
    run_epochs(job)
    held = [row for row in read(database, "id", "v") if row[0] is not None]  # without a changelog's `truncate`
    assert held == rows_of(database, "t", ("id", "v"))


@pytest.mark.every_server
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "settings", [{"style": "changelog"}, {"audit_columns": {"deleted": "_deleted"}}], ids=["changelog", "deleted_rows"]
)
def test_a_copy_with_a_history_keeps_it_where_delta_widens_the_type(
    read: Callable[..., list[Any]],
    delta_session: SparkSession,
    mysql_database: Database,
    tmp_path: Path,
    settings: dict[str, Any],
) -> None:
    """By the statements that docs/delta.md has for it."""
    database = mysql_database
    job = mirror_of_numbers(database, tmp_path, **settings)
    database.execute("DELETE FROM t WHERE id = 2")
    run_epochs(job)
    database.execute("ALTER TABLE t MODIFY v BIGINT", "INSERT INTO t VALUES (3, 5000000000)")
    with pytest.raises(TablesParkedError, match="has v as int, not as bigint"):
        run_epochs(job)
    widen(delta_session, f"{tmp_path}/lake/{database.schema}.t")
    run_epochs(job)
    database.execute("UPDATE t SET v = v + 1")
    run_epochs(job)
    if "style" in settings:
        kinds = [kind for n, kind in read(database, "id", "_change_type") if n == 2]
        assert sorted(kinds) == ["delete", "insert"]
        held = read(database, "id", "v", "_change_type")
        assert (3, 5000000001, "update_postimage") in held
        return
    assert read(database, "id", "v", "_deleted") == [(1, 2, False), (2, None, True), (3, 5000000001, False)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("key", "keeps_feed"),
    [
        ("INT", False),
        pytest.param("VARCHAR(9)", False, marks=pytest.mark.every_server),
        pytest.param("INT", True, marks=pytest.mark.every_server),
    ],
)
def test_a_copy_with_a_change_data_feed_and_column_mapping_gets_other_types(
    read: Callable[..., list[Any]],
    delta_session: SparkSession,
    mysql_database: Database,
    tmp_path: Path,
    key: str,
    *,
    keeps_feed: bool,
) -> None:
    """Without the feed, as the message says. `keeps_feed`: by the statements for wider types that docs/delta.md has."""
    database = mysql_database
    job = mirror_of_numbers(database, tmp_path, key=key)
    folder = tmp_path / "lake" / f"{database.schema}.t"
    properties = "'delta.columnMapping.mode' = 'name', 'delta.enableChangeDataFeed' = 'true'"
    delta_session.sql(f"ALTER TABLE delta.`{folder}` SET TBLPROPERTIES ({properties})")
    before = read(database, "id", "v")
    database.execute("ALTER TABLE t MODIFY v BIGINT", "INSERT INTO t VALUES (3, 5000000000)")
    for _ in range(2):  # the second start finds the table parked
        with pytest.raises(TablesParkedError, match=r"has v as int, not as bigint\. With change data feed") as parked:
            run_epochs(job)
        assert read(database, "id", "v") == before
    found = re.search(r"Turn its change data feed off \((.*?'false'\))\), and on again", str(parked.value))
    assert found is not None
    if keeps_feed:
        widen(delta_session, str(folder))
    else:
        delta_session.sql(found[1])
    run_epochs(job)
    assert read(database, "id", "v") == rows_of(database, "t", ("id", "v"))
    if not keeps_feed:
        delta_session.sql(found[1].replace("'false'", "'true'"))
    version = newest_version(folder)
    database.execute("UPDATE t SET v = v + 1 WHERE v > 1")
    run_epochs(job)
    assert read(database, "id", "v") == rows_of(database, "t", ("id", "v"))
    feed = delta_session.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version + 1)
    changes = feed.load(str(folder)).select("v", "_change_type").collect()
    assert sorted(map(tuple, changes)) == [(5000000000, "update_preimage"), (5000000001, "update_postimage")]


def widen(session: SparkSession, folder: str) -> None:
    """Runs the statements of docs/delta.md for the column v."""
    text = (ROOT / "docs" / "delta.md").read_text()
    statements = re.findall(
        r"^ALTER TABLE delta\.`/lake/shop.orders` .*(?:TypeWidening|TYPE BIGINT).*;$", text, re.MULTILINE
    )
    assert len(statements) == 2
    for statement in statements:
        session.sql(statement.replace("/lake/shop.orders", folder).replace("amount", "v").rstrip(";"))


def session_settings_now(session: SparkSession) -> list[str]:
    return list(session._jsparkSession.conf().getAll().keys().mkString("\n").split("\n"))


def mirror_of_numbers(database: Database, folder: Path, key: str = "INT", **settings: Any) -> Path:
    """Returns a job that has copied a table of two rows."""
    database.execute(f"CREATE TABLE t (id {key} PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, NULL)")
    sink = {"type": "delta", "path": "./lake", "style": "mirror", "on_schema_change": "evolve"}
    job = write_job(folder, source=source_of(database, on_table_error="park"), sink=sink | settings)
    run_epochs(job)
    return job


@pytest.mark.every_server
@pytest.mark.parametrize("style", ["mirror", "changelog"])
def test_all_rows_are_read_again_after_the_log_was_lost(
    read: Callable[..., list[Any]], postgres18_database: Database, tmp_path: Path, style: str
) -> None:
    database = postgres18_database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, name text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')"
    )
    sink = {"type": "delta", "path": "./lake", "style": style}
    job = write_job(tmp_path, source=source_of(database, on_log_lost="resnapshot"), sink=sink)
    run_epochs(job)
    database.execute("DELETE FROM t WHERE id = 3", "UPDATE t SET name = 'd' WHERE id = 2")
    lose_log(database)
    database.execute("INSERT INTO t VALUES (4, 'e')")
    run_epochs(job)
    changes = {"insert": 6, "truncate": 1}
    for _ in range(2):
        if style == "mirror":
            assert read(database, "id", "name") == database.query("SELECT id, name FROM t ORDER BY id")
        else:
            assert Counter(kind for _, kind in read(database, "id", "_change_type")) == changes
        database.execute("UPDATE t SET name = 'f'")
        run_epochs(job)
        changes = {"insert": 6, "truncate": 1, "update_postimage": 3}


@pytest.mark.every_server
@pytest.mark.pitfall(90)
@pytest.mark.parametrize(
    "is_late", [pytest.param(False, marks=pytest.mark.every_server), True], ids=["restored", "resnapshot"]
)
def test_a_table_that_was_set_back_is_put_back_as_the_remedy_says(
    read: Callable[..., list[Any]],
    delta_session: SparkSession,
    mysql_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_late: bool,
) -> None:
    """`is_late`: it is set back between the look at it and the commit of an epoch, so that no version of it has all epochs. The
    driver dies before its second look."""
    database = mysql_database
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    job = write_job(tmp_path, source=source_of(database), sink={"type": "delta", "path": "./lake", "style": "mirror"})
    run_epochs(job)
    database.execute("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (3, 'c')")
    run_epochs(job)
    whole = read(database, "id", "name")
    database.execute("INSERT INTO t VALUES (4, 'd')")
    commit = EpochWriter._commit

    def set_back(*given: Any) -> None:
        delta_session.sql(f"RESTORE TABLE delta.`{tmp_path}/lake/{database.schema}.t` TO VERSION AS OF 1")
        assert read(database, "id", "name") != whole
        if given:
            commit(*given)

    if is_late:
        with monkeypatch.context() as patch:
            patch.setattr(EpochWriter, "_commit", set_back)
            patch.setattr(EpochWriter, "_look_back", lambda *_: None)
            run_epochs(job)
    else:
        set_back()
    with pytest.raises(SinkError, match="was set back by RESTORE") as caught:
        run_epochs(job)
    if is_late:
        assert f"tidemark signal JOB.yaml resnapshot --table {database.schema}.t" in caught.value.remedy
        resnapshot(load_job_file(job), [TableName(database.schema, "t")])
        run_epochs(job)
        state = Checkpoint.at(str(tmp_path / "checkpoint")).job_state()
        assert state is not None
        assert [joined.replaced for joined in state.joined] == [()], (
            "only a commit of all rows tells that none is missing"
        )
    else:
        _, restore, rest = caught.value.remedy.partition("RESTORE TABLE")
        delta_session.sql(restore + rest.partition(", and start the job again")[0])
    for _ in range(2):
        run_epochs(job)
        assert read(database, "id", "name") == database.query("SELECT id, name FROM t ORDER BY id")
        database.execute("UPDATE t SET name = 'f'")
