"""Remedies for trouble with a copy of a mirror, done as they are printed, whether its table is parked or the job stops: the job
goes on, and the copy is that of the source."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.remedies import advice_of, commands_in, run_command, run_through
from tests.support.remedy_ways import mirror_job
from tests.support.servers import Database
from tests.support.sink_state import SinkCase

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Trouble:
    """`made`: what the user does to the copy of `orders (id, note)`. `written`: what the source writes then. `says`: what the
    text tells to do by hand, and `done`, statements of it; none if the command of the text is all. `types`: of the columns."""

    made: tuple[str, ...]
    written: str
    says: str
    done: tuple[str, ...] = ()
    key: str = "int"
    note: str = "varchar(90)"


WRITE = "INSERT INTO orders VALUES (3, 'c')"
FITS = "Drop that table, or change it so that it fits"
ALTERS = "It changes the copy so that it fits."
NARROW = "ALTER TABLE copy_orders ALTER note TYPE varchar(1)"
MORE = (
    "ALTER TABLE copy_orders ADD more int NOT NULL DEFAULT 1",
    "ALTER TABLE copy_orders ALTER more DROP DEFAULT",
)

TO_POSTGRES = {
    "a column that was narrowed": Trouble((NARROW,), WRITE, ALTERS),
    "a column that was dropped": Trouble(("ALTER TABLE copy_orders DROP note",), WRITE, ALTERS),
    "a column that must have a value": Trouble(
        ("ALTER TABLE copy_orders ALTER note SET NOT NULL",), "INSERT INTO orders VALUES (3, NULL)", ALTERS
    ),
    "another column that must have a value may be null": Trouble(
        MORE, WRITE, FITS, ("ALTER TABLE copy_orders ALTER more DROP NOT NULL",)
    ),
    "a copy with such a column is dropped": Trouble(MORE, WRITE, FITS, ("DROP TABLE copy_orders",)),
    "an index that the copy violates is dropped": Trouble(
        ("CREATE UNIQUE INDEX one ON copy_orders (note)",),
        "INSERT INTO orders VALUES (3, 'a')",
        "or drop that index",
        ("DROP INDEX one",),
    ),
    "foreign keys are dropped": Trouble(
        (
            "CREATE TABLE notes (note varchar(90) PRIMARY KEY)",
            "INSERT INTO notes VALUES ('a'), ('b')",
            "ALTER TABLE copy_orders ADD CONSTRAINT known FOREIGN KEY (note) REFERENCES notes",
        ),
        WRITE,
        "Drop them: a mirror deletes rows and inserts them again",
        ("ALTER TABLE copy_orders DROP CONSTRAINT known",),
    ),
    "a trigger that skips rows is removed": Trouble(
        (
            "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
            "CREATE TRIGGER skips BEFORE INSERT ON copy_orders FOR EACH ROW EXECUTE FUNCTION skip()",
        ),
        WRITE,
        "Remove the triggers and rules of that table",
        ("DROP TRIGGER skips ON copy_orders",),
    ),
    "a trigger that raises is removed": Trouble(
        (
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END'",
            "CREATE TRIGGER raises BEFORE INSERT ON copy_orders FOR EACH ROW EXECUTE FUNCTION no()",
        ),
        WRITE,
        "Correct the cause that the server names",
        ("DROP TRIGGER raises ON copy_orders",),
    ),
    "a check is dropped": Trouble(
        ("ALTER TABLE copy_orders ADD CONSTRAINT small CHECK (id < 3)",),
        WRITE,
        "Correct the cause that the server names",
        ("ALTER TABLE copy_orders DROP CONSTRAINT small",),
    ),
    "rows that were removed": Trouble(("TRUNCATE copy_orders",), WRITE, ""),
}
TO_MYSQL = {
    "a column that was narrowed": Trouble(
        ("UPDATE copy_orders SET note = 'a'", "ALTER TABLE copy_orders MODIFY note varchar(1)"), WRITE, ALTERS
    ),
    "another column that must have a value may be null": Trouble(
        ("ALTER TABLE copy_orders ADD more int NOT NULL",),
        WRITE,
        FITS,
        ("ALTER TABLE copy_orders MODIFY more int",),
    ),
    "a copy with such a column is dropped": Trouble(
        ("ALTER TABLE copy_orders ADD more int NOT NULL",), WRITE, FITS, ("DROP TABLE copy_orders",)
    ),
    "an index that the copy violates is dropped": Trouble(
        ("CREATE UNIQUE INDEX one ON copy_orders (note(9))",),
        "INSERT INTO orders VALUES (3, 'a')",
        "or drop that index",
        ("DROP INDEX one ON copy_orders",),
    ),
    "a trigger that raises is removed": Trouble(
        ("CREATE TRIGGER raises BEFORE INSERT ON copy_orders FOR EACH ROW SIGNAL SQLSTATE '45000'",),
        WRITE,
        "Correct the cause that the server names",
        ("DROP TRIGGER raises",),
    ),
    "a check is dropped": Trouble(
        ("ALTER TABLE copy_orders ADD CONSTRAINT small CHECK (id < 3)",),
        WRITE,
        "Correct the cause that the server names",
        ("ALTER TABLE copy_orders DROP CHECK small",),
    ),
    "a copy that was dropped": Trouble(("DROP TABLE copy_orders",), WRITE, ""),
}


def check(job: Path, source: Database, target: Database, trouble: Trouble, tidemark: CommandLine) -> None:
    create(source, trouble)
    run_epochs(job)
    target.execute(*trouble.made)
    source.execute(trouble.written, "INSERT INTO others VALUES (1)")
    advice = advice_of(job)
    assert trouble.says in advice, advice
    target.execute(*trouble.done)
    if commands_in(advice):
        run_command(advice, job, tidemark)
    run_through(job)
    compare(source, target)
    source.execute("UPDATE orders SET note = 'z' WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    run_through(job)
    compare(source, target)


def create(source: Database, trouble: Trouble) -> None:
    source.execute(
        f"CREATE TABLE orders (id {trouble.key} PRIMARY KEY, note {trouble.note})",
        "INSERT INTO orders VALUES (1, 'a'), (2, 'b')",
        "CREATE TABLE others (id int PRIMARY KEY)",
    )


def compare(source: Database, target: Database) -> None:
    for table, columns in (("orders", "id, note"), ("others", "id")):
        query = f"SELECT {columns} FROM %s ORDER BY id"
        assert target.query(query % f"copy_{table}") == source.query(query % table)


def in_turn(names: Collection[str]) -> list[Any]:
    """Each name with one policy, the policies in turn, and with the other one for EVERY_SERVER=1."""
    both = [
        (name, ("park", "stop")[(number + other) % 2], other) for number, name in enumerate(names) for other in (0, 1)
    ]
    return [
        pytest.param(name, policy, marks=pytest.mark.every_server if other else (), id=f"{name}-{policy}")
        for name, policy, other in both
    ]


@pytest.mark.parametrize(("name", "policy"), in_turn(TO_POSTGRES))
def test_a_copy_in_postgresql(
    mysql_database: Database,
    postgres_database: Database,
    tidemark: CommandLine,
    tmp_path: Path,
    name: str,
    policy: str,
) -> None:
    job = mirror_job(tmp_path, mysql_database, postgres_database, on_table_error=policy)
    check(job, mysql_database, postgres_database, TO_POSTGRES[name], tidemark)


@pytest.mark.parametrize(("name", "policy"), in_turn(TO_MYSQL))
def test_a_copy_in_mysql(
    mysql_database: Database,
    postgres_database: Database,
    tidemark: CommandLine,
    tmp_path: Path,
    name: str,
    policy: str,
) -> None:
    job = mirror_job(tmp_path, postgres_database, mysql_database, on_table_error=policy)
    check(job, postgres_database, mysql_database, TO_MYSQL[name], tidemark)


@pytest.mark.servers_in_turn("sink")
@pytest.mark.parametrize("policy", ["park", "stop"])
@pytest.mark.parametrize("sink", ["postgres", "parquet"])
def test_a_target_from_before_a_table_joined(
    mysql_database: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path, sink: str, policy: str
) -> None:
    """The copy of that table is missing, and no other."""
    source, table = mysql_database, f"{mysql_database.name}_later"
    target = SinkCase(sink, None, postgres_database if sink == "postgres" else tmp_path / "out")  # type: ignore[arg-type]
    written = (
        {"type": "mirror", "url": postgres_database.url} if sink == "postgres" else {"type": "files", "path": "./out"}
    )
    job = write_job(
        tmp_path, source=source_of(source, on_table_error=policy), sink=written | {"on_schema_change": "evolve"}
    )
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)", "INSERT INTO orders VALUES (1, 'a'), (2, 'b')"
    )
    for note in "cd":
        run_through(job)
        source.execute(f"UPDATE orders SET note = '{note}'")
    run_through(job)
    put_back = target.back_up()
    source.execute("CREATE TABLE later (id int PRIMARY KEY, note text)", "INSERT INTO later VALUES (1, 'a'), (2, 'b')")
    run_through(job)
    put_back()
    if sink == "postgres":
        postgres_database.execute(f"DROP TABLE {table}")
    source.execute("INSERT INTO later VALUES (3, 'c')", "UPDATE orders SET note = 'e'")
    advice = advice_of(job)
    assert "later is not marked as written by this job" in advice
    assert commands_in(advice) == [["signal", "JOB.yaml", "resnapshot", "--table", f"{source.name}.later"]]
    run_command(advice, job, tidemark)
    run_through(job, "source.on_log_lost=resnapshot")
    for name in ("orders", "later"):
        rows = source.query(f"SELECT id, note FROM {name} ORDER BY id")
        assert newest_rows(target, source, name) == rows, name


def newest_rows(target: SinkCase, source: Database, name: str) -> list[tuple[Any, ...]]:
    if target.kind == "postgres":
        return target.place.query(f"SELECT id, note FROM {source.name}_{name} ORDER BY id")
    found: dict[int, tuple[Any, ...]] = {}
    for change in read_history(target.place, source.name, name).to_pylist():
        if change["_change_type"] == "truncate":
            found.clear()
        else:
            found[change["id"]] = (change["id"], change["note"])
    return sorted(found.values())
