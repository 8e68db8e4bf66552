"""Upserts of many rows into PostgreSQL: the changes tell which rows are new, and the copy may differ from that."""

from contextlib import closing
from decimal import Decimal
from typing import Any

import psycopg2
import pytest

from tests.support.change_parts import DELETE, INSERT, ORDERS, UPDATE, Change, log_part, snapshot_part
from tests.support.sink_state import SinkCase, make_case, sink_params, sorted_rows
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.sinks.mirror.postgres import rows as postgres_rows
from tidemark.sinks.mirror.postgres.session import PostgresSession
from tidemark.state.reached import Reached

pytestmark = pytest.mark.integration


def order(number: int, note: str) -> tuple[Any, ...]:
    return (number, "Ada", Decimal("1.00"), 1_704_067_200_000_000, note)


@pytest.fixture(params=sink_params(("postgres",)))
def copy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SinkCase:
    """A copy of the orders 1 to 5, for which each number of rows is many."""
    monkeypatch.setattr(postgres_rows, "MANY_ROWS", 1)
    case = make_case(request.param, request)
    case.sink.prepare(case.job, [ORDERS])
    case.write(snapshot_part(1, 1, ORDERS, [order(number, "old") for number in range(1, 6)]))
    return case


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first word of each statement, and `conflict` for an upsert."""
    found: list[str] = []
    execute = PostgresSession.execute

    def noted(session: PostgresSession, sql: str, *arguments: Any, **options: Any) -> int:
        found.append("conflict" if "DO UPDATE" in sql and "orders" in sql else sql.split(" ", 1)[0])
        return execute(session, sql, *arguments, **options)

    monkeypatch.setattr(PostgresSession, "execute", noted)
    return found


def test_rows_are_updated_and_new_ones_copied_without_upserts(
    copy: SinkCase, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", 1)
    chunks: list[list[Change]] = [
        [(UPDATE, order(1, "new")), (INSERT, order(6, "new")), (INSERT, order(7, "new")), (DELETE, order(2, "old"))],
        [(UPDATE, order(6, "newer")), (DELETE, order(7, "new")), (INSERT, order(2, "again"))],
        [(DELETE, order(3, "old")), (INSERT, order(3, "again")), (INSERT, order(7, "again"))],
        [(DELETE, order(4, "old")), (INSERT, order(40, "moved"))],
    ]
    copy.write(log_part(2, *[(ORDERS, changes) for changes in chunks], after=Reached(0, 1)))
    assert "conflict" not in statements
    assert statements.count("SAVEPOINT") == statements.count("RELEASE") == len(chunks)
    notes = {1: "new", 2: "again", 3: "again", 5: "old", 6: "newer", 7: "again", 40: "moved"}
    assert copy.rows(ORDERS) == sorted_rows(ORDERS, [order(number, note) for number, note in notes.items()])


def test_a_transaction_has_only_so_many_savepoints(
    copy: SinkCase, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than 64 would make other sessions of the target slow. The next transaction has its own."""
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", 1)
    chunks: list[list[Change]] = [[(INSERT, order(number, "new"))] for number in range(6, 72)]
    copy.write(log_part(2, *[(ORDERS, changes) for changes in chunks], after=Reached(0, 1)))
    assert statements.count("SAVEPOINT") == statements.count("RELEASE") == 60
    assert statements.count("conflict") == 6
    copy.write(log_part(3, (ORDERS, [(INSERT, order(72, "new"))]), after=Reached(2, 0)))
    assert statements.count("SAVEPOINT") == 61
    old = [order(number, "old") for number in range(1, 6)]
    assert copy.rows(ORDERS) == sorted_rows(ORDERS, old + [order(number, "new") for number in range(6, 73)])


@pytest.mark.parametrize(
    "change", [(INSERT, order(2, "new")), (UPDATE, order(8, "new"))], ids=["the-row-is-there", "the-row-is-not-there"]
)
def test_a_copy_that_differs_from_what_the_changes_tell_is_written_all_the_same(
    copy: SinkCase, statements: list[str], change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the time of a first load, whose rows are newer than the log."""
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", 1)
    first: list[Change] = [(UPDATE, order(1, "new")), (INSERT, order(6, "new")), change]
    second: list[Change] = [(UPDATE, order(3, "new")), (INSERT, order(9, "new")), (DELETE, order(6, "new"))]
    copy.write(log_part(2, (ORDERS, first), (ORDERS, second), after=Reached(0, 1)))
    assert "conflict" in statements
    assert statements.count("SAVEPOINT") <= 1  # it is not tried again in this part
    notes = {1: "new", 2: "old", 3: "new", 4: "old", 5: "old", 9: "new", change[1][0]: "new"}
    assert copy.rows(ORDERS) == sorted_rows(ORDERS, [order(number, note) for number, note in notes.items()])


def test_rows_that_the_target_refuses_are_reported_as_before(copy: SinkCase) -> None:
    copy.place.execute("ALTER TABLE shop_orders ADD CHECK (note <> 'bad')")
    with pytest.raises(Exception, match="violates check constraint"):
        copy.write(log_part(2, (ORDERS, [(INSERT, order(6, "bad"))]), after=Reached(0, 1)))
    copy.write(log_part(2, (ORDERS, [(INSERT, order(6, "good"))]), after=Reached(0, 1)))
    assert len(copy.rows(ORDERS)) == 6


def test_a_session_has_room_for_temporary_tables_unless_it_has_used_some(copy: SinkCase) -> None:
    """A pooler may keep sessions whose size of temporary tables can't be changed any more."""
    sizes = []
    for used in (False, True):
        with closing(psycopg2.connect(copy.place.url)) as connection:
            if used:
                with connection.cursor() as cursor:
                    cursor.execute("CREATE TEMPORARY TABLE t AS SELECT 1 AS id")
                connection.commit()
            sizes += PostgresSession(connection, "mysql").query("SHOW temp_buffers")
    assert sizes == [("64MB",), ("8MB",)]
