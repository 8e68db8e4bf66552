"""A start that waits for old transactions names them, and how to end each of them."""

import contextlib
import re
from collections.abc import Iterator

import pytest

from devtools.server import Server
from devtools.servers import start_server
from tests.support.postgres_log import VERSIONS, LoggedDatabase
from tests.support.postgres_roles import role
from tests.support.servers import fresh_database
from tidemark.readers import long_waits
from tidemark.readers.postgres.connect import connect
from tidemark.readers.postgres.slot import open_transactions
from tidemark.readers.postgres.slot.open_transactions import wait_for_open_transactions
from tidemark.readers.postgres.slot.slot import create_slot
from tidemark.state.errors import SourceNotUsableError

pytestmark = [pytest.mark.integration]


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with start_server("postgres", {"max_prepared_transactions": "5"}, request.param) as server:
        yield server


@pytest.fixture
def log(server: Server) -> Iterator[LoggedDatabase]:
    with fresh_database(server) as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        yield LoggedDatabase(database)


@contextlib.contextmanager
def writer(log: LoggedDatabase, name: str) -> Iterator[int]:
    """A transaction that has written and stays open. Yields its process."""
    with contextlib.closing(log.database.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute(f"SET application_name = '{name}'")
        cursor.execute("INSERT INTO t SELECT count(*) FROM t")
        yield connection.info.backend_pid
        connection.close()


def endings(error: SourceNotUsableError) -> list[str]:
    """The statements in a remedy."""
    return re.findall(r"(SELECT pg_terminate_backend\(\d+\)|ROLLBACK PREPARED '[^']*')", error.remedy)


@pytest.mark.pitfall(116)
def test_a_wait_names_the_process_that_is_waited_for(log: LoggedDatabase) -> None:
    """An older transaction that has written nothing is not waited for, nor one that began later."""
    with (
        contextlib.closing(log.database.connect()) as reader,
        reader.cursor() as cursor,
        writer(log, "night load") as pid,
        log.connected() as connection,
    ):
        reader.autocommit = False
        cursor.execute("SELECT 1")
        with pytest.raises(SourceNotUsableError, match=rf"process {pid} \(.*night load.*\)") as caught:
            wait_for_open_transactions(connection, seconds=0.3)
        (ending,) = endings(caught.value)
        log.execute(ending)
        wait_for_open_transactions(connection, seconds=20)


@pytest.mark.pitfall(116)
def test_a_wait_is_told_while_it_lasts(log: LoggedDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction ends because of that."""
    told = list[str]()
    monkeypatch.setattr(long_waits, "WARN_SECONDS", 0.0)
    with writer(log, "night load") as pid, log.connected() as connection:

        def tell(text: str) -> None:
            told.append(text)
            log.execute(f"SELECT pg_terminate_backend({pid})")

        with long_waits.waits_told_to(tell):
            wait_for_open_transactions(connection, seconds=60)
    (text,) = told
    assert "application night load" in text
    assert f"pg_terminate_backend({pid})" in text


@pytest.mark.pitfall(116)
def test_a_wait_names_a_prepared_transaction(log: LoggedDatabase) -> None:
    with writer(log, "younger") as pid, log.connected() as connection:
        log.execute("BEGIN; INSERT INTO t VALUES (-1); PREPARE TRANSACTION 'order''s 7'")
        with pytest.raises(SourceNotUsableError, match=r"prepared transaction order's 7") as caught:
            wait_for_open_transactions(connection, seconds=0.3)
        assert f"process {pid}" in caught.value.message
        assert "ROLLBACK PREPARED 'order''s 7'" in caught.value.remedy
        log.execute(f"SELECT pg_terminate_backend({pid})", "ROLLBACK PREPARED 'order''s 7'")
        wait_for_open_transactions(connection, seconds=20)


@pytest.mark.pitfall(116)
def test_creating_a_slot_names_what_it_waits_for(log: LoggedDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_transactions, "SETTLE_SECONDS", 1.0)
    log.execute("BEGIN; INSERT INTO t VALUES (-1); PREPARE TRANSACTION 'load 7'")
    with log.connected() as connection:
        with pytest.raises(SourceNotUsableError, match="prepared transaction load 7") as caught:
            create_slot(connection, log.name)
        (ending,) = endings(caught.value)
        log.execute(ending)
        create_slot(connection, log.name)


@pytest.mark.pitfall(116)
def test_a_role_that_sees_no_others_is_told_the_process(log: LoggedDatabase) -> None:
    with (
        writer(log, "night load") as pid,
        role(log.database, "SELECT ON t") as endpoint,
        contextlib.closing(connect(endpoint, None)) as connection,
        pytest.raises(SourceNotUsableError, match=f"process {pid} ") as caught,
    ):
        wait_for_open_transactions(connection, seconds=0.3)
    assert "None" not in caught.value.message
