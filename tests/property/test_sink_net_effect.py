"""The net effect of changes, compared with applying them one by one."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.change_parts import DELETE, INSERT, NOTES, UNCHANGED, UPDATE, Change, column, rows
from tests.support.note_changes import KEYS, key_of, note_changes, rows_of
from tidemark.sinks.mirror.net_effect import net_effect
from tidemark.state.change_batch import ChangeType
from tidemark.state.errors import SinkError
from tidemark.state.table import TableId, TableSchema

KINDS = st.sampled_from([INSERT, UPDATE, DELETE, ChangeType.UPDATE_PREIMAGE])
WIDE = TableSchema(
    TableId("shop", "wide"),
    1,
    (
        column("text", "varchar(9)", "string", key=True),
        column("number", "bigint", "int64", key=True),
        column("value", "int", "int32"),
        column("bytes", "varbinary(9)", "binary", key=True),
    ),
    ("number", "bytes", "text"),
)
ROWS = st.tuples(
    st.sampled_from(["", "a", "A", "a ", "é"]),
    st.sampled_from([-(2**63), 0, 1, 2**63 - 1]),
    st.none() | st.integers(0, 9),
    st.sampled_from([b"", b"\0", b"\0\0"]),
)


@pytest.mark.pitfall(78)
@given(st.lists(st.tuples(KINDS, ROWS), max_size=60))
def test_deleting_the_touched_and_inserting_the_rest_is_the_same(
    changes: list[tuple[ChangeType, tuple[object, ...]]],
) -> None:
    expected: dict[tuple[object, ...], tuple[object, ...]] = {}
    touched = set()
    began = dict[tuple[object, ...], ChangeType]()
    for kind, row in changes:
        key = (row[1], row[3], row[0])
        if kind is ChangeType.UPDATE_PREIMAGE:
            continue
        touched.add(key)
        began.setdefault(key, kind)
        if kind is DELETE:
            expected.pop(key, None)
        else:
            expected[key] = row
    effect = net_effect(WIDE, rows(WIDE, changes))
    keys = [tuple(row.values()) for row in effect.touched.to_pylist()]
    assert sorted(keys) == sorted(touched) == keys
    kept = [tuple(row.values()) for row in effect.rows.to_pylist()]
    assert sorted(kept, key=repr) == sorted(expected.values(), key=repr)
    assert effect.new is not None
    assert effect.new.tolist() == [began[row[1], row[3], row[0]] is INSERT for row in kept]


@given(st.data())
def test_values_left_out_come_from_the_changes_before_or_from_the_target(data: st.DataObject) -> None:
    held = {key: data.draw(rows_of(key)) for key in data.draw(st.sets(st.sampled_from(KEYS)))}
    target = dict(held)
    changes = data.draw(note_changes(held, max_size=30))
    effect = net_effect(NOTES, rows(NOTES, changes))
    completed = []
    if effect.partial is not None:
        assert effect.partial.missing.any(axis=1).all()
        partial, origins = (
            [tuple(r.values()) for r in b.to_pylist()] for b in (effect.partial.rows, effect.partial.origins)
        )
        for row, origin, missing in zip(partial, origins, effect.partial.missing, strict=True):
            completed.append(tuple(target[origin][i] if missing[i] else value for i, value in enumerate(row)))
    for touched in effect.touched.to_pylist():
        target.pop(tuple(touched.values()), None)
    for row in completed + [tuple(r.values()) for r in effect.rows.to_pylist()]:
        assert key_of(row) not in target
        target[key_of(row)] = row
    assert target == held


def test_value_left_out_is_sought_up_a_long_line() -> None:
    count = 20_000
    changes: list[Change] = [(UPDATE, (1, "en", 0, "body", UNCHANGED, None))]
    for number in range(1, count):
        changes.append((DELETE, (number, "en", None, None, None, None)))
        changes.append((INSERT, (number + 1, "en", number, UNCHANGED, UNCHANGED, None)))
    effect = net_effect(NOTES, rows(NOTES, changes))
    assert effect.rows.num_rows == 0
    assert effect.partial is not None
    assert effect.partial.rows.to_pylist() == [
        {"id": count, "lang": "en", "stars": count - 1, "body": "body", "scan": None, "size": None}
    ]
    assert effect.partial.origins.to_pylist() == [{"lang": "en", "id": 1}]
    assert effect.partial.missing.tolist() == [[False, False, False, False, True, False]]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([(INSERT, (2, "en", 1, UNCHANGED, None, None))], id="insert alone"),
        pytest.param(
            [(UPDATE, (1, "en", 1, "b", None, None)), (INSERT, (2, "en", 1, UNCHANGED, None, None))],
            id="insert after something else",
        ),
        pytest.param(
            [(DELETE, (2, "en", 1, "b", None, None)), (UPDATE, (2, "en", 1, UNCHANGED, None, None))],
            id="update of what is deleted",
        ),
    ],
)
def test_value_left_out_of_a_row_that_was_not_there_is_refused(changes: list[Change]) -> None:
    with pytest.raises(SinkError, match="leaves body out of a change in transaction gtid:1,") as caught:
        net_effect(NOTES, rows(NOTES, changes))
    assert "REPLICA IDENTITY FULL" in str(caught.value.remedy)


@pytest.mark.parametrize(("version", "between"), [(2, 0), (1, 1)], ids=["another transaction", "another update"])
def test_insert_takes_nothing_from_the_delete_of_something_else(version: int, between: int) -> None:
    """The gap filter may have dropped the DELETE that belongs to the INSERT."""
    gone = (DELETE, (1, "en", None, None, None, None))
    moved = [*[gone] * (1 + between), (INSERT, (2, "en", 1, UNCHANGED, None, None))]
    parts = [rows(NOTES, [gone], version=1), rows(NOTES, moved, version=version).slice(1 + between)]
    (both,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    assert both.column("_seq").to_pylist() == [0, 1 + between]
    with pytest.raises(SinkError, match="leaves body out"):
        net_effect(NOTES, both)


def test_many_key_columns_do_not_overflow() -> None:
    names = [f"k{i}" for i in range(12)]
    schema = TableSchema(
        TableId("shop", "keys"), 1, tuple(column(name, "bigint", "int64", key=True) for name in names), tuple(names)
    )
    listed = [(INSERT, [(n * 7919 + i) % 1009 for i in range(12)]) for n in range(5000)]
    expected = {tuple(values) for _, values in listed}
    effect = net_effect(schema, rows(schema, listed))
    assert {tuple(row.values()) for row in effect.rows.to_pylist()} == expected
    assert effect.rows.num_rows == len(expected)
    assert effect.new is not None
    assert effect.new.all()


@pytest.mark.pitfall(19)
def test_null_in_a_key_is_refused() -> None:
    with pytest.raises(SinkError, match="key column number is null"):
        net_effect(WIDE, rows(WIDE, [(INSERT, ("a", None, 1, b""))]))


def test_rows_keep_their_types() -> None:
    effect = net_effect(WIDE, rows(WIDE, [(INSERT, ("a", 1, None, b""))]))
    assert effect.rows.schema == WIDE.arrow_schema()
    assert effect.touched.schema.names == ["number", "bytes", "text"]
    assert effect.touched.schema.field("number").type == pa.int64()
