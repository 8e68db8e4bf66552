"""The DAGs of examples/airflow in a real Airflow: what they copy, what kills and errors do to them. `make test-airflow`."""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.server import Server
from devtools.servers import start_server
from scripts.demo_compare import compare, rows_in_database
from scripts.demo_shop import MYSQL_TABLES, load_shop
from scripts.demo_table import DATABASE
from scripts.demo_writers import Writers
from tests.support.airflow import Airflow, Login
from tidemark.readers.lease import checkpoint_lock

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

ROWS = 20_000
CLI, SUBMIT = "shop_copy_cli", "shop_copy_submit"
COPY = "analytics"


@pytest.fixture(scope="module")
def shop() -> Iterator[Server]:
    with start_server("mysql") as server:
        load_shop(server, ROWS)
        execute(
            server,
            "CREATE USER cdc IDENTIFIED BY 'Tide-5ource-9'",
            f"GRANT SELECT ON {DATABASE}.* TO cdc",
            "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO cdc",
        )
        yield server


@pytest.fixture(scope="module")
def copy() -> Iterator[Server]:
    with start_server("postgres") as server:
        execute(server, "CREATE ROLE etl LOGIN PASSWORD 'Tide-c0py-7'", f"CREATE DATABASE {COPY} OWNER etl")
        yield server


@pytest.fixture(scope="module")
def airflow(shop: Server, copy: Server, our_zip: Path) -> Iterator[Airflow]:
    with tempfile.TemporaryDirectory(prefix="tidemark-airflow-", ignore_cleanup_errors=True) as folder:
        yield Airflow(
            Path(folder),
            our_zip,
            shop=Login(shop.host, shop.port, "cdc", "Tide-5ource-9"),
            copy=Login(copy.host, copy.port, "etl", "Tide-c0py-7"),
        )


def execute(server: Server, *statements: str) -> None:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def assert_same(shop: Server, copy: Server, generation: int) -> None:
    execute(copy, f"ALTER ROLE postgres IN DATABASE {COPY} SET search_path = shop_{generation}")
    for comparison in compare(shop, MYSQL_TABLES, rows_in_database(copy, COPY)):
        assert comparison.same, comparison


def test_full_once_then_increments_exact_through_kills(shop: Server, copy: Server, airflow: Airflow) -> None:
    """The job is killed alone first, in the snapshot; later Airflow is killed with it, in an increment."""
    with Writers(shop, ROWS) as writers:
        (airflow.failpoints / "driver.epoch_written").write_text("kill above org.apache.spark.deploy.SparkSubmit")
        airflow.run(SUBMIT, tables=["shop.*"])
        assert not (airflow.failpoints / "driver.epoch_written").exists()
        assert airflow.task(SUBMIT) == ("success", 2)
        writers.stop()
    (airflow.failpoints / "sink.after_commit").write_text("kill above shop_copy_cli")
    with airflow.running(CLI) as process:
        assert process.wait() == -signal.SIGKILL
    printed = airflow.run(CLI)
    assert_same(shop, copy, 1)
    summary = airflow.summary(CLI)
    assert summary["phase"] == "stream"
    assert '"event": "resumed"' in printed
    with Writers(shop, ROWS) as writers:
        time.sleep(1)
        writers.stop()
    airflow.run(SUBMIT)
    assert_same(shop, copy, 1)
    assert airflow.summary(SUBMIT)["rows"] == 0
    assert airflow.summary(SUBMIT)["changes"] > 0


@pytest.mark.parametrize(("dag", "generation"), [(CLI, 2), (SUBMIT, 3)])
def test_a_killed_task_finishes_its_epoch_and_is_tried_again(
    dag: str, generation: int, shop: Server, copy: Server, airflow: Airflow
) -> None:
    """In a generation of its own, beside the others."""
    table = f"shop_{generation}.tariffs"  # the last that is made
    with (
        contextlib.closing(copy.connect(COPY)) as connection,
        connection.cursor() as cursor,
        airflow.running(dag, generation=generation) as process,
    ):

        def found(condition: str) -> bool:
            cursor.execute(f"SELECT {condition}", (table,))
            return bool(cursor.fetchone()[0])

        process.wait_until(lambda: found("to_regclass(%s) IS NOT NULL"))
        cursor.execute(f"BEGIN; LOCK TABLE {table}")
        process.wait_until(lambda: found("EXISTS (SELECT FROM pg_locks WHERE relation = %s::regclass AND NOT granted)"))
        os.kill(process.popen.pid, signal.SIGTERM)
        process.wait_until(lambda: '"event": "stopping"' in process.out.read_text())
        cursor.execute("ROLLBACK")
        printed = airflow.ended(process)
    assert "Exit code 130, to be tried again" in printed
    assert '"interrupted": true' in printed
    assert airflow.task(dag) == ("success", 2)
    assert_same(shop, copy, generation)


def test_exit_codes_decide_about_retries(shop: Server, airflow: Airflow) -> None:
    airflow.run(SUBMIT, expect=1, tables=["no dot"], generation=4)
    assert airflow.task(SUBMIT) == ("failed", 1)
    airflow.run(CLI, expect=1, tables=["shop.nothing"], generation=4)
    assert airflow.task(CLI) == ("failed", 1)
    held = checkpoint_lock(str(airflow.checkpoints / "shop-1"))
    with contextlib.closing(shop.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 0)", (held,))
        with airflow.running(CLI) as process:
            process.wait_until(
                lambda: "Exit code 6, to be tried again" in process.out.read_text() + process.err.read_text()
            )
            cursor.execute("SELECT RELEASE_LOCK(%s)", (held,))
            airflow.ended(process)
    state, tries = airflow.task(CLI)
    assert (state, tries > 1) == ("success", True)


def test_no_secret_is_left_anywhere(airflow: Airflow) -> None:
    """Includes what killed runs left behind."""
    files = [path for path in airflow.folder.rglob("*") if path.is_file()]
    assert airflow.home / "airflow.db" in files
    for secret in airflow.secrets:
        assert [path for path in files if secret.encode() in path.read_bytes()] == []
