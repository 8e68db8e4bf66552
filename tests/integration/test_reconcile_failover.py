"""The source fails over while its copy is compared, or while a repair is under way: no repair is lost silently, and nothing is
called different that is not."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.server import Server
from tests.support.epochs import die_at, run_epochs
from tests.support.failover import await_replica, on, promote, replicated, reset, stop_receiving
from tests.support.forwarder import Forwarder, forwarding
from tests.support.history import assert_mirrored, assert_newest_rows
from tests.support.jobs import source_of, write_job
from tests.support.reconciling import compared, damage, edit_files
from tests.support.servers import Database, fresh_database
from tests.support.workload import UPDATE_ALL, Uids, create_tables
from tidemark.conf.load import load_job_file
from tidemark.jobs.commands.reconcile import reconcile
from tidemark.jobs.epoch.planner import LEFT_BEFORE, NOT_WRITTEN
from tidemark.jobs.reconcile.table_comparison import TableComparison
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import DifferencesError, LogPositionLostError

pytestmark = pytest.mark.integration

LOST = (
    "UPDATE orders SET version = 7 WHERE id IN (5, 9)",
    "DELETE FROM orders WHERE id = 95",
    "INSERT INTO orders (id, uid, version) VALUES (7000, 77, 1)",
)


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def own_pair(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    with replicated(request.param) as servers:
        yield servers


@pytest.fixture
def address(own_pair: tuple[Server, Server]) -> Iterator[Forwarder]:
    """Leads to the primary, and later to the server that was its replica."""
    reset(*own_pair)
    with forwarding(own_pair[0]) as found:
        yield found


@pytest.fixture
def source(address: Forwarder) -> Iterator[Database]:
    with fresh_database(address.server) as database:
        create_tables(database, rows=120, uids=Uids())
        yield database


def job_of(source: Database, address: Forwarder, target: Database | None, folder: Path) -> Path:
    """Into a mirror, or into files."""
    url = source.server.url.replace(f":{source.server.port}", f":{address.port}")
    sink: dict[str, Any] = {"type": "files", "path": str(folder / "out")}
    if target is not None:
        sink = {"type": "mirror", "url": target.url, "table": "copy_{table}"}
    places = {"url": url, "on_log_lost": "resnapshot"}
    return write_job(
        folder, source=source_of(source, **places), sink=sink, snapshot={"split_rows": 40, "parallelism": 2}
    )


def spoil(source: Database, target: Database | None, folder: Path) -> None:
    if target is not None:
        damage(target)
        return

    def wrong(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | ({"note": "wrong"} if row.get("id") in {5, 100} else {}) for row in rows if row.get("id") != 7]

    edit_files(folder / "out" / f"{source.schema}.orders", wrong)


def repair(job: Path) -> None:
    with pytest.raises(DifferencesError, match="read again"):
        reconcile(load_job_file(job), [], as_json=False, repair=True, patience_seconds=0.0)


def fail_over(pair: tuple[Server, Server], address: Forwarder, source: Database) -> Database:
    promote(pair[1])
    address.server = pair[1]
    return on(pair[1], source)


def differences(job: Path) -> dict[str, int]:
    return {name: result.differences + result.behind for name, result in compared(job).items()}


def is_right(there: Database, target: Database | None, folder: Path) -> None:
    if target is None:
        assert_newest_rows(folder / "out", there)
    else:
        assert_mirrored(there, target)


@pytest.fixture(params=["mirror", "files"])
def target(request: pytest.FixtureRequest) -> Database | None:
    return request.getfixturevalue("postgres_database") if request.param == "mirror" else None


STEPS = ["repairs.read", "repairs.joined", "sink.before_commit", "sink.after_commit"]
MORE_STEPS = ["", "repairs.emitted", "log.before_report"]


@pytest.mark.servers_in_turn("own_pair", "target")
@pytest.mark.parametrize("step", [*STEPS, *(pytest.param(s, marks=pytest.mark.every_server) for s in MORE_STEPS)])
@pytest.mark.parametrize("lost", [(), LOST], ids=["all", "lost"])
def test_a_repair_is_under_way(
    own_pair: tuple[Server, Server],
    address: Forwarder,
    source: Database,
    target: Database | None,
    step: str,
    lost: tuple[str, ...],
    tmp_path: Path,
) -> None:
    """The driver dies at a step of it, at the server that fails."""
    job = job_of(source, address, target, tmp_path)
    run_epochs(job)
    source.execute(*UPDATE_ALL)
    run_epochs(job)
    await_replica(*own_pair)
    if lost:
        stop_receiving(own_pair[1])
        source.execute(*lost)
        run_epochs(job)
    spoil(source, target, tmp_path)
    repair(job)
    if step:
        die_at(job, step)
    if not lost:
        await_replica(*own_pair)
    there = fail_over(own_pair, address, source)
    there.execute("UPDATE orders SET version = version + 1 WHERE id IN (5, 6, 100)")
    run_epochs(job)
    checkpoint = Checkpoint.at(load_job_file(job).checkpoint)
    outcomes = checkpoint.outcomes()
    assert outcomes.keys() == checkpoint.signals().keys()
    refused = {outcome.text for outcome in outcomes.values() if not outcome.accepted}
    assert bool(refused) == (step not in {"", "repairs.read"})
    assert refused <= {LEFT_BEFORE, f"{NOT_WRITTEN} Compare again."}
    if any(differences(job).values()):  # as an outcome says
        assert refused == {f"{NOT_WRITTEN} Compare again."}
        repair(job)
        run_epochs(job)
    assert not any(differences(job).values())
    is_right(there, target, tmp_path)


@pytest.mark.servers_in_turn("own_pair", "target")
@pytest.mark.parametrize("lost", [(), LOST], ids=["all", "lost"])
def test_it_is_compared_meanwhile(
    own_pair: tuple[Server, Server],
    address: Forwarder,
    source: Database,
    target: Database | None,
    lost: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once the first rows were looked at, another server answers. The comparison ends with an error, and calls no row different
    that only one of the servers has."""
    job = job_of(source, address, target, tmp_path)
    run_epochs(job)
    source.execute(*UPDATE_ALL)
    run_epochs(job)
    await_replica(*own_pair)
    if lost:
        stop_receiving(own_pair[1])
        source.execute(*lost)
        run_epochs(job)
    look, moved = TableComparison._looks_here, []

    def looking(comparison: TableComparison, looks: Any, ranges: Any, **named: Any) -> Any:
        for found in look(comparison, looks, ranges, **named):
            if not moved:
                moved.append(fail_over(own_pair, address, source))
                moved[0].execute("UPDATE orders SET version = version + 1 WHERE id IN (5, 6, 100)")
                cut_off(own_pair[0], source)
            yield found

    with monkeypatch.context() as patch:
        patch.setattr(TableComparison, "_looks_here", looking)
        with pytest.raises(LogPositionLostError, match="This is server") as caught:
            differences(job)
    assert caught.value.remedy.startswith("Run the job (tidemark run JOB.yaml): it goes on")
    run_epochs(job)
    assert not any(differences(job).values())
    is_right(moved[0], target, tmp_path)


def cut_off(server: Server, source: Database) -> None:
    """Ends all connections to the database, as a server that dies does."""
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND command <> 'Daemon' "
            "AND user NOT LIKE '%system%' AND user <> 'event_scheduler'"
        )
        for (number,) in cursor.fetchall():
            with contextlib.suppress(Exception):
                cursor.execute(f"KILL {number}")
