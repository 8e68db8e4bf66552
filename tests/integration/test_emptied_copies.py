"""A mirror's table that somebody truncated, or dropped and created again: it is noticed before the next change is written, and
only that table is parked."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.engine import Engine

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(91)]


class Copied:
    """A job of two tables that are copied."""

    def __init__(self, target: Database, source: Database, folder: Path) -> None:
        self.target, self.source = target, source
        source.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, v int)",
            "CREATE TABLE notes (id int PRIMARY KEY, v int)",
            "INSERT INTO orders VALUES (1, 0), (2, 0), (3, 0)",
            "INSERT INTO notes VALUES (1, 0)",
        )
        url = target.url if target.kind == "postgres" else f"{target.server.url}{target.name}"
        sink: dict[str, Any] = {"type": "mirror", "url": url, "table": "copy_{table}"}
        self.path = write_job(folder, source=source_of(source, on_table_error="park"), sink=sink)
        assert self.run() == []
        while target.kind != "postgres" and self.created_just_now():
            pass

    def created_just_now(self) -> bool:
        """The servers know the second in which a table was created."""
        sql = "SELECT 1 FROM information_schema.tables WHERE create_time >= now() AND table_schema = %s"
        return bool(self.target.query(sql.replace("%s", f"'{self.target.name}'")))

    def run(self) -> list[dict[str, Any]]:
        run_epochs(self.path, notes=(notes := Notes()))
        return [facts for event, facts in notes.found if event == "parked"]

    def change(self) -> None:
        self.source.execute("UPDATE orders SET v = v + 1 WHERE id = 2", "UPDATE notes SET v = v + 1")

    def assert_parked(self, told: list[dict[str, Any]], why: str) -> None:
        assert [facts["table"] for facts in told] == [f"{self.source.schema}.orders"]
        assert why in told[0]["text"]
        assert "tidemark signal JOB.yaml resnapshot --table" in told[0]["text"]
        assert self.target.query("SELECT v FROM copy_notes") == self.source.query("SELECT v FROM notes")

    def assert_comes_back(self) -> None:
        resnapshot(load_job_file(self.path), [TableName(self.source.schema, "orders")])
        assert self.run() == []
        self.change()
        assert self.run() == []
        query = "SELECT id, v FROM {} ORDER BY id"
        assert self.target.query(query.format("copy_orders")) == self.source.query(query.format("orders"))


@pytest.fixture(params=["postgres", "mysql", "mariadb"])
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Copied:
    target: Database = request.getfixturevalue(f"{request.param}_database")
    source: Database = request.getfixturevalue("mysql_database" if request.param == "postgres" else "postgres_database")
    return Copied(target, source, tmp_path)


@pytest.mark.servers_in_turn("how")  # each target in one way
@pytest.mark.parametrize("how", ["between runs", "between epochs"])
def test_a_copy_that_was_created_again_parks_its_table(
    copied: Copied, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "ENGINE=InnoDB" if copied.target.kind != "postgres" else ""
    recreate = ("DROP TABLE copy_orders", f"CREATE TABLE copy_orders (id int PRIMARY KEY, v int) {kind}")
    copied.change()
    if how == "between runs":
        copied.target.execute(*recreate)
    else:
        before_an_epoch(copied, recreate, monkeypatch)
    copied.assert_parked(copied.run(), "was emptied or created again")
    copied.assert_comes_back()


@pytest.mark.parametrize("copied", ["postgres"], indirect=True)  # MySQL and MariaDB do not tell
@pytest.mark.parametrize("how", ["between runs", "between epochs"])
def test_a_copy_that_was_truncated_parks_its_table(copied: Copied, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copied.change()
    if how == "between runs":
        copied.target.execute("TRUNCATE TABLE copy_orders")
    else:
        before_an_epoch(copied, ("TRUNCATE TABLE copy_orders",), monkeypatch)
    copied.assert_parked(copied.run(), "was emptied or created again")
    copied.assert_comes_back()


def test_a_partitioned_copy_that_was_truncated_parks_its_table(
    postgres_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    postgres_database.execute(
        "CREATE TABLE copy_orders (id int PRIMARY KEY, v int) PARTITION BY HASH (id)",
        "CREATE TABLE p0 PARTITION OF copy_orders FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
        "CREATE TABLE p1 PARTITION OF copy_orders FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    )
    copied = Copied(postgres_database, mysql_database, tmp_path)
    copied.change()
    postgres_database.execute("TRUNCATE TABLE copy_orders")
    copied.assert_parked(copied.run(), "was emptied or created again")
    copied.assert_comes_back()
    copied.change()
    postgres_database.execute("VACUUM FULL p0")
    assert copied.run() == []


@pytest.mark.servers_in_turn("how")
@pytest.mark.parametrize("how", ["between runs", "between epochs"])
def test_a_copy_that_is_gone_parks_its_table(copied: Copied, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copied.change()
    if how == "between runs":
        copied.target.execute("DROP TABLE copy_orders")
    else:
        before_an_epoch(copied, ("DROP TABLE copy_orders",), monkeypatch)
    copied.assert_parked(copied.run(), "gone")
    copied.assert_comes_back()


def test_a_copy_that_was_rewritten_goes_on(copied: Copied) -> None:
    """Its rows are there: whether it was moved, compacted or restored does not matter, also if it is empty later."""
    rewrite = "VACUUM FULL copy_orders" if copied.target.kind == "postgres" else "ALTER TABLE copy_orders FORCE"
    copied.target.execute(rewrite)
    copied.change()
    assert copied.run() == []
    copied.source.execute("DELETE FROM orders")
    assert copied.run() == []
    copied.source.execute("INSERT INTO orders VALUES (7, 7)")
    assert copied.run() == []
    assert copied.target.query("SELECT id, v FROM copy_orders") == [(7, 7)]


def before_an_epoch(copied: Copied, statements: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The target changes while the job runs: after it was opened, before its next epoch."""
    left, run = [1], Engine.run

    def changed(engine: Engine, *arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            copied.target.execute(*statements)
        return run(engine, *arguments)

    monkeypatch.setattr(Engine, "run", changed)
