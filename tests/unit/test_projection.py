"""Masks and transforms over Arrow batches: their effect on rows, on changes, and on tables that they do not fit."""

import datetime
import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.support.change_parts import DELETE, INSERT, NOTES, ORDERS, UNCHANGED, UPDATE, column, rows
from tidemark.conf.duckdb_engine import open_engine
from tidemark.conf.redaction import Secret
from tidemark.readers.findings import SettingError
from tidemark.readers.log.log_batch import truncation
from tidemark.readers.projection.projection import Projection, ProjectionSettings, compile_projection
from tidemark.readers.projection.projector import MAX_BATCH_BYTES, Projector
from tidemark.readers.snapshot.split_read import SplitRead
from tidemark.state.change_batch import batch_schema, is_truncation
from tidemark.state.errors import JobFileError, SourceNotUsableError
from tidemark.state.position import BinlogPosition
from tidemark.state.projection import TableProjection
from tidemark.state.split import Report
from tidemark.state.table import TableId, TableSchema

KEY = Secret("a key of some length, indeed more than one block of SHA-256 holds")
AT = datetime.datetime(2024, 2, 29, 12, 0, 0, 500000)
FULL_NOTE = ("en", 5, "text", b"\x00\xff", Decimal("1.50"))


@pytest.fixture
def engine() -> Iterator[Any]:
    connection = open_engine()
    yield connection
    connection.close()


def projector(
    schema: TableSchema, masks: Mapping[str, str] | None = None, transform: str | None = None, key: Secret | None = None
) -> Projector:
    settings = ProjectionSettings(masks or {}, key, transform)
    connection = open_engine()
    output = compile_projection(connection, schema, settings).output
    connection.close()
    known = {schema.table: TableProjection(output, masks=tuple((masks or {}).items()))}
    return Projector({schema.table: schema}, known, lambda _: settings, schema is NOTES)


def projected(schema: TableSchema, changes: list[Any], **settings: Any) -> list[dict[str, Any]]:
    project = projector(schema, **settings)
    batch = project.changes(schema.table, rows(schema, changes))
    assert batch.schema == batch_schema(project.known[schema.table].output)
    batch.validate(full=True)
    return [{k: v for k, v in row.items() if k[0] != "_" or k == "_unchanged"} for row in batch.to_pylist()]


EVERY = TableSchema(
    TableId("shop", "every"),
    1,
    (
        column("id", "int", "int32", key=True),
        column("b", "boolean", "bool"),
        column("n", "bigint", "int64"),
        column("u", "bigint unsigned", "decimal(20,0)"),
        column("d", "decimal(38,10)", "decimal(38,10)"),
        column("t", "text", "string"),
        column("x", "blob", "binary"),
        column("day", "date", "date32"),
        column("wall", "datetime(6)", "timestamp"),
        column("utc", "timestamp(6)", "timestamptz"),
        column("f", "double", "float64"),
        column("v", "vector(2)", "list<float32>"),
    ),
    ("id",),
)
VALUES = {
    "b": (True, b"true"),
    "n": (-(2**63), b"-9223372036854775808"),
    "u": (Decimal(2**64 - 1), b"18446744073709551615"),
    "d": (Decimal("0.0000000001"), b"0.0000000001"),
    "t": ("ä\0'\\", "ä\0'\\".encode()),
    "x": (b"\x00\xff", b"\x00\xff"),
    "day": (datetime.date(2024, 2, 29), b"2024-02-29"),
    "wall": (AT, b"2024-02-29 12:00:00.5"),
    "utc": (AT.replace(tzinfo=datetime.timezone.utc), b"2024-02-29 12:00:00.5+00"),
}
"""A value of each type, and what is hashed of it."""


