"""A table whose columns get wider types is followed: its rows are not read again (docs/adr/0044)."""

from pathlib import Path

import pytest

from tests.support.altered_tables import POINTS, copied, create, folded, job_of, rows_of, told
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.servers import Database, require_logged_generated_columns

pytestmark = [
    pytest.mark.integration,
    pytest.mark.once_per_family,
    pytest.mark.servers_in_turn(always="postgres18_server"),
]
OTHER_SERVER = {"mysql": "mariadb", "mariadb": "postgres", "postgres": "mysql"}
COLUMNS = {
    "mysql": {
        "s": ("VARCHAR(10) CHARACTER SET latin1", "VARCHAR(300) CHARACTER SET latin1"),
        "plain": ("VARCHAR(10)", "VARCHAR(20)"),
        "long_text": ("VARCHAR(10)", "MEDIUMTEXT"),
        "raw": ("VARBINARY(4)", "BLOB"),
        "e": ("ENUM('a','b')", "ENUM('a','b','c')"),
        "f": ("SET('x','y')", "SET('x','y','z','1','2','3','4','5','6')"),
        "d": ("DATETIME", "DATETIME(6)"),
    },
    "postgres": {
        "s": ("VARCHAR(10)", "VARCHAR(300)"),
        "plain": ("VARCHAR(10)", "VARCHAR"),
        "long_text": ("VARCHAR(10)", "TEXT"),
        "d": ("TIMESTAMP(0)", "TIMESTAMP(6)"),
    },
}
"""Types before and after, which have one Arrow type."""
NUMBERS = {
    "mysql": {
        "n1": ("TINYINT", "BIGINT"),
        "n2": ("SMALLINT UNSIGNED", "BIGINT UNSIGNED"),
        "n3": ("INT", "BIGINT"),
        "p": ("DECIMAL(6,2)", "DECIMAL(12,4)"),
    },
    "postgres": {"p": ("NUMERIC(6,2)", "NUMERIC(12,2)")},
}
VALUES = {
    "s": ("'\u00e9'", "'longer than ten \u00e9'"),
    "plain": ("'a '", "'longer than ten'"),
    "long_text": ("'b'", "'longer than ten'"),
    "raw": ("X'0001'", "X'000102030405'"),
    "e": ("'b'", "'c'"),
    "f": ("'x,y'", "'y,z,6'"),
    "d": ("'2024-02-29 01:02:03'", "'2024-02-29 01:02:03.123456'"),
    "n1": ("-7", "-9223372036854775808"),
    "n2": ("65535", "18446744073709551615"),
    "n3": ("NULL", "9223372036854775807"),
    "p": ("-1234.56", "12345678.99"),
}
"""A value of each column before and after."""
Columns = dict[str, tuple[str, str]]


def columns_of(database: Database, *, numbers: bool) -> Columns:
    kind = "postgres" if database.kind == "postgres" else "mysql"
    return COLUMNS[kind] | (NUMBERS[kind] if numbers else {})


def table_of(columns: Columns) -> list[str]:
    """The statements that create `t` and its rows."""
    body = "".join(f", {name} {before}" for name, (before, _) in columns.items())
    values = ", ".join(VALUES[name][0] for name in columns)
    rows = (f"INSERT INTO t VALUES ({i}, {values})" for i in range(1, 8))
    return [f"CREATE TABLE t (id INT PRIMARY KEY{body})", *rows]


def altering(database: Database, columns: Columns) -> list[str]:
    verb = "ALTER COLUMN {} TYPE {}" if database.kind == "postgres" else "MODIFY {} {}"
    return [f"ALTER TABLE t {verb.format(name, after)}" for name, (_, after) in columns.items()]


def writes(columns: Columns, number: int) -> list[str]:
    """`number` 0: before, 1: after the types are wider."""
    names, values = ", ".join(columns), ", ".join(VALUES[name][number] for name in columns)
    assignments = ", ".join(f"{name} = {VALUES[name][number]}" for name in columns)
    return [
        f"UPDATE t SET {assignments} WHERE id = {number + 1}",
        f"INSERT INTO t (id, {names}) VALUES ({20 + number}, {values})",
        f"DELETE FROM t WHERE id = {number + 3}",
    ]


