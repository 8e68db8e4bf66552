"""A mirror's connections are encrypted and verified if `sink.tls` says so, and never silently without."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.servers import start_server
from tests.support.certificates import serve_mysql, serve_postgres, server_certificate
from tests.support.change_parts import ORDERS
from tests.support.sink_state import TEMPLATE
from tidemark.conf.endpoint import parse_endpoint
from tidemark.conf.source import Tls
from tidemark.sinks.mirror.sink import MirrorSink
from tidemark.state.errors import JobFileError, SinkError

pytestmark = pytest.mark.integration


@dataclasses.dataclass(frozen=True)
class TlsTarget:
    sink: MirrorSink
    ca: str
    other_ca: str

    def with_tls(self, tls: Tls | None, host: str | None = None) -> MirrorSink:
        url = self.sink.url if host is None else dataclasses.replace(self.sink.url, host=host)
        return dataclasses.replace(self.sink, url=url, tls=tls)


@pytest.fixture(scope="module", params=["mysql", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsTarget]:
    folder = tmp_path_factory.mktemp("tls")
    with start_server(request.param) as server:
        own, other = server_certificate(server.host), server_certificate(server.host)
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            (serve_mysql if request.param == "mysql" else serve_postgres)(cursor, own)
        (folder / "ca.pem").write_text(own.authority)
        (folder / "other.pem").write_text(other.authority)
        database = "mysql" if request.param == "mysql" else "postgres"
        sink = MirrorSink(parse_endpoint(server.url + database), TEMPLATE, None, "mysql")
        yield TlsTarget(sink, str(folder / "ca.pem"), str(folder / "other.pem"))


def is_encrypted(sink: MirrorSink) -> bool:
    with contextlib.closing(sink.connect()) as session:
        if sink.url.kind == "postgresql":
            return session.query("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == [(True,)]  # type: ignore[attr-defined]
        return session.query("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1] != ""  # type: ignore[attr-defined]


@pytest.mark.pitfall(84)
def test_tls_verifies_authority_and_host(target: TlsTarget) -> None:
    assert is_encrypted(target.with_tls(Tls(ca=target.ca)))
    for wrong in (
        target.with_tls(Tls(ca=target.other_ca)),
        target.with_tls(Tls()),
        target.with_tls(Tls(ca=target.ca), host="localhost"),
    ):
        with pytest.raises(SinkError, match=r"sink\.tls\.ca"):
            wrong.check([ORDERS])


def test_tls_without_verifying_is_encrypted_all_the_same(target: TlsTarget) -> None:
    assert is_encrypted(target.with_tls(Tls(verify=False)))
    assert not is_encrypted(target.with_tls(None))


@pytest.mark.pitfall(84)
@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
def test_tls_is_never_given_up_silently(kind: str, request: pytest.FixtureRequest) -> None:
    database = request.getfixturevalue(f"{kind}_database")
    with pytest.raises(SinkError, match="without TLS"):
        MirrorSink(parse_endpoint(database.url), TEMPLATE, Tls(verify=False), "mysql").check([ORDERS])


def test_tls_files_that_are_not_there_are_refused(mysql_database: Any, tmp_path: Path) -> None:
    sink = MirrorSink(parse_endpoint(mysql_database.url), TEMPLATE, Tls(ca=str(tmp_path / "none.pem")), "mysql")
    with pytest.raises(JobFileError, match=r"sink\.tls names files"):
        sink.check([ORDERS])
