"""Texts that a column's type can't hold, and those that Arrow's own parsers do not know."""

from datetime import date, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.readers.bad_values import STOP, BadValueRule
from tidemark.readers.postgres.pgoutput.text_values import text_array
from tidemark.state import marks
from tidemark.state.errors import DamagedLogError, SourceNotUsableError
from tidemark.state.table import Column, TableId, TableSchema

T = TableId("s", "t")
MARKED = BadValueRule(takes_marks=True)


def parsed(arrow_type: str, *texts: str | None, rule: BadValueRule = STOP, key: bool = False) -> pa.Array:
    column = Column("c", "the source's type", arrow_type, nullable=not key)
    schema = TableSchema(T, 1, (column,), ("c",) if key else ())
    return text_array(schema, column, pa.array(texts, pa.string()), rule)


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
        ("decimal(10,2)", "NaN", "NaN"),
        ("date32", "infinity", "infinity"),
        ("date32", "-infinity", "-infinity"),
        ("timestamp", "infinity", "infinity"),
        ("timestamptz", "-infinity", "-infinity"),
        ("timestamp", "294276-12-31 23:59:59", "64-bit microseconds"),
    ],
)
@pytest.mark.pitfall(109)
def test_values_without_a_place_stop_with_the_column_and_a_remedy(arrow_type: str, text: str, message: str) -> None:
    with pytest.raises(SourceNotUsableError, match=rf"^s\.t\.c holds .*{message}.*, which a copy can't hold") as raised:
        parsed(arrow_type, None, text)
    assert not isinstance(raised.value, DamagedLogError)
    assert "sink.on_bad_value_in: {s.t: {c: null}}" in raised.value.remedy
    null = BadValueRule(by_table={("s", "t"): {"c": "null"}})
    assert parsed(arrow_type, None, text, rule=null).to_pylist() == [None, None]
    with pytest.raises(SourceNotUsableError, match=r"leave the table out .*, then start over"):
        parsed(arrow_type, text, rule=null, key=True)


@pytest.mark.parametrize(
    ("arrow_type", "texts", "words"),
    [
        ("decimal(4,2)", ["1.50", "NaN", None, "-1.50"], [None, "NaN", None, None]),
        ("decimal(38,0)", ["9" * 38, "NaN", "-" + "9" * 38], [None, "NaN", None]),
        ("date32", ["infinity", "2024-02-29", "-infinity"], ["infinity", None, "-infinity"]),
        ("timestamp", ["-infinity", None, "infinity"], ["-infinity", None, "infinity"]),
        ("timestamptz", ["294276-12-31 23:59:59+00", "2024-02-29 00:00:00+00"], ["after the year 294246", None]),
    ],
)
def test_values_without_a_place_have_marks_for_a_mirror(
    arrow_type: str, texts: list[str | None], words: list[str | None]
) -> None:
    found = parsed(arrow_type, *texts, rule=MARKED)
    plain = [text if word is None else None for text, word in zip(texts, words, strict=True)]
    marked = marks.words(found)
    assert marked is not None
    assert [word if is_marked else None for is_marked, word in zip(*map(list, marked), strict=True)] == [
        None if word is None else pa.scalar(word) for word in words
    ]
    assert pc.if_else(pa.array(marked[0]), pa.scalar(None, found.type), found).equals(parsed(arrow_type, *plain))


def test_times_after_the_year_294246_are_no_keys() -> None:
    """Two of them would be one."""
    with pytest.raises(SourceNotUsableError, match="64-bit microseconds"):
        parsed("timestamp", "294276-12-31 23:59:59", rule=MARKED, key=True)


@pytest.mark.parametrize(
    ("arrow_type", "text"),
    [
        ("bool", "true"),
        ("int16", "40000"),
        ("int64", ""),
        ("decimal(4,2)", "100.00"),
        ("decimal(4,2)", "1.001"),
        ("decimal(10,2)", "-Infinity"),
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
    column = Column("c", "text", "string", True)
    schema = TableSchema(T, 1, (column,), ())
    with pytest.raises(SourceNotUsableError, match=r"s\.t\.c holds bytes"):
        text_array(schema, column, texts)
    (marked,) = text_array(schema, column, texts, MARKED).to_pylist()
    assert marked == "\0\\xff\\xfe"
    assert marks.marked_text(b"\xff\xfe") != marks.marked_text(b"\xff\\xfe")
