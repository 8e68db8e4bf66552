"""Decode plans, and the values and columns that the decoders refuse."""

import contextlib
import pickle
import socket
import threading
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pymysql
import pytest

from tests.support import decode_oracle as oracle
from tests.support import result_oracle
from tidemark.readers.mysql.decoding.arrow import decode_error, to_arrow
from tidemark.readers.mysql.decoding.column_codes import ErrorCode, error_code_of
from tidemark.readers.mysql.decoding.columns import ColumnPlan
from tidemark.readers.mysql.decoding.decode import ColumnBuffers, decode_image
from tidemark.readers.mysql.decoding.field_types import FieldType, image_type, split_metadata
from tidemark.readers.mysql.decoding.text_arrays import inet6_text
from tidemark.readers.mysql.schema.types import canonical_type
from tidemark.readers.mysql.snapshot.result_columns import parse_result_column
from tidemark.readers.mysql.snapshot.row_packets import RowPackets
from tidemark.state.errors import (
    DamagedLogError,
    IncompleteRowsError,
    SchemaChangedError,
    SourceNotUsableError,
    UnknownLogEventError,
    UnsupportedTypeError,
)
from tidemark.state.table import Column, TableId, TableSchema

TABLE = TableId("shop", "things")


def schema_of(*columns: tuple[str, str | None], captured: tuple[bool, ...] | None = None) -> TableSchema:
    return TableSchema(
        TABLE,
        1,
        tuple(
            Column(
                f"c{i}",
                source_type,
                canonical_type(TABLE, f"c{i}", source_type, charset) if captured is None or captured[i] else "",
                nullable=True,
                captured=captured is None or captured[i],
                charset=charset,
            )
            for i, (source_type, charset) in enumerate(columns)
        ),
        (),
    )


def log_plan(logged: TableSchema, known: TableSchema | None = None) -> ColumnPlan:
    """A plan from the TABLE_MAP of `logged` and the schema that is `known`."""
    kinds, metadata, labels = oracle.table_map(logged)
    return ColumnPlan.for_log(known or logged, kinds, split_metadata(kinds, metadata), labels=labels)


def decode(plan: ColumnPlan, image: bytes, present: bytes = b"\xff") -> tuple[int, ColumnBuffers, Any]:
    buf = np.frombuffer(bytearray(present + image), np.uint8)
    buffers = ColumnBuffers.empty(plan.column_count, 1)
    answer = decode_image(
        buf,
        len(present),
        len(buf),
        0,
        plan.column_count,
        plan.code,
        plan.meta,
        plan.wanted,
        buffers.lo,
        buffers.hi,
        buffers.valid,
        0,
    )
    return answer, buffers, buf


# Plans


@pytest.mark.pitfall(43)
@pytest.mark.parametrize(
    ("known", "logged"),
    [
        (("int", None), ("bigint", None)),
        (("int", None), ("varchar(4)", "ascii")),
        (("varchar(20)", "ascii"), ("varchar(21)", "ascii")),
        (("varchar(20)", "utf8mb4"), ("varchar(20)", "utf8mb3")),
        (("char(20)", "ascii"), ("binary(21)", None)),
        (("decimal(10,2)", None), ("decimal(10,3)", None)),
        (("datetime(3)", None), ("datetime", None)),
        (("datetime", None), ("timestamp", None)),
        (("text", "utf8mb4"), ("longtext", "utf8mb4")),
        (("bit(8)", None), ("bit(9)", None)),
        (("json", None), ("longtext", "utf8mb4")),
        (("enum('a')", "utf8mb4"), ("set('a')", "utf8mb4")),
    ],
)
def test_a_table_map_that_does_not_fit_the_schema_is_refused(
    known: tuple[str, str | None], logged: tuple[str, str | None]
) -> None:
    before, after = schema_of(("int", None), known), schema_of(("int", None), logged)
    log_plan(before)
    with pytest.raises(SchemaChangedError, match=r"shop\.things\.c1 is .*, in the log it is"):
        log_plan(after, before)


def test_another_number_of_columns_is_refused() -> None:
    with pytest.raises(SchemaChangedError, match="has 1 columns, in the log 2"):
        log_plan(schema_of(("int", None), ("int", None)), schema_of(("int", None)))


