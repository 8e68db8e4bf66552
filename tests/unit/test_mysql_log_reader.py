"""The log reader's treatment of each kind of event, condition and refusal; the server is a thread that sends invented
logs.

Random logs: tests/property/test_mysql_log_model.py. Real servers: tests/integration/test_mysql_log_*.py.
"""

import struct
import uuid
import zlib
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from tests.support import log_bytes as lb
from tidemark.readers.mysql.binlog import reading as log_reading
from tidemark.readers.mysql.binlog.events import EventType
from tidemark.readers.mysql.binlog.reader import LogReader
from tidemark.readers.mysql.binlog.reading_state import ReadOptions
from tidemark.state.change_batch import ChangeType
from tidemark.state.errors import (
    DamagedLogError,
    IncompleteRowsError,
    LogPositionLostError,
    SchemaChangedError,
    SourceNotUsableError,
    SourceUnavailableError,
    SplitChangedError,
    TidemarkError,
    UnknownLogEventError,
)
from tidemark.state.gtid import GtidSet
from tidemark.state.log_range import LogRange, PreparedXa
from tidemark.state.position import BinlogPosition
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.table import Column, TableId, TableSchema

Raised = TypeVar("Raised", bound=Exception)
Parts = tuple[int, bytes]
OTHER = TableId("shop", "other")
BEGIN, XID = lb.query("BEGIN"), lb.xid()
INSERTED = [lb.table_map(9), lb.write(9, (1, "a"))]
ONE = [lb.gtid(1), BEGIN, *INSERTED, XID]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reading, "FIRST_DELAY_SECONDS", 0.0)


def log_of(*parts: Parts, name: str = "log.000001", **settings: Any) -> lb.LogFile:
    file = lb.LogFile(name, **settings)
    file.add(*parts)
    return file


def read(
    files: list[lb.LogFile] | lb.LogServer,
    *,
    schemas: dict[TableId, TableSchema] | None = None,
    gtids: str | None = None,
    prepared: tuple[PreparedXa, ...] = (),
    options: ReadOptions | None = None,
    **reading: Any,
) -> tuple[list[tuple[Any, ...]], LogReader]:
    """The rows (id, v, kind, seq, transaction, version) of the whole log."""
    server = files if isinstance(files, lb.LogServer) else lb.LogServer(files)
    wanted = {lb.TABLE: lb.schema()} if schemas is None else schemas
    reader = LogReader(server, wanted, options or ReadOptions(receive_bytes=1 << 20, column_buffer_bytes=1 << 20))
    first, last = server.files[0], server.files[-1]
    part = LogRange(BinlogPosition(first.name, 4, gtids), BinlogPosition(last.name, last.end), prepared)
    with lb.serving(server):
        return list(rows_of(reader, part, **reading)), reader


def rows_of(reader: LogReader, part: LogRange, **reading: Any) -> Iterator[tuple[Any, ...]]:
    names = ("id", "v", "_change_type", "_seq", "_txn_id", "_commit_version")
    for batch in reader.read(part, **reading):
        yield from zip(*(batch.rows.column(name).to_pylist() for name in names), strict=True)


def refused(error: type[Raised], match: str, *parts: Parts, **settings: Any) -> Raised:
    with pytest.raises(error, match=match) as caught:
        read([log_of(*parts)], **settings)
    return caught.value


