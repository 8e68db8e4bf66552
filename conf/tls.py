"""TLS for connections to MySQL and MariaDB; PostgreSQL's is libpq's own (conf/libpq.py)."""

import ssl
from typing import Any

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.redaction import redact
from tidemark.conf.source import Tls
from tidemark.state.errors import TidemarkError


def client_context(tls: Tls) -> ssl.SSLContext:
    """Raises OSError or ValueError where a file of `tls` can't be used."""
    context = ssl.create_default_context(cafile=tls.ca)
    # Python 3.13 requires RFC 5280's optional parts, which the certificates that MySQL makes for itself lack.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert is not None:
        # Without `password` OpenSSL would ask for a passphrase on the terminal.
        context.load_cert_chain(tls.cert, tls.key, password=lambda: "")
    return context


def password_plugins(key: str, tls: Tls | None, host: str, error: type[TidemarkError]) -> dict[str, Any]:
    """PyMySQL's `auth_plugin_map`. A server, or somebody in its place, may ask for the password itself. It is sent only over
    TLS that proved who asks; else the login ends with `error`. `key`: the job file's section, `source.tls` or `sink.tls`."""
    if tls is not None and tls.verify:
        return {}

    class Refusing:
        def __init__(self, connection: object) -> None:
            pass

        def authenticate(self, packet: object) -> object:
            raise error(
                f"{host} asks for the password in clear text, and the connection is not one of verified TLS: it was not sent.",
                f"Set {key} with verify: true, or give the account another authentication plugin (caching_sha2_password, "
                "ed25519).",
            )

    return dict.fromkeys(("mysql_clear_password", "dialog"), Refusing)


def warning_of_clear_text(name: str, endpoint: Endpoint, tls: Tls | None) -> str | None:
    """A warning for the section `name` if others in the network can read and change what is sent, else None."""
    if endpoint.is_local:
        return None
    if tls is None:
        return f"{name}.tls: without it, connections to {endpoint.host} are not encrypted: others in the network can read rows"
    if not tls.verify:
        return f"{name}.tls.verify: false lets another machine in the network impersonate {endpoint.host}"
    return None


def unusable_files(key: str, tls: Tls, error: Exception) -> tuple[str, str]:
    """Message and remedy for an error of `client_context`; `key` is the job file's, such as `sink.tls`."""
    text = redact(str(error) or type(error).__name__)
    return (
        f"{key} names files that can't be used (ca: {tls.ca}, cert: {tls.cert}, key: {tls.key}): {text}",
        "Give existing PEM files; the key must have no passphrase and belong to the certificate.",
    )
