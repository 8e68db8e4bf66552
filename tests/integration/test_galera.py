"""Galera: the job goes on at another node of the cluster, or says why it can't."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devtools.server import Server
from tests.support.epochs import Notes, run_epochs
from tests.support.failover import on
from tests.support.galera import cluster, give_server_id, lose_other_node
from tests.support.group_replication import applying_stopped, ask, execute
from tests.support.history import assert_copied, assert_newest_rows
from tests.support.jobs import source_of, write_workload_job
from tests.support.mysql_accounts import root_endpoint
from tests.support.servers import Database
from tests.support.workload import UPDATE_ALL, Uids, create_tables
from tidemark.readers.mysql import source as mysql_source
from tidemark.readers.mysql.connect import connect
from tidemark.readers.mysql.server import connect_to, read_server
from tidemark.state.errors import LogPositionLostError, SourceUnavailableError

pytestmark = [pytest.mark.integration, pytest.mark.every_server]

WAIT_FOR_OTHERS = "SET SESSION wsrep_sync_wait = 1"
UPDATE_1 = "UPDATE orders SET version = version + 1 WHERE id = 1"
UPDATE_2 = "UPDATE orders SET version = version + 1 WHERE id = 2"


@pytest.fixture
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Server]]:
    """Two, which each test breaks in its way."""
    with cluster(tmp_path, getattr(request, "param", (41, 42))) as servers:
        yield servers


@pytest.fixture
def source(nodes: list[Server]) -> Database:
    """On the first node."""
    database = Database(nodes[0], "t_galera")
    execute(nodes[0], "CREATE DATABASE t_galera CHARACTER SET utf8mb4")
    create_tables(database, rows=60, uids=Uids())
    return database


def job_of(database: Database, folder: Path, **source: Any) -> Path:
    return write_workload_job(folder, source_of(database, **source))


def has_all(database: Database) -> None:
    """Waits until the node has applied what the cluster has committed."""
    database.execute(WAIT_FOR_OTHERS, "SELECT 1 FROM orders LIMIT 1")


def moved(notes: Notes) -> list[str]:
    return [facts["text"] for event, facts in notes.found if event == "moved"]


def test_nodes_that_number_transactions_themselves_are_not_taken_for_one(
    source: Database, nodes: list[Server], tmp_path: Path
) -> None:
    """The first one has logged a transaction of its own, so its number is one that the second one gives the next one."""
    there = on(nodes[1], source)
    for node in nodes:
        execute(node, "SET GLOBAL wsrep_gtid_mode = OFF", "SET GLOBAL gtid_domain_id = 0")
    run_epochs(job_of(source, tmp_path))
    source.execute("CREATE DATABASE IF NOT EXISTS t_other", "CREATE TABLE IF NOT EXISTS t_other.t (id INT)")
    source.execute("SET wsrep_on = OFF", "INSERT INTO t_other.t VALUES (1)")
    source.execute(UPDATE_1)
    run_epochs(job_of(source, tmp_path))
    source.execute(UPDATE_2, *UPDATE_ALL)
    has_all(there)
    notes = Notes()
    with pytest.raises(LogPositionLostError, match="each node numbers transactions itself") as caught:
        run_epochs(job_of(there, tmp_path), notes=notes)
    (remedy,) = [f["text"] for event, f in notes.found if event == "warning" and "wsrep_gtid_mode is OFF" in f["text"]]
    assert "Set wsrep_gtid_mode=ON on all nodes" in remedy
    assert "set source.on_log_lost: resnapshot" in caught.value.remedy
    execute(nodes[1], "SET GLOBAL wsrep_gtid_mode = ON", "SET GLOBAL gtid_domain_id = 40")
    with pytest.raises(LogPositionLostError, match="gtid_domain_id and wsrep_gtid_domain_id are 40"):
        run_epochs(job_of(there, tmp_path))
    for node in nodes:  # as the warning says
        execute(node, "SET GLOBAL wsrep_gtid_mode = ON", "SET GLOBAL wsrep_gtid_domain_id = 50")
    with pytest.raises(LogPositionLostError, match="the other node numbered transactions itself"):
        run_epochs(job_of(there, tmp_path))
    assert "snapshot" in run_epochs(job_of(there, tmp_path, on_log_lost="resnapshot"))
    assert_newest_rows(tmp_path / "out", there)


@pytest.mark.parametrize("nodes", [(41, 41)], indirect=True)
def test_nodes_that_have_one_server_id(source: Database, nodes: list[Server], tmp_path: Path) -> None:
    """Their files have the same numbers, and begin in the same second, or nearly."""
    there = on(nodes[1], source)
    files = [ask(node, "SHOW MASTER STATUS") for node in nodes]
    while files[0] != files[1]:
        execute(nodes[files[0] > files[1]], "FLUSH LOCAL BINARY LOGS")
        files = [ask(node, "SHOW MASTER STATUS") for node in nodes]
    for node in nodes:
        execute(node, "FLUSH LOCAL BINARY LOGS")
    there.execute("SET wsrep_on = OFF", "CREATE DATABASE IF NOT EXISTS t_its_own")
    source.execute("INSERT INTO orders (uid, version, note) VALUES (9999, 1, REPEAT('x', 100))")
    run_epochs(job_of(source, tmp_path))
    source.execute(*UPDATE_ALL)
    run_epochs(job_of(source, tmp_path))
    source.execute(*UPDATE_ALL)
    has_all(there)
    here, other = root_endpoint(source.server), root_endpoint(there.server)
    with closing(connect(here, None)) as connection:
        identity = read_server(connection, "mariadb").identity
    connect_to(here, None, identity, accepted_writes=True).close()
    with pytest.raises(LogPositionLostError, match="which has the same server_id"):  # in a run, behind a proxy
        connect_to(other, None, identity, accepted_writes=True)
    with pytest.raises(LogPositionLostError, match="which has the same server_id") as caught:
        run_epochs(job_of(there, tmp_path))
    assert "give each node a server_id of its own: then the job continues at another one" in caught.value.remedy
    give_server_id(nodes[1], 42)
    assert set(run_epochs(job_of(there, tmp_path))) == {"stream"}
    assert_copied(tmp_path / "out", there)


def test_a_job_goes_on_at_another_node(source: Database, nodes: list[Server], tmp_path: Path) -> None:
    there, evolve = on(nodes[1], source), "sink.on_schema_change=evolve"
    run_epochs(job_of(source, tmp_path))
    source.execute(*UPDATE_ALL)
    there.execute(WAIT_FOR_OTHERS, "UPDATE customers SET version = version + 1")
    has_all(source)
    run_epochs(job_of(source, tmp_path))
    there.execute("ALTER TABLE orders ADD COLUMN more INT", UPDATE_1, "DELETE FROM orders WHERE id = 3")
    has_all(source)
    run_epochs(job_of(source, tmp_path), evolve)
    source.execute(UPDATE_2)
    has_all(there)
    lose_other_node(nodes[1], nodes[0])
    there.execute(*UPDATE_ALL)
    notes = Notes()
    assert set(run_epochs(job_of(there, tmp_path), evolve, notes=notes)) == {"stream"}
    assert ["has all that the job has read" in text for text in moved(notes)] == [True]
    assert_copied(tmp_path / "out", there)


@pytest.mark.parametrize(
    ("nodes", "gtids", "goes_on"),
    [((41, 42), "ON", True), ((41, 42), "OFF", False), ((41, 41), "ON", False)],
    indirect=["nodes"],
    ids=["goes on", "numbers of its own", "one server_id"],
)
def test_a_node_that_applies_late_is_waited_for(
    source: Database,
    nodes: list[Server],
    gtids: str,
    goes_on: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """It gets what the job has read at the other node once a lock is gone. Also if all rows are to be read there."""
    there = on(nodes[1], source)
    for node in nodes:
        execute(node, f"SET GLOBAL wsrep_gtid_mode = {gtids}")
    execute(
        nodes[1],
        "SET GLOBAL wsrep_provider_options = 'repl.causal_read_timeout=PT1S'",
        "SET GLOBAL wsrep_dirty_reads = ON",
    )
    run_epochs(job_of(source, tmp_path))
    has_all(there)
    with applying_stopped(nodes[1], f"{source.name}.orders"), monkeypatch.context() as patch:
        source.execute(UPDATE_1)
        run_epochs(job_of(source, tmp_path))
        patch.setattr(mysql_source, "REPLICA_SECONDS", 1)
        with pytest.raises(SourceUnavailableError) as caught:
            run_epochs(job_of(there, tmp_path, on_log_lost="resnapshot"))
    assert caught.value.remedy.startswith("Wait until it has caught up and is in step with its cluster")
    notes = Notes()
    phases = run_epochs(job_of(there, tmp_path, on_log_lost="resnapshot"), notes=notes)
    assert ("snapshot" in phases) == (not goes_on)
    assert any("has all that the job has read" in text for text in moved(notes)) == goes_on
    there.execute(UPDATE_2)
    run_epochs(job_of(there, tmp_path))
    (assert_copied if goes_on else assert_newest_rows)(tmp_path / "out", there)