def simple(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [row[:3] for row in rows]


# Transactions


def test_meta_columns_of_a_transaction() -> None:
    file = log_of(
        lb.gtid(7), BEGIN, lb.table_map(9), lb.write(9, (1, "a"), (2, None)), lb.update(9, ((1, "a"), (3, "b"))), XID
    )
    server = lb.LogServer([file])
    part = LogRange(BinlogPosition("log.000001", 4, ""), BinlogPosition("log.000001", file.end))
    reader = LogReader(server, {lb.TABLE: lb.schema(version=5)})
    with lb.serving(server):
        (batch,) = reader.read(part)
    assert (batch.table, batch.schema_version) == (lb.TABLE, 5)
    rows = batch.rows.to_pylist()
    assert [row["_change_type"] for row in rows] == [
        ChangeType.INSERT, ChangeType.INSERT, ChangeType.DELETE, ChangeType.INSERT,
    ]  # fmt: skip
    assert [(row["id"], row["v"]) for row in rows] == [(1, "a"), (2, None), (1, "a"), (3, "b")]
    assert [row["_seq"] for row in rows] == [0, 1, 2, 3]
    assert {row["_commit_version"] for row in rows} == {BinlogPosition("log.000001", file.end).version}
    assert {int(row["_commit_timestamp"].timestamp() * 1_000_000) for row in rows} == {lb.MICROS}
    assert {row["_txn_id"] for row in rows} == {f"{lb.SERVER}:7"}
    assert {row["_is_snapshot"] for row in rows} == {False}
    report = reader.report
    times = f"{lb.SERVER}:7={lb.MICROS}"
    assert report.end == BinlogPosition("log.000001", file.end, f"{lb.SERVER}:7", lb.SECONDS, times=times)
    assert (report.emitted_changes, report.transactions, report.end_timestamp_us) == (4, 1, lb.MICROS)


def test_a_position_has_the_times_of_the_last_transactions_whatever_their_order() -> None:
    """A replica may commit transactions in another order than the server on which they began."""
    file = lb.LogFile("log.000001")
    ends = list[int]()
    for number, seconds in ((2, 60), (1, 0), (5, 30), (3, 90), (4, 10)):
        file.add(lb.gtid(number, micros=lb.MICROS + seconds * 1_000_000), BEGIN, *INSERTED, XID)
        ends.append(file.end)
    expected = [{2: 60}, {2: 60}, {2: 60, 5: 30}, {3: 90, 5: 30}, {5: 30}]
    reader = LogReader(lb.LogServer([file]), {lb.TABLE: lb.schema()})
    start = BinlogPosition(file.name, 4, "")
    with lb.serving(reader.source):
        for end, times in zip(ends, expected, strict=True):
            list(reader.read(LogRange(start, BinlogPosition(file.name, end))))
            start = reader.end
            assert start.times == ",".join(f"{lb.SERVER}:{n}={lb.MICROS + s * 1_000_000}" for n, s in times.items())
            list(reader.read(LogRange(BinlogPosition(file.name, 4, ""), BinlogPosition(file.name, end))))
            assert reader.end == start, "one range, or several"


def test_the_time_of_a_view_change_is_not_noted() -> None:
    """Each member of a group commits it itself, at a time of its own."""
    file = log_of(*ONE, lb.gtid(2, micros=lb.MICROS + 5), BEGIN, (EventType.VIEW_CHANGE, bytes(9)), lb.query("COMMIT"))
    reader = LogReader(lb.LogServer([file]), {lb.TABLE: lb.schema()})
    with lb.serving(reader.source):
        list(reader.read(LogRange(BinlogPosition(file.name, 4, ""), BinlogPosition(file.name, file.end))))
    assert (reader.end.gtids, reader.end.times) == (f"{lb.SERVER}:1-2", f"{lb.SERVER}:1={lb.MICROS}")


def test_a_position_of_an_earlier_version_keeps_its_time_until_another_one_is_known() -> None:
    file = log_of(lb.gtid(1, micros=None), *ONE[1:])
    middle = file.end
    file.add(lb.gtid(2), *ONE[1:])
    reader, start = (
        LogReader(lb.LogServer([file]), {lb.TABLE: lb.schema()}),
        BinlogPosition(file.name, 4, "", last_at=7),
    )
    with lb.serving(reader.source):
        list(reader.read(LogRange(start, BinlogPosition(file.name, middle))))
        assert (reader.end.last_at, reader.end.times) == (7, None)
        list(reader.read(LogRange(reader.end, BinlogPosition(file.name, file.end))))
        assert (reader.end.last_at, reader.end.times) == (None, f"{lb.SERVER}:2={lb.MICROS}")


def test_transactions_without_gtids_are_named_by_their_end() -> None:
    file = log_of(lb.anonymous(), BEGIN, *INSERTED, lb.query("COMMIT"))
    rows, reader = read([file])
    assert [row[4] for row in rows] == [f"log.000001:{file.end}"]
    assert reader.report.end == BinlogPosition("log.000001", file.end, None, lb.SECONDS)


def test_gtid_without_microseconds_has_the_seconds_of_its_header() -> None:
    _, reader = read([log_of(lb.gtid(1, micros=None), BEGIN, *INSERTED, XID)])
    assert reader.report.end_timestamp_us == lb.SECONDS * 1_000_000


@pytest.mark.pitfall(47)
def test_tagged_gtid() -> None:
    body = bytes([2, 0, 0, 0, 0, 2, *(b"".join(_varying(b) for b in lb.SERVER.bytes)), 4, 16 << 2, 6, 6, *b"abc"])
    body = body[:1] + bytes([len(body) << 1]) + body[2:]
    rows, reader = read([log_of((EventType.GTID_TAGGED, body), BEGIN, *INSERTED, XID)], gtids="")
    assert rows[0][4] == f"{lb.SERVER}:abc:16"
    assert reader.report.end.gtids == f"{lb.SERVER}:abc:16"


def _varying(number: int) -> bytes:
    return bytes([number << 1]) if number < 128 else (number << 2 | 1).to_bytes(2, "little")


def test_update_of_a_table_without_a_key_deletes_and_inserts() -> None:
    schema = TableSchema(lb.TABLE, 1, lb.schema().columns, ())
    file = log_of(lb.gtid(1), BEGIN, lb.table_map(9), lb.update(9, ((1, "a"), (1, "b"))), XID)
    rows, _ = read([file], schemas={lb.TABLE: schema})
    assert simple(rows) == [(1, "a", ChangeType.DELETE), (1, "b", ChangeType.INSERT)]


def test_row_events_of_version_1() -> None:
    pair = (lb.image((1, "a")), lb.image((1, "b")))
    parts = [lb.rows(kind, 9, pair) for kind in (23, 24, 25)]
    rows, _ = read([log_of(lb.gtid(1), BEGIN, lb.table_map(9), *parts, XID)])
    assert [row[2] for row in rows] == [0, 0, 2, 3, 3]


def test_rollback_emits_nothing_and_counts_its_gtid() -> None:
    rows, reader = read([log_of(lb.gtid(1), BEGIN, *INSERTED, lb.query("ROLLBACK"))], gtids="")
    assert rows == []
    assert reader.report.end.gtids == f"{lb.SERVER}:1"
    assert reader.report.transactions == 0


def test_rows_that_a_savepoint_took_back() -> None:
    parts = [
        lb.query("SAVEPOINT `a b`"), lb.table_map(9), lb.write(9, (2, "b")), lb.query("ROLLBACK TO SAVEPOINT `A B`"),
        lb.table_map(9), lb.write(9, (3, "c")),
    ]  # fmt: skip
    rows, _ = read([log_of(lb.gtid(1), BEGIN, *INSERTED, *parts, XID)])
    assert [(row[0], row[3]) for row in rows] == [(1, 0), (3, 1)]
    refused(DamagedLogError, "savepoint", lb.gtid(1), BEGIN, lb.query("ROLLBACK TO a"), XID)


@pytest.mark.pitfall(83)
def test_transaction_larger_than_the_buffers_is_read_twice_and_complete() -> None:
    values = [(i, "x" * (i % 50)) for i in range(5000)]
    parts = [part for i in range(0, 5000, 100) for part in (lb.table_map(9), lb.write(9, *values[i : i + 100]))]
    file = log_of(*ONE, lb.gtid(2), BEGIN, *parts, XID, lb.gtid(3), BEGIN, *INSERTED, XID)
    options = ReadOptions(receive_bytes=20_000, column_buffer_bytes=20_000)
    server = lb.LogServer([file])
    rows, reader = read(server, options=options, gtids="")
    assert [row[:2] for row in rows] == [(1, "a"), *values, (1, "a")]
    assert [row[3] for row in rows] == [0, *range(5000), 0]
    assert len({row[5] for row in rows}) == 3
    assert len(server.dumps) == 2
    assert reader.report.transactions == 3
    assert reader.reconnects == 0


def test_large_transaction_of_other_tables_is_read_once() -> None:
    parts = [part for _ in range(100) for part in (lb.table_map(9, OTHER), lb.write(9, *[(1, "x" * 50)] * 10))]
    for end in (XID, lb.query("ROLLBACK")):
        server = lb.LogServer([log_of(lb.gtid(1), BEGIN, *parts, end)])
        assert read(server, options=ReadOptions(receive_bytes=20_000))[0] == []
        assert len(server.dumps) == 1


def test_large_transaction_that_rolls_back_emits_nothing() -> None:
    parts = [part for _ in range(100) for part in (lb.table_map(9), lb.write(9, *[(1, "x" * 50)] * 10))]
    file = log_of(lb.gtid(1), BEGIN, *parts, lb.query("ROLLBACK"))
    server = lb.LogServer([file])
    assert read(server, options=ReadOptions(receive_bytes=20_000))[0] == []
    assert len(server.dumps) == 1


@pytest.mark.pitfall(51)
def test_row_of_more_than_one_packet() -> None:
    columns = (lb.schema().columns[0], Column("v", "longblob", "binary", True))
    schema = TableSchema(lb.TABLE, 1, columns, ("id",))
    images = [lb.rows(EventType.WRITE_ROWS, 9, [_blob_image(i, size)]) for i, size in enumerate(_SIZES)]
    server = lb.LogServer([log_of(lb.gtid(1), BEGIN, _blob_map(), *images, XID)])
    rows, _ = read(server, schemas={lb.TABLE: schema}, options=ReadOptions(receive_bytes=1 << 20))
    assert [len(row[1]) for row in rows] == list(_SIZES)
    assert rows[1][1] == bytes([1]) * _SIZES[1]


_SIZES = (10, (1 << 24) - 100, (1 << 24) + 5, 20, (1 << 25) + 1)


def _blob_map() -> Parts:
    kind, body = lb.table_map(9)
    return kind, body.replace(b"\x02\x03\x0f\x02\x20\x03", b"\x02\x03\xfc\x01\x04").replace(
        b"\x02\x01\xff", b"\x02\x01\x3f"
    )


def _blob_image(number: int, size: int) -> bytes:
    return b"\0" + struct.pack("<iI", number, size) + bytes([number]) * size


# XA


def xa(name: bytes, verb: str) -> Parts:
    return lb.query(f"XA {verb} X'{name.hex()}',X'',1")


def prepared_xa(number: int, name: bytes, *inner: Parts) -> list[Parts]:
    return [lb.gtid(number), xa(name, "START"), *inner, xa(name, "END"), lb.xa_prepare(name)]


@pytest.mark.pitfall(40)
def test_xa_rows_count_when_and_where_they_commit() -> None:
    file = log_of(*prepared_xa(1, b"k", *INSERTED), lb.gtid(2), BEGIN, lb.table_map(9), lb.write(9, (2, "b")), XID)
    middle = file.end
    file.add(lb.gtid(3), xa(b"k", "COMMIT"))
    rows, reader = read([file], gtids="")
    assert [(row[0], row[4]) for row in rows] == [(2, f"{lb.SERVER}:2"), (1, f"{lb.SERVER}:3")]
    assert rows[1][5] == BinlogPosition(file.name, file.end).version
    assert reader.report.end.gtids == f"{lb.SERVER}:1-3"
    assert reader.report.prepared == ()
    assert rows[0][5] == BinlogPosition(file.name, middle).version


@pytest.mark.pitfall(40)
def test_xa_rollback_and_one_phase() -> None:
    one_phase = [lb.gtid(3), xa(b"m", "START"), *INSERTED, xa(b"m", "END"), lb.xa_prepare(b"m", one_phase=True)]
    rows, _ = read([log_of(*prepared_xa(1, b"k", *INSERTED), lb.gtid(2), xa(b"k", "ROLLBACK"), *one_phase)])
    assert [row[4] for row in rows] == [f"{lb.SERVER}:3"]


@pytest.mark.pitfall(40)
def test_xa_commit_of_what_was_never_prepared_here() -> None:
    parts = [lb.gtid(1), xa(b"k", "COMMIT")]
    refused(LogPositionLostError, "prepared before", *parts)
    refused(SplitChangedError, "prepared before", *parts, replay=True)
    assert read([log_of(*parts)], schemas={})[0] == []
    assert read([log_of(*parts)], skip=GtidSet.parse(f"{lb.SERVER}:1"))[0] == []


@pytest.mark.pitfall(40)
def test_xa_prepared_in_an_earlier_range() -> None:
    file = log_of(*prepared_xa(1, b"k", *INSERTED, lb.query("SAVEPOINT s"), *INSERTED, lb.query("ROLLBACK TO s")))
    middle = file.end
    file.add(lb.gtid(2), xa(b"k", "COMMIT"), *prepared_xa(3, b"l", lb.table_map(8, OTHER), lb.write(8, (5, "x"))))
    last = file.end
    file.add(lb.gtid(4), xa(b"l", "COMMIT"))
    server = lb.LogServer([file])
    reader = LogReader(server, {lb.TABLE: lb.schema()})
    with lb.serving(server):
        assert list(reader.read(LogRange(BinlogPosition(file.name, 4, ""), BinlogPosition(file.name, middle)))) == []
        report = reader.report
        assert [xa.xid for xa in report.prepared] == ["X'6b',X'',1"]
        rows = list(rows_of(reader, LogRange(report.end, BinlogPosition(file.name, last), report.prepared)))
        assert [row[0] for row in rows] == [1]
        assert [xa.xid for xa in reader.report.prepared] == ["X'6c',X'',1"]
        part = LogRange(reader.report.end, BinlogPosition(file.name, file.end), reader.report.prepared)
        assert list(rows_of(reader, part)) == []
    times = f"{lb.SERVER}:4={lb.MICROS}"
    assert reader.report.end == BinlogPosition(file.name, file.end, f"{lb.SERVER}:1-4", lb.SECONDS, times=times)


# Events that stop a job


@pytest.mark.parametrize("kind", [43, 99, 172, 20, 255])
def test_unknown_event_stops_with_its_place(kind: int) -> None:
    error = refused(UnknownLogEventError, f"type {kind} at log.000001:", *ONE, (kind, b"?"))
    assert str(log_of(*ONE).end) in error.message


@pytest.mark.pitfall(52)
def test_incident_stops() -> None:
    refused(DamagedLogError, "INCIDENT", (EventType.INCIDENT, b"\1\0\0"))


@pytest.mark.pitfall(31)
def test_log_without_column_names_is_refused() -> None:
    error = refused(IncompleteRowsError, "does not name", lb.gtid(1), BEGIN, lb.table_map(9, names=None))
    assert error.table == lb.TABLE
    assert "binlog_row_metadata=FULL" in error.remedy


@pytest.mark.pitfall(43)
def test_other_column_names_than_the_schema_are_refused() -> None:
    parts = [lb.gtid(1), BEGIN, lb.table_map(9, names=["id", "w"])]
    refused(SchemaChangedError, r"\['id', 'w'\]", *parts)
    refused(SplitChangedError, r"\['id', 'w'\]", *parts, replay=True)
    assert read([log_of(*parts, XID)], skip=GtidSet.parse(f"{lb.SERVER}:1"))[0] == []
    assert read([log_of(*parts, XID)], schemas={OTHER: lb.schema(OTHER)})[0] == []


@pytest.mark.pitfall(43)
@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (b"\x01\x01\x00", b"\x01\x01\x80", "sign"),
        (b"\x02\x03\xfc\xff\x00", b"\x02\x01\x08", "latin1"),
        (b"\x02\x03\xfc\xff\x00", b"\x02\x03\xfc\x0f\x27", "collation 9999"),
        (b"\x03\x0f\x02\x20\x03", b"\x03\x0f\x02\x90\x01", "varchar"),
    ],
)
def test_other_types_than_the_schema_are_refused(old: bytes, new: bytes, match: str) -> None:
    kind, body = lb.table_map(9)
    body = body.replace(b"\x02\x01\xff", b"\x02\x03\xfc\xff\x00")
    assert old in body
    refused(SourceNotUsableError, match, lb.gtid(1), BEGIN, (kind, body.replace(old, new)))