@pytest.mark.servers_in_turn
@pytest.mark.parametrize("point", [None, "sink.after_widening", *POINTS])
def test_into_a_mirror_through_a_kill(
    any_source_database: Database,
    twin_database: Database,
    tmp_path: Path,
    point: str | None,
) -> None:
    database, target, notes = any_source_database, twin_database, Notes()
    columns = columns_of(database, numbers=True)
    job = copied(database, tmp_path, target, table=table_of(columns))
    database.execute(*writes(columns, 0), *altering(database, columns), *writes(columns, 1))
    if point is not None:
        die_at(job, point, notes=notes)
    run_epochs(job, notes=notes)
    assert told(notes) in ([], ["altered"])
    assert rows_of(target, "copy_t", "id", *columns) == rows_of(database, "t", "id", *columns)
    database.execute("DELETE FROM t WHERE id = 5", "INSERT INTO other VALUES (1)")
    run_epochs(job)
    assert rows_of(target, "copy_t", "id", *columns) == rows_of(database, "t", "id", *columns)


def test_into_another_kind_of_server(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    database, notes = any_source_database, Notes()
    target: Database = request.getfixturevalue(f"{OTHER_SERVER[database.kind]}_database")
    columns = columns_of(database, numbers=True)
    job = copied(database, tmp_path, target, table=table_of(columns))
    database.execute(*writes(columns, 0), *altering(database, columns), *writes(columns, 1))
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered"]
    readable = [name for name in columns if name not in {"raw", "f"}]
    assert rows_of(target, "copy_t", "id", *readable) == rows_of(database, "t", "id", *readable)


def test_into_files(any_source_database: Database, tmp_path: Path) -> None:
    database, notes = any_source_database, Notes()
    columns = columns_of(database, numbers=False)
    job = copied(database, tmp_path, table=table_of(columns))
    database.execute(*writes(columns, 0), *altering(database, columns), *writes(columns, 1))
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered"]
    readable = [name for name in columns if name != "f"]
    assert folded(tmp_path, database, "id", *readable) == rows_of(database, "t", "id", *readable)


def test_another_type_in_files_is_read_again(any_source_database: Database, tmp_path: Path) -> None:
    """Readers of the files could not put the two types together."""
    database, notes = any_source_database, Notes()
    columns = {"p": columns_of(database, numbers=True)["p"]}
    job = copied(database, tmp_path, table=table_of(columns))
    database.execute(*altering(database, columns), *writes(columns, 1))
    run_epochs(job, notes=notes)
    assert told(notes) == ["left", "joined"]


def test_wider_twice_with_looks_in_between(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    """The table also gets and loses a column. Then types that the job has not seen, and narrower ones, are read again."""
    database, target, notes = any_source_database, twin_database, Notes()
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR(5), gone INT)", "INSERT INTO t VALUES (1, 'a', 1)")
    job = job_of(database, tmp_path, target)
    run_epochs(job)
    verb = "ALTER COLUMN s TYPE" if database.kind == "postgres" else "MODIFY s"
    for number, length in enumerate((10, 20)):
        database.execute(
            f"INSERT INTO t (id, s) VALUES ({10 + number}, 'x')",
            f"ALTER TABLE t {verb} VARCHAR({length})",
            f"INSERT INTO t (id, s) VALUES ({20 + number}, '{'x' * length}')",
        )
        run_epochs(job, notes=notes)
    database.execute(
        "ALTER TABLE t DROP COLUMN gone", f"ALTER TABLE t {verb} VARCHAR(30)", "INSERT INTO t VALUES (30, 'z')"
    )
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered"] * 3
    assert rows_of(target, "copy_t", "id", "s") == rows_of(database, "t", "id", "s")
    database.execute(f"ALTER TABLE t {verb} VARCHAR(25)", "INSERT INTO t VALUES (31, 'y')")
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered"] * 3 + ["left", "joined"]
    assert rows_of(target, "copy_t", "id", "s") == rows_of(database, "t", "id", "s")


@pytest.mark.parametrize(("epochs", "interleave"), [(1, True), (2, True), (1, False)])
def test_while_the_rows_are_read(
    any_source_database: Database, twin_database: Database, tmp_path: Path, epochs: int, interleave: bool
) -> None:
    """The digits of a SELECT do not fit the type that the job knows."""
    database, target = any_source_database, twin_database
    columns = {"p": columns_of(database, numbers=True)["p"]}
    create(database, table_of(columns))
    snapshot = {"split_rows": 3, "parallelism": 1, "interleave": interleave}
    job = job_of(database, tmp_path, target, snapshot=snapshot)
    run_epochs(job, at_most=epochs)
    database.execute(*writes(columns, 0), *altering(database, columns), *writes(columns, 1))
    run_epochs(job)
    assert rows_of(target, "copy_t", "id", *columns) == rows_of(database, "t", "id", *columns)


LOSSY = {
    "of a constant's form": (
        "ALTER TABLE t ADD COLUMN more DATETIME DEFAULT '2024-01-01'",
        "ALTER TABLE t MODIFY more VARCHAR(30) CHARACTER SET utf8mb4 DEFAULT '2024-01-01'",
    ),
    "through a number": ("ALTER TABLE t MODIFY s INT", "ALTER TABLE t MODIFY s VARCHAR(20)"),
    "through a shorter text": ("ALTER TABLE t MODIFY s VARCHAR(2)", "ALTER TABLE t MODIFY s VARCHAR(20)"),
    "through another character set": (
        "ALTER TABLE t MODIFY s VARCHAR(20) CHARACTER SET ascii",
        "ALTER TABLE t MODIFY s VARCHAR(20) CHARACTER SET utf8mb4",
    ),
    "through the table's character set": (
        "ALTER TABLE t DEFAULT CHARACTER SET ascii",
        "ALTER TABLE t MODIFY s VARCHAR(20)",
        "ALTER TABLE t DEFAULT CHARACTER SET utf8mb4",
        "ALTER TABLE t MODIFY s VARCHAR(20) CHARACTER SET utf8mb4",
    ),
    "through the default character set of the database": (
        "ALTER TABLE t DEFAULT CHARACTER SET ascii",
        "ALTER TABLE t MODIFY s VARCHAR(20)",
        "ALTER TABLE t DEFAULT CHARACTER SET DEFAULT",
        "ALTER TABLE t MODIFY s VARCHAR(20) CHARACTER SET utf8mb4",
    ),
    "through NOT NULL": ("ALTER TABLE t MODIFY s VARCHAR(20) NOT NULL", "ALTER TABLE t MODIFY s VARCHAR(20)"),
    "through a CHANGE of names": (
        "ALTER TABLE t CHANGE s u VARCHAR(20), CHANGE u s VARCHAR(20)",
        "ALTER TABLE t MODIFY u VARCHAR(20)",
    ),
}


@pytest.mark.servers_in_turn("source_database")
@pytest.mark.parametrize("change", LOSSY)
def test_values_that_were_lost_on_the_way_are_read_again(
    source_database: Database, request: pytest.FixtureRequest, tmp_path: Path, change: str
) -> None:
    """The catalog shows only the last type."""
    if source_database.kind == "mysql" and "of the database" in change:
        pytest.skip("MySQL has no CHARACTER SET DEFAULT")
    database, notes = source_database, Notes()
    target: Database = request.getfixturevalue("postgres_database")
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR(10), u VARCHAR(10)) DEFAULT CHARACTER SET utf8mb4",
        "INSERT INTO t VALUES (1, '007', 'b'), (2, NULL, 'c')",
    )
    if "character" in change:
        database.execute("UPDATE t SET s = 'd\u00e9f' WHERE id = 1")
    job = job_of(database, tmp_path, target)
    run_epochs(job)
    database.execute("SET SESSION sql_mode = ''", *LOSSY[change])
    run_epochs(job, notes=notes)
    assert told(notes)[-2:] == ["left", "joined"]
    columns = ("id", "s", "u", "more") if "constant" in change else ("id", "s", "u")
    assert rows_of(target, "copy_t", *columns) == rows_of(database, "t", *columns)


