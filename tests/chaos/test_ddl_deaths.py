"""A run dies at each step on the way of a DDL: at each failpoint, each time that the run reaches it. The copy ends equal.
Its short form is in tests/integration/test_ddl_matrix.py."""

import itertools
from pathlib import Path

import pytest

from tests.support.ddl_kinds import Kind, kinds_of
from tests.support.ddl_matrix import POINTS, assert_equal, change, create, job_of
from tests.support.epochs import run_epochs
from tests.support.servers import FindServer, fresh_database
from tidemark.state import failpoints
from tidemark.state.failpoints import FailpointError

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(900)]
STEPS = (*POINTS, "sink.after_type", "sink.after_widening", "sink.after_labels")
BESIDE = Kind("No DDL", ())
"""Another table. A job needs one if that of the DDL does not exist at first."""
SERVERS = ("mysql", "mariadb", "postgres")
ALL_KINDS = [(server, kind) for server in SERVERS for kind in kinds_of(server)]


@pytest.mark.usefixtures("long_version")
@pytest.mark.parametrize(
    ("server_kind", "kind"), ALL_KINDS, ids=[f"{server}, {kind.what}" for server, kind in ALL_KINDS]
)
def test_a_death_at_each_step(
    server_kind: str,
    kind: Kind,
    find_server: FindServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, armed = find_server(server_kind, of_worker=True), tmp_path / "armed"
    armed.mkdir()
    monkeypatch.setattr(failpoints, "_FOLDER", str(armed))
    reached = set()
    for point in STEPS:
        for hit in itertools.count(1):
            folder = tmp_path / f"{point} {hit}"
            folder.mkdir()
            with fresh_database(server) as source, fresh_database(server) as target:
                create(source, [kind, BESIDE])
                job = job_of(source, target, folder)
                run_epochs(job)
                change(source, [kind, BESIDE])
                (armed / point).write_text(f"raise {hit}")
                try:
                    run_epochs(job)
                except FailpointError:
                    reached.add(point)
                else:
                    (armed / point).unlink()
                    break
                for _ in range(2):  # tables that were created join at a start
                    run_epochs(job)
                try:
                    assert_equal(source, target, [kind, BESIDE])
                except AssertionError as error:
                    raise AssertionError(f"a death at {point}, time {hit}: {error}") from None
    assert {"planner.after_plan", "log.before_report", "sink.before_commit", "sink.after_commit"} <= reached
