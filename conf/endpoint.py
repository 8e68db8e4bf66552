"""Endpoints: the server, the login and the database of a job file's `url`."""

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, unquote

from tidemark.conf.redaction import MASK, Secret

DatabaseKind = Literal["mysql", "mariadb", "postgresql"]

DEFAULT_PORTS: dict[DatabaseKind, int] = {"mysql": 3306, "mariadb": 3306, "postgresql": 5432}
URL_FORM = "mysql://user:password@host:3306/database"

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)
_HOST_AND_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:\s]+)(?::(?P<port>.*))?", re.DOTALL)
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SCHEME_HINTS = {"postgres": "postgresql", "pgsql": "postgresql", "psql": "postgresql", "maria": "mariadb"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A database server, the login, and the database (None: the URL names none).

    All parts are percent-decoded. An empty password means that none is sent. ``str`` and ``repr`` mask the password.
    """

    kind: DatabaseKind
    host: str
    port: int
    user: str
    password: Secret = field(default_factory=lambda: Secret(""))
    database: str | None = None

    def __str__(self) -> str:
        return self._url(MASK)

    def url_with_password(self) -> str:
        """Returns the whole URL, percent-encoded, with the password. Never print it."""
        return self._url(quote(self.password.get_secret_value(), safe=""))

    @property
    def is_local(self) -> bool:
        """True if the host is this machine, or a socket's folder (PostgreSQL)."""
        if self.host.lower() == "localhost" or self.host.startswith("/"):
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def same_server(self, other: "Endpoint") -> bool:
        """Tells whether host and port are written the same. Two names of one server are not recognised."""
        return (self.host.lower(), self.port) == (other.host.lower(), other.port)

    def _url(self, password: str) -> str:
        login = quote(self.user, safe="") + (f":{password}" if self.password.get_secret_value() else "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.kind}://{login}@{host}:{self.port}/{quote(self.database or '', safe='')}"


def parse_endpoint(text: str) -> Endpoint:
    """Reads a database URL.

    Raises ValueError with what is wrong. The message never quotes the URL: an unencoded ``/``, ``#`` or ``?`` in the
    password moves the boundaries between its parts.
    """
    match = _URL.fullmatch(text)
    if match is None:
        raise ValueError(f"must be a database URL like {URL_FORM}")
    kind = _kind(match["scheme"])
    login, at, address = match["authority"].rpartition("@")
    if not at:
        if "@" in match["rest"]:
            raise ValueError(
                "has a '/', '?' or '#' before the '@': write such characters of user or password percent-encoded "
                "(%2F, %3F, %23), or take the password from ${NAME}, which needs no encoding"
            )
        raise ValueError(f"names no user: write {kind}://user:password@host:{DEFAULT_PORTS[kind]}/")
    user, _, password = login.partition(":")
    if not user:
        raise ValueError(f"names no user: write {kind}://user:password@host:{DEFAULT_PORTS[kind]}/")
    hosts = address.split(",")
    if len(hosts) > 1 and (kind != "postgresql" or ":" in hosts[0]):
        raise ValueError("names several hosts: write one, and another one when that is gone")
    host, port = _host_and_port(address, DEFAULT_PORTS[kind])
    return Endpoint(
        kind=kind,
        host=host,
        port=port,
        user=_decode(user, "user"),
        password=Secret(_decode(password, "password")),
        database=_database(match["rest"]),
    )


def _kind(scheme: str) -> DatabaseKind:
    if scheme in DEFAULT_PORTS:
        return scheme
    meant = _SCHEME_HINTS.get(scheme.lower().partition("+")[0], scheme.lower().partition("+")[0])
    hint = f" Did you mean '{meant}://'?" if meant in DEFAULT_PORTS else ""
    raise ValueError(f"has an unknown scheme.{hint} Allowed: mysql://, mariadb://, postgresql://")


def _host_and_port(address: str, default_port: int) -> tuple[str, int]:
    if not address:
        raise ValueError("names no host after the '@'")
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None:
        raise ValueError("must have host or host:port after the '@' (IPv6 addresses in brackets)")
    port = match["port"]
    if port is None:
        return match["host"].strip("[]"), default_port
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise ValueError("has a port that is not a number from 1 to 65535")
    return match["host"].strip("[]"), int(port)


def _database(rest: str) -> str | None:
    """``rest`` follows host and port: nothing, or a slash and the database's name."""
    if "?" in rest:
        raise ValueError("has options after a '?', which are not supported. For TLS use the key 'tls' next to url")
    if "#" in rest:
        raise ValueError("has a '#' after the host; write it as %23 in a database's name")
    name = rest.removeprefix("/")
    if "/" in name:
        raise ValueError("has more than a database's name after the host; write '/' as %2F in a name")
    return _decode(name, "database") if name else None


def _decode(part: str, what: str) -> str:
    if _STRAY_PERCENT.search(part):
        raise ValueError(
            f"has a '%' in its {what} that does not start a percent-encoded character; a plain '%' is written %25"
            + (", or take the password from ${NAME}, which needs no encoding" if what == "password" else "")
        )
    try:
        decoded = unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"has a {what} whose percent-encoded bytes are not UTF-8") from None
    if "\x00" in decoded:
        raise ValueError(f"has a NUL character in its {what}")
    return decoded