@pytest.mark.parametrize("key", [None, KEY])
def test_sha256_of_every_type(key: Secret | None) -> None:
    def digest(content: bytes) -> str:
        if key is None:
            return hashlib.sha256(content).hexdigest()
        return hmac.new(key.get_secret_value().encode(), content, "sha256").hexdigest()

    full = (1, *(VALUES[c.name][0] if c.name in VALUES else None for c in EVERY.captured[1:]))
    empty = (2, *[None] * 11)
    found = projected(EVERY, [(INSERT, full), (INSERT, empty)], masks=dict.fromkeys(VALUES, "sha256"), key=key)
    assert found[0] == {"id": 1, "f": None, "v": None} | {name: digest(text) for name, (_, text) in VALUES.items()}
    assert set(found[1].values()) == {2, None}


def test_redact_and_null_of_every_type() -> None:
    full = (1, *(v for v, _ in VALUES.values()), 0.5, [1.0, 2.0])
    names = [c.name for c in EVERY.captured[1:]]
    (redacted,) = projected(EVERY, [(INSERT, full)], masks=dict.fromkeys(names, "redact"))
    assert redacted == {"id": 1} | dict.fromkeys(names, "***")
    project = projector(EVERY, dict.fromkeys(names, "null"))
    assert project.known[EVERY.table].output.arrow_schema() == EVERY.arrow_schema()
    (nulls,) = projected(EVERY, [(INSERT, full)], masks=dict.fromkeys(names, "null"))
    assert nulls == {"id": 1} | dict.fromkeys(names, None)


def test_every_type_comes_back_from_the_engine_as_it_went() -> None:
    names = [c.name for c in EVERY.captured[1:]]
    full = (1, *(v for v, _ in VALUES.values()), 0.5, [1.0, 2.0])
    copies = ", ".join(f"coalesce({name}, NULL) AS {name}_2" for name in names)
    (row,) = projected(EVERY, [(INSERT, full)], transform=f"SELECT *, {copies} FROM input")
    assert [row[f"{name}_2"] for name in names] == [row[name] for name in names] == list(full[1:])


def test_a_transform_sees_masked_values() -> None:
    masks = {"customer": "sha256", "note": "redact"}
    sql = "SELECT id, customer AS buyer, length(customer) AS n, note || '!' AS shout, amount * 2 AS twice FROM input"
    found = projected(ORDERS, [(INSERT, (1, "Ann", Decimal("1.25"), AT, "x"))], masks=masks, transform=sql)
    ann = hashlib.sha256(b"Ann").hexdigest()
    assert found == [{"id": 1, "buyer": ann, "n": 64, "shout": "***!", "twice": Decimal("2.50")}]


