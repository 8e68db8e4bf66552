"""Normalising against a model: a dict from keys to rows, and a SELECT that saw any prefix of every key's changes."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.readers.snapshot import normalise
from tidemark.readers.snapshot.normalise import Replay
from tidemark.state.change_batch import META_FIELDS, ChangeType

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int64(), [-(2**63), -1, 0, 1, 2, 3, 7, 2**63 - 1]),
    "small": (pa.int16(), [-5, 0, 1, 2, 3, 4]),
    "string": (pa.string(), ["", "a", "A", "a ", "b", "ß"]),
    "binary": (pa.binary(), [b"", b"a", b"a\0", b"b"]),
    "unsigned": (pa.decimal128(20, 0), [Decimal(n) for n in (0, 1, 2**63, 2**64 - 1)]),
}


@dataclass(frozen=True)
class Step:
    """A change. An update keeps its key; a moved key is a DELETE and an INSERT."""

    type: ChangeType
    key: tuple[Any, ...]
    value: int


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[str], list[tuple[Any, ...]], list[Step]]:
    kinds = draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=3))
    keys = st.tuples(*(st.sampled_from(KEYS[kind][1]) for kind in kinds))
    state = set(draw(st.lists(keys, unique=True, max_size=8)))
    first = sorted(state)
    steps = []
    for value in range(draw(st.integers(0, 25))):
        key = draw(keys)
        types = [ChangeType.DELETE, ChangeType.UPDATE_POSTIMAGE] if key in state else [ChangeType.INSERT]
        steps.append(Step(draw(st.sampled_from(types)), key, value))
        (state.discard if steps[-1].type is ChangeType.DELETE else state.add)(key)
    return kinds, first, steps


def table_of(kinds: list[str], rows: list[tuple[tuple[Any, ...], int]]) -> pa.Table:
    columns = {f"k{i}": pa.array([key[i] for key, _ in rows], KEYS[kind][0]) for i, kind in enumerate(kinds)}
    return pa.table({**columns, "v": pa.array([value for _, value in rows], pa.int32())})


def change_batch(kinds: list[str], steps: list[Step]) -> pa.RecordBatch:
    table = table_of(kinds, [(step.key, step.value) for step in steps])
    n = len(steps)
    meta = [
        pa.array([step.type for step in steps], pa.int8()),
        pa.array(range(n), pa.int64()),
        pa.array([0] * n, pa.timestamp("us", tz="UTC")),
        pa.array([0] * n, pa.int32()),
        pa.array([None] * n, pa.string()).dictionary_encode(),
        pa.array([False] * n),
    ]
    arrays = [*(column.combine_chunks() for column in table.columns), *meta]
    arrays = [a.chunk(0) if isinstance(a, pa.ChunkedArray) else a for a in arrays]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*table.schema, *META_FIELDS]))


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def mine(key: tuple[Any, ...]) -> bool:
    return bool(
        key[0] <= type(key[0])(2)
        if not isinstance(key[0], str | bytes)
        else key[0][:1] <= type(key[0])(b"a" if isinstance(key[0], bytes) else "a")
    )


@given(histories(), st.data())
def test_rows_and_changes_give_the_rows_at_high(history: Any, data: st.DataObject) -> None:
    kinds, first, steps = history
    names = [f"k{i}" for i in range(len(kinds))]
    # Keys become visible at different times: the SELECT saw, of each key, the changes before some place.
    seen_until = {step.key: data.draw(st.integers(0, len(steps))) for step in steps}
    selected = dict.fromkeys(first, -1)
    at_high = dict(selected)
    for i, step in enumerate(steps):
        for state, applies in ((at_high, True), (selected, i < seen_until[step.key])):
            if not applies:
                continue
            if step.type is ChangeType.DELETE:
                del state[step.key]
            else:
                state[step.key] = step.value
    rows = table_of(kinds, [(key, value) for key, value in selected.items() if mine(key)])

    def in_range(table: pa.Table) -> Any:
        keys = zip(*(table[name].to_pylist() for name in names), strict=True)
        return np.array([mine(key) for key in keys], np.bool_)

    boundaries = sorted(data.draw(st.lists(st.integers(0, len(steps)), max_size=3)))
    with mock.patch.object(normalise, "PENDING_ROWS", data.draw(st.integers(1, 30))):
        replay = Replay(names, in_range)
        for a, b in zip([0, *boundaries], [*boundaries, len(steps)], strict=True):
            replay.add(change_batch(kinds, steps[a:b]))
        found, settled = replay.apply(rows)
    assert found.schema == rows.schema
    assert rows_of(found) == sorted((*key, value) for key, value in at_high.items() if mine(key))
    assert settled <= len({step.key for step in steps})


def test_without_changes_the_rows_are_what_they_were() -> None:
    rows = table_of(["int"], [((1,), 5)])
    replay = Replay(["k0"], lambda table: np.ones(table.num_rows, np.bool_))
    replay.add(change_batch(["int"], []))
    assert replay.apply(rows) == (rows, 0)


def test_a_table_without_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="without a key"):
        Replay([], lambda table: np.ones(table.num_rows, np.bool_))


def test_many_key_columns_do_not_overflow() -> None:
    count = 5000
    names = [f"k{i}" for i in range(6)]
    values = {name: pa.array([f"{i * 7919 % 10007:05}{n}" for i in range(count)]) for n, name in enumerate(names)}
    rows = pa.table({**values, "v": pa.array(range(count), pa.int32())})
    changed = rows.slice(100, 50).set_column(6, "v", pa.array([-1] * 50, pa.int32())).combine_chunks()
    meta = change_batch(["int"], [Step(ChangeType.UPDATE_POSTIMAGE, (0,), 0)] * 50).columns[2:]
    batch = pa.RecordBatch.from_arrays(
        [*(column.chunk(0) for column in changed.columns), *meta], schema=pa.schema([*rows.schema, *META_FIELDS])
    )
    replay = Replay(names, lambda table: np.zeros(table.num_rows, np.bool_))
    replay.add(batch)
    found, settled = replay.apply(rows)
    assert (found.num_rows, settled) == (count, 50)
    assert sorted(found["v"].to_pylist()) == sorted([*[-1] * 50, *range(100), *range(150, count)])


def test_a_null_in_a_key_is_refused() -> None:
    rows = pa.table({"k0": pa.array([None], pa.int64()), "v": pa.array([1], pa.int32())})
    replay = Replay(["k0"], lambda table: np.ones(table.num_rows, np.bool_))
    replay.add(change_batch(["int"], [Step(ChangeType.INSERT, (1,), 1)]))
    with pytest.raises(ValueError, match="null"):
        replay.apply(rows)
