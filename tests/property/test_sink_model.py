"""Random changes, cut into random batches and epochs, with random replays: every sink ends with the rows of a dict."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.change_parts import (
    DELETE,
    INSERT,
    ITEMS,
    NOTES,
    SCHEMAS,
    TRUNCATE,
    UNCHANGED,
    UPDATE,
    Change,
    part,
    rows,
)
from tests.support.examples import examples
from tests.support.note_changes import Notes, note_histories
from tests.support.sink_state import SinkCase, any_sink, any_sink_of_postgres, sorted_rows  # noqa: F401  # fixtures
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.state.change_batch import ChangeBatch, PartEnd
from tidemark.state.table import TableSchema

KEYS = [(number, sku) for number in (1, 2) for sku in ("a", "A", "b ", "b")]
EPOCHS = itertools.count(1)


@st.composite
def histories(draw: st.DrawFn) -> list[list[list[Change]]]:
    """Epochs of transactions of valid changes: an insert of an absent key, an update or delete of a present one; or one
    truncation."""
    held: dict[tuple[Any, ...], int | None] = {}
    epochs: list[list[list[Change]]] = []
    for _ in range(draw(st.integers(1, 3))):
        transactions: list[list[Change]] = []
        for _ in range(draw(st.integers(0, 4))):
            changes: list[Change] = []
            if draw(st.integers(0, 5)) == 0:
                held.clear()
                transactions.append([(TRUNCATE, (None, None, None))])
                continue
            for _ in range(draw(st.integers(1, 5))):
                key = draw(st.sampled_from(KEYS))
                value = draw(st.none() | st.integers(0, 9))
                if key not in held:
                    changes.append((INSERT, (*key, value)))
                    held[key] = value
                    continue
                action = draw(st.sampled_from(["update", "delete", "move"]))
                absent = [k for k in KEYS if k not in held]
                if action == "update":
                    changes.append((UPDATE, (*key, value)))
                    held[key] = value
                else:
                    changes.append((DELETE, (*key, held.pop(key))))
                    if action == "move" and absent:
                        changes.append((INSERT, (*absent[0], value)))
                        held[absent[0]] = value
            transactions.append(changes)
        epochs.append(transactions)
    return epochs


def applied(epochs: list[list[list[Change]]]) -> list[tuple[Any, ...]]:
    held: dict[Any, tuple[Any, ...]] = {}
    for kind, values in itertools.chain.from_iterable(itertools.chain.from_iterable(epochs)):
        if kind is TRUNCATE:
            held.clear()
        elif kind is DELETE:
            del held[tuple(values[:2])]
        else:
            held[tuple(values[:2])] = tuple(values)
    return sorted(held.values(), key=lambda row: row[:2])


def last_states(schema: TableSchema, transactions: Iterable[list[Change]]) -> list[tuple[Any, ...]]:
    """Returns the last rows of the keys that were deleted and are not there again."""
    names = [column.name for column in schema.captured]
    held: dict[Any, list[Any]] = {}
    deleted: dict[Any, list[Any]] = {}
    for kind, values in itertools.chain.from_iterable(transactions):
        key = tuple(values[names.index(name)] for name in schema.key)
        if kind is TRUNCATE:
            deleted |= held
            held.clear()
        elif kind is DELETE:
            deleted[key] = removed = held.pop(key)
        else:
            before = removed if kind is INSERT and UNCHANGED in values else held.get(key)
            assert before is not None or UNCHANGED not in values
            held[key] = [before[i] if before and v is UNCHANGED else v for i, v in enumerate(values)]
            deleted.pop(key, None)
    return sorted_rows(schema, deleted.values())


@pytest.mark.pitfall(77)
@settings(max_examples=examples(15, 150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(epochs=histories(), streamed=st.booleans(), replays=st.integers(1, 2))
def test_sink_ends_like_the_changes(
    any_sink: SinkCase,  # noqa: F811
    epochs: list[list[list[Change]]],
    streamed: bool,
    replays: int,
) -> None:
    write(any_sink, ITEMS, epochs, streamed=streamed, replays=replays)
    assert any_sink.rows(ITEMS) == applied(epochs)
    if any_sink.keeps_deleted:
        assert any_sink.deleted_rows(ITEMS) == last_states(ITEMS, itertools.chain.from_iterable(epochs))


@pytest.mark.pitfall(61)
@settings(max_examples=examples(15, 150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=note_histories(), cut=st.integers(1, 4), streamed=st.booleans(), replays=st.integers(1, 2))
def test_sink_ends_like_changes_that_leave_values_out(
    any_sink_of_postgres: SinkCase,  # noqa: F811
    history: tuple[list[list[Change]], Notes],
    cut: int,
    streamed: bool,
    replays: int,
) -> None:
    transactions, held = history
    epochs = [transactions[:cut], transactions[cut:]]
    write(any_sink_of_postgres, NOTES, epochs, streamed=streamed, replays=replays)
    assert any_sink_of_postgres.rows(NOTES) == sorted_rows(NOTES, held.values())
    if any_sink_of_postgres.keeps_deleted:
        assert any_sink_of_postgres.deleted_rows(NOTES) == last_states(NOTES, transactions)


def write(
    sink: SinkCase, schema: TableSchema, epochs: list[list[list[Change]]], *, streamed: bool, replays: int
) -> None:
    sink.sink.prepare(sink.job, [schema])
    sink.clear(schema)
    before = mirror_writer.CHUNK_BYTES
    mirror_writer.CHUNK_BYTES = 1 if streamed else before
    try:
        for transactions in epochs:
            epoch = next(EPOCHS)
            items: list[ChangeBatch | PartEnd] = part(
                epoch,
                "log",
                [(schema, rows(schema, changes, version=100 * epoch + n)) for n, changes in enumerate(transactions)],
            )
            for replay in range(replays):
                assert [result.skipped for result in sink.write(items, schemas=SCHEMAS)] == [replay > 0]
    finally:
        mirror_writer.CHUNK_BYTES = before