def test_rows_of_a_split_keep_their_order_over_many_pieces() -> None:
    count = 40_000
    long = "x" * (3 * MAX_BATCH_BYTES // count)
    table = pa.table(
        [range(count), [f"{i}{long}" for i in range(count)], pa.nulls(count), pa.nulls(count), pa.nulls(count)],
        schema=ORDERS.arrow_schema(),
    )
    report = Report(1, ORDERS.table, 1, BinlogPosition("b.1", 4), count, 0)
    project = projector(ORDERS, transform=f"SELECT id, replace(customer, '{long}', '') AS number FROM input")
    read, schema = project.split(SplitRead(report, table, 0))
    assert read.rows.schema == schema.arrow_schema()
    assert (
        read.rows["number"].to_pylist() == [str(i) for i in range(count)] == list(map(str, read.rows["id"].to_pylist()))
    )
    empty, _ = project.split(SplitRead(report, table.slice(0, 0), 0))
    assert empty.rows.num_rows == 0
    assert empty.rows.schema == schema.arrow_schema()


def test_expressions_do_not_see_rows_that_carry_only_the_key() -> None:
    check = "CASE WHEN stars IS NULL THEN error('no stars') END AS checked"
    sql = f"SELECT id, lang, body, coalesce(stars, 0) AS stars, {check} FROM input"
    changes = [
        (INSERT, (1, *FULL_NOTE)),
        (DELETE, (1, "en", None, None, None, None)),
        (INSERT, (2, *FULL_NOTE)),
        (DELETE, (2, *FULL_NOTE)),
    ]
    found = projected(NOTES, changes, masks={"body": "redact"}, transform=sql)
    assert [row["stars"] for row in found] == [5, None, 5, 5]
    assert [row["body"] for row in found] == ["***", None, "***", "***"]
    assert [row["id"] for row in found] == [1, 1, 2, 2]


@pytest.mark.pitfall(41)
@pytest.mark.pitfall(41)
@pytest.mark.parametrize("schema", [ORDERS, NOTES], ids=["mysql", "postgresql"])
def test_expressions_do_not_see_truncations(schema: TableSchema) -> None:
    key = ", ".join(schema.key)
    masked = schema.captured[-1].name
    sql = f"SELECT {key}, {masked}, 1 AS one, CASE WHEN id IS NULL THEN error('no id') END AS checked FROM input"
    project = projector(schema, {masked: "redact"}, sql)
    batch = project.changes(schema.table, truncation(schema, version=1, time_us=0, seq=0, transaction="7").rows)
    assert is_truncation(batch)
    assert batch.schema == batch_schema(project.known[schema.table].output)
    assert all(batch.column(c.name).null_count == 1 for c in project.known[schema.table].output.columns)


def test_values_that_the_log_leaves_out_stay_so() -> None:
    changes = [
        (UPDATE, (1, "en", 5, UNCHANGED, UNCHANGED, Decimal(1))),
        (UPDATE, (2, *FULL_NOTE)),
        (UPDATE, (3, "en", 5, UNCHANGED, b"", UNCHANGED)),
    ]
    sql = "SELECT id, lang, stars + 1 AS stars, body AS b1, body AS b2, scan FROM input"
    found = projected(NOTES, changes, masks={"body": "sha256"}, transform=sql)
    hashed = hashlib.sha256(b"text").hexdigest()
    assert [(row["b1"], row["b2"], row["_unchanged"]) for row in found] == [
        (None, None, ["b1", "b2", "scan"]),
        (hashed, hashed, None),
        (None, None, ["b1", "b2"]),
    ]
    (row,) = projected(NOTES, changes[:1], transform="SELECT id, lang, stars FROM input")
    assert row == {"id": 1, "lang": "en", "stars": 5}
    with pytest.raises(SourceNotUsableError, match="computes from body, and the log leaves its value out"):
        projected(NOTES, changes[:1], transform="SELECT *, length(body) AS n FROM input")


@pytest.mark.pitfall(126)
def test_a_row_that_an_expression_does_not_bear_is_an_error_of_its_table() -> None:
    with pytest.raises(
        JobFileError, match=r"transforms\.shop\.orders fails on a row: Conversion Error: .* string …\."
    ) as caught:
        projected(
            ORDERS, [(INSERT, (1, "Ann", None, None, None))], transform="SELECT id, customer::INT AS c FROM input"
        )
    assert "Ann" not in str(caught.value)
    assert caught.value.table == ORDERS.table


def test_rows_for_which_the_machine_has_too_little_memory_are_evaluated_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No value is wrong with them: their table must not be parked."""
    executed, most = Projector._executed, 2

    def short_of_memory(self: Projector, projection: Projection, batch: pa.RecordBatch) -> pa.Table:
        if batch.num_rows > most:
            raise duckdb.OutOfMemoryException("Out of Memory Error: failed to allocate data of size 256.0 KiB")
        return executed(self, projection, batch)

    monkeypatch.setattr(Projector, "_executed", short_of_memory)
    changes = [(INSERT, (i, "Ann", None, None, None)) for i in range(11)]
    sql = "SELECT id, upper(customer) AS c FROM input"
    assert [(row["id"], row["c"]) for row in projected(ORDERS, changes, transform=sql)] == [
        (i, "ANN") for i in range(11)
    ]
    most = 0
    with pytest.raises(
        JobFileError, match="fails on a row: Out of Memory Error: failed to allocate data of size"
    ) as caught:
        projected(ORDERS, changes, transform=sql)
    assert caught.value.table == ORDERS.table


def test_another_duckdb_that_makes_another_table_is_found() -> None:
    project = projector(ORDERS, transform="SELECT id, amount * 2 AS twice FROM input")
    project.settings = lambda _: ProjectionSettings(transform="SELECT id, amount * 2.0 AS twice FROM input")
    with pytest.raises(JobFileError, match="same version of duckdb"):
        project.changes(ORDERS.table, rows(ORDERS, [(INSERT, (1, None, None, None, None))]))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (ProjectionSettings({"nothing": "null"}), "masks nothing of shop.every, which has no such column"),
        (ProjectionSettings({"id": "sha256"}), "masks id of shop.every, which is in its key"),
        (ProjectionSettings({"f": "sha256"}), "double has no text to hash"),
        (ProjectionSettings({"v": "sha256"}), "has no text to hash"),
        (ProjectionSettings(transform="SELECT n FROM input"), "drops or changes id, which is in the key"),
        (ProjectionSettings(transform="SELECT id + 1 AS id FROM input"), "drops or changes id"),
        (ProjectionSettings(transform="SELECT id AS ID FROM input"), "drops or changes id"),
        (ProjectionSettings(transform="SELECT n AS id FROM input"), "drops or changes id"),
        (ProjectionSettings(transform="SELECT * REPLACE (abs(id) AS id) FROM input"), "drops or changes id"),
        (
            ProjectionSettings(transform="SELECT id, t + 1 + DATE '2024-01-01' AS y FROM input"),
            "does not fit shop.every",
        ),
        (ProjectionSettings(transform="SELECT id, upper(n, n) AS y FROM input"), "does not fit shop.every"),
        (ProjectionSettings(transform="SELECT id, n::HUGEINT AS y FROM input"), "gives y the type HUGEINT"),
        (ProjectionSettings(transform="SELECT id, wall - wall AS y FROM input"), "gives y the type INTERVAL"),
        (ProjectionSettings(transform="SELECT id, {'a': n} AS y FROM input"), "gives y the type STRUCT"),
    ],
)
def test_what_does_not_fit_a_table(engine: Any, settings: ProjectionSettings, why: str) -> None:
    with pytest.raises(SettingError, match=why):
        compile_projection(engine, EVERY, settings)


def test_columns_that_differ_by_case_alone(engine: Any) -> None:
    schema = TableSchema(EVERY.table, 1, (*EVERY.columns, column("N", "bigint", "int64")), ("id",))
    with pytest.raises(SettingError, match="n, N differ only in case"):
        compile_projection(engine, schema, ProjectionSettings({"t": "null"}))


def test_types_of_what_is_made(engine: Any) -> None:
    sql = "SELECT id, t, n > 1 AS yes, u * 1.5 AS more, f / 2 AS half, day, wall AS moment FROM input"
    output = compile_projection(engine, EVERY, ProjectionSettings({"t": "sha256"}, transform=sql)).output
    found = [(c.name, c.arrow_type, c.source_type, c.made) for c in output.columns]
    assert found == [
        ("id", "int32", "int", False),
        ("t", "string", "character varying(64)", True),
        ("yes", "bool", "boolean", True),
        ("more", "decimal(22,1)", "numeric(22,1)", True),
        ("half", "float64", "double precision", True),
        ("day", "date32", "date", False),
        ("moment", "timestamp", "datetime(6)", False),
    ]


@pytest.mark.parametrize(
    "question",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "COPY (SELECT 1) TO '/tmp/tidemark-never-written'",
        "ATTACH '/tmp/tidemark-never-written'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET threads = 2",
        "SELECT * FROM engine",
    ],
)
def test_the_engine_reaches_nothing_else(engine: Any, question: str) -> None:
    ask: Callable[[str], Any] = engine.execute
    with pytest.raises(Exception, match=r"(?i)disabled|locked|does not exist|cannot"):
        ask(question).fetchall()
