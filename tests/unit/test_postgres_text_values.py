"""Texts that a column's type can't hold, and those that Arrow's own parsers do not know."""

from datetime import date, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.readers.postgres.pgoutput.text_values import text_array
from tidemark.state.errors import DamagedLogError, SourceNotUsableError
from tidemark.state.table import Column, TableId

T = TableId("s", "t")


def parsed(arrow_type: str, *texts: str | None) -> pa.Array:
    return text_array(T, Column("c", "the source's type", arrow_type, True), pa.array(texts, pa.string()))


@given(st.lists(st.dates()), st.booleans())
def test_days_of_odd_texts_are_those_of_plain_ones(dates: list[date], odd: bool) -> None:
    texts = [day.isoformat() for day in dates] + (["10000-01-01"] if odd else [])
    expected = [(day - date(1970, 1, 1)).days for day in dates] + ([2_932_897] if odd else [])
    assert parsed("date32", *texts).cast(pa.int32()).to_pylist() == expected


@given(st.lists(st.datetimes() | st.none()))
def test_moments_beside_one_before_christ(moments: list[datetime | None]) -> None:
    texts = [None if moment is None else moment.isoformat(sep=" ") for moment in moments]
    found = parsed("timestamp", *texts, "0001-12-31 23:59:59.999999 BC").cast(pa.int64()).to_pylist()
    epoch = datetime(1970, 1, 1)
    exact = [
        None if m is None else (m - epoch).days * 86_400_000_000 + (m - epoch).seconds * 1_000_000 for m in moments
    ]
    assert found[-1] == (datetime(1, 1, 1) - epoch).days * 86_400_000_000 - 366 * 86_400_000_000 + 31_622_399_999_999
    assert [f if m is None else f - m.microsecond for f, m in zip(found, moments, strict=False)] == exact


@pytest.mark.parametrize(
    ("arrow_type", "text", "message"),
    [
        ("decimal(10,2)", "NaN", "a decimal can't hold"),
        ("decimal(10,2)", "-Infinity", "a decimal can't hold"),
        ("date32", "infinity", "which a date or timestamp of the copy can't hold"),
        ("date32", "-infinity", "which a date or timestamp of the copy can't hold"),
        ("timestamp", "infinity", "which a date or timestamp of the copy can't hold"),
        ("timestamptz", "-infinity", "which a date or timestamp of the copy can't hold"),
        ("timestamp", "294276-12-31 23:59:59", "which does not fit 64-bit microseconds"),
    ],
)
def test_values_without_a_place_stop_with_the_column(arrow_type: str, text: str, message: str) -> None:
    with pytest.raises(SourceNotUsableError, match=rf"^s\.t\.c .*{message}.*source\.columns") as raised:
        parsed(arrow_type, None, text)
    assert not isinstance(raised.value, DamagedLogError)


@pytest.mark.parametrize(
    ("arrow_type", "text"),
    [
        ("bool", "true"),
        ("int16", "40000"),
        ("int64", ""),
        ("decimal(4,2)", "100.00"),
        ("decimal(4,2)", "1.001"),
        ("date32", "2024-1-1"),
        ("date32", "2024-01-01 BCE"),
        ("date32", "12024-01-01 00:00"),
        ("timestamp", "10000-01-01"),
        ("timestamptz", "10000-01-01 00:00:00+01"),
        ("timestamptz", "today"),
        ("float64", "1,5"),
    ],
)
def test_what_is_no_value_is_damage(arrow_type: str, text: str) -> None:
    with pytest.raises(DamagedLogError, match=r"s\.t\.c"):
        parsed(arrow_type, None, text)


def test_bytes_that_are_no_text_are_refused() -> None:
    offsets = pa.array([0, 2], pa.int32()).buffers()[1]
    texts = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    with pytest.raises(SourceNotUsableError, match=r"s\.t\.c holds bytes"):
        text_array(T, Column("c", "text", "string", True), texts)
