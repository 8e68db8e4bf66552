"""Preflight on real servers, with accounts that have the documented grants and no others."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from devtools.server import Server
from tests.support.logged_tables import logged
from tests.support.mysql_accounts import account, role, root_endpoint
from tests.support.servers import Database, FindServer, fresh_database
from tidemark.conf.endpoint import Endpoint
from tidemark.conf.tables import parse_table_glob
from tidemark.readers.findings import Finding, raise_refusals
from tidemark.readers.mysql import server as mysql_server
from tidemark.readers.mysql.connect import Connection, connect
from tidemark.readers.mysql.schema.catalog import find_tables
from tidemark.readers.mysql.schema.preflight import Demands, preflight
from tidemark.readers.mysql.schema.table_facts import read_tables
from tidemark.readers.mysql.server import (
    ServerIdentity,
    read_identity,
    read_server,
    require_identity,
    watermark_method,
)
from tidemark.readers.schema_checks import Preflight, TableSettings
from tidemark.state.errors import LogPositionLostError, SourceNotUsableError
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration

FULL = Demands("full+incremental", needs_key=True)


def documented_grants(database: Database) -> list[str]:
    """The grants of docs/permissions.md for the server's watermark method."""
    status = "BINLOG MONITOR" if database.kind == "mariadb" else "REPLICATION CLIENT"
    grants = [f"SELECT ON {database.name}.*", f"REPLICATION SLAVE, {status} ON *.*"]
    if database.kind == "mysql" and database.query("SELECT @@gtid_mode") != [("ON",)]:
        grants += ["BACKUP_ADMIN, XA_RECOVER_ADMIN ON *.*", "SELECT ON performance_schema.log_status"]
    return grants


def look(endpoint: Endpoint, database: Database, demands: Demands = FULL, glob: str = "*") -> Preflight:
    with contextlib.closing(connect(endpoint, None)) as connection:
        server = read_server(connection, endpoint.kind)
        tables = find_tables(connection, [parse_table_glob(f"{database.name}.{glob}")])
        return preflight(connection, server, read_tables(connection, tables), demands)


def refusals(found: Preflight) -> list[Finding]:
    return [finding for finding in found.findings if finding.severity == "refuse"]


def shop(database: Database) -> None:
    database.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, at DATETIME, note TEXT)",
        "CREATE TABLE order_lines (order_id INT, line INT, PRIMARY KEY (order_id, line), "
        "FOREIGN KEY (order_id) REFERENCES orders (id))",
    )


def test_the_documented_grants_suffice(source_database: Database) -> None:
    shop(source_database)
    with account(source_database.server, *documented_grants(source_database)) as endpoint:
        found = look(endpoint, source_database)
    assert refusals(found) == []
    assert [schema.key for schema in found.schemas.values()] == [("order_id", "line"), ("id",)]


def test_grants_by_a_role_suffice(source_database: Database) -> None:
    shop(source_database)
    server = source_database.server
    with role(server, *documented_grants(source_database)) as name, account(server, name) as endpoint:
        of_account = f"SET DEFAULT ROLE {name} FOR {endpoint.user}"
        if server.kind == "mysql":
            of_account = f"SET DEFAULT ROLE {name} TO {endpoint.user}"
        source_database.execute(of_account)
        assert refusals(look(endpoint, source_database)) == []


def test_each_missing_grant_is_named(source_database: Database) -> None:
    shop(source_database)
    grants = documented_grants(source_database)
    privileges = [
        f"{privilege.strip()} ON {place}"
        for grant in grants
        for names, place in [grant.split(" ON ")]
        for privilege in names.split(",")
    ]
    for missing in privileges[1:]:
        with account(source_database.server, *(p for p in privileges if p != missing)) as endpoint:
            found = refusals(look(endpoint, source_database))
        assert len(found) == 1, missing
        assert missing.split(" ON ")[0] in found[0].remedy


def test_incremental_mode_needs_no_watermark(mysql_nogtid_database: Database) -> None:
    shop(mysql_nogtid_database)
    grants = [g for g in documented_grants(mysql_nogtid_database) if "BACKUP" not in g and "log_status" not in g]
    incremental = Demands("incremental", needs_key=True)
    with account(mysql_nogtid_database.server, *grants) as endpoint:
        assert refusals(look(endpoint, mysql_nogtid_database, incremental)) == []
        assert "BACKUP_ADMIN" in refusals(look(endpoint, mysql_nogtid_database))[0].remedy


def test_a_grant_on_some_columns_is_not_enough(source_database: Database) -> None:
    source_database.execute("CREATE TABLE people (id INT PRIMARY KEY, name TEXT, ssn TEXT)")
    grants = [f"SELECT (id, name) ON {source_database.name}.people", *documented_grants(source_database)[1:]]
    with account(source_database.server, *grants) as endpoint:
        found = look(endpoint, source_database)
    assert ["may not read every column" in finding.message for finding in refusals(found)] == [True]
    assert found.schemas == {}