def test_a_rewrite_that_looks_like_a_wider_type(
    postgres_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    database, notes = postgres_database, Notes()
    target: Database = request.getfixturevalue("mysql_database")
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR(10))", "INSERT INTO t VALUES (1, 'a')")
    job = job_of(database, tmp_path, target)
    run_epochs(job)
    database.execute("ALTER TABLE t ALTER COLUMN s TYPE VARCHAR(20) USING upper(s)")
    run_epochs(job, notes=notes)
    assert told(notes) == ["left", "joined"]
    assert rows_of(target, "copy_t", "id", "s") == [(1, "A")]


def test_generated_columns_show_the_new_type(
    source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A generated column may be computed from the form of a value. It changes in all rows, and the log has none of them."""
    database, notes = source_database, Notes()
    require_logged_generated_columns(database.server)
    target: Database = request.getfixturevalue("postgres_database")
    generated = "g VARCHAR(60) AS (CONCAT(p, ' ')) STORED, h VARCHAR(60) AS (CONCAT(d, ' ')) VIRTUAL"
    database.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, p DECIMAL(6,2), d DATETIME, {generated})",
        "INSERT INTO t (id, p, d) VALUES (1, 1.5, '2024-02-29 01:02:03')",
    )
    job = job_of(database, tmp_path, target)
    run_epochs(job)
    for change in ("p DECIMAL(12,4)", "d DATETIME(3)"):
        database.execute(f"ALTER TABLE t MODIFY {change}")
        run_epochs(job, notes=notes)
        assert rows_of(target, "copy_t", "id", "g", "h") == rows_of(database, "t", "id", "g", "h")
    assert told(notes) == ["left", "joined"] * 2
