"""A mirror's writer prepares the next chunk while the target's server works on one."""

import threading
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import pytest

from tests.support.change_parts import DELETE, INSERT, ORDERS, SCHEMAS, UPDATE, log_part, snapshot_part
from tests.support.sink_state import SinkCase, make_case, sink_params, sorted_rows, target_name
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.sinks.mirror.mysql import rows as mysql_rows
from tidemark.sinks.mirror.postgres import rows as postgres_rows
from tidemark.sinks.sink import PartResult
from tidemark.state.change_batch import ChangeBatch, PartEnd
from tidemark.state.reached import Reached

pytestmark = pytest.mark.integration
WAIT_SECONDS = 60


def order(number: int, note: str) -> tuple[Any, ...]:
    return (number, "Ada", Decimal("1.00"), 1_704_067_200_000_000, note)


@pytest.fixture(params=sink_params(("mysql", "postgres")))
def copy(request: pytest.FixtureRequest) -> SinkCase:
    """A copy of the orders 1 to 9."""
    case = make_case(request.param, request)
    case.sink.prepare(case.job, [ORDERS])
    case.write(snapshot_part(1, 1, ORDERS, [order(number, "old") for number in range(1, 10)]))
    return case


class Writer(threading.Thread):
    """Writes items, each chunk by itself. Its reader tells when it is asked for the item `place`, and may fail there."""

    def __init__(self, copy: SinkCase, items: list[ChangeBatch | PartEnd], place: int, *, fails: bool) -> None:
        super().__init__(daemon=True)
        self._copy, self._items, self._place, self._fails = copy, items, place, fails
        self.asked = threading.Event()
        self.results: list[PartResult] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        assert hasattr(self._copy.sink, "writer")
        try:
            self.results = list(self._copy.sink.writer(self._copy.job).write(self._read(), SCHEMAS))
        except ConnectionError as error:
            self.error = error

    def _read(self) -> Iterator[ChangeBatch | PartEnd]:
        yield from self._items[: self._place]
        self.asked.set()
        if self._fails:
            raise ConnectionError("the source is gone")
        yield from self._items[self._place :]


@pytest.mark.parametrize("fails", [False, True], ids=["read", "reader-fails"])
def test_the_next_chunk_is_read_while_the_target_works(
    copy: SinkCase, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock keeps the target from the end of the first chunk, until the second one was asked for."""
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", 1)
    changes: list[list[Any]] = [
        [(UPDATE, order(1, "new"))],
        [(UPDATE, order(2, "new")), (DELETE, order(3, "old"))],
        [(UPDATE, order(1, "newer")), (INSERT, order(3, "again"))],
        [(INSERT, order(10, "new"))],
    ]
    items = log_part(2, *[(ORDERS, some) for some in changes], after=Reached(0, 1))
    with closing(copy.place.connect()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"UPDATE {target_name(copy, ORDERS)} SET note = 'locked' WHERE id = 1")
        writer = Writer(copy, items, 1, fails=fails)
        assert writer.asked.wait(WAIT_SECONDS)
        assert writer.is_alive()
        cursor.execute("ROLLBACK")
    writer.join(WAIT_SECONDS)
    assert not writer.is_alive()
    assert not [thread for thread in threading.enumerate() if thread.name == "chunk-ahead"]
    before = [order(number, "old") for number in range(1, 10)]
    after = [order(1, "newer"), order(2, "new"), order(3, "again"), *before[3:], order(10, "new")]
    assert isinstance(writer.error, ConnectionError) == fails
    assert copy.rows(ORDERS) == sorted_rows(ORDERS, before if fails else after)
    assert [result.skipped for result in copy.write(items)] == [not fails]
    assert copy.rows(ORDERS) == sorted_rows(ORDERS, after)


def test_pieces_of_a_chunk_are_written_in_their_order_and_all(copy: SinkCase, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mysql_rows, postgres_rows):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
    inserted = [order(number, "new") for number in range(10, 17)]
    changes = [(UPDATE, order(number, "new")) for number in range(1, 6)]
    deleted = [(DELETE, order(number, "old")) for number in range(6, 10)]
    copy.write(log_part(2, (ORDERS, [*changes, *deleted, *[(INSERT, row) for row in inserted]]), after=Reached(0, 1)))
    rows = [order(number, "new") for number in range(1, 6)] + inserted
    assert copy.rows(ORDERS) == sorted_rows(ORDERS, rows)