@pytest.mark.parametrize(
    ("fixture", "method"),
    [
        ("mysql_database", "gtid"),
        ("mysql_nogtid_database", "log_status"),
        ("mariadb_database", "consistent_snapshot"),
    ],
)
def test_the_watermark_method_follows_from_settings_and_grants(
    request: pytest.FixtureRequest, fixture: str, method: str
) -> None:
    database: Database = request.getfixturevalue(fixture)
    with (
        account(database.server, *documented_grants(database)) as endpoint,
        contextlib.closing(connect(endpoint, None)) as connection,
    ):
        assert watermark_method(connection, read_server(connection, endpoint.kind)) == method


@pytest.mark.pitfall(1)
def test_a_server_that_shows_only_file_and_offset_is_refused(mysql_nogtid_database: Database) -> None:
    grants = [f"SELECT ON {mysql_nogtid_database.name}.*", "REPLICATION SLAVE, REPLICATION CLIENT ON *.*"]
    with (
        account(mysql_nogtid_database.server, *grants) as endpoint,
        contextlib.closing(connect(endpoint, None)) as connection,
        pytest.raises(SourceNotUsableError) as caught,
    ):
        watermark_method(connection, read_server(connection, "mysql"))
    assert "gtid_mode=ON" in caught.value.remedy
    assert "BACKUP_ADMIN" in caught.value.remedy


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.pitfall(53)
def test_a_server_without_a_log_is_refused(find_server: FindServer, kind: str) -> None:
    with fresh_database(find_server(kind, log_bin=False)) as database:
        shop(database)
        (found,) = refusals(look(root_endpoint(database.server), database))
    assert "log_bin" in found.remedy


@pytest.mark.pitfall(31, 32, 34, 53)
def test_every_setting_that_loses_changes_is_found_at_once(find_server: FindServer) -> None:
    server = find_server(
        "mariadb",
        binlog_format="MIXED",
        binlog_row_image="MINIMAL",
        binlog_row_metadata="NO_LOG",
        binlog_ignore_db="elsewhere,hidden",
    )
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE DATABASE hidden")
        cursor.execute("CREATE TABLE hidden.t (id INT PRIMARY KEY)")
    found = look(root_endpoint(server), Database(server, "hidden"))
    text = " ".join(map(str, refusals(found)))
    for wanted in (
        "binlog_format = 'ROW'",
        "binlog_row_image = 'FULL'",
        "binlog_row_metadata = 'FULL'",
        "binlog_ignore",
    ):
        assert wanted in text
    assert len(refusals(found)) == 4


def test_another_flavour_than_the_url_says_is_refused(source_database: Database) -> None:
    endpoint = root_endpoint(source_database.server)
    other = "mariadb" if endpoint.kind == "mysql" else "mysql"
    with (
        contextlib.closing(connect(endpoint, None)) as connection,
        pytest.raises(SourceNotUsableError, match=r"source\.url says") as caught,
    ):
        read_server(connection, other)
    assert f"{endpoint.kind}://" in caught.value.remedy


@pytest.mark.pitfall(11, 45)
def test_rows_and_positions_must_be_one_servers(source_database: Database) -> None:
    with contextlib.closing(connect(root_endpoint(source_database.server), None)) as connection:
        identity = read_identity(connection)
        require_identity(connection, identity)
        assert identity == read_server(connection, identity.flavour).identity
        with pytest.raises(LogPositionLostError, match="the job's positions belong to"):
            require_identity(connection, ServerIdentity(identity.flavour, "another"))


# Tables


def test_refusals_name_table_column_and_remedy(source_database: Database) -> None:
    name = source_database.name
    source_database.execute(
        "CREATE TABLE keyless (a INT NOT NULL UNIQUE, b INT)",
        "CREATE TABLE heap (id INT PRIMARY KEY) ENGINE=MEMORY",
        "CREATE TABLE `float` (f FLOAT PRIMARY KEY)",
        "CREATE TABLE odd (id INT PRIMARY KEY, e ENUM('a') CHARACTER SET binary, ok INT)",
        "CREATE TABLE fine (id INT PRIMARY KEY)",
    )
    found = look(root_endpoint(source_database.server), source_database)
    by_table = {finding.table.name: finding for finding in refusals(found) if finding.table is not None}
    assert by_table.keys() == {"keyless", "heap", "float", "odd"}
    assert f"source.keys: {{{name}.keyless: [a]}}" in by_table["keyless"].remedy
    assert "MEMORY" in by_table["heap"].message
    assert by_table["float"].column == "f"
    assert (by_table["odd"].column, "exclude: [e]" in by_table["odd"].remedy) == ("e", True)
    with pytest.raises(SourceNotUsableError, match="can't start: 4 problems"):
        raise_refusals(found.findings)


def test_excluded_columns_and_named_keys_lift_refusals(source_database: Database) -> None:
    name = source_database.name
    source_database.execute(
        "CREATE TABLE odd (a INT NOT NULL UNIQUE, e ENUM('a') CHARACTER SET binary)",
        "CREATE TABLE log (a INT)",
    )
    demands = Demands(
        "full",
        needs_key=False,
        tables=TableSettings(
            exclude_columns={TableId(name, "odd"): frozenset({"e"})}, keys={TableId(name, "odd"): ("a",)}
        ),
    )
    found = look(root_endpoint(source_database.server), source_database, demands)
    assert refusals(found) == []
    assert [schema.key for schema in found.schemas.values()] == [(), ("a",)]


