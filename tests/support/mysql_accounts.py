"""Accounts that hold some grants only, on a shared server."""

import contextlib
import secrets
from collections.abc import Iterator

from devtools.server import Server
from tidemark.conf.endpoint import Endpoint, parse_endpoint
from tidemark.conf.redaction import Secret


def root_endpoint(server: Server) -> Endpoint:
    return parse_endpoint(server.url)


@contextlib.contextmanager
def account(server: Server, *grants: str) -> Iterator[Endpoint]:
    """An account with a password. Each of `grants` is the text between GRANT and TO."""
    name, password = f"u{secrets.token_hex(6)}", f"p{secrets.token_hex(8)}"
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER {name} IDENTIFIED BY '{password}'")
        try:
            for grant in grants:
                cursor.execute(f"GRANT {grant} TO {name}")
            root = root_endpoint(server)
            yield Endpoint(root.kind, root.host, root.port, name, Secret(password))
        finally:
            cursor.execute(f"DROP USER {name}")


@contextlib.contextmanager
def role(server: Server, *grants: str) -> Iterator[str]:
    name = f"r{secrets.token_hex(6)}"
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {name}")
        try:
            for grant in grants:
                cursor.execute(f"GRANT {grant} TO {name}")
            yield name
        finally:
            cursor.execute(f"DROP ROLE {name}")
