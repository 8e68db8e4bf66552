"""Connections to PostgreSQL as a source: session settings, TLS, refusals, retries."""

import contextlib
import dataclasses
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from devtools.server import Server
from devtools.servers import start_server
from tests.support.certificates import serve_postgres, server_certificate, write_postgres_file
from tests.support.connecting import counted_connects
from tests.support.pooler import pooler
from tests.support.postgres_roles import role, superuser
from tests.support.servers import Database
from tidemark.conf.endpoint import Endpoint, parse_endpoint
from tidemark.conf.reconnect import AT_START
from tidemark.conf.redaction import Secret
from tidemark.conf.source import Tls
from tidemark.readers.postgres import connect as postgres_connect
from tidemark.readers.postgres.connect import (
    Connection,
    connect,
    quote_identifier,
    quote_literal,
    quote_table,
    version_of,
)
from tidemark.readers.postgres.session import SqlSession
from tidemark.state.errors import SourceNotUsableError, SourceUnavailableError
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration

SHOWN = ("TimeZone", "DateStyle", "IntervalStyle", "bytea_output", "extra_float_digits", "search_path", "row_security")


def scalar(connection: Connection, sql: str, arguments: tuple[Any, ...] = ()) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, arguments or None)
        row = cursor.fetchone()
    return None if row is None else row[0]


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return counted_connects(psycopg2, monkeypatch)


