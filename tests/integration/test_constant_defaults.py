"""A table that gets columns with a constant default is followed into mirrors: the copy's rows get the constant
(docs/adr/0033)."""

from pathlib import Path

import pytest

from tests.support.altered_tables import POINTS, copied, create, job_of, rows_of, told
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.servers import Database

pytestmark = [
    pytest.mark.integration,
    pytest.mark.once_per_family,
    pytest.mark.servers_in_turn(always="postgres18_server"),
]
OTHER_SERVER = {"mysql": "mariadb", "mariadb": "postgres", "postgres": "mysql"}
WRITES_BEFORE = (
    "UPDATE t SET name = 'older' WHERE id = 2",
    "DELETE FROM t WHERE id = 3",
    "INSERT INTO t (id, name) VALUES (8, 'h')",
)
WRITES_AFTER = (
    "UPDATE t SET more = 10 WHERE id = 1",
    "UPDATE t SET name = 'newer' WHERE id = 5",
    "INSERT INTO t (id, name, more) VALUES (9, 'i', NULL)",
    "INSERT INTO t (id) VALUES (10)",
)
ADDS = "ALTER TABLE t ADD COLUMN more INT DEFAULT 5"


@pytest.mark.servers_in_turn
@pytest.mark.parametrize("point", [None, "sink.after_adding", *POINTS])
def test_through_a_kill(
    any_source_database: Database,
    twin_database: Database,
    tmp_path: Path,
    point: str | None,
) -> None:
    database, target, notes = any_source_database, twin_database, Notes()
    job = copied(database, tmp_path, target)
    database.execute(*WRITES_BEFORE, ADDS, *WRITES_AFTER)
    if point is not None:
        die_at(job, point, notes=notes)
    run_epochs(job, notes=notes)
    assert told(notes) in ([], ["altered"])
    columns = ("id", "name", "more")
    assert rows_of(target, "copy_t", *columns) == rows_of(database, "t", *columns)
    target.execute("INSERT INTO copy_t (id) VALUES (100)")
    assert rows_of(target, "copy_t", "more")[-1] == (None,)


