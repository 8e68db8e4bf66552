"""Changes from before a table was published, or while it was not, are in no log: the job never follows such a log."""

import contextlib
from typing import Any

import pytest

from devtools.servers import start_server
from tests.support.history import read_history
from tests.support.postgres_jobs import BY_NAME, IN_SCHEMA, MakeJob, make_job, make_job_in
from tests.support.postgres_log import VERSIONS
from tests.support.servers import fresh_database
from tidemark.readers.postgres import source
from tidemark.readers.postgres.slot.slot import create_slot
from tidemark.state.errors import LogPositionLostError

__all__ = ["make_job"]

pytestmark = [pytest.mark.integration, pytest.mark.servers_in_turn("postgres_source_server")]
RUNS_ON_POSTGRES_14 = True

INCREMENTAL = ("mode=incremental",)
EARLIEST, LATEST = (*INCREMENTAL, "log.start=earliest"), (*INCREMENTAL, "log.start=latest")
OLDER = r"from before .*shop\.t was published"
NEW_SLOT = "SELECT pg_create_logical_replication_slot('{0}', 'pgoutput')"
PUBLISH = "CREATE PUBLICATION {0} FOR {1} WITH (publish_via_partition_root = true)"
PUBLISH_ALL = "ALTER PUBLICATION {0} SET (publish = 'insert, update, delete, truncate')"
LEFT_OUT = "INSERT INTO shop.t VALUES (6, 'before')"


@pytest.mark.pitfall(101)
@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(["DROP PUBLICATION {0}", NEW_SLOT, LEFT_OUT], id="no publication"),
        pytest.param(["DROP PUBLICATION {0}", NEW_SLOT, LEFT_OUT, PUBLISH], id="newer publication"),
        pytest.param(
            ["ALTER PUBLICATION {0} DROP {1}", NEW_SLOT, LEFT_OUT, "ALTER PUBLICATION {0} ADD {1}"], id="newer entry"
        ),
        pytest.param(
            [NEW_SLOT, "ALTER PUBLICATION {0} SET (publish = '')", LEFT_OUT, PUBLISH_ALL],
            id="altered publication",
        ),
    ],
)
@pytest.mark.parametrize("publication", [BY_NAME, IN_SCHEMA])
def test_a_log_from_before_the_publication_is_refused(
    publication: str, statements: list[str], make_job: MakeJob
) -> None:
    job = make_job(publication, run=False)
    name = job.database.name
    job.do(*(statement.format(name, publication) for statement in statements))
    ((kept_from,),) = job.database.query(
        f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{name}'"
    )
    for start in (EARLIEST, (*INCREMENTAL, f"log.start={{lsn: {kept_from}}}")):
        with pytest.raises(LogPositionLostError, match=OLDER) as caught:
            job.run(*start)
    assert "log.start: latest" in caught.value.remedy
    job.run(*LATEST)
    job.do("INSERT INTO shop.t VALUES (7, 'after')")
    job.run(*LATEST)
    assert job.copied() == {7: "after"}


@pytest.mark.pitfall(101)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_slot_that_is_newer_than_the_publication_has_the_whole_log(version: str, tmp_path: Any) -> None:
    with start_server("postgres", {}, version) as server, fresh_database(server) as database:
        job = make_job_in(database, tmp_path, run=False)
        job.do(NEW_SLOT.format(database.name), "INSERT INTO shop.t VALUES (6, 'b')")
        job.run(*EARLIEST)
        assert job.copied() == {6: "b"}


@pytest.mark.pitfall(101)
def test_an_older_slot_will_do_for_a_job_that_reads_the_rows_first(make_job: MakeJob) -> None:
    job = make_job(run=False)
    job.do(f"DROP PUBLICATION {job.database.name}", NEW_SLOT.format(job.database.name), LEFT_OUT)
    job.follows()
    job.do("INSERT INTO shop.t VALUES (7, 'after')")
    job.follows()


