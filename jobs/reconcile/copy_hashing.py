"""Hashes the rows of a table that a copy should have, with the types that the copy has."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.jobs.reconcile.same_rows import as_held
from tidemark.sinks.folded.hashed_rows import HashedRows, key_hashes, together
from tidemark.sinks.folded.rows_by_key import places_of

Flags = npt.NDArray[np.bool_]
Keys = tuple[npt.NDArray[np.uint64], ...]
"""Hashes of keys, 128 bits in two arrays."""


@dataclass(frozen=True, slots=True)
class CopyHashing:
    """Pickled with Spark's tasks. `held`: the columns as the copy's table has them. `key`: the names of its key's columns."""

    held: pa.Schema
    key: tuple[str, ...]
    seed: int

    def hashed(self, expected: pa.Table) -> HashedRows | None:
        """Returns rows, in their order. None if they can't be compared by hashes."""
        rows = as_held(expected.select(self.held.names), self.held)
        if rows is None:
            return None
        batches = rows.to_batches() or [pa.RecordBatch.from_pylist([], self.held)]
        return together([self.of_copy(batch) for batch in batches])

    def of_copy(self, rows: pa.RecordBatch) -> HashedRows:
        """Returns rows as the copy has them."""
        return HashedRows.of_values(rows, self.key, self.seed)

    def keys_of(self, rows: pa.RecordBatch) -> Keys:
        """Returns hashes of the keys of rows, which are as the copy has them."""
        return key_hashes([rows.column(name) for name in self.key], self.seed)


def among(keys: Keys, others: Keys) -> Flags:
    """Returns which of the keys are among the others, which are in their order."""
    return places_of(keys, others) >= 0


def in_order(keys: Keys) -> Keys:
    order = np.lexsort(keys[::-1])
    return tuple(column[order] for column in keys)
