"""Remedies for trouble while rows are read, of any source, done as they are printed: the job goes on, and its copies are those
of the source."""

import re
from pathlib import Path

import pytest

from tests.support.cli import CommandLine
from tests.support.copy_troubles import CREATE
from tests.support.epochs import run_epochs
from tests.support.remedies import run_command
from tests.support.remedy_ways import mirror_job, require_copies, start_over, told_by, told_of
from tests.support.rewriting import closing_at, rewriting
from tests.support.room import files_of_at_most
from tests.support.servers import Database
from tidemark.conf import reconnect
from tidemark.readers.snapshot import gathered_rows

pytestmark = pytest.mark.integration


def wide_rows(source: Database, target: Database, folder: Path) -> Path:
    """A job of a table whose rows take a megabyte. What its runs need was compiled before."""
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    (folder / "other").mkdir()
    other = mirror_job(folder / "other", source, target, sink={"table": "other_{table}"})
    for _ in range(2):
        assert told_by(other) is None
        source.execute("INSERT INTO orders VALUES (-1, 'a')", "UPDATE orders SET note = 'b'", "DELETE FROM orders")
    source.execute(f"INSERT INTO orders VALUES {', '.join(f'({n}, repeat(uuid(), 100))' for n in range(300))}")
    target.execute("DROP TABLE other_orders", "DELETE FROM tidemark_tables")
    return mirror_job(folder, source, target)


def go_on(job: Path, source: Database, target: Database, *settings: str) -> None:
    assert told_by(job, *settings) is None
    source.execute("UPDATE orders SET note = 'z'", "INSERT INTO orders VALUES (9999, 'n')")
    assert told_by(job, *settings) is None
    require_copies(source, target)


def test_a_checkpoint_without_room(mysql_database: Database, postgres_database: Database, tmp_path: Path) -> None:
    source, job = mysql_database, wide_rows(mysql_database, postgres_database, tmp_path)
    with files_of_at_most(100_000):
        told_of(job, "Make room there, then run the job again: it continues.")
    go_on(job, source, postgres_database)


def test_a_folder_for_splits_without_room(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathered_rows, "SPILL_BYTES", 1)
    source, job = mysql_database, wide_rows(mysql_database, postgres_database, tmp_path)
    with files_of_at_most(300_000):
        told_of(job, "Free space there, or let TMPDIR name another folder on the executors. Then run the job again.")
    go_on(job, source, postgres_database)


def test_a_condition_that_fails_for_a_row(
    postgres_database: Database, mysql_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    source = postgres_database
    source.execute(*CREATE)
    source.execute(
        "CREATE FUNCTION fits(int) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END'",
    )
    job = mirror_job(tmp_path, source, mysql_database)
    told_of(job, "Or correct snapshot.where, and start over", 'snapshot.where={public.orders: "public.fits(id)"}')
    start_over(job, source, mysql_database, tidemark)
    go_on(job, source, mysql_database)


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_a_truncation_while_rows_are_read(
    kind: str, request: pytest.FixtureRequest, tidemark: CommandLine, tmp_path: Path
) -> None:
    source: Database = request.getfixturevalue(f"{kind}_database")
    target: Database = request.getfixturevalue("mysql_database" if kind == "postgres" else "postgres_database")
    source.execute(CREATE[0], f"INSERT INTO orders VALUES {', '.join(f'({n}, 0)' for n in range(60))}")
    job = mirror_job(tmp_path, source, target)
    few = ("snapshot.split_rows=20", "snapshot.parallelism=1", "snapshot.interleave=false")
    run_epochs(job, *few, at_most=1)
    source.execute("TRUNCATE TABLE orders")
    told_of(job, "Do not run TRUNCATE while rows are copied.", *few)
    start_over(job, source, target, tidemark)
    go_on(job, source, target, *few)


def test_a_connection_that_breaks_when_the_lease_is_taken(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnect, "FIRST_DELAY_SECONDS", 0.001)
    source = mysql_database
    source.execute(*CREATE)
    job = mirror_job(tmp_path, source, postgres_database)
    with rewriting(source.server, of_client=closing_at(b"GET_LOCK")) as port:
        url = source.server.url.replace(f":{source.server.port}", f":{port}")
        told_of(job, "Start the job again.", f"source.url={url}")
    go_on(job, source, postgres_database)


def test_a_transform_needs_values_that_the_log_leaves_out(
    postgres_database: Database, mysql_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    source, target = postgres_database, mysql_database
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text, long text)",
        "ALTER TABLE orders ALTER long SET STORAGE EXTERNAL, REPLICA IDENTITY FULL",
        "INSERT INTO orders VALUES (1, 'a', repeat('x', 9000))",
    )
    transforms = 'transforms={public.orders: "SELECT id, note, length(long) AS size FROM input"}'
    job = mirror_job(tmp_path, source, target)
    assert told_by(job, transforms) is None
    source.execute("ALTER TABLE orders REPLICA IDENTITY DEFAULT", "UPDATE orders SET note = 'b'")
    source.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    told = told_of(job, "Let the log contain whole rows (ALTER TABLE", transforms)
    source.execute(*re.findall(r"ALTER TABLE \S+ REPLICA IDENTITY FULL", told))
    while (told_more := told_by(job, transforms)) is not None:
        assert told == told_more
        start_over(job, source, target, tidemark)
    source.execute("UPDATE orders SET note = 'c'")
    assert told_by(job, transforms) is None
    assert target.query("SELECT id, note, size FROM copy_orders") == [(1, "c", 9000)]


@pytest.mark.parametrize("way", ["excluded", "evolve"])
def test_new_columns_that_may_be_renamed_ones(
    mysql_database: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path, way: str
) -> None:
    source, target = mysql_database, postgres_database
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text, a int)", "INSERT INTO orders VALUES (1, 'a', 1)"
    )
    changes = {"add_column": "ignore", "drop_column": "drop"}
    job = mirror_job(tmp_path, source, target, sink={"on_schema_change": changes})
    assert told_by(job) is None
    source.execute("ALTER TABLE orders DROP a, ADD b int")
    told = told_of(job, "Then run the job again. If the table is parked")
    settings = f"source.columns={{{source.name}.orders: {{exclude: [b]}}}}"
    assert settings.partition("=")[2].replace("[b]", "[…]") in told
    if way == "evolve":
        settings = "sink.on_schema_change={add_column: evolve, drop_column: drop}"
    done = ""
    while (more := told_by(job, settings)) is not None:
        assert more != done
        done = more
        run_command(more, job, tidemark)
    source.execute("UPDATE orders SET note = 'z'")
    assert told_by(job, settings) is None
    columns = "id, note" if way == "excluded" else "id, note, b"
    require_copies(source, target, columns)