def test_mariadbs_own_tables_that_the_log_garbles_are_refused(mariadb_database: Database) -> None:
    mariadb_database.execute(
        "CREATE TABLE versioned (id INT PRIMARY KEY) WITH SYSTEM VERSIONING",
        "CREATE TABLE packed (id INT PRIMARY KEY, t TEXT COMPRESSED)",
        "CREATE TABLE aria (id INT PRIMARY KEY) ENGINE=Aria",
        "SET SESSION sql_mode = ''",
    )
    found = refusals(look(root_endpoint(mariadb_database.server), mariadb_database))
    assert [str(f.table).partition(".")[2] for f in found] == ["aria", "packed", "versioned"]
    packed = TableId(mariadb_database.name, "packed")
    without = Demands("full", True, tables=TableSettings(exclude_columns={packed: frozenset({"t"})}))
    found = refusals(look(root_endpoint(mariadb_database.server), mariadb_database, without, glob="packed"))
    assert [(finding.table, finding.column) for finding in found] == [(packed, "t")]


def test_temporal_columns_in_the_old_format_are_refused(find_server: FindServer) -> None:
    with fresh_database(find_server("mariadb", mysql56_temporal_format=False)) as database:
        database.execute(
            "CREATE TABLE t (id INT PRIMARY KEY, d DATETIME(3) NULL, s TIMESTAMP NULL, t TIME NULL, p DATETIME NULL)"
        )
        found = refusals(look(root_endpoint(database.server), database))
    assert {finding.column for finding in found} == {"d", "s", "t", "p"}


@pytest.mark.pitfall(39)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("mysql", {}, id="mysql"),
        pytest.param("mysql", {"innodb_native_foreign_keys": True}, id="mysql-native"),
        pytest.param("mariadb", {}, id="mariadb"),
    ],
)
def test_cascades_are_refused_exactly_where_they_are_not_logged(
    find_server: FindServer, kind: str, options: dict[str, Any]
) -> None:
    with fresh_database(find_server(kind, **options)) as database:
        with logged(database) as log:
            database.execute(
                "CREATE TABLE parent (id INT PRIMARY KEY)",
                "CREATE TABLE child (id INT PRIMARY KEY, p INT, "
                "FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
                "INSERT INTO parent VALUES (1), (2)",
                "INSERT INTO child VALUES (1, 1), (2, 2)",
                "DELETE FROM parent WHERE id = 1",
            )
        assert log.rows["parent", "delete"] == 1
        with account(database.server, *documented_grants(database)) as endpoint:
            found = refusals(look(endpoint, database))
    assert bool(found) == (log.rows["child", "delete"] == 0)
    assert [str(f.table) for f in found] in ([], [f"{database.name}.child"])


@pytest.mark.pitfall(40)
def test_prepared_xa_transactions_are_told(source_database: Database) -> None:
    shop(source_database)
    xid = f"'{source_database.name}'"
    with prepared(source_database.server, source_database.name, xid):
        found = look(root_endpoint(source_database.server), source_database)
    assert any("XA" in finding.message for finding in found.findings if finding.severity == "warn")


@contextlib.contextmanager
def prepared(server: Server, database: str, xid: str) -> Iterator[None]:
    with contextlib.closing(server.connect(database)) as connection, connection.cursor() as cursor:
        for statement in (
            f"XA START {xid}",
            "INSERT INTO orders (id) VALUES (1)",
            f"XA END {xid}",
            f"XA PREPARE {xid}",
        ):
            cursor.execute(statement)
        try:
            yield
        finally:
            cursor.execute(f"XA ROLLBACK {xid}")


def test_a_server_is_checked_by_what_it_offers_and_not_by_its_version(
    source_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old versions lack the setting."""
    endpoint, variables = root_endpoint(source_database.server), mysql_server._variables
    with contextlib.closing(connect(endpoint, None)) as connection:
        monkeypatch.setattr(
            mysql_server,
            "_variables",
            lambda *of: {name: value for name, value in variables(*of).items() if name != "binlog_row_metadata"},
        )
        with pytest.raises(SourceNotUsableError, match="has no binlog_row_metadata"):
            read_server(connection, endpoint.kind)


def test_looking_leaves_no_transaction_open(source_database: Database) -> None:
    shop(source_database)
    with contextlib.closing(connect(root_endpoint(source_database.server), None)) as connection:
        server = read_server(connection, root_endpoint(source_database.server).kind)
        tables = find_tables(connection, [parse_table_glob(f"{source_database.name}.*")])
        preflight(connection, server, read_tables(connection, tables), FULL)
        assert not _in_transaction(connection)


def _in_transaction(connection: Connection) -> bool:
    connection.ping(reconnect=False)
    return bool(connection.server_status & 1)
