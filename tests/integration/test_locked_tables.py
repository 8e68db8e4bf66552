"""A table that another session keeps locked: the log and the other tables go on, and no run waits without limit."""

import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.jobs import loop
from tidemark.jobs.epoch.planner import Planner
from tidemark.jobs.loop import EpochLoop
from tidemark.readers import long_waits, session
from tidemark.readers.mysql import connect as mysql_connect
from tidemark.readers.postgres import connect as postgres_connect
from tidemark.readers.postgres import source as postgres_source
from tidemark.readers.postgres.partitions import checks
from tidemark.readers.postgres.slot import publication
from tidemark.readers.snapshot import split_reader
from tidemark.state.errors import SourceNotUsableError, TableLockedError

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family]


@contextlib.contextmanager
def locked(database: Database, table: str, monkeypatch: pytest.MonkeyPatch, *, planned: bool = False) -> Iterator[None]:
    """Inside the block everybody is kept from reading the table, from the moment on when a job begins to plan its first epoch,
    or has planned it."""
    next_epoch, has_lock = Planner.next_epoch, threading.Event()
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:

        def lock() -> None:
            if has_lock.is_set():
                return
            has_lock.set()
            if database.kind == "postgres":
                cursor.execute("SET application_name = 'nightly'")
                cursor.execute(f"BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            else:
                cursor.execute(f"LOCK TABLES {table} WRITE")

        def plan(self: Planner, committed: int, **settings: Any) -> int:
            if not planned:
                lock()
            epoch = next_epoch(self, committed, **settings)
            lock()
            return epoch

        monkeypatch.setattr(Planner, "next_epoch", plan)
        yield


def job_of(source: Database, folder: Path, **settings: Any) -> Path:
    for table in ("held", "free"):
        source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1), (2)")
    sink = {"type": "files", "path": str(folder / "out"), "on_schema_change": "evolve"}
    return write_job(folder, source=source_of(source, on_table_error="park"), sink=sink, **settings)


def ending(text: str) -> str:
    """The statement that the text prints: it ends the session that has the lock."""
    found = re.search(r"End it, or (SELECT pg_terminate_backend\(\d+\))\.", text)
    assert found is not None, text
    return found[1]


def ids(folder: Path, source: Database, table: str) -> list[int]:
    ids: list[int] = read_history(folder / "out", source.schema, table).column("id").to_pylist()
    return sorted(number for number in ids if number is not None)  # None: the copy was emptied


