"""The input of the Delta sink's MERGE, compared with applying the changes one by one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, get_args

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

from tests.support.change_parts import (
    DELETE,
    INSERT,
    ITEMS,
    NOTES,
    ORDERS,
    TRUNCATE,
    UNCHANGED,
    UPDATE,
    Change,
    column,
    log_part,
    part,
    replacing_part,
    rows,
    snapshot_part,
)
from tests.support.note_changes import KEYS, key_of, note_changes, rows_of
from tidemark.sinks.delta import effect
from tidemark.sinks.delta.buckets import SplittingByBucket, divided
from tidemark.sinks.delta.effect import effect_schema
from tidemark.sinks.delta.keeping import kept_schema
from tidemark.sinks.delta.locations import Found
from tidemark.sinks.delta.rows import Shape, Unpacking
from tidemark.sinks.delta.tables import in_ranges, is_replaceable
from tidemark.state.change_batch import ChangeBatch, from_transport, to_transport
from tidemark.state.errors import SinkError
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


@contextmanager
def in_arrow(size: str) -> Iterator[None]:
    """With `size` "large", all changes are treated as those are that have more than 2 GiB in a column."""
    with pytest.MonkeyPatch.context() as patch:
        if size == "large":
            patch.setattr(effect, "LARGE_BYTES", -1)
            patch.setattr(effect, "OUTPUT_BYTES", 200)
        yield


def _named(row: Any) -> dict[str, Any]:
    return dict(zip((column.name for column in NOTES.captured), row, strict=True))


@pytest.mark.pitfall(61)
@pytest.mark.pitfall(76)
@pytest.mark.pitfall(78)
@pytest.mark.parametrize("size", ["usual", "large"])
@given(data=st.data())
def test_merging_the_effect_is_applying_the_changes(size: str, data: st.DataObject) -> None:
    held = {key: data.draw(rows_of(key)) for key in data.draw(st.sets(st.sampled_from(KEYS)))}
    target = {key_of(row): _named(row) for row in held.values()}
    changes = data.draw(note_changes(held, max_size=30))
    sent = [to_transport(item) for item in log_part(1, *([(NOTES, changes)] if changes else []))]
    with in_arrow(size):
        source = list(Unpacking(NOTES, "effect")(sent))
    assert all(batch.schema == effect_schema(NOTES) for batch in source)
    assert merged(target, source) == {key_of(row): _named(row) for row in held.values()}


Kept = dict[Any, list[tuple[dict[str, Any], bool]]]
"""The rows of a table that keeps deleted ones, by key: their values, and whether the source has deleted them. Somebody may have
put a key there twice."""


def merged_keeping(target: Kept, source: list[pa.RecordBatch], *, truncates: bool) -> Kept:
    """Merges as the statement of `sinks.delta.merges.merge_keeping` does, after `completed`."""
    after, inserted, matched = {key: list(held) for key, held in target.items()}, [], set()
    for row in (row for batch in source for row in batch.to_pylist()):
        at, new, missing = (
            row["at"] and tuple(row["at"].values()),
            row["new"] and dict(row["new"]),
            row["missing"] or (),
        )
        assert row["stays"] == (new is not None)
        if row["origin"] is not None:
            for name in missing:
                new[name] = target[tuple(row["origin"].values())][0][0][name]
            missing = ()
        if at is not None:
            assert at not in matched
            matched.add(at)
        if target.get(at):
            held = after.pop(at)
            if new is not None:
                assert tuple(new[name] for name in NOTES.key) == at
                after[at] = [(new | {name: before[name] for name in missing}, row["deleted"]) for before, _ in held]
            elif row["deleted"]:
                after[at] = [(before, True) for before, _ in held]
        elif new is not None:
            assert not missing
            inserted.append((new, row["deleted"]))
    for key in (after.keys() - matched) if truncates else ():
        after[key] = [(before, True) for before, _ in after[key]]
    for new, is_deleted in inserted:
        key = tuple(new[name] for name in NOTES.key)
        assert not after.get(key)
        after[key] = [(new, is_deleted)]
    return {key: held for key, held in after.items() if held}


def applied_keeping(target: Kept, changes: list[Change]) -> Kept:
    """Applies the changes one by one."""
    after, removed = {key: list(held) for key, held in target.items()}, dict[str, Any]()
    for kind, values in changes:
        if kind is TRUNCATE:
            after = {key: [(row, True) for row, _ in held] for key, held in after.items()}
            continue
        key = key_of(tuple(values))
        held = after.get(key, [])
        if kind is DELETE:
            removed = held[0][0] if held else {}
            after[key] = [(row, True) for row, _ in held]
            continue
        before = removed if kind is INSERT else held[0][0] if held else {}
        named = _named(values).items()
        after[key] = [({name: before[name] if v is UNCHANGED else v for name, v in named}, False)]
    return {key: held for key, held in after.items() if held}


@pytest.mark.pitfall(61)
@pytest.mark.pitfall(76)
@pytest.mark.pitfall(78)
@pytest.mark.parametrize("size", ["usual", "large"])
@given(data=st.data())
def test_merging_into_a_table_that_keeps_deleted_rows_is_applying_the_changes(size: str, data: st.DataObject) -> None:
    """Also with rows that were read again, whatever the table has of their keys, and after each TRUNCATE."""
    held = {key: data.draw(rows_of(key)) for key in data.draw(st.sets(st.sampled_from(KEYS)))}
    others = {key: data.draw(rows_of(key)) for key in data.draw(st.sets(st.sampled_from(KEYS))) - held.keys()}
    target = {key: [(_named(row), False)] for key, row in held.items()}
    target |= {key: [(_named(row), True)] for key, row in others.items()}
    again = data.draw(st.sets(st.sampled_from(KEYS)))
    for key in again:
        found = st.lists(st.tuples(rows_of(key).map(_named), st.booleans()), max_size=2)
        target[key] = data.draw(found)
    read: list[Change] = [(INSERT, held[key]) if key in held else (DELETE, (*key[::-1], *[None] * 4)) for key in again]
    transactions: list[list[Change]] = []
    for number in range(data.draw(st.integers(1, 3))):
        if number:
            held.clear()
            transactions.append([(TRUNCATE, [None] * 6)])
        if data.draw(st.booleans()):
            transactions.append(data.draw(note_changes(held, max_size=15)))
    batches = [(NOTES, rows(NOTES, read, snapshot=True))] if read else []
    batches += [(NOTES, rows(NOTES, changes, version=1000 + n)) for n, changes in enumerate(transactions)]
    with in_arrow(size):
        source = list(Unpacking(NOTES, "kept effect")(map(to_transport, part(1, "log", batches))))
    assert all(batch.schema == kept_schema(NOTES) for batch in source)
    logged = [change for changes in transactions for change in changes]
    truncates = any(kind is TRUNCATE for kind, _ in logged)
    assert merged_keeping(target, source, truncates=truncates) == applied_keeping(target, read + logged)


def test_rows_of_splits_replace_what_a_table_that_keeps_deleted_rows_has_of_their_keys() -> None:
    one, two, three = (_named((n, "en", n, None, None, None)) for n in (1, 2, 3))
    target: Kept = {("en", 1): [(one | {"stars": 7}, True)], ("en", 2): [(two, True)] * 2, ("en", 9): [(one, True)]}
    items = [
        item for n, row in enumerate((one, two, three)) for item in snapshot_part(1, n, NOTES, [tuple(row.values())])
    ]
    source = list(Unpacking(NOTES, "kept rows")(map(to_transport, items)))
    after = merged_keeping(target, source, truncates=False)
    assert after == {("en", n): [(row, False)] for n, row in enumerate((one, two, three), 1)} | {
        ("en", 9): [(one, True)]
    }


@pytest.mark.every_server
def test_a_key_that_changes_again_after_2_gib_of_text_has_one_row() -> None:
    """Arrow cuts a column with more text into several arrays."""
    count, long = 33, pa.array(["x" * (65 << 20)])
    batches = [
        rows(NOTES, [(kind, (n, "en", 1, None, None, None))], version=version)
        for version, kind in enumerate((INSERT, UPDATE))
        for n in range(count)
    ]
    for n, batch in enumerate(batches[:count]):
        batches[n] = batch.set_column(3, batch.schema.field(3), long)
    *changes, _ = part(1, "log", [(NOTES, batch) for batch in batches])
    source = list(Unpacking(NOTES, "effect").unpacked(iter(changes)))  # type: ignore[arg-type]
    assert sorted(merged({}, source)) == [("en", n) for n in range(count)]


def test_lists_of_texts_may_be_large() -> None:
    columns = (*ORDERS.columns, column("tags", "x", "list<string>"), column("raw", "x", "list<binary>"))
    tagged = replace(ORDERS, columns=columns)
    order = (1, "Ada", None, None, None, ["a", None, ""], [b"\0"])
    parts = log_part(1, (tagged, [(INSERT, order), (DELETE, (2, *[None] * 6))]))
    shapes: list[Shape] = ["effect", "rest", "kept effect"]
    for shape in shapes:
        usual = list(Unpacking(tagged, shape)(map(to_transport, parts)))
        with in_arrow("large"):
            large = list(Unpacking(tagged, shape)(map(to_transport, parts)))
        assert pa.Table.from_batches(large).to_pylist() == pa.Table.from_batches(usual).to_pylist()
        assert {batch.schema for batch in large} == {usual[0].schema}


def test_rows_with_much_text_come_in_batches_of_limited_size() -> None:
    """Spark has all rows of one in memory."""
    changes = [(INSERT, (n, "x" * (1 << 20), None, None, None)) for n in range(100)]
    shapes: list[Shape] = ["effect", "rest", "kept effect"]
    for shape in shapes:
        batches = list(Unpacking(ORDERS, shape)(map(to_transport, log_part(1, (ORDERS, changes)))))
        assert max(batch.nbytes for batch in batches) < 40 << 20
        assert sum(batch.num_rows for batch in batches) == 100


def test_a_value_left_out_after_its_row_was_deleted_concerns_the_table() -> None:
    changes: list[Change] = [(DELETE, (1, "en", 1, None, None, None)), (UPDATE, (1, "en", 1, UNCHANGED, None, None))]
    with pytest.raises(SinkError, match="in transaction gtid:1000, and the row's previous values") as caught:
        list(Unpacking(NOTES, "effect")(map(to_transport, log_part(1, (NOTES, changes)))))
    assert caught.value.table == NOTES.table


def test_a_value_left_out_after_a_truncation_is_refused() -> None:
    truncated: list[tuple[Any, list[Change]]] = [(NOTES, [(TRUNCATE, [None] * 6)])]
    update: Any = (NOTES, [(UPDATE, (1, "en", 1, UNCHANGED, None, None))])
    with pytest.raises(SinkError, match="whose row went with a TRUNCATE before"):
        list(Unpacking(NOTES, "kept effect")(map(to_transport, log_part(1, *truncated, update))))


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


@given(data=st.data())
def test_a_key_has_one_bucket_whatever_is_beside_it(data: st.DataObject) -> None:
    skus = st.text("a\0 é", max_size=3)
    batches = data.draw(st.lists(st.lists(st.tuples(st.integers(0, 1), skus), min_size=1, max_size=9), max_size=9))
    bucket_of: dict[tuple[int, str], int] = {}
    for keys in batches:
        changes = [(UPDATE, (*key, 1)) for key in keys]
        (change, _) = log_part(1, (ITEMS, changes))
        assert isinstance(change, ChangeBatch)
        for bucket, share in divided(change, ITEMS, 256):
            for row in share.rows.to_pylist():
                assert bucket_of.setdefault((row["order_id"], row["sku"]), bucket) == bucket


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


@pytest.mark.parametrize("shape", get_args(Shape))
def test_an_instant_before_the_year_1_is_not_written_to_a_column_that_partitions_a_table(shape: Shape) -> None:
    """Delta 4.4.0 writes its year without the era: a row of 44 BC came into the copy as one of 44 AD."""
    first = -62_135_596_800_000_000
    dated = replace(ORDERS, columns=(ORDERS.columns[0], column("at", "timestamptz", "timestamptz")))

    def read(at: int | None, *partitioned_by: str) -> list[pa.RecordBatch]:
        parts = snapshot_part(1, 1, dated, [(1, at)])
        return list(Unpacking(dated, shape, partitioned_by)(map(to_transport, parts)))

    with pytest.raises(SinkError, match=r"column at of a row is before the year 1") as caught:
        read(first - 1, "at")
    assert caught.value.table == dated.table
    assert read(first, "at")
    assert read(None, "at")
    assert read(first - 1)
