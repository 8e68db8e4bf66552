"""Random logs, read through tiny buffers and breaking connections, give exactly the rows that a slow model gives."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import log_bytes as lb
from tidemark.readers.mysql.binlog import reading as log_reading
from tidemark.readers.mysql.binlog.reader import LogReader
from tidemark.readers.mysql.binlog.reading_state import ReadOptions
from tidemark.state.change_batch import ChangeType
from tidemark.state.gtid import GtidSet
from tidemark.state.log_range import LogRange
from tidemark.state.position import BinlogPosition
from tidemark.state.table import TableId

OTHER = TableId("shop", "other")
THIRD = TableId("shop", "wanted_too")
WANTED = {lb.TABLE: lb.schema(), THIRD: lb.schema(THIRD)}
IDS = {lb.TABLE: 100, OTHER: 101, THIRD: 102}

Change = tuple[str, int, int, int, int, str | None, str]
"""Table, version, kind, seq, id, text, transaction id."""


@dataclass
class Model:
    """A log, and the rows that reading it must give. `boundaries` has an entry for each transaction's end."""

    file: lb.LogFile
    files: list[lb.LogFile] = field(default_factory=list)
    expected: list[Change] = field(default_factory=list)
    boundaries: list[BinlogPosition] = field(default_factory=list)
    number: int = 0
    prepared: dict[int, list[tuple[TableId, ChangeType, lb.Row]]] = field(default_factory=dict)

    def position(self) -> BinlogPosition:
        return BinlogPosition(self.file.name, self.file.end)


texts = st.one_of(st.none(), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12))
row_values = st.tuples(st.integers(-9, 9), texts)
tables = st.sampled_from([lb.TABLE, OTHER, THIRD])
statements = st.one_of(
    st.tuples(st.just("write"), tables, st.lists(row_values, min_size=1, max_size=40)),
    st.tuples(st.just("delete"), tables, st.lists(row_values, min_size=1, max_size=5)),
    st.tuples(st.just("update"), tables, st.lists(st.tuples(row_values, row_values), min_size=1, max_size=20)),
    st.tuples(st.just("savepoint"), st.sampled_from(["a", "B", "`c d`"])),
    st.tuples(st.just("rollback to"), st.integers(0, 3)),
    st.tuples(st.just("annotation"), st.integers(0, 3000)),
)
ends = st.sampled_from(["xid", "xid", "commit", "rollback", "xa", "xa"])
transactions = st.tuples(st.just("transaction"), st.lists(statements, max_size=8), ends, st.booleans())
steps = st.lists(
    st.one_of(
        transactions,
        transactions,
        st.tuples(st.just("xa end"), st.booleans()),
        st.tuples(st.just("rotate")),
        st.tuples(st.just("ddl")),
    ),
    min_size=1,
    max_size=12,
)


def changes(statement: tuple) -> list[tuple[TableId, ChangeType, lb.Row]]:  # type: ignore[type-arg]
    kind, table, values = statement
    if kind == "write":
        return [(table, ChangeType.INSERT, row) for row in values]
    if kind == "delete":
        return [(table, ChangeType.DELETE, row) for row in values]
    found = []
    for old, new in values:
        if old[0] == new[0]:
            found.append((table, ChangeType.UPDATE_POSTIMAGE, new))
        else:
            found += [(table, ChangeType.DELETE, old), (table, ChangeType.INSERT, new)]
    return found


def events(statement: tuple) -> list[tuple[int, bytes]]:  # type: ignore[type-arg]
    kind, table, values = statement
    make = {"write": lb.write, "delete": lb.delete, "update": lb.update}[kind]
    return [lb.table_map(IDS[table], table), make(IDS[table], *values)]


