"""A password is never sent to whoever asks for it. The server here is an impostor that speaks only the login's first steps."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.redaction import Secret
from tidemark.conf.source import Tls
from tidemark.conf.tls import password_plugins, warning_of_clear_text
from tidemark.readers.mysql.connect import connect
from tidemark.sinks.mirror.mysql.session import connect as connect_sink
from tidemark.state.errors import SinkError, SourceNotUsableError

PASSWORD = "sesame-9731"
_CAPABILITIES = 0x1 | 0x8 | 0x200 | 0x2000 | 0x8000 | 0x80000
_ASKS = {"mysql_clear_password": b"", "dialog": b"\x02Password: "}


@dataclass
class Impostor:
    """Greets like MySQL, then asks for the password in clear. `heard`: all that the client has sent."""

    plugin: str
    heard: bytearray = field(default_factory=bytearray)
    port: int = 0

    def serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as client:
            client.settimeout(10)
            low, high = _CAPABILITIES & 0xFFFF, _CAPABILITIES >> 16
            greeting = b"\x0a8.0.40\0" + bytes(4) + b"12345678\0" + low.to_bytes(2, "little") + b"\x2d\x02\0"
            greeting += (
                high.to_bytes(2, "little") + b"\x15" + bytes(10) + b"123456789012\0" + b"mysql_native_password\0"
            )
            client.sendall(len(greeting).to_bytes(3, "little") + b"\0" + greeting)
            self.heard += client.recv(4096)
            switch = b"\xfe" + self.plugin.encode() + b"\0" + _ASKS[self.plugin]
            client.sendall(len(switch).to_bytes(3, "little") + b"\x02" + switch)
            self.heard += client.recv(4096)


@contextlib.contextmanager
def impostor(plugin: str) -> Iterator[Impostor]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = Impostor(plugin, port=listener.getsockname()[1])
        thread = threading.Thread(target=found.serve, args=(listener,))
        thread.start()
        yield found
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.pitfall(123)
@pytest.mark.parametrize("plugin", _ASKS)
def test_a_source_that_asks_for_the_password_in_clear_does_not_get_it(plugin: str) -> None:
    with impostor(plugin) as server:
        endpoint = Endpoint("mysql", "127.0.0.1", server.port, "cdc", Secret(PASSWORD))
        with pytest.raises(SourceNotUsableError, match=r"asks for the password.*source\.tls"):
            connect(endpoint, None)
    assert b"cdc" in server.heard
    assert PASSWORD.encode() not in server.heard


@pytest.mark.pitfall(123)
@pytest.mark.parametrize("plugin", _ASKS)
def test_a_target_that_asks_for_the_password_in_clear_does_not_get_it(plugin: str) -> None:
    with impostor(plugin) as server:
        endpoint = Endpoint("mysql", "127.0.0.1", server.port, "cdc", Secret(PASSWORD))
        with pytest.raises(SinkError, match=r"asks for the password.*sink\.tls"):
            connect_sink(endpoint, None, "copy", "mysql")
    assert b"cdc" in server.heard
    assert PASSWORD.encode() not in server.heard


@pytest.mark.pitfall(123)
def test_only_verified_tls_may_carry_it() -> None:
    for tls in (None, Tls(verify=False)):
        assert set(password_plugins("source.tls", tls, "db", SinkError)) == {"mysql_clear_password", "dialog"}
    assert password_plugins("source.tls", Tls(), "db", SinkError) == {}


@pytest.mark.pitfall(123)
@pytest.mark.parametrize("kind", ["mysql", "mariadb", "postgresql"])
def test_connections_to_other_machines_without_tls_are_told(kind: str) -> None:
    def warning(host: str, tls: Tls | None) -> str | None:
        return warning_of_clear_text("source", Endpoint(kind, host, 1, "cdc"), tls)  # type: ignore[arg-type]

    assert "connections to db.example are not encrypted" in str(warning("db.example", None))
    assert "10.1.2.3" in str(warning("10.1.2.3", None))
    assert "impersonate" in str(warning("db.example", Tls(verify=False)))
    assert warning("db.example", Tls()) is None
    for here in ("localhost", "127.0.0.1", "127.9.9.9", "::1", "/var/run/postgresql"):
        assert warning(here, None) is None