@pytest.mark.pitfall(32)
def test_row_image_without_all_columns_is_refused() -> None:
    for kind in (EventType.WRITE_ROWS, EventType.UPDATE_ROWS, EventType.DELETE_ROWS_V1):
        partial = lb.rows(kind, 9, [b"\0" + struct.pack("<i", 1)], present=1)
        error = refused(IncompleteRowsError, "all columns", lb.gtid(1), BEGIN, lb.table_map(9), partial, XID)
        assert error.table == lb.TABLE
        assert "binlog_row_image=FULL" in error.remedy


@pytest.mark.pitfall(33)
def test_partial_json_is_refused_for_wanted_tables() -> None:
    partial = (EventType.PARTIAL_UPDATE_ROWS, (9).to_bytes(6, "little") + bytes(20))
    error = refused(IncompleteRowsError, "JSON", lb.gtid(1), BEGIN, lb.table_map(9), partial, XID)
    assert error.table == lb.TABLE
    assert "binlog_row_value_options=''" in error.remedy
    assert read([log_of(lb.gtid(1), BEGIN, lb.table_map(9, OTHER), partial, XID)])[0] == []


@pytest.mark.pitfall(34)
def test_rows_written_by_a_statement_are_refused() -> None:
    statement = "INSERT INTO other VALUES ('topsecret')"
    error = refused(UnknownLogEventError, "INSERT as a statement", lb.gtid(1), BEGIN, lb.query(statement), XID)
    assert "binlog_format=ROW" in error.remedy
    assert "topsecret" not in str(error)
    elsewhere = lb.query(statement, status=b"\x0c\x02mysql\0b\0")
    assert len(read([log_of(lb.gtid(1), BEGIN, elsewhere, XID, lb.gtid(2), *ONE[1:])])[0]) == 1
    here = lb.query(statement, "mysql", status=b"\x0c\x02mysql\0shop\0")
    refused(UnknownLogEventError, "INSERT", lb.gtid(1), BEGIN, here, XID)
    refused(UnknownLogEventError, "LOAD DATA", lb.gtid(1), BEGIN, (EventType.BEGIN_LOAD_QUERY, bytes(9)))
    assert read([log_of(lb.gtid(1), BEGIN, lb.query(statement), XID)], schemas={})[0] == []


