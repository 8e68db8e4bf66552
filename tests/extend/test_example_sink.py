"""The contract suite, run over the example sink of docs/extend/sink.md."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples.custom_sink.sqlite_sink import SqliteSink, SqliteWriter, connect
from tests.contract import test_sink_contract as contract
from tests.contract import test_sink_unchanged as unchanged
from tests.contract.test_sink_contract import part_sink, sink  # noqa: F401  # fixtures
from tests.support.change_parts import INSERT, ITEMS, NOTES, ORDERS, UNCHANGED, UPDATE, log_part, snapshot_part
from tests.support.guide import assert_implements
from tests.support.sink_state import SinkCase, sorted_rows
from tidemark.sinks.sink import PartSink, PartWriter
from tidemark.state.errors import SinkError
from tidemark.state.table import Column, TableId, TableSchema

# The suite's tests, with the fixtures of this module in place of the suite's.
globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})


class SqliteCase(SinkCase):
    def rows(self, schema: TableSchema) -> list[tuple[Any, ...]]:
        names = ", ".join(f'"{column.name}"' for column in schema.captured)
        with closing(connect(self.place)) as connection:
            return sorted_rows(schema, connection.execute(f'SELECT {names} FROM "{schema.table}"').fetchall())


@pytest.fixture
def any_sink(tmp_path: Path) -> SinkCase:
    path = str(tmp_path / "copy.db")
    return SqliteCase("sqlite", SqliteSink(path), path)


@pytest.fixture
def every_sink(any_sink: SinkCase) -> SinkCase:
    return any_sink


def test_the_example_has_the_methods_of_the_protocols() -> None:
    assert_implements(PartSink, SqliteSink)
    assert_implements(PartWriter, SqliteWriter)


def test_check_writes_nothing(any_sink: SinkCase) -> None:
    findings = any_sink.sink.check([ORDERS, ITEMS])
    assert not [finding for finding in findings if finding.is_problem]
    assert {finding.table for finding in findings} == {ORDERS.table, ITEMS.table}
    assert not Path(any_sink.place).exists()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([(UPDATE, unchanged.note(1, 1))], [unchanged.full(1, 1)]),
        (
            [*unchanged.moved(1, 9), (UPDATE, unchanged.note(9, 5, size=None)), *unchanged.moved(9, 8, 7)],
            [unchanged.note(8, 7, f"1 {unchanged.BODY}", unchanged.SCAN[1:], None)],
        ),
    ],
    ids=["update", "new key twice, with an update between"],
)
def test_values_left_out_of_the_log_stay(any_sink: SinkCase, changes: list[Any], expected: Sequence[Any]) -> None:
    any_sink.sink.prepare(any_sink.job, [NOTES])
    any_sink.write(snapshot_part(1, 1, NOTES, [unchanged.full(1)]))
    any_sink.write(log_part(2, *((NOTES, [change]) for change in changes)))
    assert any_sink.rows(NOTES) == sorted_rows(NOTES, expected)


def test_row_that_the_copy_lacks_stops_the_job(any_sink: SinkCase) -> None:
    any_sink.sink.prepare(any_sink.job, [NOTES])
    with pytest.raises(SinkError, match=r"public.notes: The log leaves values out of a change to a row that the copy"):
        any_sink.write(log_part(1, (NOTES, [(UPDATE, (1, "en", 2, UNCHANGED, None, None))])))


def test_what_sqlite_cannot_store_is_refused(any_sink: SinkCase) -> None:
    columns = (
        Column("id", "bigint", "int64", nullable=False),
        Column("ratio", "double", "float64", nullable=True),
        Column("Ratio", "double", "float64", nullable=True),
        Column("place", "vector(2)", "list<float32>", nullable=True),
    )
    shapes = TableSchema(TableId("shop", "shapes"), 1, columns, ("id",))
    problems = [finding.text for finding in any_sink.sink.check([shapes]) if finding.is_problem]
    assert problems == [
        "SQLite has no type for its column place (vector(2)).",
        "SQLite does not tell columns apart whose names differ in case only.",
    ]
    ratios = TableSchema(shapes.table, 1, columns[:2], ("id",))
    schemas = {(ratios.table, 1): ratios}
    any_sink.sink.prepare(any_sink.job, [ratios])
    any_sink.write(snapshot_part(1, 1, ratios, [(1, float("inf"))]), schemas=schemas)
    with pytest.raises(SinkError, match="column ratio has a NaN"):
        any_sink.write(log_part(2, (ratios, [(INSERT, (2, float("nan")))])), schemas=schemas)
    assert any_sink.rows(ratios) == [(1, float("inf"))]


def test_another_file_than_before_is_refused(any_sink: SinkCase) -> None:
    any_sink.sink.prepare(any_sink.job, [ORDERS])
    Path(any_sink.place).unlink()
    with pytest.raises(SinkError, match=r"is not marked as written by this job: sink\.path names another place"):
        any_sink.sink.prepare(any_sink.job, [ORDERS], [ORDERS.table])


def test_other_tables_and_other_columns_are_refused(any_sink: SinkCase) -> None:
    with closing(connect(any_sink.place)) as connection:
        connection.execute('CREATE TABLE "shop.orders" (id INTEGER)')
    with pytest.raises(SinkError, match=r"Table shop.orders exists already. Remedy: Drop it"):
        any_sink.sink.prepare(any_sink.job, [ORDERS])
    any_sink.sink.prepare(any_sink.job, [ITEMS])
    changed = TableSchema(ITEMS.table, 1, ITEMS.columns[:2], ITEMS.key)
    with pytest.raises(SinkError, match=r"Table shop.items has other columns than its source"):
        any_sink.sink.prepare(any_sink.job, [changed])
