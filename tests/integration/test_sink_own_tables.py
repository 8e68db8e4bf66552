"""A mirror's database as a source: Tidemark's own tables in it are never copied."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database, fresh_database
from tidemark.conf.load import load_job_file
from tidemark.jobs.sources import find_source
from tidemark.state.errors import SourceNotUsableError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(93)]


@pytest.fixture
def copies(mysql_database: Database) -> Iterator[Database]:
    with fresh_database(mysql_database.server) as database:
        yield database


@pytest.fixture(params=["copies", "postgres_database"])
def mirror(request: pytest.FixtureRequest, mysql_database: Database, tmp_path: Path) -> Database:
    """A database that a mirror has filled."""
    found: Database = request.getfixturevalue(request.param)
    mysql_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    sink = {"type": "mirror", "url": found.url, "table": "{table}"}
    folder = tmp_path / "first"
    folder.mkdir()
    assert run_epochs(write_job(folder, source=source_of(mysql_database), sink=sink))
    return found


def test_globs_never_match_them(mirror: Database, tmp_path: Path) -> None:
    mirror.execute("CREATE TABLE tidemark_trial_0 (id INT PRIMARY KEY)")  # as while a copy gets another key
    sink = {"type": "files", "path": "./out"}
    job = write_job(tmp_path, source=source_of(mirror), sink=sink)
    with find_source(load_job_file(job)) as found:
        assert [schema.table.name for schema in found.schemas] == ["orders"]
    assert run_epochs(job)[-1] in {"snapshot", "catch_up", "stream"}
    assert "snapshot" not in run_epochs(job)  # other tests' writes may make it read the log


@pytest.mark.parametrize("name", ["tidemark_ledger", "tidemark_tables", "tidemark_rejects"])
def test_they_can_t_be_named(mirror: Database, tmp_path: Path, name: str) -> None:
    sink = {"type": "files", "path": "./out"}
    job = write_job(tmp_path, source=source_of(mirror, tables=[f"{mirror.schema}.{name}"]), sink=sink)
    with pytest.raises(SourceNotUsableError, match="is a table of Tidemark's own"), find_source(load_job_file(job)):
        raise AssertionError("it was found")


def test_a_mirror_that_points_at_its_own_source_does_not_feed_itself(mysql_database: Database, tmp_path: Path) -> None:
    mysql_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    section = source_of(mysql_database, exclude_tables=[f"{mysql_database.name}.copy_*"])
    job = write_job(
        tmp_path, source=section, sink={"type": "mirror", "url": mysql_database.url, "table": "copy_{table}"}
    )
    assert run_epochs(job)
    run_epochs(job)  # the log has grown by what the first run wrote to the copy and the ledger
    assert mysql_database.query("SELECT count(*) FROM copy_orders") == [(1,)]
    assert mysql_database.query("SELECT source_table FROM tidemark_tables") == [(f"{mysql_database.name}.orders",)]
