"""TLS for connections to MySQL and MariaDB; PostgreSQL's is libpq's own (conf/libpq.py)."""

import ssl

from tidemark.conf.redaction import redact
from tidemark.conf.source import Tls


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


def unusable_files(key: str, tls: Tls, error: Exception) -> tuple[str, str]:
    """Message and remedy for an error of `client_context`; `key` is the job file's, such as `sink.tls`."""
    text = redact(str(error) or type(error).__name__)
    return (
        f"{key} names files that can't be used (ca: {tls.ca}, cert: {tls.cert}, key: {tls.key}): {text}",
        "Give existing PEM files; the key must have no passphrase and belong to the certificate.",
    )