def test_other_labels_are_refused() -> None:
    with pytest.raises(SchemaChangedError, match="it has the labels a, c"):
        log_plan(schema_of(("enum('a','c')", "utf8mb4")), schema_of(("enum('a','b')", "utf8mb4")))


def test_labels_beyond_the_bmp_come_from_the_log() -> None:
    """The catalog shows `?` for them."""
    plan = log_plan(schema_of(("enum('a','\U0001f600')", "utf8mb4")), schema_of(("enum('a','?')", "utf8mb4")))
    assert plan.outputs[0].labels == ("a", "\U0001f600")


@pytest.mark.pitfall(31)
def test_a_log_without_labels_is_refused() -> None:
    schema = schema_of(("enum('a')", "utf8mb4"))
    kinds, metadata, _ = oracle.table_map(schema)
    with pytest.raises(UnknownLogEventError, match=r"c0: the log does not have the labels .*binlog_row_metadata=FULL"):
        ColumnPlan.for_log(schema, kinds, split_metadata(kinds, metadata), labels={})


@pytest.mark.parametrize("kind", [FieldType.TIMESTAMP, FieldType.DATETIME, FieldType.TIME])
def test_old_temporal_types_are_refused(kind: FieldType) -> None:
    schema = schema_of(("datetime", None))
    with pytest.raises(UnknownLogEventError, match=r"c0: the log has it as .*FORCE"):
        ColumnPlan.for_log(schema, bytes((kind,)), [0], labels={})


def test_compressed_columns_are_refused() -> None:
    with pytest.raises(UnknownLogEventError, match="VARCHAR_COMPRESSED"):
        ColumnPlan.for_log(schema_of(("varchar(9)", "ascii")), bytes((FieldType.VARCHAR_COMPRESSED,)), [10], labels={})


def test_columns_that_are_not_captured_are_read_over() -> None:
    logged = schema_of(("int", None), ("varchar(9)", "ascii"), ("decimal(65,30)", None), ("tinyint", None))
    known = TableSchema(TABLE, 1, tuple(replace(c, captured=i in {0, 3}) for i, c in enumerate(logged.columns)), ())
    plan = log_plan(logged, known)
    assert [output.name for output in plan.outputs] == ["c0", "c3"]
    answer, buffers, buf = decode(plan, oracle.write_image(logged, [7, "abc", "-1.5", -3]))
    assert answer == len(buf)
    assert [array.to_pylist() for array in to_arrow(plan, buf, buffers, 1, zero_dates_null=True)] == [[7], [-3]]


def test_a_type_that_is_not_canonical_is_refused() -> None:
    schema = schema_of(("int unsigned", None))
    other = TableSchema(TABLE, 1, (replace(schema.columns[0], arrow_type="int32"),), ())
    with pytest.raises(UnsupportedTypeError, match=r"c0 is int unsigned with Arrow type int64, not int32"):
        ColumnPlan.for_result(other)


def test_unknown_types_and_torn_metadata_have_no_numbers() -> None:
    with pytest.raises(ValueError, match="unknown column type 20"):
        split_metadata(bytes((20,)), b"")
    with pytest.raises(ValueError, match="1 bytes of metadata, 2 expected"):
        split_metadata(bytes((15,)), b"\1")
    with pytest.raises(ValueError, match="2 bytes of metadata, 0 expected"):
        split_metadata(bytes((3,)), b"\1\2")


@pytest.mark.parametrize("size", [0, 1, 255, 256, 511, 768, 1020])
def test_long_char_columns_hide_bits_of_their_length(size: int) -> None:
    meta = (254 ^ (size >> 8) << 4) | (size & 255) << 8
    assert image_type(254, meta) == (FieldType.STRING, size)


# Images


@pytest.mark.pitfall(32)
@pytest.mark.parametrize("columns", [1, 7, 8, 9, 17])
def test_an_image_without_all_columns_is_refused(columns: int) -> None:
    schema = schema_of(*[("tinyint", None)] * columns)
    plan = log_plan(schema)
    image = oracle.write_image(schema, [1] * columns)
    size = (columns + 7) // 8
    assert decode(plan, image, b"\xff" * size)[0] == size + len(image)
    for absent in range(columns):
        present = ((1 << columns) - 1 - (1 << absent)).to_bytes(size, "little")
        answer, _, _ = decode(plan, image, present)
        assert error_code_of(answer) == (ErrorCode.PARTIAL_IMAGE, absent)
        with pytest.raises(IncompleteRowsError, match="binlog_row_image=FULL"):
            raise decode_error(plan, answer, "binlog.000001:4")