HEARTBEAT = (
    "INSERT INTO mysql.rds_heartbeat2(id, value) values (1,1640995200000) ON DUPLICATE KEY UPDATE value = 1640995200000"
)


@pytest.mark.pitfall(111)
def test_statement_that_writes_only_a_system_table_passes() -> None:
    """RDS for MariaDB writes one every few minutes. MariaDB does not log which databases a statement changes."""
    parts = [lb.mariadb_gtid(1), lb.query(HEARTBEAT), XID, lb.mariadb_gtid(2), *INSERTED, XID]
    assert len(read(lb.LogServer([log_of(*parts)], flavour="mariadb"))[0]) == 1
    for statement in (
        "INSERT INTO mysql.x VALUES (shop.f())",
        "UPDATE mysql.x, shop.t SET t.v = 1",
        "DELETE FROM shop.t",
    ):
        refused(UnknownLogEventError, "as a statement", lb.gtid(1), BEGIN, lb.query(statement, "mysql"), XID)


@pytest.mark.pitfall(111)
def test_statement_that_writes_an_unrelated_table_passes_if_that_changes_no_other() -> None:
    parts = [lb.gtid(1), BEGIN, lb.query("REPLACE INTO other SET v = 'x'"), XID, lb.gtid(2), *ONE[1:]]
    assert len(read(lb.LogServer([log_of(*parts)], isolated=frozenset({OTHER})))[0]) == 1
    error = refused(UnknownLogEventError, "REPLACE as a statement", *parts)
    assert "GRANT TRIGGER ON shop.other" in error.remedy
    captured = [lb.gtid(1), BEGIN, lb.query("DELETE FROM t"), XID]
    with pytest.raises(IncompleteRowsError, match="DELETE as a statement") as caught:
        read(lb.LogServer([log_of(*captured)], isolated=frozenset({OTHER, lb.TABLE})))
    assert caught.value.table == lb.TABLE
    both = {lb.TABLE: lb.schema(), OTHER: lb.schema(OTHER)}  # a trigger may write the other one
    for schemas, table in ((both, OTHER), ({lb.TABLE: lb.schema()}, lb.TABLE)):
        assert refused(IncompleteRowsError, "DELETE as a statement", *captured, schemas=schemas).table == table


@pytest.mark.pitfall(105)
def test_names_in_a_statement_of_a_client_without_a_character_set() -> None:
    cafe = TableId("shop", "café")
    schemas = {cafe: lb.schema(cafe)}
    binary = b"\x04\x3f\0\0\0\0\0"  # SET NAMES binary: collation 63
    parts = [lb.gtid(1), lb.query("DROP TABLE café", status=binary)]
    refused(SchemaChangedError, "DROP TABLE", *parts, schemas=schemas)
    latin = [lb.gtid(1), lb.query("DROP TABLE caf\xe9".encode("latin-1"), status=binary)]
    assert refused(SchemaChangedError, "can't tell", *latin, schemas=schemas).table == cafe
    literal = [lb.gtid(1), lb.query(b"CREATE TABLE x (v BLOB DEFAULT '\xe9')", status=binary)]
    assert read([log_of(*literal)], schemas=schemas)[0] == []


@pytest.mark.pitfall(112)
@pytest.mark.parametrize("checksum", [True, False])
def test_encrypted_log_is_read_as_the_source_decrypts_it(checksum: bool) -> None:
    parts = [lb.mariadb_gtid(1), *INSERTED, XID, lb.mariadb_gtid(2), *INSERTED, XID]
    file = log_of(*parts, encrypted=True, checksum=checksum)
    assert len(read(lb.LogServer([file], flavour="mariadb"))[0]) == 2
    second = [place for place, content in file.events if content[4] == EventType.MARIADB_GTID][1]
    server = lb.LogServer([file], flavour="mariadb")
    reader = LogReader(server, {lb.TABLE: lb.schema()})
    part = LogRange(BinlogPosition(file.name, second), BinlogPosition(file.name, file.end))
    with lb.serving(server):
        assert len(list(rows_of(reader, part))) == 1
    assert reader.report.end.pos == file.end


@pytest.mark.pitfall(41)
@pytest.mark.pitfall(42)
def test_ddl_on_a_captured_table_stops() -> None:
    for statement in (
        "ALTER TABLE t TRUNCATE PARTITION p",
        "ALTER TABLE shop.t DROP v",
        "RENAME TABLE t TO a, b TO t",
        "DROP DATABASE shop",
    ):
        ddl = [lb.gtid(2), lb.query(statement)]
        refused(SchemaChangedError, "shop.t", *ONE, *ddl)
        refused(SplitChangedError, "shop.t", *ONE, *ddl, replay=True)
        rows, _ = read([log_of(*ONE, *ddl, lb.gtid(3), *ONE[1:])], skip=GtidSet.parse(f"{lb.SERVER}:2"))
        assert len(rows) == 2
        assert read([log_of(*ONE, *ddl)], schemas={TableId("x", "other"): lb.schema(OTHER)})[0] == []


