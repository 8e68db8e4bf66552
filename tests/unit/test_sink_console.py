"""The console sink prints whole parts, a line a change."""

import dataclasses
import io

import pytest

from tests.support.change_parts import (
    DELETE,
    INSERT,
    ITEMS,
    NOTES,
    ORDERS,
    SCHEMAS,
    UNCHANGED,
    UPDATE,
    column,
    log_part,
    snapshot_part,
)
from tidemark.sinks.console import ConsoleSink
from tidemark.sinks.sink import JobIdentity, PartResult, SinkBusyError
from tidemark.state.errors import SinkError

JOB = JobIdentity("uuid", "job")


def test_each_change_is_a_line() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(stream)
    sink.prepare(JOB, [ORDERS])
    items = [
        *snapshot_part(1, 1, ITEMS, [(1, "Füller", 2)]),
        *log_part(
            2,
            (ITEMS, [(UPDATE, (1, "pen", None)), (DELETE, (1, "pen", None))]),
            (ORDERS, [(INSERT, (1, "A", None, 0, "\n"))]),
        ),
    ]
    assert list(sink.writer(JOB).write(items, SCHEMAS))[1] == PartResult(2, "log", 3, skipped=False)
    assert stream.getvalue().splitlines() == [
        'shop.items insert {"order_id":1,"sku":"Füller","quantity":2}',
        'shop.items update_postimage {"order_id":1,"sku":"pen","quantity":null}',
        'shop.items delete {"order_id":1,"sku":"pen","quantity":null}',
        'shop.orders insert {"id":1,"customer":"A","amount":null,"placed_at":"1970-01-01T00:00:00.000000","note":"\\n"}',
    ]


def test_a_part_that_is_written_again_is_printed_again() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(stream)
    for owner in (1, 2):
        sink.prepare(job := dataclasses.replace(JOB, owner=owner), [ITEMS])
        list(sink.writer(job).write(snapshot_part(1, 1, ITEMS, [(1, "pen", 2)]), SCHEMAS))
    assert stream.getvalue().splitlines() == ['shop.items insert {"order_id":1,"sku":"pen","quantity":2}'] * 2


def test_a_column_with_a_name_that_changes_have_is_refused() -> None:
    schema = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, column("_seq", "int", "int32")))
    with pytest.raises(SinkError, match="column _seq has the name of a column that Tidemark adds"):
        ConsoleSink().prepare(JOB, [schema])


def test_part_without_its_end_is_not_printed() -> None:
    stream = io.StringIO()
    with pytest.raises(SinkBusyError, match="ended before its last row"):
        list(ConsoleSink(stream).writer(JOB).write(snapshot_part(1, 1, ITEMS, [(1, "pen", 2)])[:-1], SCHEMAS))
    assert stream.getvalue() == ""


def test_values_that_the_log_left_out_are_named() -> None:
    stream = io.StringIO()
    items = [
        *snapshot_part(1, 1, NOTES, [(1, "en", 5, "text", b"", None)]),
        *log_part(2, (NOTES, [(UPDATE, (1, "en", 4, UNCHANGED, b"\1", UNCHANGED))])),
    ]
    list(ConsoleSink(stream).writer(JOB).write(items, SCHEMAS))
    assert stream.getvalue().splitlines() == [
        'public.notes insert {"id":1,"lang":"en","stars":5,"body":"text","scan":"","size":null}',
        'public.notes update_postimage {"id":1,"lang":"en","stars":4,"body":null,"scan":"AQ==","size":null,'
        '"_unchanged":["body","size"]}',
    ]
