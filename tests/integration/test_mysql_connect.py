"""Connections: session settings, TLS, refusals, retries."""

import contextlib
import datetime
import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from devtools.server import Server
from devtools.servers import start_server
from tests.support.connecting import counted_connects
from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.mysql_accounts import account, root_endpoint
from tests.support.servers import Database, fresh_database
from tidemark.conf.endpoint import Endpoint
from tidemark.conf.reconnect import AT_START
from tidemark.conf.redaction import Secret
from tidemark.conf.source import Tls
from tidemark.readers.mysql import connect as connecting
from tidemark.readers.mysql.connect import connect, flavour_of, quote_identifier, quote_table, version_of
from tidemark.state.errors import SourceNotUsableError, SourceUnavailableError
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return counted_connects(pymysql, monkeypatch)


@pytest.mark.pitfall(36, 50)
def test_a_session_does_not_depend_on_the_servers_defaults(source_database: Database) -> None:
    hostile = {
        "time_zone": "'+05:30'",
        "sql_mode": "'ANSI_QUOTES,PIPES_AS_CONCAT,PAD_CHAR_TO_FULL_LENGTH'",
        "sql_select_limit": "1",
        "net_write_timeout": "1",
        "completion_type": "'CHAIN'",
    }
    if source_database.kind == "mysql":
        hostile["use_secondary_engine"] = "FORCED"
    else:
        hostile |= {"idle_transaction_timeout": "1", "idle_readonly_transaction_timeout": "1"}
    connection = connect(root_endpoint(source_database.server), None)
    with contextlib.closing(connection), connection.cursor() as cursor:
        for name, value in hostile.items():
            cursor.execute(f"SET SESSION {name} = {value}")
        connecting.prepare_session(connection)
        cursor.execute(
            "SELECT @@time_zone, @@sql_mode, @@sql_select_limit > 1000000000000000000, @@net_write_timeout >= 3600, "
            "@@autocommit, @@character_set_results, @@character_set_client, @@completion_type"
        )
        assert cursor.fetchone() == ("+00:00", "", 1, 1, 1, "utf8mb4", "utf8mb4", "NO_CHAIN")
        if source_database.kind == "mysql":
            cursor.execute("SELECT @@use_secondary_engine")
            assert cursor.fetchone() == ("OFF",)
        else:
            cursor.execute("SELECT @@idle_transaction_timeout, @@idle_readonly_transaction_timeout")
            assert cursor.fetchone() == (0, 0)


@pytest.mark.servers_in_turn("source_database")
@pytest.mark.parametrize("completion", ["CHAIN", "RELEASE"])
def test_a_job_does_not_depend_on_its_servers_defaults(
    source_database: Database, tmp_path: Path, completion: str
) -> None:
    source, server = source_database, source_database.server
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3), (4, 4)")
    with fresh_database(server) as target:
        sink = {"type": "mirror", "url": target.url, "table": "copy_{table}"}
        job = write_job(tmp_path, source=source_of(source), sink=sink, snapshot={"split_rows": 2, "parallelism": 1})
        source.execute(f"SET GLOBAL completion_type = '{completion}', GLOBAL sql_select_limit = 1")
        try:
            run_epochs(job)
            source.execute("UPDATE t SET v = v + 1")
            run_epochs(job)
        finally:
            source.execute("SET GLOBAL completion_type = 'NO_CHAIN', GLOBAL sql_select_limit = DEFAULT")
        assert sorted(target.query("SELECT id, v FROM copy_t")) == [(1, 2), (2, 3), (3, 4), (4, 5)]


def test_a_session_can_not_write(source_database: Database) -> None:
    source_database.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    connection = connect(root_endpoint(source_database.server), None, database=source_database.name)
    with contextlib.closing(connection), connection.cursor() as cursor:
        for statement in ("INSERT INTO t VALUES (1)", "DROP TABLE t", "TRUNCATE TABLE t", "CREATE TABLE u (a INT)"):
            with pytest.raises(pymysql.MySQLError, match="READ ONLY"):
                cursor.execute(statement)


def test_an_account_without_any_grant_can_set_up_its_session(source_database: Database) -> None:
    with account(source_database.server) as endpoint, contextlib.closing(connect(endpoint, None)) as connection:
        assert flavour_of(connection) == endpoint.kind
        assert version_of(connection)[0] >= 8


def test_a_password_outside_latin1_is_accepted(source_database: Database) -> None:
    password = "pä:ß/w%örd→"
    with account(source_database.server) as endpoint:
        source_database.execute(f"SET PASSWORD FOR {endpoint.user} = {_password(endpoint, password)}")
        known = Endpoint(endpoint.kind, endpoint.host, endpoint.port, endpoint.user, Secret(password))
        connect(known, None).close()


def _password(endpoint: Endpoint, password: str) -> str:
    quoted = f"'{pymysql.converters.escape_string(password)}'"
    return f"PASSWORD({quoted})" if endpoint.kind == "mariadb" else quoted


