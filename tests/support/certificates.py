"""Certificates for servers in tests."""

import datetime
import ipaddress
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class ServerCertificate:
    """PEM texts: a certificate made out to an address, its key, and the authority that signed it."""

    authority: str
    certificate: str
    key: str

    @property
    def pems(self) -> dict[str, str]:
        return {"ca": self.authority, "cert": self.certificate, "key": self.key}


def server_certificate(address: str) -> ServerCertificate:
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    key = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return ServerCertificate(
        _signed("Test CA", authority_key, authority_key, None),
        _signed("server", server_key, authority_key, address),
        key.decode(),
    )


def serve_mysql(cursor: Any, own: ServerCertificate) -> None:
    """Installs the certificate by SQL, because the server may run in a container."""
    for name, pem in own.pems.items():
        cursor.execute("SELECT CONCAT(@@datadir, %s)", (f"test-{name}.pem",))
        (path,) = cursor.fetchone()
        cursor.execute("SELECT %s INTO DUMPFILE %s", (pem, path))
        cursor.execute(f"SET GLOBAL ssl_{name} = %s", (path,))
    cursor.execute("ALTER INSTANCE RELOAD TLS")


def serve_postgres(cursor: Any, own: ServerCertificate) -> None:
    for name, pem in own.pems.items():
        write_postgres_file(cursor, f"test-{name}.pem", pem)
        cursor.execute(f"ALTER SYSTEM SET ssl_{name}_file = 'test-{name}.pem'")
    cursor.execute("ALTER SYSTEM SET ssl = on")
    cursor.execute("SELECT pg_reload_conf()")


def write_postgres_file(cursor: Any, name: str, text: str) -> None:
    """Writes a file into the data folder. Only the server may read it, as a key requires."""
    cursor.execute("CREATE TEMPORARY TABLE file (line text)")
    cursor.executemany("INSERT INTO file VALUES (%s)", [(line,) for line in text.splitlines()])
    cursor.execute("COPY file TO PROGRAM %s", (f"umask 077; cat > {name}",))
    cursor.execute("DROP TABLE file")


def _signed(
    subject: str, key: ec.EllipticCurvePrivateKey, issuer_key: ec.EllipticCurvePrivateKey, address: str | None
) -> str:
    """A signed certificate; an authority's if `address` is None."""
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test CA")]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=address is None, path_length=None), critical=True)
    )
    if address is not None:
        try:
            name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(address))
        except ValueError:
            name = x509.DNSName(address)
        builder = builder.add_extension(x509.SubjectAlternativeName([name]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
