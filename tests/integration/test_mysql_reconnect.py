"""A server that is away for longer than some attempts: the job's connections wait as the job file's `reconnect` says."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from devtools.mysql_log import LoggedServer, changes_of, logged_server
from tests.support.job_file import SMALL, load_text
from tidemark.conf import reconnect as reconnecting
from tidemark.conf.reconnect import AT_START
from tidemark.readers.mysql.connect import connect
from tidemark.readers.mysql.server import read_server, watermark_method
from tidemark.readers.mysql.source import MySqlAccess, MySqlServer
from tidemark.state.errors import SourceUnavailableError
from tidemark.state.log_range import LogRange
from tidemark.state.split import KeyRange, Split

pytestmark = pytest.mark.integration

AWAY = AT_START.attempts + 4
"""Failed attempts before the server is back. Formerly a connection was given up after five."""


@pytest.fixture(scope="module", params=["mysql-gtid", "mariadb"])
def table(request: pytest.FixtureRequest) -> Iterator[LoggedServer]:
    with logged_server(request.param) as server:
        server.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200))", "INSERT INTO t VALUES (1, 'a')")
        yield server


@pytest.fixture
def attempts(table: LoggedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The delays between attempts. After AWAY of them the server is started."""
    made: list[float] = []

    def wait(seconds: float) -> None:
        made.append(seconds)
        if len(made) == AWAY:
            table.server.start()

    # Only there: starting and stopping a server sleeps, too.
    monkeypatch.setattr(reconnecting, "time", SimpleNamespace(sleep=wait, monotonic=time.monotonic))
    yield made
    if len(made) < AWAY:
        table.server.start()


def job_server(table: LoggedServer, folder: Path, *settings: str) -> MySqlServer:
    job = load_text(folder, SMALL, f"source.url={table.server.url}", *settings)
    with closing(connect(job.source.url, None)) as connection:
        info = read_server(connection, "mariadb" if table.is_mariadb else "mysql")
        return MySqlServer(job, info, watermark_method(connection, info))


def plans(table: LoggedServer, server: MySqlServer) -> Callable[[], None]:
    access, end = MySqlAccess(server, ()), table.end()
    assert access.log_end() == end

    def ask() -> None:
        assert access.log_end().order > end.order  # the restart began a new file

    return ask


def reads_the_log(table: LoggedServer, server: MySqlServer) -> Callable[[], None]:
    table.forget()
    table.execute("REPLACE INTO t VALUES (1, 'b')")
    part, reader = LogRange(table.start, table.end()), server.log_reading([table.schema("t")])

    def read() -> None:
        assert [change["v"] for change in changes_of(reader, part)] == ["b"]

    return read


def reads_a_split(table: LoggedServer, server: MySqlServer) -> Callable[[], None]:
    table.execute("REPLACE INTO t VALUES (1, 'c')")
    schema, anchor = table.schema("t"), table.anchor()
    reader = server.split_reading([schema], "job")
    split = Split(1, schema.table, schema.version, schema.key, KeyRange(None, None))
    assert reader.read(split, schema, anchor).rows["v"].to_pylist() == ["c"]

    def read_again() -> None:
        with reader:
            assert reader.read(split, schema, anchor).rows["v"].to_pylist() == ["c"]

    return read_again


@pytest.mark.pitfall(114)
@pytest.mark.servers_in_turn("table")
@pytest.mark.parametrize("work", [plans, reads_the_log, reads_a_split])
def test_a_long_restart_of_the_server_is_waited_for(
    work: Callable[[LoggedServer, MySqlServer], Callable[[], None]],
    table: LoggedServer,
    attempts: list[float],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    go_on = work(table, job_server(table, tmp_path))
    table.server.stop()
    with caplog.at_level(logging.WARNING, "tidemark.reconnect"):
        go_on()
    assert len(attempts) >= AWAY
    assert sum(attempts) > 15
    assert max(attempts) <= 30
    told = [record.getMessage() for record in caplog.records if record.name == "tidemark.reconnect"]
    assert any("is out of reach" in text for text in told)
    assert any("is back after" in text for text in told)


@pytest.mark.pitfall(114)
@pytest.mark.servers_in_turn("table")
@pytest.mark.parametrize("work", [plans, reads_the_log, reads_a_split])
def test_a_server_that_stays_away_ends_the_run_with_7(
    work: Callable[[LoggedServer, MySqlServer], Callable[[], None]],
    table: LoggedServer,
    attempts: list[float],
    tmp_path: Path,
) -> None:
    server = job_server(table, tmp_path, "reconnect.attempts=2")
    go_on = work(table, server)
    table.server.stop()
    with pytest.raises(SourceUnavailableError, match=r"in 3 attempts.*run the job again: it continues") as caught:
        go_on()
    assert caught.value.exit_code == 7
    assert len(attempts) == 2