def body_of(steps_of: list) -> tuple[list[tuple[int, bytes]], list[tuple[TableId, ChangeType, lb.Row]]]:  # type: ignore[type-arg]
    """The events between BEGIN and the end, and the changes that stay."""
    parts: list[tuple[int, bytes]] = []
    kept: list[tuple[TableId, ChangeType, lb.Row]] = []
    savepoints: list[tuple[str, int]] = []
    for statement in steps_of:
        if statement[0] == "savepoint":
            savepoints = [s for s in savepoints if s[0].lower() != statement[1].lower()] + [(statement[1], len(kept))]
            parts.append(lb.query(f"SAVEPOINT {statement[1]}"))
        elif statement[0] == "rollback to":
            if statement[1] < len(savepoints):
                name, count = savepoints[statement[1]]
                del savepoints[statement[1] + 1 :]
                del kept[count:]
                parts.append(lb.query(f"ROLLBACK TO {name}"))
        elif statement[0] == "annotation":
            parts.append((29, bytes(statement[1])))
        else:
            parts += events(statement)
            kept += changes(statement)
    return parts, kept


def xid(number: int) -> str:
    return f"X'{str(number).encode().hex()}',X'',1"


def emit(model: Model, kept: list[tuple[TableId, ChangeType, lb.Row]]) -> None:
    version = model.position().version
    seq = 0
    for table, kind, (number, text) in kept:
        if table in WANTED:
            model.expected.append((str(table), version, kind, seq, number, text, f"{lb.SERVER}:{model.number}"))
            seq += 1


def build(steps_of: list) -> Model:  # type: ignore[type-arg]
    model = Model(lb.LogFile("log.000009"))
    model.files.append(model.file)
    model.file.add(lb.previous_gtids(0))
    for step in steps_of:
        match step:
            case ("transaction", inner, end, compressed):
                _transaction(model, inner, end, compressed)
            case ("xa end", commits) if model.prepared:
                number, kept = model.prepared.popitem()
                model.number += 1
                verb = "COMMIT" if commits else "ROLLBACK"
                model.file.add(lb.gtid(model.number), lb.query(f"XA {verb} {xid(number)}"))
                if commits:
                    emit(model, kept)
            case ("rotate",):
                following = lb.LogFile(_next(model.file.name))
                model.file.add(lb.rotate(following.name))
                model.file = following
                model.files.append(following)
                following.add(lb.previous_gtids(model.number))
            case ("ddl",):
                model.number += 1
                model.file.add(lb.gtid(model.number), lb.query("ALTER TABLE other ADD COLUMN x int"))
            case _:
                continue
        model.boundaries.append(model.position())
    return model


def _next(name: str) -> str:
    base, _, number = name.partition(".")
    return f"{base}.{int(number) + 1:06d}"


def _transaction(model: Model, inner: list, end: str, compressed: bool) -> None:  # type: ignore[type-arg]
    model.number += 1
    parts, kept = body_of(inner)
    xa = end == "xa"
    if xa:
        first = lb.query(f"XA START {xid(model.number)}")
        last = [lb.query(f"XA END {xid(model.number)}"), lb.xa_prepare(str(model.number).encode())]
    else:
        first = lb.query("BEGIN")
        last = [{"xid": lb.xid(), "commit": lb.query("COMMIT"), "rollback": lb.query("ROLLBACK")}[end]]
    content = [first, *parts, *last]
    if compressed:
        content = [lb.payload(content)]
    model.file.add(lb.gtid(model.number), *content)
    if xa:
        model.prepared[model.number] = kept
    elif end != "rollback":
        emit(model, kept)


def read(model: Model, server: lb.LogServer, options: ReadOptions, stops: list[int]) -> tuple[list[Change], LogReader]:
    """Reads in ranges that end at or before each of the stops. Every range is read twice, which must give the same."""
    start = BinlogPosition(model.files[0].name, 4, "")
    prepared = ()
    found: list[Change] = []
    last = model.position()
    ends = sorted({model.boundaries[stop % len(model.boundaries)] for stop in stops}, key=lambda p: p.order)
    reader = LogReader(server, WANTED, options)
    for stop in [*ends, last]:
        part = LogRange(start, BinlogPosition(stop.file, max(stop.pos - 3, 4) if stop != last else stop.pos), prepared)
        first = list(rows_of(reader, part))
        report = reader.report
        assert list(rows_of(reader, part)) == first
        assert reader.report == report
        assert report.emitted_changes == len(first)
        assert report.transactions == len({(change[1]) for change in first})
        found += first
        start, prepared = report.end, report.prepared
    assert (start.file, start.pos) == (last.file, last.pos)
    assert start.gtid_set() == GtidSet.parse(f"{lb.SERVER}:1-{model.number}" if model.number else "")
    assert {xa.xid for xa in prepared} == {xid(number) for number in model.prepared}
    return found, reader


