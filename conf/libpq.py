"""Translates a database URL and its TLS settings to libpq's keywords, and classifies libpq's errors.

https://www.postgresql.org/docs/current/libpq-connect.html
"""

import re
import ssl
from typing import Any

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.source import Tls

CONNECT_TIMEOUT_SECONDS = 10

# SQLSTATE classes and codes: https://www.postgresql.org/docs/current/errcodes-appendix.html
_PASSING_CODES = ("08", "40", "53300", "55P03", "57014", "57P0", "25P03", "58P01")
_NO_DATABASE = re.compile(r'\bdatabase ".*" does not exist')
_BROKEN = ("SSL SYSCALL error", "SSL connection has been closed", "unexpected eof")
_REFUSALS = (
    "authentication failed",
    "no password",
    "pg_hba.conf",
    "not permitted to log in",
    "permission denied",
    "does not exist",
    "not currently accepting connections",
    "certificate",
    "SSL",
)


def connection_settings(endpoint: Endpoint, tls: Tls | None, application_name: str) -> dict[str, Any]:
    """Returns libpq's keywords. The environment variables PGOPTIONS and PGSSLMODE have no effect. A dead server is noticed
    within 90 s, and within 30 s when a query is being sent."""
    return {
        "host": endpoint.host,
        "port": endpoint.port,
        "user": endpoint.user,
        "password": endpoint.password.get_secret_value() or None,
        "dbname": endpoint.database,
        "options": "",
        "client_encoding": "UTF8",
        "application_name": application_name,
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 6,
        "tcp_user_timeout": 30_000,
        **_tls_settings(tls),
    }


def passes_by_itself(code: str | None, text: str) -> bool:
    """Tells whether a retry may succeed. `code`: the error's SQLSTATE. It is None for errors of the client itself, such as
    every failure to connect. Then only libpq's `text` distinguishes a refusal from a broken network or a busy server."""
    if code is not None:
        return code.startswith(_PASSING_CODES)
    return _is_broken(text) or not any(word in text for word in _REFUSALS)


def is_about_tls(code: str | None, text: str) -> bool:
    return code is None and not _is_broken(text) and any(word in text for word in ("certificate", "SSL"))


def is_about_database(text: str) -> bool:
    """Tells whether a login failed because there is no such database. Such an error has no SQLSTATE."""
    return _NO_DATABASE.search(text) is not None


def _is_broken(text: str) -> bool:
    return any(word in text for word in _BROKEN)


def _tls_settings(tls: Tls | None) -> dict[str, str]:
    if tls is None:
        return {"sslmode": "disable", "gssencmode": "disable"}
    authorities = tls.ca or ssl.get_default_verify_paths().cafile
    settings = {
        "sslmode": "verify-full" if tls.verify else "require",
        "gssencmode": "disable",
        "sslrootcert": str(authorities) if tls.verify and authorities else None,
        "sslcert": None if tls.cert is None else str(tls.cert),
        "sslkey": None if tls.key is None else str(tls.key),
        "sslpassword": None if tls.key is None else "none",  # otherwise libpq asks for the passphrase on the terminal
    }
    return {name: value for name, value in settings.items() if value is not None}
