"""A split whose rows replace what a mirror's copy has in the split's range (docs/adr/0052)."""

import dataclasses
from typing import Any

import pytest

from tests.support.change_parts import column, replacing_part, snapshot_part
from tests.support.sink_state import SinkCase, any_mirror, any_sink, make_case, mirror  # noqa: F401  # fixtures
from tidemark.conf.endpoint import DatabaseKind
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.sinks.mirror.bad_values import Policies
from tidemark.sinks.mirror.comparing import MirrorComparison
from tidemark.sinks.mirror.mysql.rows import MySqlTableRows
from tidemark.sinks.mirror.postgres.rows import PostgresTableRows
from tidemark.sinks.mirror.sink import MirrorSink
from tidemark.sinks.mirror.target import Session
from tidemark.state.change_batch import ChangeBatch, ReplacedRange
from tidemark.state.copied_range import CopiedRange, EncodedText
from tidemark.state.errors import SinkError
from tidemark.state.integer_range import IntegerRange
from tidemark.state.key_order import BYTES, CODE_POINTS, INTEGERS, UUIDS
from tidemark.state.table import Column, TableId, TableSchema

PAIRS = TableSchema(
    TableId("shop", "pairs"),
    2,
    (
        column("a", "bigint", "int64", key=True),
        column("b", "smallint unsigned", "int32", key=True),
        column("note", "text", "string"),
    ),
    ("a", "b"),
)
SCHEMAS = {(PAIRS.table, 2): PAIRS}
LEAST, GREATEST = -(2**63), 2**63 - 1


def replacing(epoch: int, split: int, keys: IntegerRange, rows: list[Any], schema: TableSchema = PAIRS) -> list[Any]:
    return replacing_part(epoch, split, schema, keys, rows)


def held(case: SinkCase) -> list[tuple[int, int, str]]:
    return [(int(a), int(b), note) for a, b, note in case.rows(PAIRS)]


def keys_of(case: SinkCase) -> list[tuple[int, int]]:
    return [key[:2] for key in held(case)]