def rows_of(reader: LogReader, part: LogRange, skip: GtidSet | None = None) -> Iterator[Change]:
    """The rows in the order of the log; each batch is of one table."""
    found: list[Change] = []
    for batch in reader.read(part, skip=skip):
        columns = {name: batch.rows.column(name).to_pylist() for name in batch.rows.schema.names}
        for i in range(batch.rows.num_rows):
            found.append(
                (
                    str(batch.table),
                    columns["_commit_version"][i],
                    columns["_change_type"][i],
                    columns["_seq"][i],
                    columns["id"][i],
                    columns["v"][i],
                    columns["_txn_id"][i],
                )
            )
    keys = [(change[1], change[3]) for change in found]
    for table in {change[0] for change in found}:
        mine = [key for key, change in zip(keys, found, strict=True) if change[0] == table]
        assert mine == sorted(mine), "rows of a table are in the log's order"
    return iter(sorted(found, key=lambda change: (change[1], change[3])))


sizes = st.sampled_from(
    [
        ReadOptions(receive_bytes=1 << 18, unpack_bytes=1 << 16, column_buffer_bytes=1 << 17),
        ReadOptions(receive_bytes=9000, unpack_bytes=1500, column_buffer_bytes=680),
    ]
)


@pytest.mark.pitfall(27)
@pytest.mark.pitfall(28)
@pytest.mark.pitfall(29)
@pytest.mark.pitfall(40)
@pytest.mark.pitfall(72)
@settings(max_examples=60)
@given(
    steps,
    sizes,
    st.sampled_from([1, 7, 100, 5000, 1 << 16]),
    st.lists(st.one_of(st.none(), st.integers(0, 9000)), max_size=6),
    st.lists(st.integers(0, 1000), max_size=2),
)
def test_every_committed_row_comes_once_whatever_breaks(
    steps_of: list,
    options: ReadOptions,
    chunk: int,
    cut: list[int | None],
    stops: list[int],  # type: ignore[type-arg]
) -> None:
    model = build(steps_of)
    if not model.boundaries:
        return
    server = lb.LogServer(model.files, chunk=chunk if chunk > 1 else 1 << 16, cut=list(cut))
    with pytest.MonkeyPatch.context() as patch, lb.serving(server):
        patch.setattr(log_reading, "FIRST_DELAY_SECONDS", 0.0)
        patch.setattr(log_reading, "ATTEMPTS", 30)
        found, _ = read(model, server, options, stops)
    assert found == model.expected


@settings(max_examples=40)
@given(steps, st.integers(1, 60), st.integers(0, 60))
def test_skipped_transactions_leave_the_rest(steps_of: list, first: int, count: int) -> None:  # type: ignore[type-arg]
    model = build(steps_of)
    if not model.boundaries:
        return
    skip = GtidSet.parse(f"{lb.SERVER}:{first}-{first + count},{uuid.uuid4()}:1-5")
    server = lb.LogServer(model.files)
    with lb.serving(server):
        reader = LogReader(server, WANTED)
        part = LogRange(BinlogPosition(model.files[0].name, 4, ""), BinlogPosition(model.file.name, model.file.end))
        found = list(rows_of(reader, part, skip))
    ours = GtidSet.parse(f"{lb.SERVER}:{first}-{first + count}")
    wanted = [c for c in model.expected if not ours.contains((str(lb.SERVER), ""), int(c[6].rpartition(":")[2]))]
    assert found == wanted
