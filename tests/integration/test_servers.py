"""The private servers that every other integration test uses."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from devtools import server_packages
from devtools.server import Server
from devtools.server_packages import ServerUnavailableError
from devtools.servers import KINDS, given_server, start_server
from tests.support import server_broker
from tests.support.server_broker import ServerWanted
from tests.support.servers import Database, fresh_database

pytestmark = pytest.mark.integration


def scalar(server: Server, sql: str, database: str | None = None) -> Any:
    with contextlib.closing(server.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def execute(server: Server, *statements: str, database: str | None = None) -> None:
    with contextlib.closing(server.connect(database)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture(params=KINDS)
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with start_server(request.param) as server:
        yield server


@pytest.mark.servers_in_turn("own_server")
def test_a_killed_server_comes_back_on_its_port_with_its_data(own_server: Server) -> None:
    execute(own_server, "CREATE DATABASE kept")
    execute(own_server, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (7)", database="kept")
    port = own_server.port
    for interrupt in (own_server.kill, own_server.stop):
        interrupt()
        with pytest.raises(Exception, match="onnect"):
            own_server.connect()
        own_server.start()
        assert own_server.port == port
        assert scalar(own_server, "SELECT id FROM t", "kept") == 7
    own_server.restart()
    assert scalar(own_server, "SELECT id FROM t", "kept") == 7


def test_mysql_is_set_up_for_logical_replication(mysql_server: Server) -> None:
    assert mysql_server.version.startswith("9.")
    settings = "@@gtid_mode, @@enforce_gtid_consistency, @@binlog_row_metadata, @@log_bin, @@binlog_format"
    assert scalar(mysql_server, f"SELECT CONCAT_WS(' ', {settings})") == "ON ON FULL 1 ROW"
    # Needed where GTIDs are off; the superuser has it.
    assert scalar(mysql_server, "SELECT COUNT(*) FROM performance_schema.log_status") == 1


def test_mysql_without_gtids_is_another_server(mysql_server: Server, mysql_nogtid_server: Server) -> None:
    assert scalar(mysql_nogtid_server, "SELECT @@gtid_mode") == "OFF"
    assert scalar(mysql_server, "SELECT @@server_uuid") != scalar(mysql_nogtid_server, "SELECT @@server_uuid")


def test_mariadb_is_set_up_for_logical_replication(mariadb_server: Server) -> None:
    assert "MariaDB" in mariadb_server.version
    assert scalar(mariadb_server, "SELECT CONCAT_WS(' ', @@binlog_row_metadata, @@log_bin, @@binlog_format)") == (
        "FULL ON ROW"
    )


def test_postgres_is_set_up_for_logical_replication(postgres_server: Server) -> None:
    assert postgres_server.version.startswith("15")
    assert scalar(postgres_server, "SHOW wal_level") == "logical"
    assert scalar(postgres_server, "SHOW max_replication_slots") == "20"


@pytest.mark.parametrize(
    ("kind", "version"),
    [("mariadb", "11.8"), ("postgres", "14"), ("postgres", "16"), ("postgres", "17"), ("postgres", "18")],
)
def test_other_versions_start_too(kind: str, version: str) -> None:
    with start_server(kind, version=version) as server:
        assert server.version.startswith(version)


def test_postgres_can_decode_its_log(postgres_database: Database) -> None:
    postgres_database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE t",
        "SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')",
        "INSERT INTO t VALUES (1)",
    )
    decoded = "SELECT data FROM pg_logical_slot_peek_binary_changes('left_behind', NULL, NULL, %s, '1', %s, 'p')"
    messages = [bytes(row[0])[:1] for row in postgres_database.query(decoded, ("proto_version", "publication_names"))]
    assert messages == [b"B", b"R", b"I", b"C"]


def test_settings_that_the_data_are_made_with_work_as_well() -> None:
    with start_server("mysql", options={"lower_case_table_names": 1}) as server:
        assert scalar(server, "SELECT @@lower_case_table_names") == 1


@pytest.mark.servers_in_turn("kind")
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_setting_is_told_in_the_server_s_own_words(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(f"TIDEMARK_TEST_{kind.upper()}_URL", raising=False)
    with pytest.raises(ServerUnavailableError, match=r"no_such_setting|no-such-setting"):
        start_server(kind, options={"no_such_setting": 1})


def test_a_server_given_by_url_is_used_when_it_fits(mysql_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_TEST_MYSQL_URL", mysql_server.url)
    given = given_server("mysql", {"gtid_mode": "ON"}, "9")
    assert given is not None
    assert (given.port, given.version) == (mysql_server.port, mysql_server.version)
    with pytest.raises(ServerUnavailableError, match="given by URL"):
        given.kill()
    given.close()
    assert scalar(mysql_server, "SELECT 1") == 1
    with pytest.raises(ServerUnavailableError, match=r"gtid_mode is ON, wanted OFF.*version is 9\..*, wanted 8"):
        given_server("mysql", {"gtid-mode": "OFF"}, "8")
    assert server_broker.shared_server(ServerWanted("mysql")).url == mysql_server.url
    # Where nothing can be started it is the last resort.
    monkeypatch.setenv("TIDEMARK_TEST_SERVERS", "packages")
    monkeypatch.setattr(server_packages.platform, "machine", lambda: "vax")
    assert start_server("mysql").url == mysql_server.url
    with pytest.raises(ServerUnavailableError, match=r"(?s)vax.*gtid_mode is ON, wanted OFF"):
        start_server("mysql", {"gtid_mode": "OFF"})


@pytest.mark.parametrize("name", ["mysql_server", "mariadb_server", "postgres_server"])
def test_a_test_s_database_goes_with_its_open_sessions(name: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(name)
    with contextlib.ExitStack() as stack:
        with fresh_database(server) as database:
            database.execute("CREATE TABLE t (id INT PRIMARY KEY)")
            session = stack.enter_context(contextlib.closing(database.connect()))
            session.autocommit = True if server.kind == "postgres" else session.autocommit
            cursor = session.cursor()
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(Exception, match=r"exist|nknown database"):
            server.connect(database.name)


def test_every_source_gives_a_fresh_database(source_database: Database) -> None:
    assert source_database.kind in {"mysql", "mariadb"}
    assert source_database.query("SHOW TABLES") == []
    assert source_database.query("SELECT DATABASE()") == [(source_database.name,)]