@pytest.mark.parametrize("chunk_bytes", [1, mirror_writer.CHUNK_BYTES])
def test_rows_of_the_range_go_and_all_others_stay(
    any_mirror: SinkCase,  # noqa: F811
    chunk_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the part is written while it is read, if it has no rows, and if it comes again."""
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", chunk_bytes)
    case = any_mirror
    case.sink.prepare(case.job, [PAIRS])
    keys = [(LEAST, 0), (-1, 65535), (0, 0), (5, 7), (5, 8), (6, 0), (GREATEST, 65535)]
    case.write(snapshot_part(1, 1, PAIRS, [(*key, "old") for key in keys]), schemas=SCHEMAS)
    middle = replacing(2, 2, IntegerRange(("a", "b"), (0, 0), (5, 8)), [(5, 7, "new"), (3, 3, "new")])
    case.write(middle, schemas=SCHEMAS)
    expected = {key: "old" for key in keys if key != (0, 0)} | {(5, 7): "new", (3, 3): "new"}
    assert held(case) == [(*key, note) for key, note in sorted(expected.items())]
    (repeated,) = case.write(middle, schemas=SCHEMAS)
    assert repeated.skipped
    case.write(replacing(2, 3, IntegerRange(("a",), None, (0,)), []), schemas=SCHEMAS)
    assert keys_of(case) == [(3, 3), (5, 7), (5, 8), (6, 0), (GREATEST, 65535)]
    case.write(replacing(2, 4, IntegerRange(("a", "b"), (5, 8), None), [(5, 9, "new")]), schemas=SCHEMAS)
    assert keys_of(case) == [(3, 3), (5, 7), (5, 9)]
    if case.keeps_deleted:
        marked = [(int(a), int(b), note) for a, b, note in case.deleted_rows(PAIRS)]
        assert marked == [(*key, "old") for key in keys if key != (5, 7)], "with their last values"
    case.write(replacing(2, 5, IntegerRange(("a", "b"), (LEAST, 0), (2**64, 0)), [(1, 1, "new")]), schemas=SCHEMAS)
    assert keys_of(case) == [(1, 1)]
    case.write(replacing(2, 6, IntegerRange(("a", "b"), None, None), []), schemas=SCHEMAS)
    assert held(case) == []


def test_only_the_range_is_read_if_the_first_column_of_the_key_has_one_value(
    mirror: SinkCase,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each split would read all rows of a tenant, and wait for other splits, which may wait for it."""
    case, deleting = mirror, list[str]()
    case.sink.prepare(case.job, [PAIRS])
    case.write(snapshot_part(1, 1, PAIRS, [(7, n, "old") for n in range(20_000)]), schemas=SCHEMAS)
    case.place.execute(f"ANALYZE {'' if case.kind == 'postgres' else 'TABLE '}shop_pairs")
    note_statements(case, deleting, monkeypatch)
    case.write(replacing(2, 2, IntegerRange(("a", "b"), (7, 9000), (7, 9010)), []), schemas=SCHEMAS)
    (sql,) = deleting
    require_only_the_range(case, sql)
    assert len(held(case)) == 20_000 - 10


def note_statements(case: SinkCase, noted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Any = PostgresTableRows if case.kind == "postgres" else MySqlTableRows
    ran = rows.run

    def run(self: Any, sql: str) -> Any:
        noted.append(sql)
        return ran(self, sql)

    monkeypatch.setattr(rows, "run", run)


def require_only_the_range(case: SinkCase, sql: str) -> None:
    if case.kind == "postgres":
        plan = str(case.place.query(f"EXPLAIN {sql}"))
        assert "Index Cond" in plan
        assert "Filter" not in plan
    else:
        is_mysql = case.kind == "mysql"
        (plan,) = case.place.query(f"EXPLAIN {'FORMAT=TRADITIONAL ' if is_mysql else ''}{sql}")
        assert int(plan[-3 if is_mysql else -2]) < 100, "rows that are read"


CODES = TableSchema(
    TableId("shop", "codes"),
    2,
    (
        column("a", "int", "int32", key=True),
        column("code", "varbinary(9)", "binary", key=True),
        column("note", "text", "string"),
    ),
    ("a", "code"),
)


def replacing_codes(split: int, start: bytes, end: bytes, rows: list[Any]) -> list[Any]:
    items = replacing(2, split, IntegerRange(("a",), None, None), rows, CODES)
    keys = CopiedRange(("a", "code"), (INTEGERS, BYTES), (7, start), (7, end))
    return [dataclasses.replace(items[0], range=keys, after_epoch=1), *items[1:]]


def test_a_range_of_other_keys(
    mirror: SinkCase,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It alone is read. A row that the target finds elsewhere than the split's range is refused, and nothing is written.
    Rejected rows of before are forgotten, and those of another split of the same load are not."""
    case, ran = mirror, list[str]()
    assert isinstance(case.sink, MirrorSink)
    case.sink = dataclasses.replace(case.sink, policies=Policies("reject"))
    case.sink.prepare(case.job, [CODES])
    schemas = {(CODES.table, 2): CODES}
    rejected = () if case.kind != "postgres" else ((8, b"old", "a\0b"),)
    case.write(
        snapshot_part(1, 1, CODES, [*((7, n.to_bytes(2, "big"), "old") for n in range(20_000)), *rejected]),
        schemas=schemas,
    )
    case.place.execute(f"ANALYZE {'' if case.kind == 'postgres' else 'TABLE '}shop_codes")
    note_statements(case, ran, monkeypatch)
    new = [
        (7, b"\x20\0", "new"),
        (7, b"\x20\0\0", "new"),
        (7, b"\x20\x0f'\\%s", "new"),
        *([(7, b" \1", "\0")] if rejected else []),
    ]
    case.write(replacing_codes(2, b"\x20\0", b"\x20\x10", new), schemas=schemas)
    require_only_the_range(case, ran[0])
    assert len(case.rows(CODES)) == 20_000 - 16 + 3
    case.write(replacing_codes(3, b"\x30\0", b"\x30\1", []), schemas=schemas)
    if rejected:
        assert case.place.query("SELECT row_key FROM tidemark_rejects") == [('{"a":7,"code":"IAE="}',)]
    before = case.rows(CODES)
    with pytest.raises(SinkError, match="has 1 rows in a range of its key into which 2 rows were written"):
        case.write(replacing_codes(4, b"\x20\0", b"\x20\1", [(7, b"\x20\0", "x"), (7, b"\xff", "x")]), schemas=schemas)
    lies = replacing_codes(5, b"\x20\0", b"\x20\1", [])
    lies[0] = dataclasses.replace(lies[0], range=dataclasses.replace(lies[0].range, orders=(INTEGERS, UUIDS)))
    with pytest.raises(SinkError, match=r"no longer certain that the key's columns \(a, code\) are ordered"):
        case.write(lies, schemas=schemas)
    assert case.rows(CODES) == before


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "collation"), [("mysql", "utf8mb4_0900_ai_ci"), ("mariadb", "latin1_swedish_ci"), ("postgres", '"C"')]
)
def test_a_range_of_texts_is_found_by_the_index(
    kind: str, collation: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are compared by the column's collation, whatever that of the connection is."""
    source: DatabaseKind = "postgresql" if kind == "postgres" else "mysql" if kind == "mysql" else "mariadb"
    case, ran = make_case(kind, request, source=source), list[str]()
    words = TableSchema(
        TableId("shop", "words"),
        2,
        (
            Column("a", "integer" if kind == "postgres" else "int", "int32", nullable=False),
            column("word", "varchar(9)", "string", key=True, collation=collation),
        ),
        ("a", "word"),
    )
    if kind == "postgres":
        case.place.execute(f"CREATE TABLE shop_words (a int, word text COLLATE {collation}, PRIMARY KEY (a, word))")
    case.sink.prepare(case.job, [words])
    schemas = {(words.table, 2): words}
    case.write(snapshot_part(1, 1, words, [(7, f"{n:05}ä") for n in range(5000)]), schemas=schemas)
    case.place.execute(f"ANALYZE {'' if kind == 'postgres' else 'TABLE '}shop_words")
    note_statements(case, ran, monkeypatch)
    charset = "latin1" if kind == "mariadb" else "utf8mb4"
    start, end = (
        EncodedText(charset, text.encode("latin1" if kind == "mariadb" else "utf8")) for text in ("00100Ä", "00110Ä")
    )
    order = CODE_POINTS if kind == "postgres" else f"varchar of {kind} by {collation}"
    items = replacing(2, 2, IntegerRange(("a",), None, None), [(7, "00100ä"), (7, "00105\\'")], words)
    keys = CopiedRange(("a", "word"), (INTEGERS, order), (7, start), (7, end))
    case.write([dataclasses.replace(items[0], range=keys), *items[1:]], schemas=schemas)
    require_only_the_range(case, ran[0])
    kept = [word for _, word in case.rows(words) if "00099" <= word < "00112"]
    assert kept == ["00099ä", "00100ä", "00105\\'", "00110ä", "00111ä"]


@pytest.mark.integration
def test_only_the_range_is_read_when_it_is_compared(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tidemark reconcile` of such a key. MySQL and MariaDB read ranges of it for another form of the condition."""
    case, plans = make_case("postgres", request), list[str]()
    assert isinstance(case.sink, MirrorSink)
    case.sink.prepare(case.job, [PAIRS])
    case.write(snapshot_part(1, 1, PAIRS, [(7, n, "old") for n in range(20_000)]), schemas=SCHEMAS)
    case.place.execute("ANALYZE shop_pairs")
    with case.sink.comparable(PAIRS) as comparisons, comparisons() as comparison:
        assert isinstance(comparison, MirrorComparison)
        ask = comparison.session.query

        def query(session: Session, sql: str, *arguments: Any) -> Any:
            plans.append(str(ask(f"EXPLAIN {sql}")))
            return ask(sql, *arguments)

        monkeypatch.setattr(type(comparison.session), "query", query)
        comparison.stage([])
        surplus = comparison.surplus(CopiedRange.of_integers(IntegerRange(("a", "b"), (7, 9000), (7, 9010))), 100)
    assert [pair.key for pair in surplus] == [("7", str(n)) for n in range(9000, 9010)]
    (plan,) = plans
    assert "Index Cond: ((ROW(a, b) >= ROW(7, 9000)) AND (ROW(a, b) < ROW(7, 9010)))" in plan


@pytest.mark.integration
def test_rejected_rows_of_the_range_are_forgotten(request: pytest.FixtureRequest) -> None:
    case = make_case("postgres", request)
    assert isinstance(case.sink, MirrorSink)
    case.sink = dataclasses.replace(case.sink, policies=Policies("reject"))
    case.sink.prepare(case.job, [PAIRS])
    case.write(snapshot_part(1, 1, PAIRS, [(n, n, "a\0b") for n in range(6)]), schemas=SCHEMAS)
    rows = [(1, 1, "good now"), (2, 2, "bad\0"), (4, 9, "good")]
    case.write(replacing(2, 2, IntegerRange(("a", "b"), (1, 1), (4, 5)), rows[:2]), schemas=SCHEMAS)
    rejects = case.place.query("SELECT row_key FROM tidemark_rejects ORDER BY row_key")
    assert keys_of(case) == [(1, 1)]
    assert [key for (key,) in rejects] == [f'{{"a":{n},"b":{n}}}' for n in (0, 2, 5)]


@pytest.mark.integration
def test_rejected_rows_of_another_key_or_an_unknown_one_are_forgotten(request: pytest.FixtureRequest) -> None:
    """A key column was renamed in the source, then in the copy, and the table is read again. Of a key with a zero date in it
    only the other columns are known."""
    case = make_case("postgres", request)
    assert isinstance(case.sink, MirrorSink)
    case.sink = dataclasses.replace(case.sink, policies=Policies("reject"))
    _, b, note = PAIRS.columns
    before = TableSchema(PAIRS.table, 1, (column("id", "bigint", "int64", key=True), b, note), ("id", "b"))
    case.sink.prepare(case.job, [before])
    case.write(snapshot_part(1, 1, before, [(1, 1, "a\0b"), (2, 2, "good")]), schemas={(before.table, 1): before})
    case.place.execute("ALTER TABLE shop_pairs RENAME COLUMN id TO a")
    case.write(snapshot_part(2, 2, PAIRS, [(1, None, "x"), (5, None, "x"), (5, 5, "a\0b")]), schemas=SCHEMAS)
    case.write(replacing(3, 3, IntegerRange(("a",), (5,), None), [(7, None, "x")]), schemas=SCHEMAS)
    case.write(replacing(3, 4, IntegerRange(("a",), None, (5,)), [(3, 3, "a\0b")]), schemas=SCHEMAS)
    rejects = case.place.query("SELECT row_key FROM tidemark_rejects ORDER BY row_key")
    assert [key for (key,) in rejects] == ['{"a":3,"b":3}', '{"a":7,"b":null}']
    assert keys_of(case) == []


def test_a_sink_that_replaces_no_ranges_refuses_such_a_part(any_sink: SinkCase) -> None:  # noqa: F811
    """Instead of leaving rows in its copy. A mirror refuses a range that comes after rows."""
    case = any_sink
    case.sink.prepare(case.job, [PAIRS])
    items = replacing(1, 1, IntegerRange(("a",), None, None), [(1, 1, "x")])
    if isinstance(case.sink, MirrorSink):
        first, batch, end = items
        assert isinstance(first, ReplacedRange)
        assert isinstance(batch, ChangeBatch)
        items = [dataclasses.replace(batch, seq=0), dataclasses.replace(first, seq=1), end]
    with pytest.raises(SinkError, match="replaces a range of a copy"):
        case.write(items, schemas=SCHEMAS)
