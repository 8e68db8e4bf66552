"""Which plans of old epochs a checkpoint keeps."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from tests.unit.test_checkpoint import LOG_PLAN
from tidemark.jobs.epoch.kept_cuts import KEPT_OLDER, KeptCuts
from tidemark.state.checkpoint import layout
from tidemark.state.checkpoint.layout import KEPT_PLANS, Checkpoint

SECOND = 1_000_000
START_US = 1_800_000_000 * SECOND


def plan(checkpoint: Checkpoint, epoch: int, at_us: int) -> None:
    checkpoint.create_plan(replace(LOG_PLAN, plan=replace(LOG_PLAN.plan, epoch=epoch), planned_at_us=at_us))


def run(checkpoint: Checkpoint, epochs: range, every_us: int, *, keep_seconds: float, is_told: bool = True) -> None:
    """`is_told` False: each epoch by a process of its own."""
    cuts = KeptCuts(checkpoint, keep_seconds)
    for epoch in epochs:
        at_us = START_US + epoch * every_us
        plan(checkpoint, epoch, at_us)
        if is_told:
            cuts.planned(epoch, at_us)
        else:
            cuts = KeptCuts(checkpoint, keep_seconds)
        cuts.forget_before(epoch - 1, checkpoint.plan_epochs(), at_us)


def test_older_ones_are_kept_at_intervals(tmp_path: Path) -> None:
    for is_told in (True, False):
        checkpoint = Checkpoint.at(str(tmp_path / str(is_told)))
        run(checkpoint, range(1, 401), SECOND // 10, keep_seconds=20, is_told=is_told)
        kept = checkpoint.plan_epochs()
        assert kept[-KEPT_PLANS - 2 :] == list(range(400 - KEPT_PLANS - 1, 401))
        older = kept[: -KEPT_PLANS - 2]
        assert 200 <= older[0] <= 202
        assert all(after - before == 2 for before, after in pairwise(older))
        assert len(older) <= KEPT_OLDER


def test_they_go_after_the_time(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(str(tmp_path))
    run(checkpoint, range(1, 151), SECOND, keep_seconds=120)
    assert checkpoint.plan_epochs() == [*range(31, 49, 2), *range(49, 151)]
    run(checkpoint, range(151, 153), 1000 * SECOND, keep_seconds=120)
    assert checkpoint.plan_epochs() == list(range(152 - KEPT_PLANS - 1, 153))


def test_without_a_time_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(str(tmp_path))
    run(checkpoint, range(1, 121), SECOND, keep_seconds=0)
    assert checkpoint.plan_epochs() == list(range(120 - KEPT_PLANS - 1, 121))


def test_a_plan_that_cannot_be_read_goes(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(str(tmp_path))
    run(checkpoint, range(1, 121), SECOND, keep_seconds=600)
    (tmp_path / layout.plan_file(1)).write_bytes(b"")
    run(checkpoint, range(121, 122), SECOND, keep_seconds=600)
    assert checkpoint.plan_epochs() == [7, 13, 19, *range(20, 122)]


def test_plans_from_the_future_go(tmp_path: Path) -> None:
    """The clock was set back."""
    checkpoint = Checkpoint.at(str(tmp_path))
    run(checkpoint, range(1, 121), 100 * SECOND, keep_seconds=600)
    run(checkpoint, range(121, 122), SECOND, keep_seconds=600)
    assert checkpoint.plan_epochs() == list(range(121 - KEPT_PLANS - 1, 122))
