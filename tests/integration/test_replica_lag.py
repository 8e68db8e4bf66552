"""Splits wait while the source, a replica, lags behind (`snapshot.max_replica_lag_seconds`)."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.server import Server
from devtools.servers import start_server
from tests.support.history import assert_copied
from tests.support.jobs import BY_DRIVER, running, source_of, write_job
from tests.support.mysql_accounts import account
from tests.support.servers import Database, fresh_database
from tests.support.workload import KEYS, Uids, create_tables
from tidemark.conf.endpoint import parse_endpoint
from tidemark.readers.mysql.connect import connect
from tidemark.readers.mysql.server import read_server, replica_lag_seconds
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import SourceNotUsableError

pytestmark = pytest.mark.integration


def execute(server: Server, *statements: str) -> None:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def replica() -> Iterator[Server]:
    """A replica that applies what its source has written an hour later."""
    with start_server("mysql") as source, start_server("mysql", {"server_id": "2"}) as server:
        at = parse_endpoint(source.url)
        execute(
            server,
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='{at.host}', SOURCE_PORT={at.port}, SOURCE_USER='root', "
            "SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1, SOURCE_DELAY=3600",
            "START REPLICA",
        )
        execute(source, "CREATE DATABASE late")
        yield server


def test_no_splits_are_read_while_the_replica_lags(replica: Server, tmp_path: Path) -> None:
    with fresh_database(replica) as database:
        create_tables(database, rows=100, uids=Uids())
        job = write_job(
            tmp_path,
            source=source_of(database),
            snapshot={"split_rows": 20, "parallelism": 2, "max_replica_lag_seconds": 0.5},
            sink={"type": "files", "path": str(tmp_path / "out")},
        )
        with running(job, *BY_DRIVER) as process:
            process.wait_until(lambda: "is a replica that" in process.out.read_text())
            database.execute(*(f"UPDATE {table} SET version = version + 1" for table in KEYS))
            checkpoint = Checkpoint.at(str(tmp_path / "checkpoint"))
            works = {checkpoint.plan(epoch).plan.work.kind for epoch in checkpoint.plan_epochs()}
            assert works <= {"log"}
            execute(replica, "STOP REPLICA SQL_THREAD", "CHANGE REPLICATION SOURCE TO SOURCE_DELAY=0", "START REPLICA")
            assert process.wait() == 0, process.error_text()
        assert_copied(tmp_path / "out", database)


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_server_that_is_no_replica_has_no_lag(kind: str, request: pytest.FixtureRequest) -> None:
    database: Database = request.getfixturevalue(f"{kind}_database")
    endpoint = parse_endpoint(database.server.url)
    with contextlib.closing(connect(endpoint, None)) as connection:
        server = read_server(connection, endpoint.kind)
        assert replica_lag_seconds(connection, server) is None
    with (
        account(database.server) as poor,
        contextlib.closing(connect(poor, None)) as connection,
        pytest.raises(SourceNotUsableError, match="may not ask how far the replica lags"),
    ):
        replica_lag_seconds(connection, server)
