"""MariaDB 11.8 leaves generated columns out of the log of updates and deletes. They are not copied then."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.databases import fresh_database
from tests.support.cli import CommandLine
from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.remedies import run_command, run_through, setting_in
from tests.support.servers import Database, FindServer
from tidemark.readers.mysql import connect
from tidemark.state.errors import TablesParkedError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(32)]

GENERATED = "v INT AS (id + n) VIRTUAL, s INT AS (id * n) STORED, h INT GENERATED ALWAYS AS (n) VIRTUAL INVISIBLE"


@pytest.fixture(name="source")
def _source(find_server: FindServer) -> Iterator[Database]:
    with fresh_database(find_server("mariadb", version="11.8")) as database:
        yield database


def changes(table: str) -> list[str]:
    return [
        f"UPDATE {table} SET n = n + 1 WHERE id = 1",
        f"UPDATE {table} SET id = id + 10 WHERE id > 1 ORDER BY id DESC",
        f"INSERT INTO {table} (id, n) VALUES (4, NULL)",
        f"DELETE FROM {table} WHERE id = 13",
        f"REPLACE INTO {table} (id, n, t) VALUES (4, 5, 'new')",
    ]


class Copied:
    """A job that copies the table a, and another one, into a mirror on the same server."""

    def __init__(self, source: Database, target: Database, folder: Path, **more: Any) -> None:
        self.source, self.target = source, target
        source.execute(
            f"CREATE TABLE a (id INT PRIMARY KEY, n INT, {GENERATED}, t TEXT)",
            "INSERT INTO a (id, n, t) VALUES (1, 1, 'a'), (2, NULL, NULL), (3, 3, 'c')",
            "CREATE TABLE other (id INT PRIMARY KEY)",
        )
        self.path = write_job(
            folder,
            source=source_of(source, on_table_error="park", **more),
            sink={"type": "mirror", "url": target.url, "table": "{table}", "on_schema_change": "evolve"},
        )

    def run(self, *overrides: str) -> list[str]:
        """Returns the tables that left, came back or were parked, and the warnings."""
        run_epochs(self.path, *overrides, notes=(notes := Notes()))
        told = [event for event, _ in notes.found if event in {"left", "joined", "parked"}]
        return told + [facts["text"] for event, facts in notes.found if event == "warning"]

    def change(self) -> None:
        self.source.execute(*changes("a"))

    def differs(self, columns: str = "id, n, t") -> bool:
        query = f"SELECT {columns} FROM a ORDER BY id"
        return self.source.query(query) != self.target.query(query)


@pytest.fixture(name="copied")
def _copied(source: Database, tmp_path: Path) -> Iterator[Copied]:
    with fresh_database(source.server) as target:
        yield Copied(source, target, tmp_path)


def test_they_are_not_copied_and_the_table_is_followed(copied: Copied) -> None:
    (warning,) = copied.run()
    assert "not copied, because the log lacks them: v, s, h" in warning
    for _ in range(2):
        copied.change()
        assert copied.run() == [warning]
        assert not copied.differs()
    assert [row[0] for row in copied.target.query("SHOW COLUMNS FROM a")] == ["id", "n", "t"]


def test_a_server_that_begins_to_leave_them_out(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was upgraded. Once the log lacks them, the table is read again without them. The copy's columns stay, and are NULL."""
    monkeypatch.setattr(connect, "LACKS_GENERATED_SINCE", (99, 0, 0))
    assert copied.run() == []
    assert not copied.differs("id, n, t, v, s, h")
    monkeypatch.undo()
    for told in ([], ["left", "joined"], []):
        assert [event for event in copied.run() if "not copied" not in event] == told
        assert not copied.differs()
        copied.change()
    assert copied.target.query("SELECT DISTINCT v, s, h FROM a") == [(None, None, None)]


def test_a_server_that_should_log_them_and_does_not(
    copied: Copied, monkeypatch: pytest.MonkeyPatch, tidemark: CommandLine
) -> None:
    monkeypatch.setattr(connect, "LACKS_GENERATED_SINCE", (99, 0, 0))
    assert copied.run() == []
    copied.change()
    assert copied.run() == ["parked"]
    with pytest.raises(TablesParkedError) as parked:
        run_through(copied.path)
    remedy = str(parked.value)
    setting = setting_in(remedy)
    run_command(remedy, copied.path, tidemark)
    assert copied.run(setting) == ["joined"]
    copied.change()
    assert copied.run(setting) == []
    assert not copied.differs()


def test_rows_that_are_smaller_than_a_bit_for_each_column(source: Database, tmp_path: Path) -> None:
    more = ", ".join(f"g{number} TINYINT AS (id) VIRTUAL" for number in range(24))
    source.execute(f"CREATE TABLE a (id TINYINT PRIMARY KEY, n INT, {more})", "INSERT INTO a (id) VALUES (1), (2), (3)")
    with fresh_database(source.server) as target:
        sink = {"type": "mirror", "url": target.url, "table": "{table}"}
        job = write_job(tmp_path, source=source_of(source), sink=sink)
        run_epochs(job)
        source.execute("DELETE FROM a WHERE id = 1", "UPDATE a SET id = 20 WHERE id = 2")
        run_epochs(job)
        assert target.query("SELECT id, n FROM a ORDER BY id") == [(3, None), (20, None)]
