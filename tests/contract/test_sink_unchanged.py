"""Values that PostgreSQL's log leaves out of updates: mirrors keep the value that they have."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from tests.support.change_parts import DELETE, INSERT, NOTES, UNCHANGED, UPDATE, Change, log_part, snapshot_part
from tests.support.sink_state import (  # noqa: F401  # fixtures
    DELTA,
    DELTA_KEEPING,
    FILE_SINKS,
    MIRRORS,
    SinkCase,
    any_sink_of_postgres,
    make_case,
    mirror_of_postgres,
    sink_params,
    sorted_rows,
    target_name,
)
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.state.errors import SinkError
from tidemark.state.table import Column, TableId, TableSchema

NEW_YEAR = 1_704_067_200_000_000
BODY = "Füller 'n\\ Tinte" * 1000
SCAN = bytes(range(256)) * 40


def note(
    number: int, stars: int | None = 0, body: Any = UNCHANGED, scan: Any = UNCHANGED, size: Any = UNCHANGED
) -> Any:
    return number, "en", stars, body, scan, size


def full(number: int, stars: int | None = 0, mark: int | None = None) -> Any:
    mark = number if mark is None else mark
    return note(number, stars, f"{mark} {BODY}", SCAN[mark:], Decimal(f"{mark}.05"))


def gone(number: int) -> Change:
    return DELETE, (number, "en", None, None, None, None)


def moved(old: int, new: int, stars: int = 1) -> list[Change]:
    return [gone(old), (INSERT, note(new, stars))]


@pytest.fixture
def sink(any_sink_of_postgres: SinkCase) -> SinkCase:  # noqa: F811
    any_sink_of_postgres.sink.prepare(any_sink_of_postgres.job, [NOTES])
    any_sink_of_postgres.write(snapshot_part(1, 1, NOTES, [full(n) for n in range(1, 5)]))
    return any_sink_of_postgres


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param([(UPDATE, note(1, 1))], [full(1, 1), full(2), full(3), full(4)], id="update"),
        pytest.param(
            [(UPDATE, note(1, 1)), (UPDATE, note(1, 2, body=None)), (UPDATE, note(1, None, size=Decimal("7.00")))],
            [note(1, None, None, SCAN[1:], Decimal("7.00")), full(2), full(3), full(4)],
            id="updates of one row",
        ),
        pytest.param(
            [(UPDATE, note(1, 1, body=None)), (UPDATE, note(2, 2, scan=None)), (UPDATE, full(3, 3))],
            [
                note(1, 1, None, SCAN[1:], Decimal("1.05")),
                note(2, 2, f"2 {BODY}", None, Decimal("2.05")),
                full(3, 3),
                full(4),
            ],
            id="other columns in each row",
        ),
        pytest.param(moved(1, 9), [full(2), full(3), full(4), full(9, 1, mark=1)], id="new key"),
        pytest.param(
            [*moved(1, 9), (UPDATE, note(9, 5, size=None)), *moved(9, 8, 7)],
            [full(2), full(3), full(4), note(8, 7, f"1 {BODY}", SCAN[1:], None)],
            id="new key twice, with an update between",
        ),
        pytest.param(
            [change for n in (4, 3, 2, 1) for change in moved(n, n + 1)],
            [full(n + 1, 1, mark=n) for n in (1, 2, 3, 4)],
            id="chain of new keys",
        ),
        pytest.param(
            [*moved(1, 9), *moved(2, 1), *moved(9, 2)],
            [full(1, 1, mark=2), full(2, 1, mark=1), full(3), full(4)],
            id="keys that change places",
        ),
        pytest.param(
            [(INSERT, full(7)), (UPDATE, note(7, 3)), *moved(7, 6)],
            [full(1), full(2), full(3), full(4), full(6, 1, mark=7)],
            id="row that is new",
        ),
        pytest.param(
            [gone(1), (INSERT, full(1, 0, mark=8)), (UPDATE, note(1, 1)), *moved(2, 9), gone(9)],
            [full(1, 1, mark=8), full(3), full(4)],
            id="deleted and there again, moved and deleted",
        ),
    ],
)
@pytest.mark.servers_in_turn("chunk_bytes")  # each sink in one of the two ways
@pytest.mark.parametrize("chunk_bytes", [1, mirror_writer.CHUNK_BYTES])
@pytest.mark.pitfall(61)
def test_values_left_out_stay(
    sink: SinkCase, changes: list[Change], expected: list[Any], chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", chunk_bytes)
    sink.write(log_part(2, *((NOTES, pair) for pair in _transactions(changes))))
    assert sink.rows(NOTES) == sorted_rows(NOTES, expected)


@pytest.mark.parametrize("kind", sink_params((*FILE_SINKS, *MIRRORS, DELTA, DELTA_KEEPING)))
@pytest.mark.pitfall(130)
def test_row_that_is_inserted_and_updated_in_one_batch(kind: str, request: pytest.FixtureRequest) -> None:
    """The value that the update leaves out is the insert's, also after a move of the key, and where there was a row before."""
    sink = make_case(kind, request, source="postgresql")
    sink.sink.prepare(sink.job, [NOTES])
    sink.write(snapshot_part(1, 1, NOTES, [full(1)]))
    changes = [
        *[(INSERT, full(7)), (UPDATE, note(7, 3)), (UPDATE, note(7, 4))],
        *[(INSERT, full(8)), (UPDATE, note(8, 5)), *moved(8, 9, 6), (UPDATE, note(9, 7))],
        *[gone(1), (INSERT, full(1, 0, mark=2)), (UPDATE, note(1, 8))],
    ]
    sink.write(log_part(2, (NOTES, changes)))
    expected = [full(1, 8, mark=2), full(7, 4), full(9, 7, mark=8)]
    assert sink.rows(NOTES) == sorted_rows(NOTES, expected)