@pytest.mark.pitfall(41)
@pytest.mark.pitfall(28)
def test_a_truncation_comes_once_in_its_place_whatever_breaks() -> None:
    truncate = lb.query("TRUNCATE t")
    parts = [*ONE, lb.gtid(2), truncate, lb.gtid(3), *ONE[1:], lb.gtid(4), truncate, lb.gtid(5), truncate]
    file = log_of(*parts)
    nothing = (None, None, ChangeType.TRUNCATE, 0)
    expected = [(1, "a", 0, 0), nothing, (1, "a", 0, 0), nothing, nothing]
    rows, reader = read([file])
    assert [row[:4] for row in rows] == expected
    assert [row[4] for row in rows] == [f"{lb.SERVER}:{i}" for i in range(1, 6)]
    assert [row[5] for row in rows] == sorted({row[5] for row in rows})
    assert (reader.report.emitted_changes, reader.report.transactions) == (5, 5)
    refused(SplitChangedError, "shop.t", *parts, replay=True)
    assert read([file], schemas={TableId("x", "other"): lb.schema(OTHER)})[0] == []
    assert [row[:3] for row in read([file], skip=GtidSet.parse(f"{lb.SERVER}:2-4"))[0]] == [(1, "a", 0), nothing[:3]]
    for cut in range(100, file.end, 13):
        assert [row[:4] for row in read(lb.LogServer([file], cut=[cut]))[0]] == expected


def test_names_in_ddl_follow_the_servers_rule_of_case() -> None:
    parts = [lb.gtid(1), lb.query("DROP TABLE Shop.T")]
    assert read(lb.LogServer([log_of(*parts)]))[0] == []
    with pytest.raises(SchemaChangedError):
        read(lb.LogServer([log_of(*parts)], lower_case_names=True))


LOST_KEYS = ["ALTER TABLE t DROP INDEX i", "CREATE OR REPLACE UNIQUE INDEX i USING BTREE ON t (v)"]


@pytest.mark.pitfall(106)
@pytest.mark.parametrize("statement", LOST_KEYS)
def test_dropped_index_stops_only_where_it_may_have_been_the_key(statement: str) -> None:
    parts = [*ONE, lb.gtid(2), lb.query(statement), lb.gtid(3), *ONE[1:]]
    keyed = lb.LogServer([log_of(*parts)], primary_keys={lb.TABLE: ("id",)})
    assert len(read(keyed)[0]) == 2
    by_text = TableSchema(lb.TABLE, 1, lb.schema().columns, ("v",))
    for server in (lb.LogServer([log_of(*parts)]), keyed):
        with pytest.raises(SchemaChangedError, match="may no longer be unique"):
            read(server, schemas={lb.TABLE: by_text})
    keyless = TableSchema(lb.TABLE, 1, lb.schema().columns, ())
    assert len(read([log_of(*parts)], schemas={lb.TABLE: keyless})[0]) == 2


@pytest.mark.pitfall(106)
@pytest.mark.parametrize("statement", LOST_KEYS)
def test_dropped_key_stops_in_its_own_epoch_also_without_later_rows(statement: str) -> None:
    by_text = TableSchema(lb.TABLE, 1, lb.schema().columns, ("v",))
    parts = [*ONE, lb.gtid(2), lb.query(statement)]
    refused(SchemaChangedError, "may no longer be unique", *parts, schemas={lb.TABLE: by_text})


@pytest.mark.pitfall(103)
def test_cascading_foreign_key_that_is_added_stops_where_the_server_does_not_log_cascades() -> None:
    parts = [lb.gtid(1), lb.query("ALTER TABLE t ADD FOREIGN KEY (v) REFERENCES u (v) ON DELETE CASCADE")]
    assert read([log_of(*parts)])[0] == []
    with pytest.raises(SchemaChangedError, match="adds a foreign key"):
        read(lb.LogServer([log_of(*parts)], logs_cascades=False))
    harmless = [lb.gtid(1), lb.query("ALTER TABLE t ADD FOREIGN KEY (v) REFERENCES u (v) ON DELETE RESTRICT")]
    assert read(lb.LogServer([log_of(*harmless)], logs_cascades=False))[0] == []


def _trouble(file: lb.LogFile, schemas: dict[TableId, TableSchema]) -> SchemaChangedError | None:
    try:
        read([file], schemas=schemas)
    except SchemaChangedError as error:
        return error
    return None


def test_statement_that_is_not_understood_stops_the_tables_that_it_may_change() -> None:
    schemas = {table: lb.schema(table) for table in (lb.TABLE, OTHER, TableId("stock", "t"))}

    def stopped(statement: str | bytes, *, database: str = "shop", status: bytes = b"") -> list[str]:
        """The tables that leave, one after the other, until the log can be read."""
        file = log_of(*ONE, lb.gtid(2), lb.query(statement, database, status=status))
        left, found = dict(schemas), list[str]()
        while (error := _trouble(file, left)) is not None:
            assert "log.000001:" in error.message
            assert "topsecret" not in str(error)
            assert error.table is not None
            found.append(str(error.table))
            del left[error.table]
        return found

    every = ["shop.other", "shop.t", "stock.t"]
    for anything in ("SOMETHING 'topsecret'", "DROP SOMETHING t", "DROP TABLE `t", b"DROP TABLE caf\xe9", "SOMETHING"):
        assert stopped(anything) == every
    stock, shop, both = b"\x0c\x01stock\0", b"\x0c\x01shop\0", b"\x0c\x02x\0shop\0"
    assert stopped("SOMETHING", status=stock) == ["stock.t"]
    assert stopped("SOMETHING t", database="stock", status=shop) == stopped("SOMETHING", status=both) == every[:2]
    assert stopped("SOMETHING t", status=b"\x0c\x01x\0") == []
    assert stopped("SOMETHING t", status=b"\x0c\xfe") == every  # changes more databases than it lists
    assert stopped("CREATE SOMETHING s") == stopped("RENAME TABLE x AND y") == stopped("DROP INDEX i x x.t") == []
    assert stopped("CREATE SOMETHING s OPTIONS ('topsecret') ON t") == ["shop.t"]
    assert stopped("CREATE SOMETHING s ON t", database="stock") == ["stock.t"]
    assert stopped("CREATE SOMETHING s ON stock.t") == ["stock.t"]
    assert stopped("CREATE SOMETHING s ON shop") == every[:2]
    message = refused(SchemaChangedError, "unknown object", lb.gtid(1), lb.query("DROP THING t, 'topsecret'")).message
    assert message.endswith("Tidemark can't tell whether it changes shop.t: DROP THING t , ?.")
    refused(SplitChangedError, "unknown statement", lb.gtid(1), lb.query("SOMETHING"), replay=True)


def test_known_events_without_meaning_pass() -> None:
    parts = [
        (EventType.STOP, b""), (EventType.IGNORABLE, b"x"), (EventType.MARIADB_BINLOG_CHECKPOINT, bytes(9)),
        (EventType.MARIADB_GTID_LIST, bytes(4)), lb.gtid(1), BEGIN, (EventType.INTVAR, bytes(9)),
        (EventType.RAND, bytes(16)), (EventType.USER_VAR, bytes(9)), (EventType.ROWS_QUERY, b"\5INSERT"),
        (EventType.TRANSACTION_CONTEXT, bytes(9)), (EventType.VIEW_CHANGE, bytes(9)), *INSERTED, XID,
    ]  # fmt: skip
    assert len(read([log_of(*parts)])[0]) == 1


