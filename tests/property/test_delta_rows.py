"""The input of the Delta sink's MERGE, compared with applying the changes one by one."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ByteType,
    DecimalType,
    DoubleType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from tests.support.change_parts import DELETE, INSERT, NOTES, ORDERS, UPDATE, log_part, replacing_part
from tests.support.note_changes import KEYS, key_of, note_changes, rows_of
from tidemark.sinks.delta.buckets import SplittingByBucket
from tidemark.sinks.delta.locations import Found
from tidemark.sinks.delta.rows import Unpacking, effect_schema
from tidemark.sinks.delta.tables import in_ranges, is_replaceable
from tidemark.state.change_batch import from_transport, to_transport
from tidemark.state.integer_range import IntegerRange


def merged(target: dict[Any, Any], source: list[pa.RecordBatch]) -> dict[Any, Any]:
    """Merges as the statement of `sinks.delta.tables.merge` does: every row of `target` at most once, all at the same
    time."""
    after = dict(target)
    inserted = []
    matched = [row["at"] for batch in source for row in batch.to_pylist() if row["at"] is not None]
    keys = [tuple(at.values()) for at in matched]
    assert len(keys) == len(set(keys))
    for batch in source:
        for row in batch.to_pylist():
            at = None if row["at"] is None else tuple(row["at"].values())
            new = None if row["new"] is None else dict(row["new"])
            if at is not None and at in target:
                after.pop(at)
                for name in row["missing"] or ():
                    assert new is not None
                    new[name] = target[at][name]
            else:
                assert not row["missing"]
            if row["stays"]:
                inserted.append(new)
    for new in inserted:
        assert new is not None
        key = tuple(new[name] for name in NOTES.key)
        assert key not in after
        after[key] = new
    return after


def _named(row: Any) -> dict[str, Any]:
    return dict(zip((column.name for column in NOTES.captured), row, strict=True))


@pytest.mark.pitfall(61)
@pytest.mark.pitfall(76)
@pytest.mark.pitfall(78)
@given(st.data())
def test_merging_the_effect_is_applying_the_changes(data: st.DataObject) -> None:
    held = {key: data.draw(rows_of(key)) for key in data.draw(st.sets(st.sampled_from(KEYS)))}
    target = {key_of(row): _named(row) for row in held.values()}
    changes = data.draw(note_changes(held, max_size=30))
    sent = [to_transport(item) for item in log_part(1, *([(NOTES, changes)] if changes else []))]
    source = list(Unpacking(NOTES, "effect")(sent))
    assert all(batch.schema == effect_schema(NOTES) for batch in source)
    assert merged(target, source) == {key_of(row): _named(row) for row in held.values()}


def test_part_cut_into_buckets_keeps_each_keys_changes_together_and_in_order() -> None:
    changes = [
        (kind, (n, str(step), None, None, None))
        for step, kind in enumerate((INSERT, UPDATE, DELETE))
        for n in range(50)
    ]
    whole = [to_transport(item) for item in log_part(1, *((ORDERS, changes[i : i + 40]) for i in range(0, 150, 40)))]
    cut = list(SplittingByBucket(ORDERS, 4)(whole))
    by_bucket: dict[int, list[tuple[int, str]]] = {}
    for batch in cut:
        (change,) = from_transport(batch)
        found = change.rows.select(["id", "customer"]).to_pylist()  # type: ignore[union-attr]
        by_bucket.setdefault(batch.column("bucket")[0].as_py(), []).extend((r["id"], r["customer"]) for r in found)
    assert len(by_bucket) == 4
    owners = [{number for number, _ in found} for found in by_bucket.values()]
    assert sum(map(len, owners)) == 50
    for found in by_bucket.values():
        for number in {number for number, _ in found}:
            assert [step for n, step in found if n == number] == ["0", "1", "2"]


def test_a_range_goes_through_spark_and_adds_no_rows() -> None:
    keys = IntegerRange(("a", "b"), (-(2**63), 0), (2**64, 5))
    for item in (*replacing_part(1, 1, ORDERS, keys, []), *replacing_part(1, 2, ORDERS, replace(keys, start=None), [])):
        assert from_transport(to_transport(item)) == [item]
    part = replacing_part(1, 3, ORDERS, keys, [(1, "a", None, None, None)])
    (rows,) = Unpacking(ORDERS, "rows")(map(to_transport, part))
    assert rows.num_rows == 1


def test_a_copy_is_replaced_if_it_orders_the_key_alike_and_marks_removed_rows() -> None:
    kinds = {"a": ByteType(), "B": ShortType(), "c": LongType(), "d": DecimalType(20, 0), "e": DecimalType(20, 1)}
    kinds["dotted.name"] = LongType()
    columns = StructType([StructField(name, kind) for name, kind in kinds.items()] + [StructField("f", DoubleType())])
    found = Found("id", columns, (), {"delta.enableDeletionVectors": "true"}, is_empty=False)
    assert is_replaceable(found, ["A", "b", "c", "d"])
    assert not any(is_replaceable(found, ["a", name]) for name in ("e", "f", "gone", "dotted.name"))
    assert not is_replaceable(replace(found, properties={}), ["a"])
    below, pair = IntegerRange(("a",), None, (-128,)), IntegerRange(("b", "d"), (1, 2), (1, 5))
    assert in_ranges([below], columns) == "((TRUE AND `a` < -128Y) OR `a` IS NULL)"
    text = in_ranges([pair], columns)
    assert text is not None
    assert "`b` = 1S AND `d` < 5BD" in text
    assert "NULL" not in text
    assert in_ranges([below, replace(below, start=(-128,), end=None)], columns) == "(TRUE)"
    assert in_ranges([IntegerRange(("e",), None, None)], columns) is None


def test_other_rows_than_a_splits_are_not_appended() -> None:
    part = log_part(1, (ORDERS, [(DELETE, (1, "a", None, None, None))]))
    with pytest.raises(ValueError, match="has changes, but is a split"):
        list(Unpacking(ORDERS, "rows")(map(to_transport, part)))
