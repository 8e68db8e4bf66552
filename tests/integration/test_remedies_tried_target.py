"""Remedies for trouble with a copy of a mirror, done as they are printed, whether its table is parked or the job stops: the job
goes on, and the copy is that of the source."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import run_epochs
from tests.support.remedies import advice_of, commands_in, run_command, run_through
from tests.support.remedy_ways import mirror_job
from tests.support.servers import Database

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
NARROW = "ALTER TABLE copy_orders ALTER note TYPE varchar(1)"

TO_POSTGRES = {
    "a narrowed column is widened": Trouble(
        (NARROW,), WRITE, FITS, ("ALTER TABLE copy_orders ALTER note TYPE varchar(90)",)
    ),
    "a narrowed copy is dropped": Trouble((NARROW,), WRITE, FITS, ("DROP TABLE copy_orders",)),
    "a column that must have a value may be null": Trouble(
        ("ALTER TABLE copy_orders ALTER note SET NOT NULL",),
        "INSERT INTO orders VALUES (3, NULL)",
        FITS,
        ("ALTER TABLE copy_orders ALTER note DROP NOT NULL",),
    ),
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
    "a narrowed column is widened": Trouble(
        ("UPDATE copy_orders SET note = 'a'", "ALTER TABLE copy_orders MODIFY note varchar(1)"),
        WRITE,
        FITS,
        ("ALTER TABLE copy_orders MODIFY note varchar(90) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",),
    ),
    "a narrowed copy is dropped": Trouble(
        ("UPDATE copy_orders SET note = 'a'", "ALTER TABLE copy_orders MODIFY note varchar(1)"),
        WRITE,
        FITS,
        ("DROP TABLE copy_orders",),
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
    for table, order in (("orders", "id"), ("others", "id")):
        query = "SELECT * FROM {} ORDER BY {}"
        assert target.query(query.format(f"copy_{table}", order)) == source.query(query.format(table, order))


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
