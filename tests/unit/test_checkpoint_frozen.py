"""A driver freezes at each step of its work in the checkpoint, and goes on when another driver has taken the job over."""

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from devtools.checkpoint_files import LOG_PLAN, SNAPSHOT_PLAN, VALUES
from tests.unit.test_checkpoint import JOINED, REPORT, WATCHED, drivers, state
from tidemark.state.checkpoint import codec, layout
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import JobHeldError
from tidemark.state.key_rereads import KeyReread
from tidemark.state.partitions import KeptPartitions, Partitions
from tidemark.state.position import WalPosition
from tidemark.state.table import TableId

pytestmark = pytest.mark.pitfall(89)

EPOCH = LOG_PLAN.plan.epoch
REREADS = (KeyReread(TableId("shop", "orders"), WalPosition(5, "7:9:8"), ("1",), (3,), (0,)),)
OTHER_REREADS = (replace(REREADS[0], keys=("2",)),)
OTHER_REPORT = replace(REPORT, emitted_changes=7)
"""A report of an epoch that was read without a table."""


class Freezing(LocalStore):
    """Freezes before its step `at`, counted from 1: `meanwhile` is what happens until the driver goes on."""

    def __init__(self, root: str, at: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(root)
        self.at, self.meanwhile, self.steps = at, meanwhile, 0

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.at:
            self.meanwhile()

    def create(self, name: str, data: pa.Buffer | bytes) -> bool:
        self._step()
        return super().create(name, data)

    def list(self, prefix: str) -> list[str]:
        self._step()
        return super().list(prefix)

    def read(self, name: str) -> pa.Buffer | None:
        self._step()
        return super().read(name)

    def delete(self, name: str) -> None:
        self._step()
        super().delete(name)


Check = Callable[[], None]


def at_each_step(
    folder: Path,
    prepare: Callable[[Checkpoint], None],
    act: Callable[[Checkpoint], object],
    successor_does: Callable[[Checkpoint], Check],
) -> None:
    """Lets a driver freeze before each step of `act` in turn. `successor_does` returns the check that is made when the frozen
    one has gone on."""
    for at in itertools.count(1):
        parent = folder / str(at)
        parent.mkdir()
        frozen, successor = drivers(parent, 2)
        frozen.create_job_state(state("one"))
        frozen.take_owner()
        prepare(frozen)
        checks = list[Check]()

        def meanwhile(successor: Checkpoint = successor, checks: list[Check] = checks) -> None:
            successor.take_owner()
            checks.append(successor_does(successor))

        with contextlib.suppress(JobHeldError):
            act(replace(frozen, store=Freezing(str(parent / "checkpoint"), at, meanwhile)))
        if not checks:
            assert at > 2
            return
        checks[0]()


def plan_epochs(checkpoint: Checkpoint) -> None:
    checkpoint.create_plan(SNAPSHOT_PLAN)
    checkpoint.create_plan(LOG_PLAN)


def read_epoch(checkpoint: Checkpoint) -> None:
    plan_epochs(checkpoint)
    checkpoint.create_key_rereads(EPOCH, REREADS)
    checkpoint.create_log_report(EPOCH, REPORT)


def read_it_unless_it_was_read(checkpoint: Checkpoint) -> Check:
    if not checkpoint.has_log_report(EPOCH):
        if not checkpoint.key_rereads_before(EPOCH + 1):
            checkpoint.create_key_rereads(EPOCH, OTHER_REREADS)
        checkpoint.create_log_report(EPOCH, OTHER_REPORT)
    report, rereads = checkpoint.log_report(EPOCH), checkpoint.key_rereads_before(EPOCH + 1, [EPOCH])

    def check() -> None:
        (third,) = [Checkpoint.at(checkpoint.url)]
        third.take_owner()
        assert third.log_report(EPOCH) == report
        assert third.key_rereads_before(EPOCH + 1, [EPOCH]) == rereads

    return check


def test_the_report_of_the_successor_stays(tmp_path: Path) -> None:
    at_each_step(tmp_path, read_epoch, lambda frozen: frozen.forget_log_report(EPOCH), read_it_unless_it_was_read)


def test_what_the_successor_has_left_of_an_attempt_stays(tmp_path: Path) -> None:
    def begin(checkpoint: Checkpoint) -> None:
        plan_epochs(checkpoint)
        checkpoint.create_key_rereads(EPOCH, REREADS)

    at_each_step(tmp_path, begin, lambda frozen: frozen.forget_log_attempt(EPOCH), read_it_unless_it_was_read)


def test_a_report_that_comes_late_does_not_count(tmp_path: Path) -> None:
    """The frozen driver's tasks have read the epoch. Its successor reads it again, without a table."""
    frozen, successor = drivers(tmp_path, 2)
    frozen.create_job_state(state("one"))
    frozen.take_owner()
    plan_epochs(frozen)
    task = frozen.with_attempts(frozen.attempts())
    successor.take_owner()
    successor.forget_log_report(EPOCH)
    task.create_key_rereads(EPOCH, REREADS)
    task.create_log_report(EPOCH, REPORT)
    assert not successor.has_log_report(EPOCH)
    assert successor.key_rereads_before(EPOCH + 1) == ()
    successor.create_key_rereads(EPOCH, OTHER_REREADS)
    successor.create_log_report(EPOCH, OTHER_REPORT)
    assert successor.log_report(EPOCH) == Checkpoint.at(str(tmp_path / "checkpoint")).log_report(EPOCH) == OTHER_REPORT
    successor.forget_plans([EPOCH])
    assert successor.plan_epochs() == [SNAPSHOT_PLAN.plan.epoch]
    assert successor.store.list(layout.LOGS_FOLDER) == []


def test_the_plan_of_the_successor_stays(tmp_path: Path) -> None:
    """Both heal a plan that a power cut has torn."""

    def tear(checkpoint: Checkpoint) -> None:
        checkpoint.create_plan(SNAPSHOT_PLAN)
        checkpoint.store.create(layout.plan_file(EPOCH), codec.PLAN.encode(LOG_PLAN)[:-9])

    def plan(checkpoint: Checkpoint) -> Check:
        checkpoint.heal_newest_plan()
        checkpoint.create_plan(LOG_PLAN)

        def check() -> None:
            assert checkpoint.plan_epochs() == [SNAPSHOT_PLAN.plan.epoch, EPOCH]
            assert checkpoint.plan(EPOCH) == LOG_PLAN

        return check

    at_each_step(tmp_path, tear, lambda frozen: frozen.heal_newest_plan(), plan)


def test_the_same_look_of_the_successor_stays(tmp_path: Path) -> None:
    """It finds the tables as the frozen driver had found them, before that looked once more."""
    first, second = (Partitions(oid, (replace(WATCHED, oid=oid),)) for oid in (1, 2))

    def look(checkpoint: Checkpoint) -> None:
        checkpoint.keep_partitions(first)
        checkpoint.create_plan(replace(SNAPSHOT_PLAN, partitions=checkpoint.keep_partitions(second)))

    def look_again(checkpoint: Checkpoint) -> Check:
        kept: KeptPartitions = checkpoint.keep_partitions(first)

        def check() -> None:
            assert checkpoint.has_partitions(kept)

        return check

    at_each_step(tmp_path, look, lambda frozen: frozen.forget_partitions(), look_again)


def test_the_mark_of_the_successor_stays(tmp_path: Path) -> None:
    """PostgreSQL: it removes the mark, too, and notes another one before the server is upgraded."""
    (mark,) = VALUES["upgrade_mark"]

    def remove(checkpoint: Checkpoint) -> None:
        for number in checkpoint.upgrade_marks():
            checkpoint.forget_upgrade_mark(number)

    def note(checkpoint: Checkpoint) -> Check:
        remove(checkpoint)
        checkpoint.create_upgrade_mark(mark)

        def check() -> None:
            assert list(checkpoint.upgrade_marks().values()) == [mark]

        return check

    at_each_step(tmp_path, lambda frozen: frozen.create_upgrade_mark(mark), remove, note)


@pytest.mark.parametrize("dies", [False, True])
def test_entries_that_the_successor_has_merged_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, dies: bool
) -> None:
    """`dies`: it does so before it has removed what it has merged."""
    monkeypatch.setattr(layout, "MERGED_JOINED", 3)

    def add(checkpoint: Checkpoint) -> None:
        now = checkpoint.job_state()
        assert now is not None
        checkpoint.create_joined(now, replace(JOINED, at_us=len(now.joined)))

    def add_two(checkpoint: Checkpoint) -> None:
        add(checkpoint)
        add(checkpoint)

    class Dying(LocalStore):
        def delete(self, name: str) -> None:
            pass

    def add_more(checkpoint: Checkpoint) -> Check:
        add(replace(checkpoint, store=Dying(str(Path(checkpoint.url).resolve()))) if dies else checkpoint)
        now = checkpoint.job_state()
        assert now is not None

        def check() -> None:
            assert checkpoint.job_state() == now

        return check

    at_each_step(tmp_path, add_two, add, add_more)
