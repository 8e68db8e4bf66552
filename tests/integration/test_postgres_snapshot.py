"""Splits read on real servers: a split contains exactly what its high covers, whatever happens meanwhile."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace

import psycopg2
import pyarrow as pa
import pytest

from devtools.servers import start_server
from tests.support.postgres_log import VERSIONS, LoggedDatabase, logged_postgres  # noqa: F401  a fixture
from tests.support.postgres_roles import role
from tests.support.postgres_snapshot import NO_ANCHOR, SnapshotTable, covered, rows_of
from tests.support.servers import fresh_database
from tidemark.readers.postgres.keys.key_columns import read_key
from tidemark.readers.postgres.keys.split_keys import PostgresKeys
from tidemark.readers.postgres.session import SqlSession
from tidemark.readers.postgres.snapshot.key_reader import KeyReader
from tidemark.readers.postgres.snapshot.split_reader import ReadHooks
from tidemark.readers.snapshot.split_reader import READ_ATTEMPTS
from tidemark.state.errors import (
    LogPositionLostError,
    SchemaChangedError,
    SourceNotUsableError,
    SourceUnavailableError,
)
from tidemark.state.split import KeyRange

pytestmark = [pytest.mark.integration, pytest.mark.servers_in_turn("logged_postgres")]


@pytest.fixture
def source(logged_postgres: LoggedDatabase) -> LoggedDatabase:  # noqa: F811
    logged_postgres.execute("CREATE TABLE public.t (id int PRIMARY KEY, note text)")
    return logged_postgres


class Transaction:
    """An open transaction, with a row inserted."""

    def __init__(self, source: LoggedDatabase, row: int) -> None:
        self.connection = source.database.server.connect(source.database.name)
        self.connection.autocommit = False
        self.row = row
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO public.t VALUES (%s, 'x') RETURNING pg_current_xact_id()::xid::text", (row,))
            self.xid = int(cursor.fetchone()[0])

    def commit(self) -> None:
        self.connection.commit()
        self.connection.close()

    def roll_back(self) -> None:
        self.connection.rollback()
        self.connection.close()


@pytest.mark.pitfall(3, 10)
def test_the_high_covers_what_the_split_contains_and_nothing_else(source: LoggedDatabase) -> None:
    source.publish("t")
    table = SnapshotTable(source)
    before, until_after, across, never = (Transaction(source, row) for row in range(4))
    before.commit()
    late: list[Transaction] = []

    def while_reading() -> None:
        across.commit()
        late.append(Transaction(source, 4))
        late[0].commit()

    read = table.read(ReadHooks(after_snapshot=while_reading))
    until_after.commit()
    never.roll_back()
    assert rows_of(read.rows) == [(before.row, "x")]
    asked = [before, until_after, across, late[0]]
    assert covered(read, [transaction.xid for transaction in asked]) == [True, False, False, False]
    changes = {int(change["_txn_id"]): change for change in source.read("t")}
    assert set(changes) == {transaction.xid for transaction in asked}
    assert changes[before.xid]["_commit_version"] < read.report.high.version
    assert (read.report.row_count, read.report.replayed_changes) == (1, 0)


@pytest.mark.pitfall(3, 13)
def test_splits_and_what_they_do_not_cover_make_the_table_under_load(source: LoggedDatabase) -> None:
    source.execute("INSERT INTO public.t SELECT i, '' FROM generate_series(1, 50) i")
    source.publish("t")
    table = SnapshotTable(source)
    stop = threading.Event()
    errors: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            with contextlib.closing(source.database.connect()) as connection, connection.cursor() as cursor:
                number = 0
                while not stop.is_set():
                    number += 1
                    row = (writer * 7 + number) % 50 + 1
                    cursor.execute(f"UPDATE public.t SET note = note || ' {writer}-{number}' WHERE id = {row}")
        except BaseException as error:  # noqa: BLE001  shown by the test
            errors.append(error)

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in writers:
        thread.start()
    with table.reader() as reader:
        reads = [reader.read(table.split(), table.schema, NO_ANCHOR) for _ in range(20)]
    stop.set()
    for thread in writers:
        thread.join()
    assert not errors
    changes, final = source.read("t"), dict(table.rows())
    for read in reads:
        state = dict(rows_of(read.rows))
        contained = covered(read, [int(change["_txn_id"]) for change in changes])
        for change, known in zip(changes, contained, strict=True):
            if known:
                assert change["_commit_version"] < read.report.high.version
            else:
                assert change["note"].startswith(state[change["id"]]), "never back in time"
                assert change["note"] != state[change["id"]], "never twice"
                state[change["id"]] = change["note"]
        assert state == final
    assert len(changes) > 100


@pytest.mark.pitfall(12)
@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE public.t ADD COLUMN more int",
        "ALTER TABLE public.t DROP COLUMN note",
        "ALTER TABLE public.t RENAME COLUMN note TO other",
        "ALTER TABLE public.t ALTER COLUMN note TYPE varchar(10)",
        'ALTER TABLE public.t ALTER COLUMN note TYPE text COLLATE "C"',
        "ALTER TABLE public.t ALTER COLUMN id TYPE bigint",
        "DROP TABLE public.t",
        "ALTER TABLE public.t RENAME TO gone",
    ],
)
def test_another_shape_is_seen_in_the_splits_own_transaction(source: LoggedDatabase, ddl: str) -> None:
    table = SnapshotTable(source)
    with pytest.raises(SchemaChangedError, match=r"public\.t"):
        table.read(ReadHooks(before_snapshot=lambda: source.execute(ddl)))


@pytest.mark.pitfall(12)
@pytest.mark.parametrize(
    "ddl", ["TRUNCATE public.t", "ALTER TABLE public.t ALTER COLUMN note TYPE text USING note || 'y'"]
)
def test_no_ddl_empties_the_table_between_snapshot_and_select(source: LoggedDatabase, ddl: str) -> None:
    """Both statements make the table look empty to older snapshots."""
    source.execute("INSERT INTO public.t VALUES (1, 'x')")
    table = SnapshotTable(source)

    def meanwhile() -> None:
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            source.execute("SET lock_timeout = '100ms'", ddl)

    assert rows_of(table.read(ReadHooks(after_snapshot=meanwhile)).rows) == [(1, "x")]
    source.execute(ddl)  # nothing is held afterwards


@pytest.mark.pitfall(97)
def test_a_partitioned_table_is_read_whole_and_not_for_the_table_that_had_its_name(source: LoggedDatabase) -> None:
    before = SnapshotTable(source)
    source.execute(
        "DROP TABLE public.t",
        "CREATE TABLE public.t (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE public.t1 PARTITION OF public.t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE public.t2 PARTITION OF public.t DEFAULT",
        "INSERT INTO public.t VALUES (1, 'x'), (20, 'y')",
    )
    assert rows_of(SnapshotTable(source).read().rows) == [(1, "x"), (20, "y")]
    with pytest.raises(SchemaChangedError, match=r"public\.t is another table now"):
        before.read()


def test_a_parent_is_read_without_its_children(source: LoggedDatabase) -> None:
    source.execute("CREATE TABLE public.child () INHERITS (public.t)")
    source.execute("INSERT INTO public.t VALUES (1, 'x')", "INSERT INTO public.child VALUES (2, 'y')")
    assert rows_of(SnapshotTable(source).read().rows) == [(1, "x")]


def test_splits_tile_the_table_on_one_connection(source: LoggedDatabase) -> None:
    source.execute(
        "DROP TABLE public.t",
        'CREATE TABLE public.t ("the ""Key" text COLLATE "en-x-icu", n numeric(5,1), PRIMARY KEY ("the ""Key", n))',
        "INSERT INTO public.t SELECT chr(65 + i % 50) || i, i / 10.0 FROM generate_series(1, 1000) i",
    )
    table = SnapshotTable(source)
    with source.connected() as connection:
        session = SqlSession(lambda: connection)
        keys = PostgresKeys(session, {table.schema.table: table.schema})
        name, columns = table.schema.table, table.schema.key
        bounds = keys.next_bounds(name, columns, after=None, until=None, rows=300, count=99)
    backends: set[int] = set()

    def note_backends() -> None:
        query = f"SELECT pid FROM pg_stat_activity WHERE datname = '{source.name}' AND application_name = 'tidemark'"
        backends.update(pid for (pid,) in source.query(query))

    ranges = [KeyRange(a, b) for a, b in zip([None, *bounds], [*bounds, None], strict=True)]
    with table.reader(ReadHooks(after_select=note_backends)) as reader:
        parts = [reader.read(table.split(key_range), table.schema, NO_ANCHOR).rows for key_range in ranges]
    assert [part.num_rows for part in parts] == [300, 300, 300, 100]
    assert sorted(row for part in parts for row in rows_of(part)) == table.rows()
    assert len(backends) == 1


@pytest.mark.pitfall(24)
def test_a_table_without_a_key_is_read_whole(source: LoggedDatabase) -> None:
    source.execute(
        "CREATE TABLE public.keyless (a int, b int)", "INSERT INTO public.keyless VALUES (1, 1), (1, 1), (2, 3)"
    )
    assert rows_of(SnapshotTable(source, "keyless").read().rows) == [(1, 1), (1, 1), (2, 3)]


def test_only_captured_columns_are_asked_for(source: LoggedDatabase) -> None:
    source.execute("INSERT INTO public.t VALUES (1, 'x')")
    table = SnapshotTable(source)
    table.schema = source.schema("t", exclude_columns=["note"])
    assert table.read().rows.to_pylist() == [{"id": 1}]


def test_where_limits_what_is_read_and_can_not_write(source: LoggedDatabase) -> None:
    source.execute(
        "INSERT INTO public.t VALUES (1, 'x'), (2, 'y'), (3, 'z')",
        "CREATE FUNCTION public.writes(int) RETURNS bool LANGUAGE sql AS "
        "$$ INSERT INTO public.t VALUES ($1 + 10) RETURNING true $$",
    )
    table = SnapshotTable(source)
    name = table.schema.table
    assert rows_of(table.read(where={name: "id = 1 OR note = 'z' -- both"}).rows) == [(1, "x"), (3, "z")]
    with pytest.raises(SourceNotUsableError, match="read-only transaction"):
        table.read(where={name: "public.writes(id)"})
    with pytest.raises(SchemaChangedError, match=r"snapshot\.where"):
        table.read(where={name: "nothing = 1"})
    with pytest.raises(SourceNotUsableError, match=r"correct snapshot\.where"):
        table.read(where={name: "id ="})
    assert len(table.rows()) == 3


def test_a_broken_connection_is_followed_by_a_new_snapshot(source: LoggedDatabase) -> None:
    source.execute("INSERT INTO public.t VALUES (1, 'x')")
    table = SnapshotTable(source)
    breaks: Iterator[int] = iter(range(2))

    def break_it() -> None:
        number = next(breaks, None)
        if number is not None:
            source.execute(f"INSERT INTO public.t VALUES ({number + 5}, 'later')")
            _terminate(source)

    with table.reader(ReadHooks(after_snapshot=break_it)) as reader:
        read = reader.read(table.split(), table.schema, NO_ANCHOR)
        assert reader.counters.lost_connections == 2
    assert [row[0] for row in rows_of(read.rows)] == [1, 5, 6]


def test_a_connection_that_breaks_among_the_rows_loses_none(source: LoggedDatabase) -> None:
    source.execute("INSERT INTO public.t SELECT i, repeat('x', 20000) FROM generate_series(1, 1000) i")
    table = SnapshotTable(source)
    breaker = threading.Timer(0.3, _terminate, [source])
    breaks = iter([breaker.start])
    hooks = ReadHooks(after_snapshot=lambda: next(breaks, _nothing)())
    with table.reader(hooks, where={table.schema.table: "pg_sleep(0.001) IS NOT NULL"}) as reader:
        read = reader.read(table.split(), table.schema, NO_ANCHOR)
        assert reader.counters.lost_connections == 1
    breaker.join()
    assert read.rows["id"].to_pylist() == list(range(1, 1001))


def _nothing() -> None:
    pass


def test_connections_that_always_break_end_the_read(source: LoggedDatabase) -> None:
    table = SnapshotTable(source)
    with pytest.raises(SourceUnavailableError, match=f"lost {READ_ATTEMPTS} times"):
        table.read(ReadHooks(after_snapshot=lambda: _terminate(source)))


def _terminate(source: LoggedDatabase) -> None:
    mine = f"datname = '{source.name}' AND application_name = 'tidemark'"
    source.query(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {mine}")


def test_a_reader_is_of_use_again_after_a_value_without_a_place(source: LoggedDatabase) -> None:
    source.execute(
        "CREATE TABLE public.dates (id int PRIMARY KEY, d date)", "INSERT INTO public.dates VALUES (1, 'infinity')"
    )
    table = SnapshotTable(source, "dates")
    with table.reader() as reader:
        with pytest.raises(SourceNotUsableError, match=r"public\.dates\.d holds infinity"):
            reader.read(table.split(), table.schema, NO_ANCHOR)
        source.execute("UPDATE public.dates SET d = '2024-02-29'")
        assert reader.read(table.split(), table.schema, NO_ANCHOR).rows.num_rows == 1


@pytest.mark.pitfall(11, 45)
def test_another_server_or_timeline_is_refused(source: LoggedDatabase) -> None:
    table = SnapshotTable(source)
    identity = table.settings.identity
    for other in (replace(identity, timeline=identity.timeline + 1), replace(identity, system="1")):
        with pytest.raises(LogPositionLostError):
            table.read(identity=other)


def test_select_on_the_table_is_all_that_the_role_needs(source: LoggedDatabase) -> None:
    source.execute("INSERT INTO public.t VALUES (1, 'x')")
    table = SnapshotTable(source)
    with role(source.database) as endpoint:
        with pytest.raises(SourceNotUsableError, match="permission denied for table t"):
            table.read(endpoint=endpoint)
        source.execute(f"GRANT SELECT ON public.t TO {endpoint.user}")
        assert rows_of(table.read(endpoint=endpoint).rows) == [(1, "x")]
        source.execute(
            "CREATE TABLE public.parts (id int PRIMARY KEY) PARTITION BY HASH (id)",
            "CREATE TABLE public.part PARTITION OF public.parts FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
            "INSERT INTO public.parts VALUES (1)",
            f"GRANT SELECT ON public.parts TO {endpoint.user}",
        )
        assert rows_of(SnapshotTable(source, "parts").read(endpoint=endpoint).rows) == [(1,)]


def test_the_shape_names_types_with_their_lengths_and_collations(source: LoggedDatabase) -> None:
    source.execute('CREATE TABLE public.shapes (a varchar(3) COLLATE "C", b numeric(5,2), c public.t, d int[])')
    schema = source.schema("shapes")
    with source.connected() as connection:
        shape = read_key(connection, schema.table, ()).shape
    assert shape == tuple((c.number, c.name, c.source_type, c.collation) for c in schema.columns)
    assert shape[0] == (1, "a", "character varying(3)", 'pg_catalog."C"')


@pytest.mark.parametrize("is_split", [True, False], ids=["a split", "rows that are read again"])
def test_what_was_read_survives_a_crash_of_the_server(*, is_split: bool) -> None:
    """Asynchronous commits are seen at once, and a crash loses them until they are flushed. The log would never have them."""
    with (
        start_server("postgres", {"wal_writer_delay": "10s", "synchronous_commit": "off"}) as server,
        fresh_database(server) as database,
    ):
        source = LoggedDatabase(database)
        source.execute("CREATE TABLE public.t (id int PRIMARY KEY, v text)", "INSERT INTO public.t VALUES (1, 'old')")
        source.execute("CHECKPOINT")
        table = SnapshotTable(source)
        source.execute("UPDATE public.t SET v = 'new'")
        if is_split:
            read = table.read()
        else:
            with KeyReader(table.settings, {table.schema.table: table.schema}) as reader:
                read = reader.read_again(table.schema, pa.record_batch({"id": pa.array([1], pa.int32())}))
        assert rows_of(read.rows) == [(1, "new")]
        server.kill()
        server.start()
        assert table.rows() == [(1, "new")]
