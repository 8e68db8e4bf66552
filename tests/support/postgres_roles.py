"""Roles that hold some rights only, on a shared PostgreSQL server."""

import contextlib
import secrets
from collections.abc import Iterator

from tests.support.servers import Database
from tidemark.conf.endpoint import Endpoint, parse_endpoint
from tidemark.conf.redaction import Secret


def superuser(database: Database) -> Endpoint:
    return parse_endpoint(database.url)


@contextlib.contextmanager
def role(database: Database, *grants: str, attributes: str = "LOGIN") -> Iterator[Endpoint]:
    """A role with a password. Each of `grants` is the text between GRANT and TO."""
    name, password = f"r{secrets.token_hex(6)}", f"p{secrets.token_hex(8)}"
    database.execute(f"CREATE ROLE {name} {attributes} PASSWORD '{password}'")
    try:
        for grant in grants:
            database.execute(f"GRANT {grant} TO {name}")
        known = superuser(database)
        yield Endpoint(known.kind, known.host, known.port, name, Secret(password), database.name)
    finally:
        database.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}")
