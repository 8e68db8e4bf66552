"""Changes of a copy by somebody else that nobody notices: the claims of docs/guarantees.md that are about a target."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database

pytestmark = pytest.mark.integration


class Mirrored:
    """A job that mirrors a table of three rows, once it has."""

    def __init__(self, source: Database, target: Database, folder: Path) -> None:
        self.source, self.target = source, target
        source.execute(
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9), w VARCHAR(9))",
            "INSERT INTO t VALUES (1, 'a', 'a'), (2, 'b', 'b'), (3, 'c', 'c')",
        )
        sink = {"type": "mirror", "url": target.url, "table": "copy_{table}"}
        self.path = write_job(folder, source=source_of(source), sink=sink)
        run_epochs(self.path)

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, self.target.query("SELECT id, v, w FROM copy_t")))


@pytest.fixture(params=["mysql", "mariadb", "postgres"])
def mirrored(request: pytest.FixtureRequest, mysql_nogtid_database: Database, tmp_path: Path) -> Mirrored:
    return Mirrored(mysql_nogtid_database, request.getfixturevalue(f"{request.param}_database"), tmp_path)


def test_rows_that_somebody_changed_stay_until_they_change_in_the_source(mirrored: Mirrored) -> None:
    """Then the whole row is written again."""
    mirrored.target.execute(
        "UPDATE copy_t SET v = 'x', w = 'x' WHERE id < 3",
        "DELETE FROM copy_t WHERE id = 3",
        "INSERT INTO copy_t VALUES (9, 'y', 'y')",
    )
    mirrored.source.execute("UPDATE t SET v = 'new' WHERE id = 1")
    run_epochs(mirrored.path)
    assert mirrored.rows() == [(1, "new", "a"), (2, "x", "x"), (9, "y", "y")]
    mirrored.source.execute("UPDATE t SET v = 'new' WHERE id > 1", "INSERT INTO t VALUES (9, 'z', 'z')")
    run_epochs(mirrored.path)
    assert mirrored.rows() == [(1, "new", "a"), (2, "new", "b"), (3, "new", "c"), (9, "z", "z")]


def test_a_copy_that_somebody_emptied_gets_what_changes_from_then_on(mirrored: Mirrored) -> None:
    mirrored.target.execute("DELETE FROM copy_t")
    mirrored.source.execute("UPDATE t SET v = 'new' WHERE id = 1")
    run_epochs(mirrored.path)
    assert mirrored.rows() == [(1, "new", "a")]
    if mirrored.target.kind != "postgres":  # there it is noticed
        mirrored.target.execute("TRUNCATE copy_t")
        mirrored.source.execute("UPDATE t SET v = 'new' WHERE id = 2")
        run_epochs(mirrored.path)
        assert mirrored.rows() == [(2, "new", "b")]


def test_a_copy_that_is_replaced_by_an_older_one_stays_so_until_its_rows_change(mirrored: Mirrored) -> None:
    """As after a restore of this table alone."""
    like = "(LIKE copy_t INCLUDING ALL)" if mirrored.target.kind == "postgres" else "LIKE copy_t"
    mirrored.target.execute(f"CREATE TABLE older {like}", "INSERT INTO older SELECT * FROM copy_t")
    mirrored.source.execute("UPDATE t SET v = 'new'")
    run_epochs(mirrored.path)
    mirrored.target.execute("DROP TABLE copy_t", "ALTER TABLE older RENAME TO copy_t")
    mirrored.source.execute("UPDATE t SET w = 'new' WHERE id = 1")
    run_epochs(mirrored.path)
    assert mirrored.rows() == [(1, "new", "new"), (2, "b", "b"), (3, "c", "c")]


@pytest.mark.servers_in_turn("target")
@pytest.mark.parametrize("target", ["mysql", "mariadb", "postgres"])
@pytest.mark.parametrize("remedy", ["resnapshot", "reconcile"])
def test_a_schema_of_the_target_that_is_restored_without_the_ledger_gets_its_rows_by_a_signal_or_a_repair(
    request: pytest.FixtureRequest,
    mysql_nogtid_database: Database,
    tmp_path: Path,
    tidemark: CommandLine,
    target: str,
    remedy: str,
) -> None:
    """A backup of the schema with the copies, but not of the one with `tidemark_ledger`, is put back."""
    source, home = mysql_nogtid_database, request.getfixturevalue(f"{target}_database")
    source.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')"
    )
    copies, kept = f"{home.name}_copies", f"{home.name}_kept"
    cascade = " CASCADE" if target == "postgres" else ""
    sink = {"type": "mirror", "url": home.url, "table": f"{copies}.{{table}}"}
    job = write_job(tmp_path, source=source_of(source), sink=sink)
    try:
        run_epochs(job)
        like = "(LIKE {} INCLUDING ALL)" if target == "postgres" else "LIKE {}"
        copy = "CREATE TABLE {1} {0}", "INSERT INTO {1} SELECT * FROM {2}"

        def copied(of: str, to: str) -> list[str]:
            return [text.format(like.format(of), to, of) for text in copy]

        home.execute(f"CREATE SCHEMA {kept}", *copied(f"{copies}.t", f"{kept}.t"))
        source.execute(
            "UPDATE t SET v = 'new' WHERE id > 1", "INSERT INTO t VALUES (4, 'd')", "DELETE FROM t WHERE id = 1"
        )
        run_epochs(job)
        home.execute(f"DROP SCHEMA {copies}{cascade}", f"CREATE SCHEMA {copies}", *copied(f"{kept}.t", f"{copies}.t"))
        source.execute("UPDATE t SET v = 'newer' WHERE id = 3")
        run_epochs(job)  # nothing says that it is older
        rows = f"SELECT id, v FROM {copies}.t ORDER BY id"
        assert list(home.query(rows)) == [(1, "a"), (2, "b"), (3, "newer")]
        if remedy == "resnapshot":
            assert tidemark("signal", job, "resnapshot", "--table", f"{source.schema}.t").code == 0
        else:
            assert tidemark("reconcile", job, "--repair").code == 8
        run_epochs(job)
        assert list(home.query(rows)) == source.query("SELECT id, v FROM t ORDER BY id")
    finally:
        home.execute(f"DROP SCHEMA IF EXISTS {copies}{cascade}", f"DROP SCHEMA IF EXISTS {kept}{cascade}")


def test_a_file_that_somebody_deleted_or_changed_stays_so(mysql_database: Database, tmp_path: Path) -> None:
    source = mysql_database
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    path = write_job(tmp_path, source=source_of(source), sink={"type": "files", "path": str(tmp_path / "out")})
    run_epochs(path)
    for number in (2, 3):
        source.execute(f"INSERT INTO t VALUES ({number})")
        run_epochs(path)
    folder = tmp_path / "out" / f"{source.name}.t"
    split, second, third = sorted(folder.glob("e*"), key=lambda file: file.stat().st_mtime_ns)
    second.unlink()
    third.write_bytes(split.read_bytes())
    source.execute("INSERT INTO t VALUES (4)")
    run_epochs(path)
    assert sorted(read_history(tmp_path / "out", source.name, "t")["id"].to_pylist()) == [1, 1, 4]