def _transactions(changes: list[Change]) -> list[list[Change]]:
    """Groups changes into transactions: the two changes of a key update belong together."""
    found: list[list[Change]] = []
    for kind, values in changes:
        if kind is INSERT and UNCHANGED in values:
            found[-1].append((kind, values))
        else:
            found.append([(kind, values)])
    return found


@pytest.mark.parametrize("change", [(UPDATE, note(9, 1)), moved(9, 8)], ids=["update", "new key"])
def test_a_row_that_the_target_lacks_concerns_its_table(mirror_of_postgres: SinkCase, change: Any) -> None:  # noqa: F811
    sink = mirror_of_postgres
    sink.sink.prepare(sink.job, [NOTES])
    sink.write(snapshot_part(1, 1, NOTES, [full(1)]))
    changes = change if isinstance(change, list) else [change]
    with pytest.raises(
        SinkError, match=r"public.notes: The log leaves values out of changes to 1 rows that .* does not have"
    ) as caught:
        sink.write(log_part(2, (NOTES, [(UPDATE, note(1, 1)), *changes])))
    assert caught.value.table == NOTES.table
    assert sink.rows(NOTES) == [full(1)]


def test_a_row_that_the_log_has_deleted_concerns_its_table(mirror_of_postgres: SinkCase) -> None:  # noqa: F811
    sink = mirror_of_postgres
    sink.sink.prepare(sink.job, [NOTES])
    sink.write(snapshot_part(1, 1, NOTES, [full(1)]))
    with pytest.raises(
        SinkError, match=r"public.notes: The log leaves .* out of a change in transaction .* not known"
    ) as caught:
        sink.write(log_part(2, (NOTES, [gone(1), (UPDATE, note(1, 1))])))
    assert caught.value.table == NOTES.table
    assert sink.rows(NOTES) == [full(1)]


@pytest.mark.pitfall(78)
def test_unique_values_change_places_in_a_table_of_the_users_own(mirror_of_postgres: SinkCase) -> None:  # noqa: F811
    """The table's columns are NOT NULL, and some of them fill themselves."""
    sink = mirror_of_postgres
    notes = replace(
        NOTES,
        columns=tuple(replace(column, nullable=False) if column.name == "body" else column for column in NOTES.columns),
    )
    sink.sink.prepare(sink.job, [notes])
    name = target_name(sink, notes)
    if sink.kind == "postgres":
        sink.place.execute(f"ALTER TABLE {name} ALTER body SET NOT NULL, ADD UNIQUE (stars), ADD own int DEFAULT 5")
    else:
        sink.place.execute(
            f"ALTER TABLE {name} MODIFY body LONGTEXT CHARACTER SET utf8mb4 NOT NULL, ADD UNIQUE (stars), "
            "ADD own INT DEFAULT 5"
        )
    schemas = {(notes.table, notes.version): notes}
    sink.write(snapshot_part(1, 1, notes, [full(1, 1), full(2, 2)]), schemas=schemas)
    changes = [(UPDATE, note(1, None)), (UPDATE, note(2, 1)), (UPDATE, note(1, 2))]
    sink.write(log_part(2, (notes, changes)), schemas=schemas)
    assert sink.rows(notes) == [full(1, 2), full(2, 1)]


DOCUMENTS = TableSchema(
    TableId("public", "documents"),
    1,
    (
        Column("tidemark_missing", "uuid", "string", nullable=False, toastable=True),
        Column('a % "`b', "json", "string", nullable=True, toastable=True),
        Column("at", "timestamp with time zone", "timestamptz", nullable=True),
        Column("truth", "boolean", "bool", nullable=True),
        Column("ratio", "double precision", "float64", nullable=True),
        Column("exact", "numeric", "string", nullable=True, toastable=True),
    ),
    ("tidemark_missing",),
)


def test_documents_and_names_that_need_quoting(mirror_of_postgres: SinkCase) -> None:  # noqa: F811
    sink = mirror_of_postgres
    sink.sink.prepare(sink.job, [DOCUMENTS])
    schemas = {(DOCUMENTS.table, 1): DOCUMENTS}
    key, document = "00000000-0000-4000-8000-000000000001", '{"b": 1.5, "a": "é"}'
    sink.write(
        snapshot_part(1, 1, DOCUMENTS, [(key, document, NEW_YEAR, True, 0.1, "1.00000000000000000001")]),
        schemas=schemas,
    )
    sink.write(
        log_part(2, (DOCUMENTS, [(UPDATE, (key, UNCHANGED, NEW_YEAR + 1, False, -0.5, UNCHANGED))])), schemas=schemas
    )
    assert sink.rows(DOCUMENTS) == [(key, document, NEW_YEAR + 1, False, -0.5, "1.00000000000000000001")]
