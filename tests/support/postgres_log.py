"""PostgreSQL's log in a database of the test's own, on each version."""

from collections.abc import Iterator

import pytest

from devtools.databases import fresh_database
from devtools.postgres_log import Change, LoggedDatabase, changes_of
from tests.support.servers import FindServer

__all__ = ["VERSIONS", "Change", "LoggedDatabase", "changes_of", "logged_postgres"]

VERSIONS = ("15", "18")
"""The oldest that the tests' servers have by default, and the newest."""


@pytest.fixture(params=[pytest.param(version, marks=pytest.mark.integration) for version in VERSIONS])
def logged_postgres(request: pytest.FixtureRequest, find_server: FindServer) -> Iterator[LoggedDatabase]:
    """A database of the test's own, once on each version."""
    with fresh_database(find_server("postgres", request.param)) as database:
        yield LoggedDatabase(database)
