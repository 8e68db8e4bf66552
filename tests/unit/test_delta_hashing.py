"""Executors that hash differently from the command are noticed: their rows would all differ."""

from dataclasses import replace

import pyarrow as pa
import pytest

from tidemark.sinks.delta.hashing import Hashing, hashed_names
from tidemark.sinks.folded.hashing import RowHashing, probe
from tidemark.state.errors import SinkError
from tidemark.state.table import Column, TableId, TableSchema

ORDERS = TableSchema(TableId("shop", "orders"), 1, (Column("id", "int", "int32", nullable=False),), ("id",))


def test_executors_that_hash_differently_are_refused() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int32())], names=["id"])
    hashing = Hashing(RowHashing(ORDERS, 7), hashed_names(ORDERS, is_changelog=False), (), probe(7))
    (hashed,) = hashing.hashed([rows])
    assert hashed.column("k0").to_pylist() == [1, 2]
    other = replace(hashing, probe=probe(8))
    with pytest.raises(SinkError, match="hash differently"):
        list(other.hashed([rows]))
