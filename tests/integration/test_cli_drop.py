"""`tidemark drop`: it asks, drops what the job made in its source, and says so."""

import io
from pathlib import Path

import pytest

from tests.support.cli import CommandLine, job_of
from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.lost_logs import kept_slots
from tests.support.postgres_roles import role
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs.sources import acquire_lease

pytestmark = pytest.mark.integration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def job(postgres_source_database: Database, tmp_path: Path) -> Path:
    """A job whose slot and publication exist, named after the database."""
    postgres_source_database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    sink = {"type": "files", "path": str(tmp_path / "out")}
    path = write_job(tmp_path, source=source_of(postgres_source_database), sink=sink)
    run_epochs(path)
    assert made(postgres_source_database) == (True, True)
    return path


def made(database: Database) -> tuple[bool, bool]:
    """Whether the slot exists, and whether the publication does."""
    (found,) = database.query(
        "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %(name)s),"
        " EXISTS (SELECT FROM pg_publication WHERE pubname = %(name)s)",
        {"name": database.name},
    )
    return bool(found[0]), bool(found[1])


@pytest.mark.pitfall(59)
def test_what_the_job_made_is_dropped_once(
    tidemark: CommandLine, job: Path, postgres_source_database: Database
) -> None:
    name = postgres_source_database.name
    (kept,) = kept_slots(postgres_source_database)
    ended = tidemark("drop", job, "--yes")
    told = [f"Dropped replication slot {slot}.\n" for slot in (name, kept)]
    assert (ended.code, ended.out) == (0, f"{''.join(told)}Dropped publication {name}.\n")
    assert kept_slots(postgres_source_database) == []
    assert made(postgres_source_database) == (False, False)
    again = tidemark("drop", job, "--yes")
    assert (again.code, "Nothing to drop" in again.out) == (0, True)
    ended = tidemark("run", job)
    assert (ended.code, "is gone" in ended.last_line) == (4, True)
    assert made(postgres_source_database) == (False, False)


@pytest.mark.parametrize(("answer", "left"), [("n\n", True), ("\n", True), ("y\n", False)])
def test_a_terminal_is_asked(
    tidemark: CommandLine,
    job: Path,
    postgres_source_database: Database,
    answer: str,
    left: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    ended = tidemark("drop", job)
    assert (ended.code, f"Drop replication slot {postgres_source_database.name}" in ended.out) == (0, True)
    assert ("Nothing was dropped." in ended.out) is left
    assert made(postgres_source_database) == (left, left)


def test_without_a_terminal_nothing_is_dropped(
    tidemark: CommandLine, job: Path, postgres_source_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    ended = tidemark("drop", job)
    assert (ended.code, "--yes" in ended.last_line) == (2, True)
    assert made(postgres_source_database) == (True, True)


def test_a_job_that_runs_keeps_its_slot(tidemark: CommandLine, job: Path, postgres_source_database: Database) -> None:
    with acquire_lease(load_job_file(job), wait=False):
        ended = tidemark("drop", job, "--yes")
    assert (ended.code, "Stop it first" in ended.last_line) == (6, True)
    assert made(postgres_source_database) == (True, True)


def test_a_publication_of_another_role_is_left(
    tidemark: CommandLine, job: Path, postgres_source_database: Database
) -> None:
    database = postgres_source_database
    with role(database, attributes="LOGIN REPLICATION") as endpoint:
        url = (
            f"postgresql://{endpoint.user}:{endpoint.password.get_secret_value()}@{database.server.host}:"
            f"{database.server.port}/{database.name}"
        )
        ended = tidemark("drop", job, "--yes", "--set", f"source.url={url}")
    assert ended.code == 0
    assert f"Dropped replication slot {database.name}." in ended.out
    assert f"Kept publication {database.name}: it belongs to postgres" in ended.out
    assert made(database) == (False, True)


def test_a_slot_that_is_not_a_jobs_is_left(
    tidemark: CommandLine, job: Path, postgres_source_database: Database
) -> None:
    """A standby may need it: nothing tells otherwise."""
    database, standby = postgres_source_database, f"{postgres_source_database.name}_s"
    database.execute(f"SELECT pg_create_physical_replication_slot('{standby}')")
    try:
        ended = tidemark("drop", job, "--yes", "--set", f"source.slot={standby}")
        assert (ended.code, "can't read the replication slot" in ended.last_line) == (3, True)
        query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
        assert database.query(query, (standby,)) == [(1,)]
        assert made(database) == (True, True)
    finally:
        database.execute(f"SELECT pg_drop_replication_slot('{standby}')")


def test_other_sources_have_nothing_to_drop(tidemark: CommandLine, shop: Database, tmp_path: Path) -> None:
    ended = tidemark("drop", job_of(tmp_path, shop))
    assert (ended.code, ended.out) == (
        0,
        "Nothing to drop: job test-job creates nothing in a MySQL or MariaDB source.\n",
    )
