"""The log reader against the plain decoder: any messages, any buffer sizes, broken connections, damaged bytes."""

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tests.support import pgoutput
from tests.support.pgoutput import UNCHANGED, BytesLog, Change, RefusedError, copy_rows, read_log
from tidemark.readers.postgres.pgoutput.reader import LogReader
from tidemark.readers.postgres.pgoutput.reading import ReadOptions
from tidemark.state.errors import TidemarkError
from tidemark.state.log_range import LogRange
from tidemark.state.position import WalPosition
from tidemark.state.table import Column, TableId, TableSchema

ARROW = {"bigint": "int64", "text": "string", "boolean": "bool", "bytea": "binary", "numeric(10,2)": "decimal(10,2)"}
TEXTS = {
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1).map(lambda n: b"%d" % n),
    "text": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8).map(str.encode),
    "boolean": st.sampled_from([b"t", b"f"]),
    "bytea": st.binary(max_size=8).map(lambda data: b"\\x" + data.hex().encode()),
    "numeric(10,2)": st.decimals(-99999999, 99999999, places=2).map(lambda d: str(d).encode()),
}
KEYS = st.integers(0, 3).map(lambda n: b"%d" % n)


def table(
    name: str, oid: int, *columns: tuple[str, str], key: tuple[str, ...], left_out: tuple[str, ...] = ()
) -> TableSchema:
    made = tuple(
        Column(
            n, t, "" if n in left_out else ARROW[t], True, n not in left_out, toastable=t not in ("bigint", "boolean")
        )
        for n, t in columns
    )
    return TableSchema(TableId("s", name), 1, made, key, oid)


KEYED = table("keyed", 16_384, ("id", "bigint"), ("body", "text"), ("ok", "boolean"), ("raw", "bytea"), key=("id",))
PAIR = table("pair", 16_448, ("b", "text"), ("a", "bigint"), ("n", "numeric(10,2)"), key=("a", "b"))
SLIM = table("slim", 16_512, ("id", "bigint"), ("secret", "text"), ("ok", "boolean"), key=("id",), left_out=("secret",))
HEAP = table("heap", 16_576, ("x", "bigint"), ("y", "text"), key=())
OTHER = table("other", 16_640, ("id", "bigint"), key=("id",))
WANTED = (KEYED, PAIR, SLIM, HEAP)
NUMBERS = {schema.table: schema.oid or 0 for schema in (*WANTED, OTHER)}


@dataclass(frozen=True)
class Log:
    data: bytes
    lsns: tuple[int, ...]


@st.composite
def rows(draw: st.DrawFn, schema: TableSchema, *, unchanged: bool = False) -> list[bytes | str | None]:
    values: list[bytes | str | None] = []
    for column in schema.columns:
        if column.name in schema.key:
            values.append(draw(KEYS))
            continue
        marks = [st.just(UNCHANGED)] if unchanged and column.source_type in ("text", "bytea") else []
        values.append(draw(st.one_of(TEXTS[column.source_type], st.none(), *marks)))
    return values


@st.composite
def changes(draw: st.DrawFn, identities: dict[TableId, str]) -> bytes:
    schema = draw(st.sampled_from([*WANTED, OTHER]))
    number, identity = NUMBERS[schema.table], identities[schema.table]
    kind = draw(st.sampled_from("IUD")) if identity != "n" else "I"
    if kind == "I":
        return pgoutput.insert(number, draw(rows(schema)))
    old = draw(rows(schema))
    form = b"O" if identity == "f" else b"K"
    if form == b"K":
        old = [value if c.name in schema.key else None for c, value in zip(schema.columns, old, strict=True)]
    if kind == "D":
        return pgoutput.delete(number, old, form)
    new = draw(rows(schema, unchanged=True))
    whole = form == b"O" or draw(st.booleans())
    return pgoutput.update(number, new, old if whole else None, form)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    identities = {s.table: draw(st.sampled_from("dfn" if s.key else "fn")) for s in (*WANTED, OTHER)}
    messages, lsn, lsns = [], 1000, []
    described: set[TableId] = set()
    for _ in range(draw(st.integers(0, 6))):
        lsn += draw(st.integers(1, 1 << 33))
        lsns.append(lsn)
        microseconds, xid = draw(st.integers(0, 1 << 50)), draw(st.integers(3, (1 << 32) - 1))
        messages.append(pgoutput.begin(lsn, microseconds, xid))
        for _ in range(draw(st.integers(0, 6))):
            rare = draw(st.integers(0, 9))
            if rare == 0:
                messages.append(draw(st.sampled_from([b"O" + bytes(8) + b"away\0", b"M\0\0", b"Y\0\0\0\1s\0mood\0"])))
            if rare == 1:
                described.clear()
            emptied = draw(st.lists(st.sampled_from(list(NUMBERS.values())), unique=True)) if rare == 2 else []
            message = pgoutput.truncate(*emptied) if rare == 2 else draw(changes(identities))
            for schema in (*WANTED, OTHER):
                number = NUMBERS[schema.table]
                touched = number in emptied or (rare != 2 and message[1:5] == struct.pack(">I", number))
                if touched and schema.table not in described:
                    messages.append(pgoutput.relation(number, schema, identities[schema.table]))
                    described.add(schema.table)
            messages.append(message)
        messages.append(pgoutput.commit(lsn, microseconds))
    return Log(copy_rows(messages), tuple(lsns))


