"""The lock that tables have before a snapshot is taken, for a role that may SELECT the copied columns only."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import psycopg2
import pytest

from tests.support.postgres_log import LoggedDatabase, logged_postgres
from tests.support.postgres_roles import role
from tests.support.postgres_snapshot import NO_ANCHOR, SnapshotTable, rows_of
from tidemark.conf.endpoint import Endpoint
from tidemark.readers.postgres.connect import Connection, connect
from tidemark.readers.postgres.snapshot import split_reader
from tidemark.readers.postgres.snapshot.read_locks import locked
from tidemark.readers.postgres.snapshot.split_reader import take_snapshot
from tidemark.state.errors import SourceNotUsableError

__all__ = ["logged_postgres"]

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(115)]


@dataclass
class Limited:
    """Tables t and parts (with a partition low), of which the role may read id and note."""

    source: LoggedDatabase
    login: Endpoint

    def table(self, name: str = "t") -> SnapshotTable:
        table = SnapshotTable(self.source, name)
        table.schema = self.source.schema(name, exclude_columns=["secret"])
        table.settings = replace(table.settings, endpoint=self.login)
        return table

    def blocked(self, ddl: str) -> None:
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            self.source.execute("SET lock_timeout = '100ms'", ddl)


@pytest.fixture
def limited(logged_postgres: LoggedDatabase) -> Iterator[Limited]:
    columns = "(id int PRIMARY KEY, secret text, note text)"
    logged_postgres.execute(
        f"CREATE TABLE public.t {columns}",
        f"CREATE TABLE public.parts {columns} PARTITION BY RANGE (id)",
        "CREATE TABLE public.low PARTITION OF public.parts FOR VALUES FROM (0) TO (10)",
        *(f"INSERT INTO public.{name} VALUES (1, 'secret', 'x')" for name in ("t", "parts")),
    )
    names = ", ".join(f"public.{name}" for name in ("t", "parts"))
    with role(logged_postgres.database, "USAGE ON SCHEMA public", f"SELECT (id, note) ON {names}") as login:
        yield Limited(logged_postgres, login)


@contextmanager
def taking_snapshots(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> Iterator[None]:
    """Runs a step after each snapshot, before the transaction has its own lock."""
    left = list(steps)

    def take(connection: Connection) -> object:
        taken = take_snapshot(connection)
        if left:
            left.pop(0)()
        return taken

    with monkeypatch.context() as patch:
        patch.setattr(split_reader, "take_snapshot", take)
        yield
    assert not left


@pytest.mark.parametrize(("name", "emptied"), [("t", "t"), ("parts", "parts"), ("parts", "low")])
def test_no_ddl_empties_the_table_from_before_the_snapshot_to_the_end(
    limited: Limited, name: str, emptied: str
) -> None:
    ddl = f"TRUNCATE public.{emptied}"
    schema = limited.table(name).schema
    with closing(connect(limited.login, None)) as connection:
        with locked(connection, lambda: connect(limited.login, None), [schema]):
            limited.blocked(ddl)
            take_snapshot(connection)
            limited.blocked(ddl)
        limited.blocked(ddl)
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT id FROM public.{name}")
            assert cursor.fetchall() == [(1,)]
            cursor.execute("COMMIT")
        limited.source.execute(ddl)


def test_only_the_granted_columns_are_read(limited: Limited) -> None:
    for name in ("t", "parts"):
        assert rows_of(limited.table(name).read().rows) == [(1, "x")]
    table = limited.table()
    table.schema = limited.source.schema("t")
    with pytest.raises(SourceNotUsableError, match="permission denied for table t"):
        table.read()


def test_a_lock_that_was_lost_after_the_snapshot_is_noticed(limited: Limited, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session that has it ends, and the table is emptied before the transaction has its own."""

    def lose() -> None:
        mine = f"usename = '{limited.login.user}' AND query LIKE 'SELECT%LIMIT 0'"
        ended = limited.source.query(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {mine}")
        assert ended == [(True,)]
        limited.source.execute("TRUNCATE public.t", "INSERT INTO public.t VALUES (2, 'secret', 'y')")

    with taking_snapshots(monkeypatch, lose), limited.table().reader() as reader:
        read = reader.read(limited.table().split(), limited.table().schema, NO_ANCHOR)
        assert reader.counters.lost_connections == 1
    assert rows_of(read.rows) == [(2, "y")]


def test_a_ddl_that_comes_in_between_goes_first(limited: Limited, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the second session, and the transaction would wait for it."""
    ddl = threading.Thread(target=limited.source.execute, args=("TRUNCATE public.t",))

    def begin() -> None:
        ddl.start()
        waiting = "SELECT FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
        while not limited.source.query(waiting):
            pass

    with taking_snapshots(monkeypatch, begin), limited.table().reader() as reader:
        read = reader.read(limited.table().split(), limited.table().schema, NO_ANCHOR)
        assert reader.counters.lost_connections == 1
    ddl.join()
    assert rows_of(read.rows) == []