def present_in(columns: Iterable[int], of: int) -> bytes:
    return sum(1 << column for column in columns).to_bytes((of + 7) // 8, "little")


@pytest.mark.parametrize("columns", [2, 8, 9, 17])
def test_an_image_may_lack_columns_that_are_not_copied(columns: int) -> None:
    """MariaDB 11.8 leaves out generated columns, and a hidden hash of them. Each other one may be NULL."""
    types = ["tinyint", "varchar(9)", "decimal(7,2)", "datetime"]
    schema = schema_of(*[(types[i % 4], "ascii" if i % 4 == 1 else None) for i in range(columns)])
    values = [[1, "ab", Decimal("1.50"), datetime(2026, 1, 2)][i % 4] for i in range(columns)]
    for absent in ({0}, {columns - 1}, set(range(0, columns, 2))):
        known = replace(
            schema,
            columns=tuple(replace(column, captured=i not in absent) for i, column in enumerate(schema.columns)),
        )
        plan = log_plan(schema, known)
        kept = [i for i in range(columns) if i not in absent]
        for null in (None, *kept):
            row = [None if i == null else values[i] for i in kept]
            image = oracle.write_image(replace(schema, columns=tuple(schema.columns[i] for i in kept)), row)
            present = present_in(kept, columns)
            answer, buffers, buf = decode(plan, image, present)
            assert answer == len(present) + len(image)
            found = [array.to_pylist()[0] for array in to_arrow(plan, buf, buffers, 1, zero_dates_null=True)]
            assert found == row
            assert decode(plan, image[:-1], present)[0] < 0 or null == kept[-1]


def test_an_image_may_be_smaller_than_a_bit_for_each_column() -> None:
    """Its own bits are for the columns that it has: here one byte of them, and one of the value that is not NULL."""
    schema = schema_of(*[("tinyint", None)] * 25)
    columns = tuple(replace(column, captured=i < 2) for i, column in enumerate(schema.columns))
    plan = log_plan(schema, replace(schema, columns=columns))
    image = oracle.write_image(replace(schema, columns=schema.columns[:2]), [7, None])
    present = present_in({0, 1}, 25)
    answer, buffers, buf = decode(plan, image, present)
    assert (len(image), answer) == (2, len(present) + 2)
    assert [a.to_pylist() for a in to_arrow(plan, buf, buffers, 1, zero_dates_null=True)] == [[7], [None]]
    for cut in (image[:1], b""):
        assert error_code_of(decode(plan, cut, present)[0])[0] is ErrorCode.DAMAGED
    answer, _, _ = decode(
        log_plan(schema), oracle.write_image(replace(schema, columns=schema.columns[:1]), [None]), present_in({0}, 25)
    )
    assert error_code_of(answer)[0] is ErrorCode.PARTIAL_IMAGE


def test_a_missing_generated_column_is_named_if_no_other_is_missing() -> None:
    schema = schema_of(*[("tinyint", None)] * 4)
    known = replace(
        schema, columns=tuple(replace(column, generated=i in (1, 2)) for i, column in enumerate(schema.columns))
    )
    plan = log_plan(schema, known)
    image = oracle.write_image(replace(schema, columns=schema.columns[:2]), [1, 1])
    answer, _, _ = decode(plan, image, present_in({0, 3}, 4))
    for lacks_generated in (False, True):
        error = decode_error(plan, answer, "binlog.000001:4", lacks_generated=lacks_generated)
        assert "lacks generated columns of shop.things: c1, c2" in str(error)
        assert error.is_cured_by_reading == lacks_generated
    answer, _, _ = decode(plan, image, present_in({0, 1}, 4))
    assert "binlog_row_image=FULL" in str(decode_error(plan, answer, "binlog.000001:4"))


def test_a_fault_names_its_column() -> None:
    schema = schema_of(("int", None), ("varchar(300)", "ascii"))
    plan = log_plan(schema)
    answer, _, _ = decode(plan, oracle.write_image(schema, [1, "abc"])[:-1])
    assert error_code_of(answer) == (ErrorCode.DAMAGED, 1)
    assert isinstance(decode_error(plan, answer, "binlog.000001:4"), DamagedLogError)
    assert "binlog.000001:4: shop.things.c1" in str(decode_error(plan, answer, "binlog.000001:4"))


def test_nulls_leave_nothing_behind() -> None:
    """Equal batches are equal bytes, whatever the column buffers held before."""
    schema = schema_of(("int", None), ("decimal(38,0)", None), ("datetime", None), ("text", "utf8mb4"))
    plan = log_plan(schema)
    image = oracle.write_image(schema, [None] * 4)
    buf = np.frombuffer(bytearray(b"\xff" + image), np.uint8)
    buffers = ColumnBuffers.empty(4, 2)
    for array in (buffers.lo, buffers.hi, buffers.valid):
        array[:] = 1
    decode_image(buf, 1, len(buf), 0, 4, plan.code, plan.meta, plan.wanted, buffers.lo, buffers.hi, buffers.valid, 1)
    for array in to_arrow(plan, buf, buffers, np.array([1]), zero_dates_null=True):
        assert array.null_count == 1
        assert not any(any(buffer.to_pybytes()[:16]) for buffer in array.buffers()[1:] if buffer is not None)


def test_plans_cross_processes() -> None:
    plan = log_plan(schema_of(("int", None), ("enum('a')", "utf8mb4")))
    copy = pickle.loads(pickle.dumps(plan))
    assert copy.outputs == plan.outputs
    assert copy.code.tolist() == plan.code.tolist()


@pytest.mark.pitfall(17)
@pytest.mark.parametrize("value", [b"", b"a", b"a\0b", b"a ", b"abcd"])
def test_binary_columns_get_their_zero_bytes_back(value: bytes) -> None:
    """The log has BINARY(4) without trailing zero bytes."""
    plan = log_plan(schema_of(("binary(4)", None)))
    answer, buffers, buf = decode(plan, b"\0" + bytes((len(value),)) + value)
    assert answer == len(buf)
    assert to_arrow(plan, buf, buffers, 1, zero_dates_null=True)[0].to_pylist() == [value.ljust(4, b"\0")]


@pytest.mark.pitfall(16)
def test_unsigned_64_bits_do_not_become_negative() -> None:
    plan = log_plan(schema_of(("bigint unsigned", None), ("bit(64)", None)))
    _, buffers, buf = decode(plan, b"\0" + b"\xff" * 16)
    assert [a.to_pylist() for a in to_arrow(plan, buf, buffers, 1, zero_dates_null=True)] == [[(1 << 64) - 1]] * 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("00" * 16, "::"),
        ("00" * 15 + "01", "::1"),
        ("00" * 12 + "01020304", "::1.2.3.4"),
        ("00" * 10 + "ffff01020304", "::ffff:1.2.3.4"),
        ("00010000000200030004000500060007", "1::2:3:4:5:6:7"),
        ("00010000000000020000000000000003", "1:0:0:2::3"),
        ("20010db8000000000000ff0000428329", "2001:db8::ff00:42:8329"),
        ("00010002000300040005000600070008", "1:2:3:4:5:6:7:8"),
    ],
)
def test_inet6_prints_as_mariadb_does(value: str, text: str) -> None:
    assert inet6_text(bytes.fromhex(value)) == text