def test_heartbeats_stand_in_no_file() -> None:
    file = log_of(*ONE, lb.gtid(2), *ONE[1:])
    server = lb.LogServer([file])
    heartbeat = lb.framed(lb.event(EventType.HEARTBEAT, b"log.000001", end_pos=file.events[4][0]))
    second = lb.framed(lb.event(EventType.HEARTBEAT_V2, b"\1\2\3", end_pos=77))
    at = len(lb.framed(lb.event(*lb.rotate(file.name)))) + sum(len(lb.framed(e)) for _, e in file.events[:4])
    server.damage = lambda data: data[:at] + heartbeat + second + data[at:]
    assert len(read(server)[0]) == 2


# Events where they can't be


@pytest.mark.pitfall(27)
def test_rows_without_their_table_map_in_the_transaction() -> None:
    rows = lb.write(9, (1, "a"))
    refused(DamagedLogError, "TABLE_MAP", lb.gtid(1), BEGIN, rows, XID)
    refused(DamagedLogError, "TABLE_MAP", *ONE, lb.gtid(2), BEGIN, rows, XID)


@pytest.mark.pitfall(52)
def test_table_ids_mean_other_tables_in_another_file() -> None:
    first, second = log_of(*ONE), log_of(lb.gtid(2), BEGIN, lb.table_map(9, OTHER), lb.write(9, (2, "b")), XID)
    second.name = "log.000002"
    first.add(lb.rotate("log.000002"))
    assert [row[0] for row in read([first, second])[0]] == [1]


@pytest.mark.parametrize(
    "parts",
    [
        [XID],
        [BEGIN],
        [lb.query("COMMIT")],
        [lb.gtid(1), XID],
        [lb.gtid(1), lb.gtid(2)],
        [lb.gtid(1), BEGIN, lb.gtid(2)],
        [lb.gtid(1), lb.table_map(9)],
        [lb.table_map(9)],
        [lb.gtid(1), BEGIN, *INSERTED, lb.rotate("log.000002")],
        [lb.gtid(1), BEGIN, lb.payload([BEGIN, XID])],
        [lb.gtid(1), lb.payload([BEGIN, *INSERTED])],
        [lb.gtid(1), lb.payload([BEGIN, XID, XID])],
        [lb.gtid(1), lb.payload([BEGIN, lb.payload([BEGIN, XID]), XID])],
        [lb.gtid(1), lb.payload([lb.gtid(2), BEGIN, XID])],
        [lb.gtid(0), BEGIN, XID],
        [lb.gtid(1), xa(b"k", "END")],
        [lb.query("TRUNCATE u")],
    ],
)
def test_event_that_can_not_stand_here(parts: list[Parts]) -> None:
    with pytest.raises((DamagedLogError, UnknownLogEventError)):
        read([log_of(*parts)])


@pytest.mark.pitfall(52)
def test_wrong_checksum_stops() -> None:
    for number in range(6):
        file = log_of(*ONE)
        place, content = file.events[number]
        file.events[number] = (place, content[:-1] + bytes([content[-1] ^ 1]))
        server = lb.LogServer([file])
        with pytest.raises(LogPositionLostError, match="checksum"):
            read(server)
        assert len(server.dumps) == log_reading.UNREADABLE_ATTEMPTS


@pytest.mark.parametrize("is_read", [False, True])
def test_a_log_that_is_unreadable_once_is_read(is_read: bool) -> None:
    """`is_read`: by the server. Else the network damages it."""
    file = log_of(*ONE, lb.gtid(2), *ONE[1:])
    server = lb.LogServer([file])
    original, wrong = server.stream, [True, True]

    def stream(name: str, pos: int) -> bytes:
        if not wrong or not wrong.pop():
            return original(name, pos)
        return original(name, pos).replace(b"test", b"tost", 1) if is_read else lb.error_packet(1236, "an I/O error")

    server.stream = stream  # type: ignore[method-assign]
    rows, reader = read(server)
    assert (len(rows), reader.reconnects) == (2, 2)


def test_event_whose_end_position_is_wrong() -> None:
    file = log_of(lb.gtid(1), BEGIN, *INSERTED)
    file.add_raw(lb.event(*XID, end_pos=file.end + 99))
    with pytest.raises(DamagedLogError, match="end position is wrong"):
        read([file])


def test_only_the_last_event_of_a_transaction_must_say_where_it_ends() -> None:
    """MariaDB since 11.4 leaves the end positions of others out (binlog_legacy_event_pos=OFF)."""
    silent = log_of(lb.gtid(1), BEGIN)
    for part in (*INSERTED, lb.query("SAVEPOINT a"), *INSERTED):
        silent.add_raw(lb.event(*part))
    silent.add(XID)
    rows, reader = read([silent])
    assert rows == read([log_of(lb.gtid(1), BEGIN, *INSERTED, lb.query("SAVEPOINT a"), *INSERTED, XID)])[0]
    assert len(rows) == 2
    assert reader.report.end.pos == silent.end
    file = log_of(*ONE)
    file.add_raw(lb.event(*lb.gtid(2)))
    with pytest.raises(DamagedLogError, match="end position is wrong"):
        read([file])


def test_log_without_checksums_and_one_that_gets_them() -> None:
    first = log_of(*ONE, lb.rotate("log.000002"), checksum=False)
    second = log_of(lb.gtid(2), *ONE[1:], name="log.000002")
    third = log_of(lb.gtid(3), *ONE[1:], name="log.000003", checksum=False)
    second.add(lb.rotate("log.000003"))
    assert len(read([first, second, third])[0]) == 3


# Files


@pytest.mark.pitfall(44)
def test_file_numbers_grow_beyond_their_digits() -> None:
    first = log_of(*ONE, lb.rotate("log.1000000"), name="log.999999")
    second = log_of(lb.gtid(2), *ONE[1:], name="log.1000000")
    rows, reader = read([first, second])
    assert rows[0][5] < rows[1][5]
    assert reader.report.end.file == "log.1000000"


def test_a_file_that_is_missing_between_two_others() -> None:
    """With MySQL's GTIDs the file that comes instead tells what was in it."""
    first, third = log_of(*ONE, lb.rotate("log.000002")), log_of(lb.gtid(3), *ONE[1:], name="log.000003")
    with pytest.raises(LogPositionLostError, match=r"goes on with log\.000003 after log\.000001"):
        read([first, third])
    assert len(read([first, third], gtids="")[0]) == 2


def test_transaction_that_a_crash_cut_off_is_dropped() -> None:
    torn = log_of(*ONE, lb.gtid(2), BEGIN, *INSERTED)
    restarted = log_of(lb.gtid(2), *ONE[1:], name="log.000002", created=1_700_000_000)
    rows, reader = read([torn, restarted], gtids="")
    assert len(rows) == 2
    assert reader.report.end.gtids == f"{lb.SERVER}:1-2"
    with pytest.raises(LogPositionLostError, match=r"The end of log\.000001 is missing"):
        read([torn, log_of(lb.gtid(2), *ONE[1:], name="log.000002")])