OPTIONS = st.builds(
    ReadOptions,
    reconnect_attempts=st.just(20),
    max_delay_seconds=st.just(0.0),
    buffer_bytes=st.integers(32, 600),
    column_buffer_bytes=st.just(1),
    transactions=st.integers(1, 4),
)


def read(log: BytesLog, start: int, stop: int, options: ReadOptions) -> list[Change]:
    reader = LogReader(log, {schema.table: schema for schema in WANTED}, options)
    found: list[Change] = []
    for batch in reader.read(LogRange(WalPosition(start), WalPosition(stop))):
        batch.rows.validate(full=True)
        found += [{"table": batch.table, **row} for row in batch.rows.to_pylist()]
    assert reader.report.emitted_changes == len(found)
    assert reader.report.end == WalPosition(stop)
    return sorted(found, key=lambda row: (row["_commit_version"], row["_seq"]))


def bounds(draw: st.DrawFn, lsns: tuple[int, ...]) -> tuple[int, int]:
    places = st.one_of(st.just(0), st.just(1 << 62), st.sampled_from([0, *lsns]), st.sampled_from([0, *lsns]).map(int))
    start, stop = sorted((draw(places), draw(places)))
    return start, stop


@pytest.mark.pitfall(58)
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_log_is_read_as_the_plain_decoder_reads_it(data: st.DataObject) -> None:
    log = data.draw(logs())
    start, stop = bounds(data.draw, log.lsns)
    options, piece = data.draw(OPTIONS), data.draw(st.integers(1, 400))
    expected = read_log(log.data, WANTED, start, stop)
    assert read(BytesLog(log.data, piece), start, stop, options) == expected


@pytest.mark.pitfall(28)
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_broken_connections_repeat_and_lose_nothing(data: st.DataObject) -> None:
    log = data.draw(logs())
    breaks = data.draw(st.lists(st.integers(0, len(log.data)), max_size=6))
    source = BytesLog(log.data, data.draw(st.integers(1, 400)), list(breaks))
    expected = read_log(log.data, WANTED, 0, 1 << 62)
    assert read(source, 0, 1 << 62, data.draw(OPTIONS)) == expected
    assert source.opened == len(breaks) + 1


@pytest.mark.pitfall(88)
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_or_read_as_the_plain_decoder_reads_them(data: st.DataObject) -> None:
    log = data.draw(logs())
    damaged = bytearray(log.data)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.sampled_from(["change", "cut", "drop", "repeat"])):
            case "change":
                damaged[at] = data.draw(st.integers(0, 255))
            case "cut":
                del damaged[max(at, 1) :]
            case "drop":
                del damaged[at : at + 1 + data.draw(st.integers(0, 8))]
            case "repeat":
                damaged[at:at] = damaged[at : at + 8]
        if not damaged:
            damaged = bytearray(b"\0")
    options = data.draw(OPTIONS)
    try:
        expected = read_log(bytes(damaged), WANTED, 0, 1 << 62)
    except OverflowError:
        reject()  # a moment that Python has no datetime for
    except RefusedError:
        with pytest.raises(TidemarkError):
            read(BytesLog(bytes(damaged)), 0, 1 << 62, options)
    else:
        assert read(BytesLog(bytes(damaged)), 0, 1 << 62, options) == expected


def test_many_relations_of_many_forms() -> None:
    """More relations than the hash table and the slots have room for at first."""
    tables = [
        table(f"t{i}", i * 4096, ("id", "bigint"), *((f"c{j}", "boolean") for j in range(i % 7)), key=("id",))
        for i in range(300)
    ]
    messages = [pgoutput.begin(5, 0, 7)]
    for i, schema in enumerate(tables):
        messages += [
            pgoutput.relation(i * 4096, schema, "d"),
            pgoutput.insert(i * 4096, [b"%d" % i] + [b"t"] * (i % 7)),
        ]
    for i, _ in enumerate(tables):
        messages.append(pgoutput.insert(i * 4096, [b"%d" % -i] + [None] * (i % 7)))
    log = copy_rows([*messages, pgoutput.commit(5, 0)])
    wanted = tables[::3]
    reader = LogReader(BytesLog(log), {schema.table: schema for schema in wanted})
    found = [
        {"table": batch.table, **row}
        for batch in reader.read(LogRange(WalPosition(0), WalPosition(6)))
        for row in batch.rows.to_pylist()
    ]
    assert sorted(found, key=lambda row: row["_seq"]) == read_log(log, wanted, 0, 6)
    assert len(found) == 200
