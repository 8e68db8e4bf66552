"""A table that gets columns is followed: its rows are not read again if the columns are NULL in all of them
(docs/adr/0029)."""

import time
from pathlib import Path

import pytest

from tests.support.altered_tables import POINTS, copied, create, folded, history_of, job_of, rows_of, told
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.jobs import source_of
from tests.support.servers import Database

pytestmark = [
    pytest.mark.integration,
    pytest.mark.once_per_family,
    pytest.mark.servers_in_turn(always="postgres18_server"),
]


CHANGES = {
    "at the end": ("ALTER TABLE t ADD COLUMN more INT",),
    "two, one after the other": ("ALTER TABLE t ADD COLUMN more INT", "ALTER TABLE t ADD COLUMN note VARCHAR(9)"),
}
WRITES_BEFORE = (
    "UPDATE t SET name = 'older' WHERE id = 2",
    "DELETE FROM t WHERE id = 3",
    "INSERT INTO t (id, name) VALUES (8, 'h')",
)
WRITES_AFTER = (
    "UPDATE t SET more = 10 WHERE id IN (1, 2)",
    "DELETE FROM t WHERE id = 4",
    "INSERT INTO t (id, name, more) VALUES (9, 'i', 9), (10, 'j', NULL)",
)


@pytest.mark.parametrize("change", CHANGES)
def test_into_files(any_source_database: Database, tmp_path: Path, change: str) -> None:
    database, notes = any_source_database, Notes()
    job = copied(database, tmp_path)
    database.execute(*WRITES_BEFORE, *CHANGES[change], *WRITES_AFTER)
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered"]
    assert folded(tmp_path, database, "id", "name", "more") == rows_of(database, "t", "id", "name", "more")
    database.execute("UPDATE t SET more = 11 WHERE id < 9")
    run_epochs(job)
    assert folded(tmp_path, database, "id", "name", "more") == rows_of(database, "t", "id", "name", "more")
    assert history_of(tmp_path, database).column("_is_snapshot").to_pylist().count(True) == 7


@pytest.mark.servers_in_turn
@pytest.mark.parametrize("point", POINTS)
def test_into_a_mirror_through_a_kill(
    any_source_database: Database,
    twin_database: Database,
    tmp_path: Path,
    point: str,
) -> None:
    database, target = any_source_database, twin_database
    job = copied(database, tmp_path, target)
    database.execute(*WRITES_BEFORE, "ALTER TABLE t ADD COLUMN more INT", *WRITES_AFTER)
    die_at(job, point)
    run_epochs(job)
    columns = ("id", "name", "more")
    assert rows_of(target, "copy_t", *columns) == rows_of(database, "t", *columns)


NOT_NULL_IN_OLD_ROWS = (
    ("ALTER TABLE t ADD COLUMN more INT DEFAULT 5",),
    ("ALTER TABLE t ADD COLUMN more INT NOT NULL DEFAULT 5", "ALTER TABLE t ALTER COLUMN more DROP DEFAULT"),
    ("ALTER TABLE t ADD COLUMN more INT DEFAULT 5", "ALTER TABLE t ALTER COLUMN more SET DEFAULT NULL"),
    ("ALTER TABLE t ADD COLUMN more INT GENERATED ALWAYS AS (id + 1) STORED",),
)
REWRITTEN = (
    ("ALTER TABLE t ADD COLUMN more INT DEFAULT 5", "VACUUM FULL t"),
    ("ALTER TABLE t ADD COLUMN more INT DEFAULT 5", "ALTER TABLE t ALTER more DROP DEFAULT", "CLUSTER t USING t_pkey"),
    ("ALTER TABLE t ADD COLUMN more INT DEFAULT random() * 0 + 5", "ALTER TABLE t ALTER more DROP DEFAULT"),
)
OTHER_CHANGES = (
    # The log has values of the first column, which is gone.
    (
        "ALTER TABLE t ADD COLUMN more INT",
        "UPDATE t SET more = 1",
        "ALTER TABLE t DROP COLUMN more",
        "ALTER TABLE t ADD COLUMN more INT",
    ),
    ("ALTER TABLE t ADD COLUMN more INT", "ALTER TABLE t DROP COLUMN name"),
    (
        "ALTER TABLE t ADD COLUMN more INT",
        "DROP TABLE t",
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), more INT)",
    ),
    ("ALTER TABLE t RENAME COLUMN name TO more", "ALTER TABLE t ADD COLUMN name VARCHAR(20)"),
)


