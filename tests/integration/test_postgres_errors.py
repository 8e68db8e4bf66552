"""A refusal by a server or a network ends a run with a cause, a remedy, and the exit code that tells schedulers what to do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.support.epochs import run_epochs
from tests.support.postgres_jobs import Job, MakeJob, make_job
from tests.support.postgres_roles import role
from tidemark.conf.load import load_job_file
from tidemark.jobs.commands.drop import drop
from tidemark.readers.postgres import source
from tidemark.state.errors import SourceNotUsableError, SourceUnavailableError

__all__ = ["make_job"]

pytestmark = [pytest.mark.integration, pytest.mark.servers_in_turn("postgres_source_server")]
RUNS_ON_POSTGRES_14 = True


def ends_its_connection(job: Job, function: Callable[..., Any], *, times: int) -> Callable[..., Any]:
    """Returns a function that first ends the connection it is given, as a restart of the server does."""
    left = [times]

    def ended(connection: Any, *arguments: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            job.do(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 10000)")
        return function(connection, *arguments, **options)

    return ended


@pytest.mark.pitfall(118)
@pytest.mark.parametrize(
    "step",
    ["read_server", "read_candidates", "read_tables", "preflight", "create_publication", "create_slot", "first_look"],
)
def test_a_connection_that_is_lost_during_a_start_is_out_of_reach(
    step: str, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(run=False)
    with monkeypatch.context() as patch:
        patch.setattr(source, step, ends_its_connection(job, getattr(source, step), times=1))
        with pytest.raises(SourceUnavailableError, match="connection") as caught:
            job.run()
    assert caught.value.exit_code == 7
    job.follows()


@pytest.mark.pitfall(118)
@pytest.mark.parametrize("step", ["require_slot", "require_memberships", "require_identity"])
def test_a_connection_that_is_lost_when_a_job_goes_on_is_out_of_reach(
    step: str, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    job.do("INSERT INTO shop.t VALUES (6, 'b')")
    with monkeypatch.context() as patch:
        patch.setattr(source, step, ends_its_connection(job, getattr(source, step), times=1))
        with pytest.raises(SourceUnavailableError, match="connection") as caught:
            job.run()
    assert caught.value.exit_code == 7
    job.follows()


@pytest.mark.pitfall(118)
def test_a_connection_that_is_lost_after_a_range_of_the_log_is_opened_again(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    with job.running() as (context, committed):
        job.do("INSERT INTO shop.t VALUES (6, 'b')")
        epoch = context.planner().next_epoch(committed)
        monkeypatch.setattr(
            source, "require_memberships", ends_its_connection(job, source.require_memberships, times=1)
        )
        job.read(context, epoch)
    monkeypatch.undo()
    job.follows()


@pytest.mark.pitfall(118)
def test_a_new_connection_that_is_lost_at_once_is_opened_again(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    with job.running() as (context, committed):
        job.do("INSERT INTO shop.t VALUES (6, 'b')")
        monkeypatch.setattr(source, "require_identity", ends_its_connection(job, source.require_identity, times=2))
        epoch = context.planner().next_epoch(committed)
        assert epoch > committed
        monkeypatch.undo()
        job.read(context, epoch)
    job.follows()


@contextmanager
def as_role(job: Job, *grants: str) -> Iterator[str]:
    """Lets the job log in as a new role. Yields its name."""
    with role(job.database, "USAGE ON SCHEMA shop", *grants, attributes="LOGIN REPLICATION") as endpoint:
        written = yaml.safe_load(job.path.read_text())
        login = f"{endpoint.user}:{endpoint.password.get_secret_value()}"
        written["source"]["url"] = f"postgresql://{login}@{endpoint.host}:{endpoint.port}/{job.database.name}"
        job.path.write_text(yaml.safe_dump(written))
        yield endpoint.user


@pytest.fixture
def limited(make_job: MakeJob) -> Iterator[Job]:
    """A job whose role may do what a job needs, in a database of which each test takes one right away."""
    job = make_job(run=False)
    with as_role(job, "SELECT ON shop.t"):
        yield job


@pytest.mark.pitfall(115)
def test_a_missing_right_on_a_column_is_refused_before_anything_is_made(make_job: MakeJob) -> None:
    job = make_job(run=False)
    with as_role(job, "SELECT (id) ON shop.t") as name:
        with pytest.raises(SourceNotUsableError, match=r"may not read v of shop\.t") as caught:
            job.run()
        assert job.database.query("SELECT FROM pg_replication_slots WHERE database = current_database()") == []
        remedy = caught.value.remedy.partition(";")[0]
        job.do(remedy.replace("the role of source.url", name))
        job.follows()


@pytest.mark.pitfall(118)
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("EXECUTE ON FUNCTION pg_control_system()", "pg_control_system"),
        ("SELECT ON pg_publication", "pg_publication"),
        ("SELECT ON pg_replication_slots", "pg_replication_slots"),
    ],
)
def test_a_query_that_the_server_refuses_is_told_with_its_remedy(what: str, message: str, limited: Job) -> None:
    limited.do(f"REVOKE {what} FROM PUBLIC")
    with pytest.raises(SourceNotUsableError, match=rf"permission denied for .*{message}") as caught:
        run_epochs(limited.path)
    assert caught.value.exit_code == 3
    assert "GRANT" in caught.value.remedy
    limited.do(f"GRANT {what} TO PUBLIC")
    run_epochs(limited.path)


@pytest.mark.pitfall(118)
def test_drop_tells_what_the_server_refuses(limited: Job) -> None:
    limited.do("REVOKE SELECT ON pg_publication FROM PUBLIC")
    with pytest.raises(SourceNotUsableError, match=r"permission denied for .*pg_publication"):
        drop(load_job_file(limited.path), yes=True)
