"""Errors while a mirror is written: after each, the copy has a part completely or not at all, and never twice."""

import contextlib
import dataclasses
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import pymysql
import pytest

from tests.support.change_parts import DELETE, INSERT, ITEMS, ORDERS, SCHEMAS, UPDATE, column, log_part, snapshot_part
from tests.support.sink_state import (  # noqa: F401  # fixtures
    TEMPLATE,
    SinkCase,
    any_mirror,
    make_case,
    mirror,
    sorted_rows,
    target_name,
)
from tidemark.conf.endpoint import parse_endpoint
from tidemark.conf.reconnect import AT_START
from tidemark.conf.redaction import Secret
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.sinks.mirror.bad_values import Policies
from tidemark.sinks.mirror.connecting import Waiting
from tidemark.sinks.mirror.mysql.session import MySqlSession
from tidemark.sinks.mirror.postgres.session import PostgresSession
from tidemark.sinks.mirror.sink import MirrorSink
from tidemark.sinks.mirror.target import Session
from tidemark.sinks.mirror.writer import MirrorWriter
from tidemark.sinks.sink import PartResult, SinkBusyError
from tidemark.state.change_batch import ChangeBatch, PartEnd
from tidemark.state.errors import RefusedRowsError, SinkError
from tidemark.state.table import TableId, TableSchema

pytestmark = pytest.mark.integration

DEADLINE_SECONDS = 60
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


def order(number: int, customer: str = "Ada") -> tuple[Any, ...]:
    return (number, customer, None, number, None)


@pytest.fixture
def copy(any_mirror: SinkCase, monkeypatch: pytest.MonkeyPatch) -> SinkCase:  # noqa: F811
    monkeypatch.setattr(mirror_writer, "FIRST_DELAY_SECONDS", 0.01)
    any_mirror.sink.prepare(any_mirror.job, [ORDERS, ITEMS])
    any_mirror.write(snapshot_part(1, 1, ORDERS, [order(1), order(2), order(3)]))
    return any_mirror


CHANGES = log_part(
    2,
    (ORDERS, [(UPDATE, order(1, "Grace")), (DELETE, order(2)), (INSERT, order(4))]),
    (ITEMS, [(INSERT, (1, "pen", 1)), (INSERT, (1, "ink", 1))]),
    (ORDERS, [(UPDATE, order(4, "Mary"))]),
)
BEFORE = [order(1), order(2), order(3)]
AFTER = [order(1, "Grace"), order(3), order(4, "Mary")]


class Breaking:
    """Closes the connection before or after one of its statements, as a network or a server does."""

    def __init__(self, step: int, *, after: bool) -> None:
        self.step, self.after = step, after
        self.taken = 0
        self.broke = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for kind, names in (
            (MySqlSession, ("execute", "send")),
            (PostgresSession, ("execute", "copy", "end_transaction")),
        ):
            for name in names:
                monkeypatch.setattr(kind, name, self._breaking(getattr(kind, name)))

    def _breaking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(session: Any, *arguments: Any, **options: Any) -> Any:
            self.taken += 1
            now = self.taken == self.step and not self.broke
            if now and not self.after:
                self._end(session)
            result = method(session, *arguments, **options)
            if now:
                self._end(session)
                raise SinkBusyError("The connection was lost.", "Wait.")
            return result

        return call

    def _end(self, session: Any) -> None:
        """Ends the connection. The server rolls back what was not committed."""
        self.broke = True
        connection = session._connection
        if isinstance(session, MySqlSession):
            connection._force_close()
        else:
            connection.close()