@pytest.mark.pitfall(36, 50)
def test_a_session_does_not_depend_on_the_defaults_of_role_and_database(
    postgres_source_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = {
        "TimeZone": "Asia/Kolkata",
        "DateStyle": "German, DMY",
        "IntervalStyle": "iso_8601",
        "bytea_output": "escape",
        "extra_float_digits": "-5",
        "search_path": "evil",
        "statement_timeout": "300ms",
        "default_transaction_read_only": "off",
        "client_encoding": "LATIN1",
    }
    monkeypatch.setenv("PGOPTIONS", "-c DateStyle=SQL")
    name = postgres_source_database.name
    with role(postgres_source_database) as endpoint:
        for setting, value in hostile.items():
            postgres_source_database.execute(f"ALTER ROLE {endpoint.user} IN DATABASE {name} SET {setting} = '{value}'")
        with contextlib.closing(connect(endpoint, None)) as connection:
            shown = {setting: scalar(connection, "SELECT current_setting(%s)", (setting,)) for setting in SHOWN}
            assert shown == {setting: postgres_connect.SESSION[setting] for setting in SHOWN}
            assert scalar(connection, "SELECT interval '1 day 2 hours'::text") == "1 day 02:00:00"
            assert scalar(connection, "SELECT '\\x00ff'::bytea::text || 'ä→'") == "\\x00ffä→"
            assert scalar(connection, "SHOW application_name") == "tidemark"
            assert scalar(connection, "SELECT pg_sleep(0.5)::text") == ""


def test_a_session_can_not_write(postgres_source_database: Database) -> None:
    postgres_source_database.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
    with contextlib.closing(connect(superuser(postgres_source_database), None)) as connection:
        for statement in ("INSERT INTO public.t VALUES (1)", "DROP TABLE public.t", "CREATE TABLE public.u (a int)"):
            with pytest.raises(psycopg2.errors.ReadOnlySqlTransaction):
                scalar(connection, statement)


def test_versions_and_autocommit(postgres_source_database: Database) -> None:
    endpoint = superuser(postgres_source_database)
    with contextlib.closing(connect(endpoint, None, autocommit=False)) as connection:
        assert version_of(connection)[0] in {15, 18}
        assert connection.autocommit is False
        assert connection.status == psycopg2.extensions.STATUS_READY


def test_rows_that_a_policy_hides_are_an_error(postgres_source_database: Database) -> None:
    postgres_source_database.execute(
        "CREATE TABLE public.t (id int PRIMARY KEY)",
        "INSERT INTO public.t VALUES (1), (2)",
        "ALTER TABLE public.t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY first_only ON public.t USING (id = 1)",
    )
    with (
        role(postgres_source_database, "SELECT ON public.t") as endpoint,
        contextlib.closing(connect(endpoint, None)) as connection,
        pytest.raises(psycopg2.errors.InsufficientPrivilege, match="row-level security"),
    ):
        scalar(connection, "SELECT count(*) FROM public.t")


def test_an_unknown_database_is_refused_at_once(postgres_server: Server, attempts: list[float]) -> None:
    with pytest.raises(SourceNotUsableError, match="Correct the database"):
        connect(dataclasses.replace(parse_endpoint(postgres_server.url), database="no_such_database"), None)
    assert len(attempts) == 1


def test_a_server_that_is_not_there_is_tried_some_times(attempts: list[float]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = Endpoint("postgresql", "127.0.0.1", closed.getsockname()[1], "cdc", Secret("sesame-9731"), "shop")
        with pytest.raises(SourceUnavailableError) as caught:
            connect(nobody, None)
    assert len(attempts) == AT_START.attempts + 1
    assert f"127.0.0.1:{nobody.port}" in caught.value.message
    assert "sesame" not in str(caught.value)


def test_names_and_texts_are_quoted(postgres_database: Database) -> None:
    assert quote_table(TableId('a"b', "c D")) == '"a""b"."c D"'
    with pytest.raises(ValueError, match="NUL"):
        quote_identifier("a\0b")
    with contextlib.closing(connect(superuser(postgres_database), None)) as connection:
        for text in ("o'clock", "back\\slash", "both\\'", "", "%s", "ä→\n"):
            assert scalar(connection, f"SELECT {quote_literal(text)}") == text


def test_a_question_is_asked_again_when_the_connection_was_lost(postgres_database: Database) -> None:
    made: list[Connection] = []

    def connected() -> Connection:
        made.append(connect(superuser(postgres_database), None))
        return made[-1]

    session = SqlSession(connected)
    with contextlib.closing(session):
        ((pid,),) = session.query("SELECT pg_backend_pid()")
        postgres_database.execute(f"SELECT pg_terminate_backend({pid}, 5000)")
        assert session.query("SELECT 1") == ((1,),)
        assert len(made) == 2
        with pytest.raises(SourceNotUsableError, match="refuses a query"):
            session.query("SELECT * FROM public.nothing_there")


# A server with TLS and passwords


@dataclasses.dataclass(frozen=True)
class TlsServer:
    """Its certificate is made out to its address and signed by `ca`; `other_ca` signed nothing."""

    endpoint: Endpoint
    ca: str
    other_ca: str


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    folder = tmp_path_factory.mktemp("tls")
    with start_server("postgres") as server:
        own, other = server_certificate(server.host), server_certificate(server.host)
        (folder / "ca.pem").write_text(own.authority)
        (folder / "other.pem").write_text(other.authority)
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE ROLE cdc LOGIN PASSWORD 'pä:ß/w%örd→'")
            cursor.execute("CREATE ROLE enc LOGIN PASSWORD 'x'")
            rules = "host all cdc all scram-sha-256\nhostssl all enc all trust\nhostnossl all enc all reject\n"
            write_postgres_file(cursor, "pg_hba.conf", rules + "host all postgres all trust\nlocal all all trust\n")
            serve_postgres(cursor, own)
        base = parse_endpoint(server.url)
        endpoint = Endpoint(base.kind, base.host, base.port, "cdc", Secret("pä:ß/w%örd→"), "postgres")
        yield TlsServer(endpoint, str(folder / "ca.pem"), str(folder / "other.pem"))


def is_encrypted(endpoint: Endpoint, tls: Tls | None) -> bool:
    with contextlib.closing(connect(endpoint, tls)) as connection:
        return bool(scalar(connection, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"))


@pytest.mark.pitfall(84)
def test_tls_verifies_authority_and_host(tls_server: TlsServer, attempts: list[float]) -> None:
    assert is_encrypted(tls_server.endpoint, Tls(ca=tls_server.ca))
    named = dataclasses.replace(tls_server.endpoint, host="localhost")
    for wrong, tls in (
        (tls_server.endpoint, Tls(ca=tls_server.other_ca)),
        (tls_server.endpoint, Tls()),
        (named, Tls(ca=tls_server.ca)),
    ):
        del attempts[:]
        with pytest.raises(SourceNotUsableError, match="No trusted TLS connection"):
            connect(wrong, tls)
        assert len(attempts) == 1


def test_tls_without_verifying_is_encrypted_all_the_same(tls_server: TlsServer) -> None:
    assert is_encrypted(tls_server.endpoint, Tls(verify=False))
    assert not is_encrypted(tls_server.endpoint, None)


def test_a_lost_encrypted_connection_is_made_anew(tls_server: TlsServer) -> None:
    session = SqlSession(lambda: connect(tls_server.endpoint, Tls(ca=tls_server.ca)))
    with contextlib.closing(session), contextlib.closing(connect(tls_server.endpoint, None)) as other:
        ((pid,),) = session.query("SELECT pg_backend_pid()")
        assert scalar(other, "SELECT pg_terminate_backend(%s, 5000)", (pid,))
        assert session.query("SELECT 1") == ((1,),)


@pytest.mark.pitfall(84)
def test_tls_is_never_given_up_silently(postgres_server: Server) -> None:
    with pytest.raises(SourceNotUsableError, match="No trusted TLS connection"):
        connect(parse_endpoint(postgres_server.url), Tls(verify=False))


def test_tls_files_that_are_not_there_are_refused(tls_server: TlsServer, tmp_path: Path) -> None:
    with pytest.raises(SourceNotUsableError, match=r"none\.pem"):
        connect(tls_server.endpoint, Tls(ca=str(tmp_path / "none.pem")))


@pytest.mark.pitfall(84)
def test_a_wrong_password_is_refused_at_once_and_not_told(tls_server: TlsServer, attempts: list[float]) -> None:
    wrong = dataclasses.replace(tls_server.endpoint, password=Secret("sesame-9731"))
    with pytest.raises(SourceNotUsableError, match="Check user and password") as caught:
        connect(wrong, None)
    assert len(attempts) == 1
    assert wrong.host in caught.value.message
    assert "sesame-9731" not in f"{caught.value}{caught.value.__cause__}"


def test_a_role_that_must_use_tls_is_told_so(tls_server: TlsServer) -> None:
    enc = dataclasses.replace(tls_server.endpoint, user="enc")
    with pytest.raises(SourceNotUsableError, match=r"add source\.tls"):
        connect(enc, None)
    assert is_encrypted(enc, Tls(ca=tls_server.ca))


def test_a_pooler_is_refused(postgres_source_database: Database) -> None:
    endpoint = superuser(postgres_source_database)
    with pooler(endpoint.host, endpoint.port) as port, pytest.raises(SourceNotUsableError, match="pooler") as caught:
        connect(dataclasses.replace(endpoint, host="127.0.0.1", port=port), None)
    assert "source.url" in caught.value.remedy
    connect(endpoint, None).close()
