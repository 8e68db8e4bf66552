"""Values that a mirror's target can't hold: what `sink.on_bad_value` makes of them, and that the copy and the rejects together
are the source's rows, whatever happens to a rejected row later."""

import dataclasses
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_sink_mirror_settings import global_settings
from tests.support.change_parts import (
    DELETE,
    INSERT,
    TRUNCATE,
    UNCHANGED,
    UPDATE,
    Change,
    column,
    log_part,
    snapshot_part,
)
from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tests.support.sink_state import SinkCase, any_mirror, make_case, mirror, mirror_of_postgres, target_name  # noqa: F401  # fixtures
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.sinks.mirror.bad_values import Policies, Policy
from tidemark.sinks.mirror.mysql import rows as mysql_rows
from tidemark.sinks.mirror.sink import MirrorSink
from tidemark.sinks.sink import BadValues
from tidemark.state.errors import SinkError
from tidemark.state.table import Column, TableId, TableSchema

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(109)]

INFINITY = float("inf")
TABLE = TableId("shop", "readings")
READINGS = TableSchema(
    TABLE,
    1,
    (
        column("id", "bigint", "int64", key=True),
        column("note", "text", "string"),
        column("level", "double", "float64"),
    ),
    ("id",),
)
"""A note can be bad in PostgreSQL, a level in MySQL and MariaDB."""
LONG = TableSchema(
    TABLE,
    1,
    (
        Column("id", "bigint", "int64", nullable=False),
        Column("level", "double precision", "float64", nullable=True),
        Column("body", "text", "string", nullable=True, toastable=True),
        Column("scan", "bytea", "binary", nullable=True, toastable=True),
    ),
    ("id",),
)
DATED = TableSchema(
    TABLE,
    1,
    (column("id", "bigint", "int64", key=True), column("day", "date", "date32", key=True), column("n", "int", "int32")),
    ("id", "day"),
)


def bad(number: int, case: SinkCase) -> tuple[Any, ...]:
    """A row that the target can't hold."""
    return (number, "a\0b", 1.0) if case.kind == "postgres" else (number, "ab", -INFINITY)


def bad_column(case: SinkCase) -> str:
    return "note" if case.kind == "postgres" else "level"


def good(number: int) -> tuple[Any, ...]:
    return (number, "ok", 0.5)


def choose(case: SinkCase, policy: Policy, **columns: Policy) -> None:
    assert isinstance(case.sink, MirrorSink)
    case.sink = dataclasses.replace(case.sink, policies=Policies(policy, {("shop", "readings"): columns}))


def prepared(case: SinkCase, policy: Policy, schema: TableSchema = READINGS) -> SinkCase:
    choose(case, policy)
    case.sink.prepare(case.job, [schema])
    return case


def write(case: SinkCase, items: Any, schema: TableSchema = READINGS) -> tuple[BadValues, ...]:
    (result,) = case.write(items, schemas={(schema.table, 1): schema})
    return result.bad_values


def rejects(case: SinkCase) -> list[dict[str, Any]]:
    found = case.place.query(
        "SELECT row_data, bad_columns, change_type FROM tidemark_rejects WHERE source_table = 'readings' ORDER BY row_key"
    )
    return [{**json.loads(row), "bad": columns, "change": kind} for row, columns, kind in found]


def rejected_ids(case: SinkCase) -> list[int]:
    return sorted(row["id"] for row in rejects(case))


def test_job_stops_and_goes_on_with_another_policy(mirror: SinkCase) -> None:  # noqa: F811
    """The part stays what it was; only the policy changes."""
    copy = prepared(mirror, "stop")
    part = log_part(2, (READINGS, [(INSERT, good(1)), (INSERT, bad(2, copy)), (INSERT, good(3))]))
    name = bad_column(copy)
    with pytest.raises(SinkError, match=rf"shop\.readings: a value of column {name} .* can't hold\. Remedy") as caught:
        write(copy, part)
    assert copy.rows(READINGS) == []
    assert f"on_bad_value_in: {{shop.readings: {{{name}: " in caught.value.remedy
    choose(copy, "park", **{name: "stop"})
    with pytest.raises(SinkError) as caught:
        write(copy, part)
    assert caught.value.table is None  # else it would be parked
    choose(copy, "stop", **{name: "reject"})
    assert write(copy, part) == (BadValues(TABLE, name, "reject", 1),)
    assert copy.rows(READINGS) == [good(1), good(3)]
    assert rejected_ids(copy) == [2]
    assert rejects(copy)[0]["bad"] == name