@pytest.mark.parametrize("statements", NOT_NULL_IN_OLD_ROWS + OTHER_CHANGES, ids=" / ".join)
def test_after_more_than_that_the_table_is_read_again(
    any_source_database: Database, tmp_path: Path, statements: tuple[str, ...]
) -> None:
    database, notes = any_source_database, Notes()
    job = copied(database, tmp_path)
    database.execute(*statements, "DELETE FROM t WHERE id = 5", "INSERT INTO other VALUES (1)")
    run_epochs(job, notes=notes)
    if database.kind == "postgres" and "GENERATED" in statements[0]:
        assert told(notes) == []  # PostgreSQL's log lacks generated columns: they are not copied
        return
    may_be_renamed = database.kind != "postgres"  # MySQL's columns have no numbers: docs/adr/0036
    is_dropped = "DROP COLUMN name" in statements[-1]
    assert told(notes)[-2:] == (["left", "joined"] if may_be_renamed or not is_dropped else ["altered"])
    columns = ["id", "more"] if is_dropped else ["id", "name", "more"]
    if "RENAME" in statements[0]:
        columns = ["id", "name", "more"]
    assert folded(tmp_path, database, *columns) == rows_of(database, "t", *columns)


@pytest.mark.parametrize("is_partitioned", [False, True], ids=["plain", "partitioned"])
@pytest.mark.parametrize("statements", REWRITTEN, ids=" / ".join)
def test_a_rewrite_hides_from_the_catalog_that_older_rows_have_values(
    postgres18_database: Database,
    postgres_database: Database,
    tmp_path: Path,
    statements: tuple[str, ...],
    is_partitioned: bool,
) -> None:
    """VACUUM FULL writes the column's values into the rows, which keep their transaction ids."""
    database, notes = postgres18_database, Notes()
    create(database)
    if is_partitioned:
        database.execute(
            "ALTER TABLE t RENAME TO p",
            "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20)) PARTITION BY RANGE (id)",
            "ALTER TABLE t ATTACH PARTITION p FOR VALUES FROM (0) TO (100)",
        )
        statements = tuple(text.replace("CLUSTER t USING t_pkey", "CLUSTER p USING t_pkey") for text in statements)
    source = source_of(database, on_table_error="park", tables=["public.t", "public.other"], partitions_removed="keep")
    job = job_of(database, tmp_path, postgres_database, source=source)
    run_epochs(job)
    database.execute(*statements, "INSERT INTO t (id, more) VALUES (20, 1)")
    run_epochs(job, notes=notes)
    columns = ("id", "name", "more")
    assert rows_of(postgres_database, "copy_t", *columns) == rows_of(database, "t", *columns)
    assert told(notes) == ["left", "joined"]


NAMES_IN_THE_LOG = (
    (
        "ALTER TABLE t ADD COLUMN more INT",
        "INSERT INTO t (id, more) VALUES (20, 1)",
        "ALTER TABLE t RENAME COLUMN more TO first",
        "ALTER TABLE t ADD COLUMN more INT",
    ),
    (
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "ALTER TABLE t ADD COLUMN more mood",
        "INSERT INTO t (id, more) VALUES (20, 'sad')",
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
    ),
    (
        "CREATE TYPE pair AS (a int, b int)",
        "ALTER TABLE t ADD COLUMN more pair[]",
        "INSERT INTO t (id, more) VALUES (20, '{\"(1,2)\"}')",
        "ALTER TYPE pair ADD ATTRIBUTE c int",
    ),
)


@pytest.mark.parametrize("statements", NAMES_IN_THE_LOG, ids=" / ".join)
def test_names_that_were_others_when_rows_were_logged(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path, statements: tuple[str, ...]
) -> None:
    """PostgreSQL's log has neither ALTER TABLE nor the numbers of columns."""
    database, notes = postgres18_database, Notes()
    job = copied(database, tmp_path, postgres_database)
    database.execute(*statements)
    run_epochs(job, notes=notes)
    columns = ("id", "name", "more::text", "first") if "first" in statements[2] else ("id", "name", "more::text")
    assert rows_of(postgres_database, "copy_t", *columns) == rows_of(database, "t", *columns)
    assert told(notes)[-2:] == ["left", "joined"]


def test_a_new_column_of_a_new_type_is_followed(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    database, notes = postgres18_database, Notes()
    job = copied(database, tmp_path, postgres_database)
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE pair AS (a mood, b int)",
        "ALTER TABLE t ADD COLUMN more pair",
        "INSERT INTO t (id, more) VALUES (20, '(ok,1)')",
    )
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered"]
    columns = ("id", "name", "more::text")
    assert rows_of(postgres_database, "copy_t", *columns) == rows_of(database, "t", *columns)


