"""The labels that an enum of a copy lacks, and the places that they get."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.sinks.mirror.enum_labels import new_labels, places
from tidemark.sinks.mirror.value_ranges import Citext, EnumOfPostgres, Text, holds


def grown(existing: list[str], wanted: list[str]) -> list[str]:
    """Does what PostgreSQL does."""
    found = list(existing)
    for label, before, after in places(existing, wanted):
        at = len(found)
        if before is not None:
            at = found.index(before)
        if after is not None:
            at = found.index(after) + 1
        found.insert(at, label)
    return found


@given(st.permutations("abcdefgh"), st.sets(st.sampled_from("abcdefgh")))
def test_labels_come_in_the_order_of_the_source(wanted: list[str], there: set[str]) -> None:
    assert grown([label for label in wanted if label in there], wanted) == wanted


@given(st.permutations("abcdef"), st.permutations("cdefgh"))
def test_an_enum_with_another_order_gets_all_labels_once(existing: list[str], wanted: list[str]) -> None:
    found = grown(existing, wanted)
    assert [label for label in found if label in existing] == existing
    assert sorted(found) == sorted(set(existing) | set(wanted))


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("{}", []),
        ("{a,NULL,b}", ["a", "b"]),
        ('{"NULL","a b","q\\"u","b\\\\s","",null}', ["", "NULL", "a b", "b\\s", 'q"u']),
        ("[0:1]={a,b}", ["a", "b"]),
        ("{{a,b},{c,d}}", ["a", "b", "c", "d"]),
        ('[-1:0][2:2]={{"[1:2]="},{"a,b"}}', ["[1:2]=", "a,b"]),
        ('{"{x}","line\nbreak"}', ["line\nbreak", "{x}"]),
    ],
)
def test_labels_of_arrays(text: str, labels: list[str]) -> None:
    batch = pa.RecordBatch.from_pydict({"v": pa.array([text, None, text])})
    found = new_labels({"v": EnumOfPostgres((), in_array=True, full_name="e")}, [batch])
    assert found == ({"e": labels} if labels else {})


def test_new_labels_of_several_columns_and_batches() -> None:
    enums = {
        "v": EnumOfPostgres(("a",), False, "e"),
        "w": EnumOfPostgres(("a",), True, "e"),
        "x": EnumOfPostgres((), False, "f"),
    }
    first = pa.RecordBatch.from_pydict(
        {"v": ["b", None, "a"], "w": ["{c}", "{a}", None], "x": pa.nulls(3, pa.string())}
    )
    keys = pa.RecordBatch.from_pydict({"v": ["d", "marked\0text"]})
    assert new_labels(enums, [first, keys]) == {"e": ["b", "c", "d"]}


def test_columns_that_hold_an_enum() -> None:
    source = EnumOfPostgres(("a", "b"), in_array=False)
    assert holds(EnumOfPostgres(("b", "c", "a"), False, "e"), source)
    assert not holds(EnumOfPostgres(("a",), False, "e"), source)
    assert holds(EnumOfPostgres(("a",), False, "e", can_grow=True), source)
    assert not holds(EnumOfPostgres(("a", "b"), True, "e", can_grow=True), source)
    assert not holds(EnumOfPostgres(("a", "b"), False, "e", can_grow=True), Text(1))
    assert holds(Text(), source)
    assert not holds(Text(10), source)
    assert holds(Citext(False), Citext(False))
    assert not holds(Citext(False), Text())
    assert not holds(Citext(False), source)