def test_bad_value_becomes_null(mirror: SinkCase) -> None:  # noqa: F811
    copy = prepared(mirror, "null")
    told = (BadValues(TABLE, bad_column(copy), "null", 1),)
    assert write(copy, snapshot_part(1, 1, READINGS, [good(1), bad(2, copy)])) == told
    assert write(copy, log_part(2, (READINGS, [(UPDATE, bad(1, copy))]))) == told
    expected = [
        tuple(None if READINGS.columns[i].name == bad_column(copy) else v for i, v in enumerate(bad(n, copy)))
        for n in (1, 2)
    ]
    assert copy.rows(READINGS) == expected
    assert rejects(copy) == []


def test_nul_becomes_a_symbol_in_text(request: pytest.FixtureRequest) -> None:
    copy = prepared(make_case("postgres", request), "text")
    assert write(copy, snapshot_part(1, 1, READINGS, [bad(2, copy)])) == (BadValues(TABLE, "note", "text", 1),)
    assert copy.rows(READINGS) == [(2, "a␀b", 1.0)]


def test_column_that_is_not_text_has_no_text(request: pytest.FixtureRequest) -> None:
    copy = prepared(make_case("mysql", request), "text")
    with pytest.raises(SinkError, match="column level is a NaN or an infinity") as caught:
        write(copy, snapshot_part(1, 1, READINGS, [bad(2, copy)]))
    assert "level: null}} (or reject), then" in caught.value.remedy


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_rejected_rows_that_are_too_long_for_one_statement(kind: str, request: pytest.FixtureRequest) -> None:
    copy = make_case(kind, request)
    long = [(n, "x" * 60_000, INFINITY) for n in range(100)]
    with global_settings(copy.place, max_allowed_packet=2 << 20):
        prepared(copy, "reject")
        write(copy, snapshot_part(1, 1, READINGS, long))
        assert rejected_ids(copy) == list(range(100))
        write(copy, log_part(2, (READINGS, [(UPDATE, good(n)) for n in range(100)])))
    assert rejects(copy) == []
    assert copy.rows(READINGS) == [good(n) for n in range(100)]


def test_rejected_row_follows_its_changes(mirror: SinkCase) -> None:  # noqa: F811
    copy = prepared(mirror, "reject")
    write(copy, snapshot_part(1, 1, READINGS, [good(1), bad(2, copy), bad(3, copy), bad(4, copy)]))
    assert rejected_ids(copy) == [2, 3, 4]
    write(copy, log_part(2, (READINGS, [(UPDATE, good(2)), (UPDATE, bad(1, copy))])))
    assert copy.rows(READINGS) == [good(2)]
    assert rejected_ids(copy) == [1, 3, 4]
    write(copy, log_part(3, (READINGS, [(DELETE, bad(3, copy)), (DELETE, bad(4, copy)), (INSERT, good(5))])))
    assert copy.rows(READINGS) == [good(2), good(5)]
    assert rejected_ids(copy) == [1]
    write(copy, log_part(4, (READINGS, [(TRUNCATE, (None, None, None))]), (READINGS, [(INSERT, bad(6, copy))])))
    assert copy.rows(READINGS) == []
    assert rejected_ids(copy) == [6]
    choose(copy, "stop")  # what was rejected stays correct under every policy
    write(copy, log_part(5, (READINGS, [(UPDATE, good(6))])))
    assert copy.rows(READINGS) == [good(6)]
    assert rejects(copy) == []