# Packets of a result


class Peer:
    """A connection as RowPackets needs it. A thread sends the bytes."""

    def __init__(self, stream: bytes, *, sequence: int = 5) -> None:
        self.far, self._sock = socket.socketpair()
        self._rfile = self._sock.makefile("rb")
        self._next_seq_id = sequence
        self.thread = threading.Thread(target=self._send, args=(stream,))
        self.thread.start()

    def _send(self, stream: bytes) -> None:
        with contextlib.suppress(OSError):  # the reader may have given up
            self.far.sendall(stream)
            self.far.shutdown(socket.SHUT_WR)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *error: object) -> None:
        self._rfile.close()
        self._sock.close()
        self.thread.join()
        self.far.close()


def packet(sequence: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes((sequence & 255,)) + payload


BLOB_SCHEMA = schema_of(("int", None), ("longblob", None))
END = b"\xfe\0\0\2\0"


def rows_of(stream: bytes, *, buffer_bytes: int = 1) -> tuple[list[Any], bytes]:
    """(rows, the packet that ended them)"""
    plan = ColumnPlan.for_result(BLOB_SCHEMA)
    rows: list[Any] = []
    with Peer(stream) as peer:
        packets = RowPackets(peer, plan, buffer_bytes=buffer_bytes)  # type: ignore[arg-type]  # a stand-in
        for count in packets.batches():
            arrays = to_arrow(plan, packets.buf, packets.buffers, count, zero_dates_null=True)
            rows += zip(*(array.to_pylist() for array in arrays), strict=True)
        return rows, packets.last


def row_packet(sequence: int, number: int, content: bytes) -> bytes:
    return packet(sequence, result_oracle.write_result_row(BLOB_SCHEMA, [number, content]))


def test_rows_come_until_the_end_packet() -> None:
    expected = [(i, bytes((i & 255,)) * (i * 97 % 20000)) for i in range(600)]
    stream = b"".join(row_packet(5 + i, *row) for i, row in enumerate(expected)) + packet(5 + 600, END)
    assert rows_of(stream) == (expected, END)
    assert rows_of(stream, buffer_bytes=1 << 22) == (expected, END)


@pytest.mark.pitfall(51)
def test_a_row_in_several_packets() -> None:
    full = 0xFFFFFF
    payload = result_oracle.write_result_row(schema_of(("int", None)), [7]) + b"\xfe" + (2 * full).to_bytes(8, "little")
    payload += b"x" * (2 * full)
    parts = [payload[:full], payload[full : 2 * full], payload[2 * full :]]
    assert payload[1] == 0
    stream = row_packet(5, 1, b"a") + b"".join(packet(6 + i, part) for i, part in enumerate(parts))
    stream += row_packet(9, 2, b"b") + packet(10, END)
    rows, last = rows_of(stream, buffer_bytes=1 << 16)
    assert [(number, len(content)) for number, content in rows] == [(1, 1), (7, 2 * full), (2, 1)]
    assert rows[1][1].count(b"x") == 2 * full
    assert last == END


@pytest.mark.parametrize(
    "stream",
    [
        packet(6, END),  # another number than expected
        packet(5, b""),
        packet(5, b"\x01\0\0"),  # neither row, end nor error
        packet(5, END) + b"x",  # more after the end
        row_packet(5, 1, b"a") + packet(5, END),
        packet(5, result_oracle.write_result_row(BLOB_SCHEMA, [1, b"abc"])[:-1]),
        packet(5, result_oracle.write_result_row(BLOB_SCHEMA, [1, b"abc"]) + b"x"),
        b"\xff\xff\xff\5" + b"\0" * 0xFFFFFF + packet(7, b""),  # a continuation with the wrong number
    ],
    ids=["number", "empty", "kind", "after-end", "repeated", "torn", "longer", "continuation"],
)
def test_packets_that_make_no_sense_are_refused(stream: bytes) -> None:
    with pytest.raises(DamagedLogError, match=r"SELECT of shop\.things"):
        rows_of(stream)


@pytest.mark.parametrize("size", [0, 3, 9, 20])
def test_a_stream_that_ends_early_is_a_lost_connection(size: int) -> None:
    stream = (row_packet(5, 1, b"abcdefgh") + row_packet(6, 2, b"x"))[:size]
    with pytest.raises(pymysql.err.OperationalError, match="Lost connection"):
        rows_of(stream)


def test_column_definitions_that_can_not_be_read_are_refused() -> None:
    whole = b"\3def\1d\1t\1t\2id\2id\x0c\x3f\0\x0b\0\0\0\3\x23\0\0\0\0"
    assert parse_result_column(whole).name == "id"
    for size in range(len(whole) - 5):
        with pytest.raises(DamagedLogError):
            parse_result_column(whole[:size])


def test_a_batch_beyond_32_bit_offsets_is_refused() -> None:
    """Sizes alone decide; nothing of that size is allocated."""
    schema = schema_of(("longblob", None))
    plan = ColumnPlan.for_result(schema)
    buffers = SimpleNamespace(
        lo=np.zeros((1, 3), np.int64), hi=np.full((1, 3), 1 << 30), valid=np.ones((1, 3), np.uint8)
    )
    with pytest.raises(SourceNotUsableError, match="more than 2 GiB in one batch"):
        to_arrow(plan, np.zeros(1, np.uint8), buffers, 3, zero_dates_null=True)  # type: ignore[arg-type]  # a stand-in
