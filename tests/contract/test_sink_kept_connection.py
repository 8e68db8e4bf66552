"""A mirror's writer in the driver's process keeps its connection from one epoch to the next."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.change_parts import INSERT, ITEMS, ORDERS, SCHEMAS, log_part
from tests.support.sink_state import SinkCase, mirror, sorted_rows
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.sinks.mirror.sink import MirrorSink
from tidemark.sinks.mirror.target import Session
from tidemark.sinks.mirror.writer import MirrorWriter
from tidemark.state.reached import Reached

__all__ = ["mirror"]

Write = Callable[[int], None]


def part(number: int) -> list[Any]:
    return log_part(number, (ORDERS, [(INSERT, row(number))]), after=Reached(number - 1, 0))


def row(number: int) -> tuple[Any, ...]:
    return (number, "Ada", None, 1, None)


@pytest.fixture
def opened() -> list[Session]:
    """The sessions that the writer has opened."""
    return []


@pytest.fixture
def writer(mirror: SinkCase, opened: list[Session]) -> Iterator[MirrorWriter]:
    sink = mirror.sink
    assert isinstance(sink, MirrorSink)
    sink.prepare(mirror.job, [ORDERS, ITEMS])

    def connect() -> Session:
        opened.append(sink.connect())
        return opened[-1]

    kept = replace(sink.writer(mirror.job), connect=connect).keeping()
    yield kept
    kept.close()


@pytest.fixture
def write(writer: MirrorWriter) -> Write:
    return lambda number: list(writer.write(part(number), SCHEMAS)) and None


def end(mirror: SinkCase, session: Any) -> None:
    """Ends a session as a server does that shuts down."""
    if mirror.kind == "postgres":
        pid = session._connection.info.backend_pid
        mirror.place.query("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    else:
        mirror.place.execute(f"KILL {session._connection.thread_id()}")


def in_transaction(mirror: SinkCase, session: Any) -> bool:
    if mirror.kind == "postgres":
        pid = session._connection.info.backend_pid
        return bool(mirror.place.query("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state <> 'idle'", (pid,)))
    query = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = %s"
    return bool(mirror.place.query(query, (session._connection.thread_id(),)))


def assert_holds(mirror: SinkCase, *numbers: int) -> None:
    assert mirror.rows(ORDERS) == sorted_rows(ORDERS, [row(number) for number in numbers])


def test_one_connection_writes_the_next_epochs_without_an_open_transaction_between(
    mirror: SinkCase,
    write: Write,
    opened: list[Session],
) -> None:
    for number in (1, 2, 2, 3):
        write(number)
        assert not in_transaction(mirror, opened[0])
    assert len(opened) == 1
    assert_holds(mirror, 1, 2, 3)


def test_a_kept_connection_that_broke_is_replaced(
    mirror: SinkCase,
    write: Write,
    opened: list[Session],
) -> None:
    write(1)
    end(mirror, opened[0])
    write(2)
    assert len(opened) == 2
    assert_holds(mirror, 1, 2)


def test_a_kept_connection_is_replaced_in_time(
    mirror: SinkCase,
    write: Write,
    opened: list[Session],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mirror_writer, "KEPT_SECONDS", 0.0)
    write(1)
    write(2)
    assert len(opened) == 2


def test_nothing_of_an_epoch_whose_reading_fails_stays_in_the_kept_connection(
    mirror: SinkCase,
    writer: MirrorWriter,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", 1)  # written while it is read

    def failing() -> Iterator[Any]:
        yield from part(1)[:-1]
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        list(writer.write(failing(), SCHEMAS))
    assert_holds(mirror)
    write(1)
    assert_holds(mirror, 1)