@pytest.mark.parametrize("chunk_bytes", [1, mirror_writer.CHUNK_BYTES])
def test_copy_and_rejects_are_the_rows_of_the_source(
    any_mirror: SinkCase,  # noqa: F811
    chunk_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", chunk_bytes)
    copy, chance = prepared(any_mirror, "reject"), random.Random(chunk_bytes)
    source: dict[int, tuple[Any, ...]] = {}
    for epoch in range(1, 13):
        batches: list[tuple[TableSchema, list[Change]]] = []
        for _ in range(chance.randint(1, 4)):
            changes: list[Change] = []
            for _ in range(chance.randint(1, 8)):
                number = chance.randint(1, 12)
                row = bad(number, copy) if chance.random() < 0.4 else good(number)
                if number in source and chance.random() < 0.4:
                    changes.append((DELETE, source.pop(number)))
                else:
                    changes.append((UPDATE if number in source else INSERT, row))
                    source[number] = row
            batches.append((READINGS, changes))
        write(copy, log_part(epoch, *batches))
        assert copy.rows(READINGS) == [source[n] for n in sorted(source) if source[n] == good(n)]
        assert rejected_ids(copy) == [n for n in sorted(source) if source[n] != good(n)]


def test_values_that_the_log_left_out_come_from_the_copy_and_from_the_rejects(request: pytest.FixtureRequest) -> None:
    copy = prepared(make_case("mysql", request, source="postgresql"), "reject", LONG)
    body, scan = "it's\n\\" * 100, bytes(range(256))
    write(
        copy, snapshot_part(1, 1, LONG, [(1, 0.5, body, scan), (2, INFINITY, body, None), (3, 0.5, body, scan)]), LONG
    )
    changes: list[Change] = [
        (UPDATE, (1, INFINITY, UNCHANGED, UNCHANGED)),  # is rejected now: the copy has its long values
        (UPDATE, (2, 1.5, UNCHANGED, UNCHANGED)),  # is good now: the rejects have them
        (UPDATE, (3, 1.5, UNCHANGED, b"new")),
    ]
    write(copy, log_part(2, (LONG, changes)), LONG)
    assert copy.rows(LONG) == [(2, 1.5, body, None), (3, 1.5, body, b"new")]
    assert rejected_ids(copy) == [1]
    write(copy, log_part(3, (LONG, [(UPDATE, (1, -INFINITY, UNCHANGED, UNCHANGED))])), LONG)  # stays rejected
    write(copy, log_part(4, (LONG, [(DELETE, (1, None, None, None)), (INSERT, (7, 2.5, UNCHANGED, UNCHANGED))])), LONG)
    assert copy.rows(LONG) == [(2, 1.5, body, None), (3, 1.5, body, b"new"), (7, 2.5, body, scan)]
    assert rejects(copy) == []


@pytest.mark.once_per_family
def test_a_copy_that_is_named_like_a_temporary_table(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary table hides a table of the same name."""
    schema = dataclasses.replace(LONG, table=TableId("tidemark", "8"))
    copy = make_case("mysql", request, source="postgresql")
    copy.sink.prepare(copy.job, [schema])
    body = "it's" * 100
    write(copy, snapshot_part(1, 1, schema, [(1, 0.5, body, None)]), schema)
    for epoch, number in ((2, 8), (3, 7)):  # the first one, then the second one of the two that are needed
        monkeypatch.setattr(mysql_rows, "_NUMBERS", itertools.count(number))
        write(copy, log_part(epoch, (schema, [(UPDATE, (1, float(epoch), UNCHANGED, None))])), schema)
        assert copy.rows(schema) == [(1, float(epoch), body, None)]


def test_a_rejected_row_is_completed_although_its_table_got_a_column_since(request: pytest.FixtureRequest) -> None:
    copy = prepared(make_case("mysql", request, source="postgresql"), "reject", LONG)
    body = "it's\n\\" * 100
    write(copy, snapshot_part(1, 1, LONG, [(1, INFINITY, body, None)]), LONG)
    more = dataclasses.replace(
        LONG, columns=(*LONG.columns, dataclasses.replace(LONG.column("body"), name="more", added=True))
    )
    assert isinstance(copy.sink, MirrorSink)
    copy.sink.add_columns(copy.job, more, ["more"])
    write(copy, log_part(2, (more, [(UPDATE, (1, 1.5, UNCHANGED, UNCHANGED, None))])), more)
    assert copy.rows(more) == [(1, 1.5, body, None, None)]
    assert rejects(copy) == []


def test_rows_whose_key_is_not_known_are_kept_as_changes(mirror: SinkCase) -> None:  # noqa: F811
    """A zero date arrives as null: two keys may look alike, so nothing is replaced or removed."""
    copy = prepared(mirror, "stop", DATED)
    part = log_part(
        2,
        (DATED, [(INSERT, (1, None, 5)), (INSERT, (1, 19000, 6)), (INSERT, (1, None, 7)), (DELETE, (1, None, 5))]),
    )
    with pytest.raises(SinkError, match=r"column day is null \(perhaps a zero date\)") as caught:
        write(copy, part, DATED)
    assert "day: reject" in caught.value.remedy
    choose(copy, "stop", day="reject")
    assert write(copy, part, DATED) == (BadValues(TABLE, "day", "reject", 3),)
    assert write(copy, snapshot_part(3, 1, DATED, [(2, None, 1)]), DATED) == (BadValues(TABLE, "day", "reject", 1),)
    assert copy.rows(DATED) == [(1, 19000, 6)]
    assert sorted((row["n"], row["change"]) for row in rejects(copy)) == [
        (1, "insert"),
        (5, "delete"),
        (5, "insert"),
        (7, "insert"),
    ]


def test_key_that_the_target_cannot_hold(request: pytest.FixtureRequest) -> None:
    copy = make_case("postgres", request)
    schema = TableSchema(
        TABLE, 1, (column("id", "varchar(9)", "string", key=True), column("n", "int", "int32")), ("id",)
    )
    prepared(copy, "null", schema)
    part = log_part(2, (schema, [(INSERT, ("a\0", 1)), (INSERT, ("a", 1))]))
    with pytest.raises(SinkError, match="column id has a NUL character") as caught:
        write(copy, part, schema)
    assert "id: reject" in caught.value.remedy
    choose(copy, "reject")
    write(copy, part, schema)
    assert copy.rows(schema) == [("a", 1)]
    write(copy, log_part(3, (schema, [(DELETE, ("a\0", 1)), (INSERT, ("b", 1))])), schema)
    assert copy.rows(schema) == [("a", 1), ("b", 1)]
    assert rejects(copy) == []


def test_times_and_labels_that_mysql_lacks(request: pytest.FixtureRequest) -> None:
    columns = (
        column("id", "bigint", "int64", key=True),
        column("day", "date", "date32"),
        column("at", "datetime(6)", "timestamp"),
        column("seen", "timestamp(6)", "timestamptz"),
        column("mood", "enum('good','bad')", "string"),
        column("doc", "json", "string"),
    )
    schema = TableSchema(TABLE, 1, columns, ("id",))
    copy = prepared(make_case("mysql", request), "null", schema)
    values = [
        (1, -719_469, None, 999_999, "", '{"a": 0.12345678901234567891}'),
        (2, 2_932_897, -719_468 * 86_400_000_000 - 1, 2**31 * 10**6, "good", "[1]"),
        (3, -719_468, -719_468 * 86_400_000_000, 1_000_000, "bad", None),
    ]
    write(copy, snapshot_part(1, 1, schema, values), schema)
    found = copy.rows(schema)
    assert found[0] == (1, None, None, None, None, None)
    assert found[1] == (2, None, None, None, "good", "[1]")
    assert found[2] == values[2]


@pytest.mark.parametrize("source", ["mysql", "mariadb"])
def test_stopped_job_goes_on_with_another_policy(
    source: str, request: pytest.FixtureRequest, postgres_database: Database, tmp_path: Path
) -> None:
    """Correcting the row does not help, because its change stays in the log. The printed remedy does."""
    database: Database = request.getfixturevalue(f"{source}_database")
    database.execute(
        "SET sql_mode = ''",
        "CREATE TABLE notes (id int PRIMARY KEY, note text)",
        "CREATE TABLE days (day date PRIMARY KEY, n int)",
        "INSERT INTO notes VALUES (1, 'ok')",
        "INSERT INTO days VALUES ('2024-01-01', 1)",
    )
    sink = {"type": "mirror", "url": postgres_database.url, "table": "{table}"}
    path = write_job(tmp_path, source=source_of(database), sink=sink)
    run_epochs(path)
    database.execute(
        "SET sql_mode = ''",
        "INSERT INTO notes VALUES (2, 'a\\0b'), (3, 'ok')",
        "INSERT INTO days VALUES ('0000-00-00', 2), ('2024-01-02', 3)",
        "UPDATE notes SET note = 'ab' WHERE id = 2",
    )
    with pytest.raises(SinkError, match="column day is null") as caught:
        run_epochs(path)
    assert f"{database.schema}.days: {{day: reject}}" in caught.value.remedy
    notes = Notes()
    run_epochs(path, f"sink.on_bad_value_in={{{database.schema}.days: {{day: reject}}}}", notes=notes)
    assert [facts for event, facts in notes.found if event == "warning" and "column" in facts] == [
        {
            "table": f"{database.schema}.days",
            "column": "day",
            "policy": "reject",
            "values": 1,
            "text": f"{database.schema}.days: values of column day that the target can't hold: 1; "
            "their rows are in tidemark_rejects.",
        }
    ]
    assert postgres_database.query("SELECT * FROM notes ORDER BY id") == [(1, "ok"), (2, "ab"), (3, "ok")]
    assert postgres_database.query("SELECT n FROM days ORDER BY day") == [(1,), (3,)]
    assert postgres_database.query("SELECT row_data FROM tidemark_rejects") == [('{"day":null,"n":2}',)]
    database.execute("INSERT INTO notes VALUES (4, 'a\\0b')", "DELETE FROM notes WHERE id = 1")
    with pytest.raises(SinkError, match="column note has a NUL character"):
        run_epochs(path)
    database.execute("DELETE FROM notes WHERE id = 4")
    with pytest.raises(SinkError, match="column note has a NUL character"):
        run_epochs(path)
    run_epochs(path, "sink.on_bad_value=null")
    assert postgres_database.query("SELECT id FROM notes ORDER BY id") == [(2,), (3,)]


def test_policy_of_a_column_that_is_not_copied_is_refused(mirror: SinkCase) -> None:  # noqa: F811
    choose(mirror, "stop", nota="null")
    with pytest.raises(SinkError, match=r"on_bad_value_in names column nota.* Name one of: id, level, note"):
        mirror.sink.prepare(mirror.job, [READINGS])