@pytest.mark.pitfall(84)
def test_a_wrong_password_is_refused_at_once_and_not_told(source_database: Database, attempts: list[float]) -> None:
    root = root_endpoint(source_database.server)
    wrong = Endpoint(root.kind, root.host, root.port, root.user, Secret("sesame-9731"))
    with pytest.raises(SourceNotUsableError) as caught:
        connect(wrong, None)
    assert len(attempts) == 1
    assert root.host in caught.value.message
    assert "sesame-9731" not in f"{caught.value}{caught.value.__cause__}"


def test_an_unknown_database_is_refused_at_once(source_database: Database, attempts: list[float]) -> None:
    with pytest.raises(SourceNotUsableError, match="leave it out"):
        connect(root_endpoint(source_database.server), None, database="no_such_database")
    assert len(attempts) == 1


def test_a_server_that_is_not_there_is_tried_some_times(attempts: list[float]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = Endpoint("mysql", "127.0.0.1", closed.getsockname()[1], "root", Secret("sesame-9731"))
        with pytest.raises(SourceUnavailableError) as caught:
            connect(nobody, None)
    assert len(attempts) == AT_START.attempts + 1
    assert f"127.0.0.1:{nobody.port}" in caught.value.message
    assert "sesame" not in str(caught.value)


def test_identifiers_are_quoted() -> None:
    assert quote_table(TableId("a`b", "c d")) == "`a``b`.`c d`"
    with pytest.raises(ValueError, match="NUL"):
        quote_identifier("a\0b")


# TLS


@dataclass(frozen=True)
class TlsServer:
    """A server with a certificate made out to its address and signed by `ca`; `other_ca` signed nothing."""

    server: Server
    ca: str
    other_ca: str


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    authority_key, server_key, other_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    folder = tmp_path_factory.mktemp("tls")
    with start_server("mysql") as server:
        authority = _certificate("Test CA", authority_key, "Test CA", authority_key, None)
        own = _certificate("server", server_key, "Test CA", authority_key, server.host)
        other = _certificate("Other CA", other_key, "Other CA", other_key, None)
        key = server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        for name, pem in (("ca", authority), ("other-ca", other)):
            (folder / f"{name}.pem").write_bytes(pem)
        _give_certificate(server, {"ssl_ca": authority, "ssl_cert": own, "ssl_key": key})
        yield TlsServer(server, str(folder / "ca.pem"), str(folder / "other-ca.pem"))


def _give_certificate(server: Server, files: dict[str, bytes]) -> None:
    """Installs a certificate by SQL, because the server may run in a container."""
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        for variable, pem in files.items():
            cursor.execute("SELECT CONCAT(@@datadir, %s)", (f"test-{variable}.pem",))
            path = cursor.fetchone()[0]
            cursor.execute("SELECT %s INTO DUMPFILE %s", (pem.decode(), path))
            cursor.execute(f"SET GLOBAL {variable} = %s", (path,))
        cursor.execute("ALTER INSTANCE RELOAD TLS")


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    host: str | None,
) -> bytes:
    """A certificate as PEM; an authority's if `host` is None."""
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
    )
    if host is not None:
        try:
            name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        builder = builder.add_extension(x509.SubjectAlternativeName([name]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _cipher(connection: Any) -> str:
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        return str(cursor.fetchone()[1])


@pytest.mark.pitfall(84)
def test_tls_verifies_authority_and_host(tls_server: TlsServer, attempts: list[float]) -> None:
    endpoint = root_endpoint(tls_server.server)
    assert _cipher(connect(endpoint, Tls(ca=tls_server.ca)))
    named = Endpoint(endpoint.kind, "localhost", endpoint.port, endpoint.user)
    for wrong, tls in (
        (endpoint, Tls(ca=tls_server.other_ca)),
        (endpoint, Tls()),
        (named, Tls(ca=tls_server.ca)),
    ):
        del attempts[:]
        with pytest.raises(SourceNotUsableError, match="No trusted TLS connection"):
            connect(wrong, tls)
        assert len(attempts) == 1


def test_tls_without_verifying_is_encrypted_all_the_same(tls_server: TlsServer) -> None:
    assert _cipher(connect(root_endpoint(tls_server.server), Tls(verify=False)))
    assert not _cipher(connect(root_endpoint(tls_server.server), None))


@pytest.mark.pitfall(84)
def test_tls_is_never_given_up_silently(mariadb_server: Server) -> None:
    with pytest.raises(SourceNotUsableError, match="TLS"):
        connect(root_endpoint(mariadb_server), Tls(verify=False))


def test_a_login_without_tls_is_told_to_use_it_where_it_is_demanded(tls_server: TlsServer) -> None:
    with account(tls_server.server) as endpoint:
        with contextlib.closing(tls_server.server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"ALTER USER {endpoint.user} REQUIRE SSL")
        with pytest.raises(SourceNotUsableError, match=r"add source\.tls"):
            connect(endpoint, None)
        assert _cipher(connect(endpoint, Tls(ca=tls_server.ca)))


def test_tls_files_that_are_not_there_are_refused() -> None:
    nobody = Endpoint("mysql", "127.0.0.1", 1, "root")
    with pytest.raises(SourceNotUsableError, match=r"no-such\.pem"):
        connect(nobody, Tls(ca="/no-such.pem"))