def test_a_file_whose_end_is_missing() -> None:
    """A server ends a file without the next one's name only in a crash. Its next file tells of its start then. With MySQL's
    GTIDs the next file tells what is missing."""
    second = log_of(lb.gtid(2), *ONE[1:], name="log.000002")
    restarted = log_of(lb.gtid(2), *ONE[1:], name="log.000002", created=1_700_000_000)
    for cut in (log_of(*ONE), log_of()):
        with pytest.raises(
            LogPositionLostError, match=r"The end of log\.000001 is missing .* does not name log\.000002"
        ):
            read([cut, second])
        assert read([cut, restarted])[0] == read([cut, second], gtids="")[0]


def test_a_file_whose_end_is_missing_before_the_end_of_the_range() -> None:
    whole = log_of(*ONE)
    cut, stop = log_of(), BinlogPosition(whole.name, whole.end)
    for created, lost in ((0, True), (1_700_000_000, False)):
        server = lb.LogServer([cut, log_of(lb.gtid(2), *ONE[1:], name="log.000002", created=created)])
        reader = LogReader(server, {lb.TABLE: lb.schema()})
        with lb.serving(server):
            if lost:
                with pytest.raises(LogPositionLostError, match="is missing"):
                    list(reader.read(LogRange(BinlogPosition(whole.name, 4), stop)))
            else:
                list(reader.read(LogRange(BinlogPosition(whole.name, 4), stop)))
                assert reader.report.end.file == "log.000002"


def test_a_reading_that_begins_at_the_end_of_a_file() -> None:
    """The file's last event came before."""
    first = log_of(*ONE, lb.rotate("log.000002"))
    second = log_of(lb.gtid(2), *ONE[1:], name="log.000002")
    server = lb.LogServer([first, second])
    reader = LogReader(server, {lb.TABLE: lb.schema()})
    with lb.serving(server):
        part = LogRange(BinlogPosition(first.name, first.end), BinlogPosition(second.name, second.end))
        assert sum(len(batch.rows) for batch in reader.read(part)) == 1


def test_range_ends_at_the_first_boundary_at_or_after_its_stop() -> None:
    first = log_of(*ONE)
    middle = first.end
    first.add(lb.gtid(2), *ONE[1:])
    end = first.end
    first.add(lb.rotate("log.000002"))
    second = log_of(lb.gtid(3), *ONE[1:], name="log.000002")
    server = lb.LogServer([first, second])
    reader = LogReader(server, {lb.TABLE: lb.schema()})
    with lb.serving(server):
        for stop, wanted in [
            (middle, ("log.000001", middle)),
            (middle + 1, ("log.000001", end)),
            (end, ("log.000001", end)),
            (end + 1, ("log.000001", first.end)),
            (first.end + 1, ("log.000002", 4)),
        ]:
            list(reader.read(LogRange(BinlogPosition(first.name, 4), BinlogPosition(first.name, stop))))
            assert (reader.report.end.file, reader.report.end.pos) == wanted
        list(reader.read(LogRange(BinlogPosition("log.000002", 4), BinlogPosition("log.000002", 4))))
        assert reader.report.end == BinlogPosition("log.000002", 4)


@pytest.mark.pitfall(45)
def test_log_that_is_shorter_than_what_was_read() -> None:
    reader = LogReader(lb.LogServer([log_of(*ONE)]), {})
    with pytest.raises(LogPositionLostError, match="now it ends at"):
        list(reader.read(LogRange(BinlogPosition("log.000002", 4), BinlogPosition("log.000001", 9999))))


@pytest.mark.pitfall(45)
def test_start_between_no_two_events() -> None:
    file = log_of(*ONE, lb.gtid(2), *ONE[1:])
    server = lb.LogServer([file])
    server.stream = lambda name, pos: (  # type: ignore[method-assign]
        lb.framed(lb.event(*lb.rotate(name, pos), flags=0x20))
        + lb.framed(lb.event(*lb.format_description(), flags=0x20))
        + lb.framed(file.events[2][1])
    )
    reader = LogReader(server, {})
    with pytest.raises(LogPositionLostError, match="not between two events"):
        list(reader.read(LogRange(BinlogPosition(file.name, 500), BinlogPosition(file.name, file.end))))


@pytest.mark.pitfall(51)
def test_positions_beyond_4_gib() -> None:
    file = lb.LogFile("log.000001")
    start = file.end = (1 << 32) - 1000
    for number in range(1, 11):
        file.add(lb.gtid(number), *ONE[1:])
    server = lb.LogServer([file])
    reader = LogReader(server, {lb.TABLE: lb.schema()})
    with lb.serving(server):
        rows = list(rows_of(reader, LogRange(BinlogPosition(file.name, start), BinlogPosition(file.name, file.end))))
    assert len(rows) == 10
    assert reader.report.end.pos == file.end > 1 << 32
    assert rows[-1][5] == BinlogPosition(file.name, file.end).version


@pytest.mark.pitfall(51)
def test_start_beyond_4_gib_is_reached_from_the_files_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    file = log_of(*prepared_xa(1, b"k", *INSERTED), lb.gtid(2), xa(b"k", "COMMIT"), lb.gtid(3), lb.query("TRUNCATE t"))
    start = file.end
    file.add(lb.gtid(4), *ONE[1:])
    monkeypatch.setattr(log_reading, "MAX_START", start - 1)
    server = lb.LogServer([file])
    reader = LogReader(server, {lb.TABLE: lb.schema()})
    gtids = f"{lb.SERVER}:1-3"
    with lb.serving(server):
        rows = list(
            rows_of(reader, LogRange(BinlogPosition(file.name, start, gtids), BinlogPosition(file.name, file.end)))
        )
        assert [row[4] for row in rows] == [f"{lb.SERVER}:4"]
        assert reader.report.end.gtids == f"{lb.SERVER}:1-4"
        with pytest.raises(LogPositionLostError, match="not between two transactions"):
            list(
                reader.read(LogRange(BinlogPosition(file.name, start + 3, gtids), BinlogPosition(file.name, file.end)))
            )
    assert server.dumps[0][1] == 4


# Continuity


@pytest.mark.pitfall(45)
@pytest.mark.pitfall(46)
def test_gtids_that_were_read_before_or_are_missing_stop() -> None:
    with pytest.raises(LogPositionLostError, match="a second time"):
        read([log_of(lb.gtid(5), *ONE[1:])], gtids=f"{lb.SERVER}:1-7")
    file = log_of(lb.previous_gtids(3), lb.gtid(4), *ONE[1:])
    assert read([file], gtids=f"{lb.SERVER}:1-3")[1].report.end.gtids == f"{lb.SERVER}:1-4"
    for gtids in (f"{lb.SERVER}:1-2", f"{lb.SERVER}:1-3,{uuid.uuid4()}:1"):
        with pytest.raises(LogPositionLostError, match="comes after"):
            read([file], gtids=gtids)


