"""The log reader on a server of each flavour, for tests."""

from collections.abc import Iterator

import pytest

from devtools.mysql_log import FLAVOURS, OLDER_FLAVOURS, Change, LoggedServer, changes_of, logged_server

__all__ = ["FLAVOURS", "Change", "LoggedServer", "changes_of", "logged", "logged_server"]


@pytest.fixture(
    scope="module",
    params=[*FLAVOURS, *(pytest.param(name, marks=pytest.mark.every_server) for name in OLDER_FLAVOURS)],
)
def logged(request: pytest.FixtureRequest) -> Iterator[LoggedServer]:
    """A server of each flavour, and of older ones with EVERY_SERVER=1, shared by the module's tests, one after the other."""
    with logged_server(request.param) as server:
        yield server
