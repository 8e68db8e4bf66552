"""The order of MariaDB's UUIDs, and conditions for ranges of it, against a model of how the server compares them."""

import re
import uuid

from hypothesis import given
from hypothesis import strategies as st

from tidemark.readers.mysql.keys.uuid_order import (
    condition,
    encoded,
    is_swapped,
    least_plain,
    least_swapped,
    record_of,
)

BYTE = st.sampled_from([0, 1, 2, 0x5E, 0x5F, 0x60, 0x7F, 0x80, 0x81, 0xFE, 0xFF]) | st.integers(0, 255)
SIXTEEN = st.lists(BYTE, min_size=16, max_size=16).map(bytes)


def is_accepted(shown: bytes) -> bool:
    """Whether the server reads this text as a UUID (ascii_to_fbt)."""
    return not (shown[6] >= 0x80 and 1 <= shown[8] <= 0x80)


UUIDS = SIXTEEN.filter(is_accepted)


def by_segments(shown: bytes) -> tuple[bytes, ...]:
    return shown[10:], shown[8:10], shown[6:8], shown[4:6], shown[:4]


def compared(a: bytes, b: bytes) -> int:
    """The server's comparison (UUID::cmp)."""
    if is_swapped(a) and is_swapped(b):
        return (by_segments(a) > by_segments(b)) - (by_segments(a) < by_segments(b))
    return (a > b) - (a < b)


def holds(sql: str, value: bytes) -> bool:
    """Evaluates a condition of `uuid_order.condition`."""
    sql = re.sub(r"\(SUBSTR\(CAST\(`k` AS BINARY\(16\)\), 7, 1\) BETWEEN .*? >= x'80'\)", str(is_swapped(value)), sql)

    def answer(match: re.Match[str]) -> str:
        result = compared(value, uuid.UUID(match[2]).bytes)
        return str(result < 0 if match[1] == "<" else result >= 0)

    sql = re.sub(r"`k` (<|>=) '([^']*)'", answer, sql)
    python = sql.replace("OR", "or").replace("AND", "and").replace("NOT", "not").replace("FALSE", "False")
    assert re.fullmatch(r"(True|False|or|and|not|[ ()])+", python), python
    return bool(eval(python))


def text(shown: bytes) -> str:
    return str(uuid.UUID(bytes=shown))


@given(UUIDS, UUIDS)
def test_records_of_one_kind_order_as_the_server_compares_them(a: bytes, b: bytes) -> None:
    if is_swapped(a) == is_swapped(b):
        assert (record_of(a) > record_of(b)) - (record_of(a) < record_of(b)) == compared(a, b)
    assert (record_of(a) == record_of(b)) == (a == b)


def test_the_servers_comparison_is_no_total_order() -> None:
    a, b, c = (
        uuid.UUID(text).bytes
        for text in (
            "00000000-0000-4000-8000-000000000002",
            "10000000-0000-7000-8000-000000000000",
            "20000000-0000-4000-8000-000000000001",
        )
    )
    assert [compared(a, b), compared(b, c), compared(a, c)] == [-1, -1, 1]


@given(UUIDS, UUIDS)
def test_a_condition_holds_for_the_records_on_its_side(value: bytes, bound: bytes) -> None:
    literal = f"'{text(bound)}'"
    order = record_of(value), record_of(bound)
    assert holds(condition("k", ">=", literal), value) == (order[0] >= order[1])
    assert holds(condition("k", ">", literal), value) == (order[0] > order[1])
    assert holds(condition("k", "<", literal), value) == (order[0] < order[1])
    assert (encoded(text(value)), encoded(text(bound))) == order


@given(SIXTEEN, UUIDS)
def test_the_least_uuid_of_a_kind_from_a_record_on(record: bytes, other: bytes) -> None:
    for found, kind in ((least_swapped(record), True), (least_plain(record), False)):
        if found is not None:
            assert is_accepted(found)
            assert is_swapped(found) == kind
            assert record_of(found) >= record
        if is_swapped(other) == kind and record_of(other) >= record:
            assert found is not None
            assert record_of(found) <= record_of(other)