@pytest.mark.pitfall(85)
@pytest.mark.pitfall(46)
def test_position_that_is_no_longer_there() -> None:
    file = log_of(*ONE)
    reader = LogReader(lb.LogServer([file]), {})
    for place in (BinlogPosition("log.000000", 4), BinlogPosition(file.name, file.end + 50)):
        with pytest.raises(LogPositionLostError) as caught:
            list(reader.read(LogRange(place, BinlogPosition("log.000009", 4))))
        assert START_OVER_NOW in caught.value.remedy


def test_log_that_ends_before_the_range() -> None:
    file = log_of(*ONE)
    server = lb.LogServer([file])
    reader = LogReader(server, {})
    with pytest.raises(LogPositionLostError, match="ends earlier"):
        list(reader.read(LogRange(BinlogPosition(file.name, 4), BinlogPosition(file.name, file.end + 100))))
    assert len(server.dumps) == log_reading.ATTEMPTS


def test_log_whose_end_comes_a_little_later() -> None:
    file = log_of(*ONE)
    stop = file.end + 1
    server = lb.LogServer([file])
    reader = LogReader(server, {lb.TABLE: lb.schema()})
    original = server.stream
    streams = []

    def stream(name: str, pos: int) -> bytes:
        streams.append(pos)
        if len(streams) == 3:
            file.add(lb.gtid(2), *ONE[1:])
        return original(name, pos)

    server.stream = stream  # type: ignore[method-assign]
    with lb.serving(server):
        rows = list(rows_of(reader, LogRange(BinlogPosition(file.name, 4), BinlogPosition(file.name, stop))))
    assert len(rows) == 2
    assert reader.reconnects == 2


@pytest.mark.pitfall(49)
def test_taken_server_id_is_given_up_for_another() -> None:
    file = log_of(*ONE)
    server = lb.LogServer([file], server_ids=(5, 6, 7))
    taken = lb.error_packet(1236, "A replica with the same server_uuid/server_id as this replica has connected")
    original, count = server.stream, iter(range(9))
    server.stream = lambda name, pos: taken if next(count) < 2 else original(name, pos)  # type: ignore[method-assign]
    rows, reader = read(server)
    assert len(rows) == 1
    assert [dump[2] for dump in server.dumps] == [5, 6, 7]
    assert reader.reconnects == 2


@pytest.mark.parametrize(
    ("code", "text", "error", "match"),
    [
        (1236, "Could not find first log file name in binary log index file", LogPositionLostError, "no longer has"),
        (1236, "could not find next log; the first event", LogPositionLostError, "no longer has"),
        (1236, "log event entry exceeded max_allowed_packet; Increase", LogPositionLostError, "own log"),
        (1236, "event read from binlog did not pass crc check", LogPositionLostError, "own log"),
        (1227, "Access denied; you need REPLICATION SLAVE", SourceNotUsableError, "may not read"),
        (1040, "whatever", SourceNotUsableError, "whatever"),
        (1053, "Server shutdown in progress", SourceUnavailableError, "8 times in a row"),
    ],
)
def test_errors_of_the_source(code: int, text: str, error: type[TidemarkError], match: str) -> None:
    server = lb.LogServer([log_of(*ONE)])
    server.stream = lambda name, pos: lb.error_packet(code, text)  # type: ignore[method-assign]
    with pytest.raises(error, match=match):
        read(server)


@pytest.mark.pitfall(28)
def test_broken_connections_in_a_row_end_the_reading() -> None:
    server = lb.LogServer([log_of(*ONE)], cut=[10] * 99)
    with pytest.raises(SourceUnavailableError, match="broke 8 times"):
        read(server)
    assert len(server.dumps) == log_reading.ATTEMPTS


def test_report_is_there_only_after_the_end() -> None:
    reader = LogReader(lb.LogServer([log_of(*ONE)]), {})
    with pytest.raises(RuntimeError):
        _ = reader.report


# MariaDB


def compressed(part: Parts, fixed: int) -> Parts:
    """An event as log_bin_compress writes it: the first `fixed` bytes of the body stay."""
    kind, body = part
    kinds = {2: 165, 23: 166, 24: 167, 25: 168, 30: 169, 31: 170, 32: 171}
    rest = body[fixed:]
    return kinds[kind], body[:fixed] + b"\x82" + len(rest).to_bytes(2, "big") + zlib.compress(rest)


def mariadb(*parts: Parts, **settings: Any) -> list[tuple[Any, ...]]:
    return read(lb.LogServer([log_of(*parts)], flavour="mariadb"), **settings)[0]


@pytest.mark.pitfall(26)
def test_compressed_events_of_mariadb() -> None:
    pairs = [((i, "a" * 30), (i, "b")) for i in range(40)]
    parts = [
        lb.mariadb_gtid(1, flags=1), compressed(lb.query("CREATE TABLE x (a int)"), 13 + 5), lb.mariadb_gtid(2),
        (EventType.MARIADB_ANNOTATE_ROWS, b"INSERT"), lb.table_map(9), compressed(lb.write(9, *(p[0] for p in pairs)), 12),
        compressed(lb.update(9, *pairs), 13), compressed(lb.rows(25, 9, [lb.image((1, "x"))]), 10), XID,
    ]  # fmt: skip
    for options in (
        ReadOptions(),
        ReadOptions(unpack_bytes=700),
        ReadOptions(receive_bytes=9000, column_buffer_bytes=34 * 20),
    ):
        rows = mariadb(*parts, options=options)
        assert [row[2] for row in rows] == [0] * 40 + [2] * 40 + [3]
        assert {row[4] for row in rows} == {"0-1-2"}
    (row,) = mariadb(lb.mariadb_gtid(1, flags=1), compressed(lb.query("TRUNCATE t"), 13 + 5))
    assert row[2:5] == (ChangeType.TRUNCATE, 0, "0-1-1")
    kind, body = compressed(lb.write(9, (1, "a")), 12)
    with pytest.raises(DamagedLogError, match="compressed"):
        mariadb(lb.mariadb_gtid(2), lb.table_map(9), (kind, body[:-3]), XID)


@pytest.mark.pitfall(40)
def test_xa_of_mariadb() -> None:
    kind, body = lb.mariadb_gtid(1, flags=64)
    parts = [
        (kind, body[:13] + struct.pack("<IBB", 1, 1, 0) + b"k"), lb.table_map(9), lb.write(9, (1, "a")), xa(b"k", "END"),
        lb.xa_prepare(b"k"), lb.mariadb_gtid(2), lb.table_map(9), lb.write(9, (2, "b")), lb.query("COMMIT"),
        lb.mariadb_gtid(3, flags=128), xa(b"k", "COMMIT"),
    ]  # fmt: skip
    assert [(row[0], row[4]) for row in mariadb(*parts)] == [(2, "0-1-2"), (1, "0-1-3")]


def test_domains_of_mariadb_have_their_own_numbers() -> None:
    parts = [p for d in (0, 3, 0) for p in (lb.mariadb_gtid(d + 1, domain=d), *INSERTED, XID)]
    assert [row[4] for row in mariadb(*parts)] == ["0-1-1", "3-1-4", "0-1-1"]