@pytest.mark.pitfall(101)
@pytest.mark.parametrize("mode", ["full+incremental", "incremental"])
def test_a_table_that_leaves_the_publication_while_the_job_starts_is_found(
    mode: str, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(run=False)
    name = job.database.name

    def disturbed(*arguments: Any, **settings: Any) -> Any:
        found = create_slot(*arguments, **settings)
        job.do(f"ALTER PUBLICATION {name} DROP {BY_NAME}", LEFT_OUT, f"ALTER PUBLICATION {name} ADD {BY_NAME}")
        return found

    monkeypatch.setattr(source, "create_slot", disturbed)
    job.do(NEW_SLOT.format(name))
    with contextlib.suppress(LogPositionLostError):  # of the first epoch, if it reads the log
        job.run(f"mode={mode}")
    job.do("INSERT INTO shop.t VALUES (8, 'later')")
    with pytest.raises(LogPositionLostError, match=r"was altered for shop\.t"):
        job.run(f"mode={mode}")


@pytest.mark.pitfall(101)
@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(["DROP PUBLICATION {0}", LEFT_OUT, PUBLISH], id="created again"),
        pytest.param(["ALTER PUBLICATION {0} DROP {1}", LEFT_OUT, "ALTER PUBLICATION {0} ADD {1}"], id="added again"),
        pytest.param(["DROP PUBLICATION {0}", LEFT_OUT], id="gone"),
    ],
)
@pytest.mark.parametrize("publication", [BY_NAME, IN_SCHEMA])
@pytest.mark.parametrize("restart", [False, True])
def test_changes_while_a_table_was_not_published_stop_the_job(
    restart: bool, publication: str, statements: list[str], make_job: MakeJob
) -> None:
    job = make_job(publication)
    before = job.copied()
    disturb = [statement.format(job.database.name, publication) for statement in statements]
    if restart:
        job.do(*disturb)
        with pytest.raises(Exception, match=r"was altered for shop\.t|does not exist"):
            job.run()
    else:
        with job.running() as (context, committed):
            planner = context.planner()
            job.do(*disturb, "INSERT INTO shop.t VALUES (7, 'after')")
            with pytest.raises(LogPositionLostError, match=r"was altered for shop\.t|did not exist"):
                job.read(context, planner.next_epoch(committed))
    assert job.copied() == before


def test_another_slot_or_publication_in_the_job_file_is_refused_until_it_is_undone(make_job: MakeJob) -> None:
    job = make_job(BY_NAME)
    name = job.database.name
    job.do(f"CREATE PUBLICATION {name}_other FOR {BY_NAME}", "INSERT INTO shop.t VALUES (7, 'after')")
    for setting in ("slot", "publication"):
        with pytest.raises(LogPositionLostError, match=rf"{name}_other (is gone|was altered)") as caught:
            job.run(f"source.{setting}={name}_other")
        assert f"If source.{setting} was changed, undo that" in caught.value.remedy
    job.follows()


def test_tables_that_inherit_from_a_table_are_not_published_with_it(make_job: MakeJob) -> None:
    """Children have no primary key unless they declare one. If they were published, the server would refuse each UPDATE of
    them, and a child that the publication has already would keep its parent out."""
    job = make_job(run=False)
    job.do(
        f"DROP PUBLICATION {job.database.name}",
        "CREATE TABLE shop.child () INHERITS (shop.t)",
        "INSERT INTO shop.child VALUES (6, 'c')",
    )
    job.run()
    job.do("UPDATE shop.t SET v = 'b'", "DELETE FROM shop.child")
    job.run()
    assert job.copied() == dict(job.database.query("SELECT id, v FROM ONLY shop.t"))
    job.do(
        f"ALTER PUBLICATION {job.database.name} ADD TABLE ONLY shop.child",
        "CREATE TABLE shop.above (id int PRIMARY KEY, v text)",
        "ALTER TABLE shop.child INHERIT shop.above",
        "INSERT INTO shop.above VALUES (1, 'a')",
    )
    job.run("source.tables=[shop.t, shop.above]", "source.on_table_error=park")
    assert read_history(job.path.parent / "out", "shop", "above").num_rows == 1
