"""Events that Python reads: bodies as MySQL 9.7 and MariaDB 10.11 wrote them, and what is refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import log_bytes as lb
from tidemark.readers.mysql.binlog import events as ev
from tidemark.readers.mysql.binlog.table_map import table_map
from tidemark.state.errors import DamagedLogError, UnknownLogEventError
from tidemark.state.gtid import GtidSet

UUID = "d7aa9011-e594-11f1-a3e9-02fc00000001"


@pytest.mark.pitfall(47)
def test_tagged_gtid_as_mysql_9_wrote_it() -> None:
    body = bytes.fromhex(
        "0278000000025d03a9024102229503510222c5038d02a50304f103000000020404060a6d7974616708000a040c7fe65273c9c66006109504"
        "1283120b"
    )
    found = ev.tagged_gtid(body)
    assert found.source.hex() == UUID.replace("-", "")
    assert (found.tag, found.number, found.commit_timestamp_us) == ("mytag", 1, 0x0660C6C97352E6)
    assert found.original_commit_timestamp_us is None


@pytest.mark.pitfall(46)
@pytest.mark.pitfall(47)
def test_previous_gtids_without_and_with_tags() -> None:
    plain = "0100000000000000d7aa9011e59411f1a3e902fc00000001010000000000000001000000000000005300000000000000"
    assert str(ev.previous_gtids(bytes.fromhex(plain))) == f"{UUID}:1-82"
    tagged = (
        "0102000000000001d7aa9011e59411f1a3e902fc0000000100010000000000000001000000000000005400000000000000"
        "d7aa9011e59411f1a3e902fc000000010a6d79746167010000000000000001000000000000000300000000000000"
    )
    assert ev.previous_gtids(bytes.fromhex(tagged)) == GtidSet.parse(f"{UUID}:1-83,{UUID}:mytag:1-2")
    assert ev.previous_gtids(bytes(8)) == GtidSet()


def test_transaction_payload_head_as_mysql_9_wrote_it() -> None:
    found = ev.transaction_payload(bytes.fromhex("0201000303fc3f010101b40028b52ffd"))
    assert (found.size, found.uncompressed_size, found.compressed) == (180, 319, True)
    with pytest.raises(DamagedLogError):
        ev.transaction_payload(bytes.fromhex("020107030164010164" + "00"))


def test_format_description_of_mysql_9() -> None:
    lengths = "000d0008000000000400040000006300041a08000000000000020000000a0a0a2a2a001234000a280000"
    head = "0400" + b"9.7.4-2".ljust(50, b"\0").hex() + "00000000" + "13"
    found = ev.format_description(bytes.fromhex(head + lengths + "01" + "cc05f6fc"))
    assert (found.server_version, found.created_seconds, found.checksum_bytes) == ("9.7.4-2", 0, 4)
    with pytest.raises(DamagedLogError, match="TABLE_MAP"):
        ev.format_description(bytes.fromhex(head + lengths.replace("041a08", "041a06") + "01cc05f6fc"))
    with pytest.raises(DamagedLogError, match="checksums of type 2"):
        ev.format_description(bytes.fromhex(head + lengths + "02cc05f6fc"))


def test_query_finds_its_way_through_the_status() -> None:
    body = bytes.fromhex(
        "21000000000000000100001d000000000000012000a04500000000060373746404ff00ff00ff0012ff007000424547494e"
    )
    found = ev.query(body, {255: "utf8mb4"})
    assert (found.database, found.text, found.updated_databases) == ("p", "BEGIN", None)
    names = b"\x0c\x02a\0b\0"
    assert ev.query(lb.query("x", status=names)[1], {}).updated_databases == {"a", "b"}
    assert ev.query(lb.query("x", status=b"\x0c\xfe")[1], {}).updated_databases is None
    status = b"\x01" + (4).to_bytes(8, "little") + b"\x04\x1c\0\0\0\0\0" + b"\xfa???"
    found = ev.query(lb.query("TRUNCATE `表`".encode("gbk"), status=status)[1], {28: "gbk"})
    assert (found.sql_mode, found.text) == (4, "TRUNCATE `表`")


@pytest.mark.parametrize("body", [lb.query("x", status=b"\x0c\x05a\0")[1], lb.query("x")[1][:12], b""])
def test_query_that_is_cut_off(body: bytes) -> None:
    with pytest.raises(DamagedLogError):
        ev.query(body, {})


def test_xid_is_written_alike_by_event_and_statement() -> None:
    body = lb.xa_prepare(b"a1")[1]
    assert ev.xa_prepare(body) == ev.XaPrepare("X'6131',X'',1", False)


def test_compressed_part_of_mariadb() -> None:
    assert ev.compressed_part(b"abc" + bytes([0x82, 1, 0]) + b"z", 3) == ev.CompressedPart(6, 256)
    with pytest.raises(DamagedLogError, match="unknown compression"):
        ev.compressed_part(bytes([0x92, 1, 0]), 0)


def _table_map(body: bytes) -> None:
    with contextlib.suppress(UnknownLogEventError):
        table_map(body, mariadb=False)


PARSERS = [
    _table_map,
    ev.rotate, ev.previous_gtids, ev.tagged_gtid, ev.mariadb_gtid, ev.xa_prepare, ev.transaction_payload,
    ev.format_description, lambda body: ev.query(body, {255: "utf8mb4", 28: "gbk"}),
    lambda body: ev.compressed_part(body, 0),
]  # fmt: skip


@pytest.mark.pitfall(88)
@given(st.binary(max_size=120))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for parse in PARSERS:
        with contextlib.suppress(DamagedLogError):
            parse(body)
