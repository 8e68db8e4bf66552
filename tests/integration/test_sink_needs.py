"""A table without a key is refused before a job starts, for each sink that finds rows again."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs.sources import find_source
from tidemark.jobs.startup import hold_job
from tidemark.state.errors import SourceNotUsableError

pytestmark = pytest.mark.integration

MIRRORS: list[dict[str, Any]] = [
    {"type": "mirror", "url": "mysql://copy:secret@nowhere.invalid/copies"},
    {"type": "delta", "path": "./lake"},
    {"type": "delta", "path": "./lake", "style": "mirror"},
]
LOGS: list[dict[str, Any]] = [
    {"type": "delta", "path": "./lake", "style": "changelog"},
    {"type": "files", "path": "./out"},
    {"type": "console"},
]


@pytest.fixture(params=["mysql", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(f"{request.param}_database")
    found.execute("CREATE TABLE notes (text varchar(20))")
    if found.kind == "postgres":
        found.execute("ALTER TABLE notes REPLICA IDENTITY FULL")
    return found


def refusals(database: Database, folder: Path, sink: dict[str, Any]) -> list[str]:
    job = load_job_file(write_job(folder, source=source_of(database), sink=sink))
    with find_source(job) as found:
        return [finding.message for finding in found.findings if finding.severity == "refuse"]


def test_mirrors_take_no_table_without_a_key(database: Database, tmp_path: Path) -> None:
    expected = f"{database.schema}.notes has no primary key: a mirror can't tell its rows apart."
    for sink in MIRRORS:
        assert refusals(database, tmp_path, sink) == [expected], sink


def test_sinks_that_append_take_them(database: Database, tmp_path: Path) -> None:
    for sink in LOGS:
        assert refusals(database, tmp_path, sink) == [], sink


def test_a_start_is_refused_before_anything_is_durable(database: Database, tmp_path: Path) -> None:
    job = load_job_file(write_job(tmp_path, source=source_of(database), sink={"type": "delta", "path": "./lake"}))
    with pytest.raises(SourceNotUsableError, match="has no primary key"), hold_job(job, Notes()):
        raise AssertionError("the job was started")
    assert not (tmp_path / "checkpoint/job").exists()