@pytest.mark.servers_in_turn("streamed")  # each copy in one of the two ways
@STREAMED
@pytest.mark.pitfall(71)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_connection_lost_at_each_statement(
    copy: SinkCase, streamed: bool, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that was kept is written again at once; one that was streamed is reported, unless its COMMIT was done."""
    if streamed:
        monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", 1)
    outcomes = set()
    for step in itertools.count(1):
        breaking = Breaking(step, after=after)
        epoch = 10 + step
        number = 1000 + step
        items = log_part(epoch, (ORDERS, [(INSERT, order(number))]), (ITEMS, [(INSERT, (number, "pen", 1))]))
        with monkeypatch.context() as patched:
            breaking.install(patched)
            try:
                results = copy.write(items)
            except SinkBusyError:
                outcomes.add("reported")
                assert streamed
                assert not [row for row in copy.rows(ORDERS) if row[0] == number]
                assert not [row for row in copy.rows(ITEMS) if row[0] == number]
                results = copy.write(items)
            else:
                outcomes.add("written")
        assert results == [PartResult(epoch, "log", 2, skipped=False)]
        assert [row for row in copy.rows(ORDERS) if row[0] == number] == [order(number)]
        assert [row for row in copy.rows(ITEMS) if row[0] == number] == [(number, "pen", 1)]
        assert [result.skipped for result in copy.write(items)] == [True]
        if not breaking.broke:
            break
    assert step > 8
    assert outcomes == ({"reported", "written"} if streamed else {"written"})


class Watching(Breaking):
    """Looks at the copy after each statement, on another connection."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__(0, after=True)
        self.look = look

    def _breaking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(session: Any, *arguments: Any, **options: Any) -> Any:
            self.taken += 1
            result = method(session, *arguments, **options)
            self.look()
            return result

        return call


@STREAMED
def test_a_reader_never_sees_half_of_an_epoch(copy: SinkCase, streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if streamed:
        monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", 1)
    seen: list[tuple[int, int]] = []

    def look() -> None:
        found = [copy.rows(table) for table in (ORDERS, ITEMS)]
        seen.append((sum(row[0] == 77 for row in found[0]), sum(row[0] == 77 for row in found[1])))

    watching = Watching(look)
    with monkeypatch.context() as patched:
        watching.install(patched)
        copy.write(log_part(7, (ORDERS, [(INSERT, order(77))]), (ITEMS, [(INSERT, (77, "pen", 1))])))
    look()
    assert watching.taken > 3
    assert set(seen) == {(0, 0), (1, 1)}


def test_server_ends_the_connection_of_a_streaming_writer(copy: SinkCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", 1)
    assert isinstance(copy.sink, MirrorSink)
    sink = copy.sink
    own: list[int] = []

    def connect() -> Session:
        session = sink.connect()
        own.append(number_of(copy, session))
        session.rollback()
        return session

    def items() -> Iterator[ChangeBatch | PartEnd]:
        yield from CHANGES[:2]
        end_session(copy, own[-1])
        yield from CHANGES[2:]

    waiting = Waiting(AT_START, sink.url)
    with pytest.raises(SinkBusyError, match="Start the job again"):
        list(MirrorWriter(connect, TEMPLATE, copy.job, waiting).write(items(), SCHEMAS))
    assert copy.rows(ORDERS) == sorted_rows(ORDERS, BEFORE)
    assert copy.rows(ITEMS) == []
    copy.write(CHANGES)
    assert copy.rows(ORDERS) == sorted_rows(ORDERS, AFTER)


def number_of(copy: SinkCase, session: Session) -> int:
    """Returns the server's number of the session."""
    sql = "SELECT pg_backend_pid()" if copy.kind == "postgres" else "SELECT connection_id()"
    ((number,),) = session.query(sql)
    return int(number)


def end_session(copy: SinkCase, number: int) -> None:
    """The server ends the connection at an administrator's command."""
    if copy.kind == "postgres":
        copy.place.query("SELECT pg_terminate_backend(%s, 10000)", (number,))
    else:
        copy.place.execute(f"KILL {number}")


@pytest.mark.pitfall(80)
def test_deadlock_is_answered_by_writing_the_whole_part_again(copy: SinkCase) -> None:
    """The part has taken row 1 of orders and wants an item; another session holds the item and wants row 1."""
    copy.write(snapshot_part(1, 2, ITEMS, [(1, "pen", 1)]))
    orders, items = target_name(copy, ORDERS), target_name(copy, ITEMS)
    changes = log_part(2, (ORDERS, [(UPDATE, order(1, "Grace"))]), (ITEMS, [(UPDATE, (1, "pen", 2))]))
    copy.place.execute("CREATE TABLE heavy (n int)")
    numbers = ", ".join(f"({n})" for n in range(500))
    for _ in range(10):  # the server chooses its victim, InnoDB the lighter one: until it was the part
        written: list[PartResult] = []
        lost = False
        with contextlib.closing(copy.place.connect()) as other, other.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '20s'" if copy.kind == "postgres" else "SELECT 1")
            cursor.execute("BEGIN")
            cursor.execute(f"UPDATE {items} SET quantity = 99")
            cursor.execute(f"INSERT INTO heavy VALUES {numbers}")
            writer = threading.Thread(target=lambda w=written: w.extend(copy.write(changes)))  # type: ignore[misc]
            writer.start()
            wait_for_lock(copy)
            try:
                cursor.execute(f"UPDATE {orders} SET note = 'other' WHERE id = 1")
            except (pymysql.MySQLError, psycopg2.Error):
                lost = True
            cursor.execute("ROLLBACK")
            writer.join(60)
        assert [result.skipped for result in written] == [False]
        assert copy.rows(ITEMS) == [(1, "pen", 2)]
        assert copy.rows(ORDERS)[0] == order(1, "Grace")
        if not lost:
            return
        copy.place.execute("DELETE FROM tidemark_ledger")
    raise AssertionError("the part was never chosen as the victim")


def wait_for_lock(copy: SinkCase) -> None:
    """Waits until one of Tidemark's sessions waits for another's row."""
    waiting = {
        "postgres": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
        "mysql": "SELECT count(*) FROM performance_schema.data_lock_waits",
        "mariadb": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
    }[copy.kind]
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.2)  # innodb_trx shows what it showed before to whoever asks again within 0.1 s
        if copy.place.query(waiting) != [(0,)]:
            return
    raise AssertionError("nobody waits")


@pytest.mark.once_per_family
def test_a_wait_for_another_session_says_what_to_end(copy: SinkCase) -> None:
    table = target_name(copy, ORDERS)
    assert isinstance(copy.sink, MirrorSink)
    with contextlib.closing(copy.place.connect()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT id FROM {table} WHERE id = 1 FOR UPDATE")
        with contextlib.closing(copy.sink.connect()) as session:
            session.wait_for_locks(1)
            with pytest.raises(SinkBusyError, match="Another session keeps") as error:
                session.execute(f"UPDATE {table} SET note = 'x' WHERE id = 1")  # type: ignore[attr-defined]
    assert "Let that session end its transaction" in error.value.remedy


@pytest.mark.pitfall(84)
def test_errors_say_what_to_do_and_hide_values_and_passwords(copy: SinkCase) -> None:
    copy.place.execute(f"INSERT INTO {target_name(copy, ORDERS)} (id, customer) VALUES (77, 'secret customer')")
    with pytest.raises(SinkError, match="has rows that this job did not write") as caught:
        copy.write(snapshot_part(3, 3, ORDERS, [order(77, "secret customer")]))
    assert "77" not in caught.value.message.replace(copy.place.name, "")
    assert copy.place.query(f"SELECT customer FROM {target_name(copy, ORDERS)} WHERE id = 77") == [("secret customer",)]
    login = dataclasses.replace(parse_endpoint(copy.place.url), user="nobody", password=Secret("hunter22"))
    with pytest.raises(SinkError, match="Check user and password") as caught:
        MirrorSink(login, TEMPLATE, None, "mysql").check([ORDERS])
    assert "hunter22" not in repr(caught.value)


@pytest.mark.pitfall(81)
def test_column_that_was_narrowed_is_found_before_it_rounds_or_cuts(copy: SinkCase) -> None:
    narrower = {"customer": "varchar(3)", "amount": "decimal(4,1)", "placed_at": "timestamp(3)"}
    if copy.kind != "postgres":
        narrower["placed_at"] = "datetime(3)"
    for name, kind in narrower.items():
        change = f"ALTER COLUMN {name} TYPE {kind}" if copy.kind == "postgres" else f"MODIFY {name} {kind}"
        copy.place.execute(f"ALTER TABLE {target_name(copy, ORDERS)} {change}")
        for refused in (lambda: copy.write(CHANGES), lambda: copy.sink.prepare(copy.job, [ORDERS])):
            with pytest.raises(SinkError, match=f"column {name} is .*, which can.t hold every"):
                refused()
    assert [row[0] for row in copy.rows(ORDERS)] == [1, 2, 3]


REFUSALS = [
    *(
        (kind, sql)
        for kind in ("mysql", "mariadb")
        for sql in (
            "CREATE TRIGGER refuse BEFORE INSERT ON {} FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'",
            "ALTER TABLE {} PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (4))",
            "ALTER TABLE {} ADD COLUMN part bigint AS (12 / (id - 4)) STORED",
            "ALTER TABLE {} ADD COLUMN huge bigint AS (9223372036854775803 + id + 1) STORED",
        )
    ),
    (
        "postgres",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$; "
        "CREATE TRIGGER refuse BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION refuse()",
    ),
    (
        "postgres",
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; "
        "CREATE TRIGGER skip BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION skip()",
    ),
]


@pytest.mark.parametrize(("kind", "sql"), REFUSALS)
def test_what_a_copy_refuses_by_itself_concerns_its_table(kind: str, sql: str, request: pytest.FixtureRequest) -> None:
    copy = make_case(kind, request)
    assert isinstance(copy.sink, MirrorSink)
    copy.sink = dataclasses.replace(copy.sink, policies=Policies("park"))
    copy.sink.prepare(copy.job, [ORDERS])
    copy.place.execute(sql.format(target_name(copy, ORDERS)))
    with pytest.raises(RefusedRowsError) as refused:
        copy.write(log_part(2, (ORDERS, [(INSERT, order(4))])))
    assert refused.value.table == ORDERS.table


def test_a_full_table_of_locks_has_its_remedy(request: pytest.FixtureRequest) -> None:
    copy = make_case("postgres", request)
    assert isinstance(copy.sink, MirrorSink)
    with contextlib.closing(copy.sink.connect()) as session, pytest.raises(SinkError) as full:
        session.query("SELECT pg_advisory_xact_lock(i) FROM generate_series(1, 1000000) i")
    assert "Raise max_locks_per_transaction" in full.value.remedy


def test_table_that_vanished_is_reported(copy: SinkCase) -> None:
    copy.place.execute(f"DROP TABLE {target_name(copy, ORDERS)}")
    with pytest.raises(SinkError, match=r"Start over with an empty checkpoint"):
        copy.write(CHANGES)
    with pytest.raises(SinkError, match="which this job wrote, is gone"):
        copy.sink.prepare(copy.job, [ORDERS])


def test_postgres_refuses_what_its_text_cannot_hold(request: pytest.FixtureRequest) -> None:
    copy = make_case("postgres", request)
    copy.sink.prepare(copy.job, [ORDERS])
    with pytest.raises(
        SinkError,
        match=r"shop\.orders: a value of column note has a NUL character, which the target can't hold\. Remedy",
    ):
        copy.write(snapshot_part(2, 2, ORDERS, [order(4), (5, "x", None, 0, "a\0b")]))
    assert copy.rows(ORDERS) == []


@pytest.mark.servers_in_turn("kind")
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_infinities_and_rows_that_are_too_long_are_refused(kind: str, request: pytest.FixtureRequest) -> None:
    copy = make_case(kind, request)
    columns = (
        column("id", "int", "int32", key=True),
        column("x", "double", "float64"),
        column("t", "longtext", "string"),
    )
    schema = TableSchema(TableId("shop", "odd"), 1, columns, ("id",))
    schemas = {(schema.table, 1): schema}
    copy.sink.prepare(copy.job, [schema])
    with pytest.raises(SinkError, match="column x is a NaN or an infinity"):
        copy.write(snapshot_part(2, 2, schema, [(1, float("inf"), None)]), schemas=schemas)
    ((limit,),) = copy.place.query("SELECT @@max_allowed_packet")
    with pytest.raises(SinkError, match="more than the target accepts"):
        copy.write(snapshot_part(2, 2, schema, [(1, 1.0, "'" * (limit // 2 + 1000))]), schemas=schemas)
    bytes_of_all = TableSchema(TableId("shop", "blobs"), 1, (columns[0], column("b", "longblob", "binary")), ("id",))
    content = random.Random(7).randbytes(limit * 9 // 10)
    copy.sink.prepare(copy.job, [schema, bytes_of_all])
    copy.write(snapshot_part(9, 9, bytes_of_all, [(1, content)]), schemas={(bytes_of_all.table, 1): bytes_of_all})
    assert copy.place.query(f"SELECT b FROM {target_name(copy, bytes_of_all)}") == [(content,)]
    long_but_allowed = "x" * (limit - 1000)
    copy.write(snapshot_part(2, 2, schema, [(1, 1.0, long_but_allowed), (2, None, "short")]), schemas=schemas)
    assert copy.place.query(f"SELECT id, length(t) FROM {target_name(copy, schema)}") == [(1, limit - 1000), (2, 5)]
