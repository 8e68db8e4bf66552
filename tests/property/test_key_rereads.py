"""Random moves of rows whose long values the log leaves out, splits read at random times, and a log that several
attempts read in random batches, some of which break off: the copy ends like the source, and never steps back."""

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.model_job import MemoryStore
from tests.property.model_moves import SCHEMA, Copy, MovingKeys, MovingTable, Splits
from tests.support.examples import examples
from tidemark.readers.log import key_rereads
from tidemark.readers.log.key_rereads import KeyRereads
from tidemark.readers.projection.projection import ProjectionSettings
from tidemark.readers.projection.projector import Projector
from tidemark.state.checkpoint.layout import Checkpoint

BATCH_ENDS = 0.3
BREAKS_OFF = 0.1


class Run:
    def __init__(self, chance: random.Random) -> None:
        self.chance, self.table = chance, MovingTable(chance)
        self.checkpoint = Checkpoint("memory", MemoryStore())
        self.splits = Splits.read(self.table)
        self.copy = Copy(dict(self.splits.rows))
        self.position, self.last_high = 0, max(high.lsn for high in self.splits.highs)
        self.reread_rows = 0

    def epoch(self, number: int, stop: int) -> None:
        """Runs attempts side by side, some of which break off."""
        rows = self.table.changes(self.position, stop)
        attempts = [self.attempt(number, rows) for _ in range(self.chance.randint(0, 3))]
        while attempts:
            attempt = self.chance.choice(attempts)
            if self.chance.random() < BREAKS_OFF or next(attempt) is not None:
                attempts.remove(attempt)
        last = [done for _ in range(2) for done in self.attempt(number, rows) if done is not None]
        assert last[0] == last[1]
        for change in last[0]:
            self.copy.apply(change)
        self.checkpoint.forget_published(number)
        self.position = stop

    def attempt(self, number: int, rows: pa.RecordBatch) -> Iterator[list[dict[str, Any]] | None]:
        """Yields None after each batch, then what the attempt emitted."""
        project = Projector({SCHEMA.table: SCHEMA}, {}, lambda table: ProjectionSettings(), partial_deletes=True)
        known = self.checkpoint.key_rereads_before(number)
        mending = KeyRereads(self.checkpoint.store, number, MovingKeys(self.table), project, known)
        emitted: list[dict[str, Any]] = []
        for batch in self.batches(rows):
            yield None
            xids = pa.array(batch.column("_txn_id").to_pylist()).cast(pa.int64()).to_numpy()
            kept = self.splits.kept(batch.column("id").to_pylist(), xids)
            for made in mending.emitted(SCHEMA, batch, kept, xids):
                assert made.schema == rows.schema
                emitted += made.to_pylist()
        if mending.found:
            self.checkpoint.create_key_rereads(number, mending.found)
            self.last_high = max(self.last_high, *(reading.high.lsn for reading in mending.found))
            self.reread_rows += sum(len(reading.keys) for reading in mending.found)
        yield emitted

    def batches(self, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Random batches of the changes. A move is never divided."""
        kinds, versions = rows.column("_change_type").to_pylist(), rows.column("_commit_version").to_pylist()
        ends = [
            i
            for i in range(1, len(rows))
            if self.chance.random() < BATCH_ENDS and not (kinds[i] == 0 and versions[i - 1] == versions[i])
        ]
        return [rows.slice(a, b - a) for a, b in pairwise([0, *ends, len(rows)]) if a < b]


def caught_up(chance: random.Random) -> Run:
    run = Run(chance)
    number = 0
    while run.position < run.last_high:
        number += 1
        run.table.live(chance.randint(0, 4) if number < 6 else 0)
        if number >= 6:
            run.table.show_all()
        run.epoch(number, chance.randint(run.position + 1, max(run.table.end, run.position + 1)))
    run.table.show_all()
    plain = run.table.changes(run.position, run.table.end)
    for change in plain.to_pylist():
        run.copy.apply(change)
    return run


@pytest.mark.pitfall(61)
@settings(max_examples=examples(75, 600))
@given(chance=st.randoms(use_true_random=False), read_at_once=st.integers(1, 4))
def test_copy_ends_like_the_source(chance: random.Random, read_at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_rereads, "MAX_KEYS_PER_READ", read_at_once)
        run = caught_up(chance)
    assert run.copy.rows == run.table.rows


def test_the_model_has_split_key_moves() -> None:
    assert sum(caught_up(random.Random(seed)).reread_rows > 2 for seed in range(30)) > 8