def test_the_log_is_followed_until_the_lock_is_gone(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, waited = postgres_database, list[str]()
    path = job_of(source, tmp_path)
    monkeypatch.setattr(loop, "WARN_SECONDS", 0.0)
    with locked(source, "held", monkeypatch):

        def wait(self: EpochLoop, planner: Planner) -> None:
            if not waited:
                waited.extend(planner.locked.values())
                source.execute("INSERT INTO free VALUES (3)")
                planner.end_at_log_end()
            elif 3 in ids(tmp_path, source, "free"):  # the log was read although rows of a table are left
                source.execute(ending(waited[0]))

        monkeypatch.setattr(EpochLoop, "_wait_for_tables", wait)
        run_epochs(path, notes=(notes := Notes()))
    assert "application nightly" in waited[0]
    (text,) = [facts["text"] for event, facts in notes.found if event == "warning" and "No rows" in facts["text"]]
    assert waited[0] in text
    assert ids(tmp_path, source, "held") == [1, 2]
    assert ids(tmp_path, source, "free") == [1, 2, 3]


def test_a_run_that_ends_by_itself_does_not_wait_without_limit(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job_of(postgres_database, tmp_path, mode="full")
    monkeypatch.setattr(loop, "LOCKED_SECONDS", 0.0)
    with (
        locked(postgres_database, "held", monkeypatch),
        pytest.raises(TableLockedError, match="application nightly") as error,
    ):
        run_epochs(path)
    assert error.value.exit_code == 7
    assert ids(tmp_path, postgres_database, "free") == [1, 2]
    assert error.value.remedy == "Then run the job again."
    run_epochs(path)
    assert ids(tmp_path, postgres_database, "held") == [1, 2]


@pytest.mark.parametrize(("kind", "planned"), [("mysql", False), ("mariadb", True), ("postgres", True)])
def test_a_table_that_is_locked_when_its_rows_are_read_stops_no_other(
    kind: str, planned: bool, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Database = request.getfixturevalue(f"{kind}_database")
    path = job_of(source, tmp_path)
    monkeypatch.setattr(postgres_connect, "LOCK_SECONDS", 1)
    monkeypatch.setattr(postgres_source, "JOINING_WAIT_SECONDS", 0.5)
    monkeypatch.setitem(mysql_connect._SESSION, "lock_wait_timeout", "1")
    monkeypatch.setattr(split_reader, "READ_ATTEMPTS", 1)
    monkeypatch.setattr(session, "ATTEMPTS", 1)
    with locked(source, "held", monkeypatch, planned=planned):
        run_epochs(path, notes=(notes := Notes()))
    name = f"{source.schema}.held"
    left, *_, last = [facts["text"] for event, facts in notes.found if facts.get("table") == name and "text" in facts]
    assert "locked" in left
    assert "So it leaves the job, and comes back" in left
    assert ("application nightly" in left) == (kind == "postgres")
    assert "It comes back by itself" in last
    assert ids(tmp_path, source, "free") == [1, 2]
    run_epochs(path)
    assert ids(tmp_path, source, "held") == [1, 2]


def test_a_table_that_is_locked_when_a_job_starts_again_is_followed(
    mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows were read before: the log has all that is missing."""
    source = mysql_database
    path = job_of(source, tmp_path)
    run_epochs(path)
    source.execute("INSERT INTO held VALUES (3)")
    monkeypatch.setitem(mysql_connect._SESSION, "lock_wait_timeout", "1")
    with contextlib.closing(source.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("LOCK TABLES held WRITE")
        run_epochs(path, notes=(notes := Notes()))
    assert not [event for event, _ in notes.found if event in {"left", "joined", "parked"}]
    assert ids(tmp_path, source, "held") == [1, 2, 3]


def test_a_partition_that_is_locked_when_a_job_starts_again_is_followed(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VACUUM FULL and CLUSTER lock it for as long as they run. What a start asks of it is in the catalogs."""
    source = postgres_database
    path = job_of(source, tmp_path)
    source.execute(
        "DROP TABLE held",
        "CREATE TABLE held (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE held_low PARTITION OF held FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE held_high PARTITION OF held FOR VALUES FROM (10) TO (20)",
        "INSERT INTO held VALUES (1), (11)",
    )
    run_epochs(path)
    source.execute("INSERT INTO held VALUES (2)", "INSERT INTO free VALUES (3)")
    monkeypatch.setitem(postgres_connect.SESSION, "lock_timeout", "1s")  # instead of none: whoever waits fails
    with contextlib.closing(source.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN; LOCK TABLE held_high IN ACCESS EXCLUSIVE MODE")
        run_epochs(path, notes=(notes := Notes()))
    assert not [event for event, _ in notes.found if event in {"left", "joined", "parked"}]
    assert ids(tmp_path, source, "held") == [1, 2, 11]
    assert ids(tmp_path, source, "free") == [1, 2, 3]


def test_a_first_start_says_who_keeps_it_from_publishing_a_table(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock keeps nobody from reading. It is released once the wait is told."""
    source, told = postgres_database, list[str]()
    path = job_of(source, tmp_path)
    monkeypatch.setattr(publication, "ATTEMPT_SECONDS", 0.1)
    monkeypatch.setattr(long_waits, "WARN_SECONDS", 0.0)
    with contextlib.closing(source.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET application_name = 'nightly'; BEGIN; LOCK TABLE held IN SHARE MODE")
        with monkeypatch.context() as sooner:
            sooner.setattr(publication, "SETTLE_SECONDS", 0.05)
            with pytest.raises(SourceNotUsableError, match="application nightly") as error:
                run_epochs(path)
        assert ending(error.value.remedy)

        def tell(text: str) -> None:
            told.append(text)
            source.execute(ending(text))

        with long_waits.waits_told_to(tell):
            run_epochs(path)
    assert "application nightly" in told[0]
    assert f"keeps {source.schema}.held locked" in told[0]
    assert ids(tmp_path, source, "held") == ids(tmp_path, source, "free") == [1, 2]


def test_a_partition_that_stays_locked_while_its_rows_are_looked_at_stops_no_other_table(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, told = postgres_database, list[str]()
    source.execute(
        "CREATE TABLE held (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p0 PARTITION OF held FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE free (id int PRIMARY KEY)",
        "INSERT INTO held VALUES (1)",
    )
    sink = {"type": "files", "path": str(tmp_path / "out"), "on_schema_change": "evolve"}
    path = write_job(tmp_path, source=source_of(source, tables=["public.held", "public.free"]), sink=sink)
    run_epochs(path)
    source.execute(
        "CREATE TABLE p10 (LIKE held INCLUDING ALL)",
        "ALTER TABLE held ATTACH PARTITION p10 FOR VALUES FROM (10) TO (20)",
        "INSERT INTO held VALUES (11)",
        "INSERT INTO free VALUES (3)",
    )
    monkeypatch.setattr(checks, "LOOK_SECONDS", 1)
    monkeypatch.setattr(postgres_source, "LOOK_ATTEMPTS", 2)
    monkeypatch.setattr(long_waits, "WARN_SECONDS", 0.0)
    with contextlib.closing(source.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET application_name = 'nightly'; BEGIN; LOCK TABLE p10 IN ACCESS EXCLUSIVE MODE")

        class Releasing(Notes):
            def note(self, event: str, **facts: Any) -> None:
                super().note(event, **facts)
                if event == "left":
                    source.execute(ending(told[0]))

        with long_waits.waits_told_to(told.append):
            run_epochs(path, notes=(notes := Releasing()))
    (left,) = [facts["text"] for event, facts in notes.found if event == "left"]
    for text in (told[0], left):
        assert "application nightly" in text
        assert "keeps public.held locked" in text
    assert ids(tmp_path, source, "free") == [3]
    assert ids(tmp_path, source, "held")[-2:] == [1, 11]