def test_a_copy_that_has_values_in_such_a_column_is_written_again(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    database, target, notes = any_source_database, twin_database, Notes()
    job = copied(database, tmp_path, target)
    target.execute("ALTER TABLE copy_t ADD COLUMN more INT DEFAULT 7")
    database.execute("ALTER TABLE t ADD COLUMN more INT", "INSERT INTO t (id, more) VALUES (20, 1)")
    run_epochs(job, notes=notes)
    assert told(notes) == ["left", "joined"]
    assert rows_of(target, "copy_t", "id", "more") == rows_of(database, "t", "id", "more")
    assert any("has values in column more" in facts.get("text", "") for _, facts in notes.found)


def test_a_table_whose_splits_the_log_has_not_passed_is_read_again(
    any_source_database: Database, tmp_path: Path
) -> None:
    """Some of its rows may have been read after the change, without the column."""
    database, notes = any_source_database, Notes()
    create(database)
    database.execute(f"INSERT INTO t VALUES {', '.join(f'({i}, NULL)' for i in range(100, 400))}")
    job = job_of(database, tmp_path, snapshot={"split_rows": 1, "parallelism": 1})
    run_epochs(job, at_most=2)
    database.execute("ALTER TABLE t ADD COLUMN more INT", "UPDATE t SET more = 1")
    run_epochs(job, notes=notes)
    assert told(notes) == ["left", "joined"]
    assert folded(tmp_path, database, "id", "name", "more") == rows_of(database, "t", "id", "name", "more")


def test_excluded_and_masked_columns_stay_so(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    database, target = any_source_database, twin_database
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), secret VARCHAR(20), email VARCHAR(20))",
        "INSERT INTO t VALUES (1, 'a', 's', 'e')",
    )
    columns = {f"{database.schema}.t": {"exclude": ["secret"], "mask": {"email": "sha256"}}}
    source = source_of(database, on_table_error="park", columns=columns, mask_key="0123456789abcdef")
    job = job_of(database, tmp_path, target, source=source)
    run_epochs(job)
    database.execute("ALTER TABLE t ADD COLUMN more INT", "INSERT INTO t VALUES (2, 'b', 't', 'e', 5)")
    run_epochs(job)
    assert rows_of(target, "copy_t", "id", "name", "more") == [(1, "a", None), (2, "b", 5)]
    ((masked,), again) = rows_of(target, "copy_t", "email")
    assert again == (masked,)
    assert masked != "e"
    database.execute("UPDATE t SET more = 6")
    run_epochs(job)
    assert rows_of(target, "copy_t", "id", "more") == [(1, 6), (2, 6)]


def test_a_copy_that_is_rightly_empty_gets_columns(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    """It is another file of the target then, and not one that somebody emptied."""
    database, target, notes = any_source_database, twin_database, Notes()
    job = copied(database, tmp_path, target)
    database.execute("DELETE FROM t")
    run_epochs(job)
    for number in range(2):
        database.execute(f"ALTER TABLE t ADD COLUMN more{number} INT")
        if database.kind != "postgres":
            time.sleep(1.1)  # MySQL's time of creation has seconds
        database.execute("INSERT INTO t (id) VALUES (1)", "DELETE FROM t")
        run_epochs(job, notes=notes)
    database.execute("INSERT INTO t (id, more1) VALUES (2, 2)")
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered", "altered"]
    assert rows_of(target, "copy_t", "id", "more0", "more1") == [(2, None, 2)]


def test_a_key_whose_columns_are_named_in_another_order_is_the_same(
    postgres18_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    source, target, notes = postgres18_database, mysql_database, Notes()
    table = (
        "CREATE TABLE t (id INT NOT NULL, part INT NOT NULL, name TEXT, UNIQUE (id, part), UNIQUE (part, id))",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_id_part_key",
        "INSERT INTO t VALUES (1, 5, 'a'), (2, 4, 'b'), (3, 3, 'c')",
    )
    job = copied(source, tmp_path, target, table)
    source.execute(
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_part_id_key",
        "ALTER TABLE t ADD COLUMN more INT",
        "UPDATE t SET more = 1 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    )
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered"]
    columns = ("id", "part", "name", "more")
    assert rows_of(target, "copy_t", *columns) == rows_of(source, "t", *columns)