def test_into_another_kind_of_server(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    database, notes = any_source_database, Notes()
    target: Database = request.getfixturevalue(f"{OTHER_SERVER[database.kind]}_database")
    job = copied(database, tmp_path, target)
    definitions = {
        "n": "SMALLINT NOT NULL DEFAULT -3",
        "b": "BOOLEAN DEFAULT TRUE",
        "s": "VARCHAR(20) DEFAULT 'a b'",
        "x": "TEXT DEFAULT 'it''s \\'" if database.kind == "postgres" else "VARCHAR(9) NOT NULL DEFAULT ''",
        "d": "DECIMAL(10, 3) DEFAULT 1.5",
        "f": "DOUBLE PRECISION DEFAULT 0.25",
        "day": "DATE DEFAULT '2024-02-29'",
        "at": "TIMESTAMP DEFAULT '2024-02-29 01:02:03'"
        if database.kind == "postgres"
        else "DATETIME DEFAULT '2024-02-29'",
        "e": "JSONB DEFAULT '{}'" if database.kind == "postgres" else "ENUM('x', 'y') DEFAULT 'y'",
    }
    database.execute(
        "UPDATE t SET name = 'older' WHERE id = 2",
        *(f"ALTER TABLE t ADD COLUMN {name} {definition}" for name, definition in definitions.items()),
        "UPDATE t SET name = 'newer', n = 4, b = FALSE WHERE id = 5",
    )
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered"]
    columns = [name for name in definitions if name != "e"]
    assert rows_of(target, "copy_t", "id", "name", *columns) == rows_of(database, "t", "id", "name", *columns)
    texts = [str(text) for (text,) in rows_of(database, "t", "e")]
    assert [str(text) for (text,) in rows_of(target, "copy_t", "e")] == texts
    target.execute("INSERT INTO copy_t (id) VALUES (100)")
    assert rows_of(target, "copy_t", *definitions)[-1] == (None,) * len(definitions)
    run_epochs(job)


@pytest.mark.parametrize(("default", "outcome"), [(5, ["altered"]), (7, ["left", "joined"])])
def test_a_column_that_the_copy_has_already(
    any_source_database: Database, twin_database: Database, tmp_path: Path, default: int, outcome: list[str]
) -> None:
    database, target, notes = any_source_database, twin_database, Notes()
    job = copied(database, tmp_path, target)
    target.execute(f"ALTER TABLE copy_t ADD COLUMN more INT DEFAULT {default}")
    database.execute(*WRITES_BEFORE, ADDS, *WRITES_AFTER)
    run_epochs(job, notes=notes)
    assert told(notes) == outcome
    assert rows_of(target, "copy_t", "id", "more") == rows_of(database, "t", "id", "more")


def test_texts_are_compared_exactly(any_source_database: Database, twin_database: Database, tmp_path: Path) -> None:
    """A collation may take other texts for the same."""
    database, target, notes = any_source_database, twin_database, Notes()
    job = copied(database, tmp_path, target)
    target.execute("ALTER TABLE copy_t ADD COLUMN more VARCHAR(9) DEFAULT 'New'")
    database.execute("ALTER TABLE t ADD COLUMN more VARCHAR(9) DEFAULT 'new'", "INSERT INTO t (id) VALUES (20)")
    run_epochs(job, notes=notes)
    assert told(notes) == ["left", "joined"]
    assert rows_of(target, "copy_t", "id", "more") == rows_of(database, "t", "id", "more")


@pytest.mark.pitfall(42)
def test_the_negative_zero_is_no_constant(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    """MySQL and MariaDB read its literal as zero."""
    database, target, notes = any_source_database, twin_database, Notes()
    job = copied(database, tmp_path, target)
    database.execute("ALTER TABLE t ADD COLUMN more DOUBLE PRECISION DEFAULT '-0'", "INSERT INTO t (id) VALUES (9)")
    run_epochs(job, notes=notes)
    assert told(notes)[-2:] == ["left", "joined"]
    texts = [str(row) for row in rows_of(database, "t", "id", "more")]
    assert [str(row) for row in rows_of(target, "copy_t", "id", "more")] == texts


@pytest.mark.pitfall(42)
@pytest.mark.parametrize("server", ["mysql", "mariadb"])
def test_numbers_that_no_log_has(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    database: Database = request.getfixturevalue(f"{server}_database")
    target: Database = request.getfixturevalue(f"{OTHER_SERVER[server]}_database")
    notes = Notes()
    job = copied(database, tmp_path, target)
    database.execute("SET sql_log_bin = 0", "ALTER TABLE t ADD COLUMN more INT NOT NULL AUTO_INCREMENT UNIQUE")
    database.execute("INSERT INTO t (id) VALUES (9)")
    run_epochs(job, notes=notes)
    assert told(notes) == ["left", "joined"]
    assert rows_of(target, "copy_t", "id", "more") == rows_of(database, "t", "id", "more")


def test_the_older_rows_of_partitions(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    """Also of a partition that was created since the job's last look, before the column and after it."""
    database, notes = postgres18_database, Notes()
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20)) PARTITION BY RANGE (id)",
        "CREATE TABLE t_p0 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
    )
    job = job_of(database, tmp_path, postgres_database)
    run_epochs(job)
    database.execute(
        "CREATE TABLE t_p1 PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t VALUES (11, 'c')",
        ADDS,
        "ALTER TABLE t ALTER COLUMN more SET DEFAULT 6",
        "CREATE TABLE t_p2 PARTITION OF t FOR VALUES FROM (20) TO (30)",
        "INSERT INTO t (id) VALUES (12), (21)",
        "UPDATE t SET name = 'x' WHERE id = 2",
    )
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered"]
    assert rows_of(postgres_database, "copy_t", "id", "more") == [(1, 5), (2, 5), (11, 5), (12, 6), (21, 6)]


def test_partitions_with_other_values_are_read_again(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    """One of them was rewritten, so the catalog does not say what its older rows have."""
    database, notes = postgres18_database, Notes()
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20)) PARTITION BY RANGE (id)",
        "CREATE TABLE t_p0 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE t_p1 PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t VALUES (1, 'a'), (11, 'b')",
    )
    job = job_of(database, tmp_path, postgres_database)
    run_epochs(job)
    database.execute(ADDS, "VACUUM FULL t_p1")
    run_epochs(job, notes=notes)
    assert told(notes) == ["left", "joined"]
    assert rows_of(postgres_database, "copy_t", "id", "more") == [(1, 5), (11, 5)]


def test_old_rows_of_replica_identity_full(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    database, notes = postgres18_database, Notes()
    create(database)
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    job = job_of(database, tmp_path, postgres_database)
    run_epochs(job)
    database.execute(
        "UPDATE t SET id = 20 WHERE id = 1", ADDS, "UPDATE t SET id = 21 WHERE id = 2", "DELETE FROM t WHERE id = 3"
    )
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered"]
    assert rows_of(postgres_database, "copy_t", "id", "more") == rows_of(database, "t", "id", "more")
