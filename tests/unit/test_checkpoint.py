import os
import shutil
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from devtools.checkpoint_files import LOG_PLAN, SNAPSHOT_PLAN
from tidemark.state.checkpoint import codec, layout
from tidemark.state.checkpoint.layout import Checkpoint, signal_file
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import CheckpointError, JobHeldError, ReadsDifferError
from tidemark.state.job_state import Altered, JobState, Joined, Left
from tidemark.state.key_rereads import KeyReread
from tidemark.state.log_range import LogReport
from tidemark.state.partitions import KeptPartitions, Partitions, WatchedTable
from tidemark.state.position import BinlogPosition, WalPosition
from tidemark.state.signals import Answer, Signal
from tidemark.state.table import TableId, TableSchema


def state(job_uuid: str) -> JobState:
    return JobState(
        job_uuid=job_uuid,
        job_name="shop",
        mode="incremental",
        server_identity="server",
        start=BinlogPosition("b.000001", 4),
        prepared=(),
        created_at_us=1,
        schemas=(),
        split_keys=(),
    )


def test_whoever_does_not_find_the_job_in_its_checkpoint_has_other_storage(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"^On .* the checkpoint .* is empty\. Remedy: .* under the same path"):
        checkpoint.require_job("one")
    checkpoint.create_job_state(state("one"))
    checkpoint.require_job("one")
    with pytest.raises(CheckpointError, match="holds job one, not two"):
        checkpoint.require_job("two")


def test_the_first_of_two_drivers_starts_the_job(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(str(tmp_path))
    assert checkpoint.create_job_state(state("one")).job_uuid == "one"
    assert checkpoint.create_job_state(state("two")).job_uuid == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["job"]


@pytest.mark.pitfall(127)
def test_what_two_releases_wrote_of_the_same_rereads_and_partitions_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade between two attempts of an epoch changes the header, not the facts."""
    checkpoint = Checkpoint.at(str(tmp_path))
    rereads = (KeyReread(TableId("shop", "orders"), WalPosition(5, "7:9:8"), ("1",), (3,), (0,)),)
    partitions = Partitions(7, (WatchedTable(TableId("shop", "orders"), 1, ()),))
    kept = checkpoint.keep_partitions(partitions)
    checkpoint.create_key_rereads(1, rereads)
    monkeypatch.setattr(codec, "__version__", "9.9.9")
    checkpoint.create_key_rereads(1, rereads)
    assert checkpoint.keep_partitions(partitions) == kept
    with pytest.raises(CheckpointError, match="Two reads of the log range of epoch 1"):
        checkpoint.create_key_rereads(1, ())


def test_every_name_is_in_the_listing_at_the_top_of_the_layout() -> None:
    names = [
        layout.JOB_FILE,
        layout.cut_file(7),
        layout.merged_joined_file(64),
        layout.plan_file(42),
        layout.partitions_file("9f2c…-0000000007"),
        layout.published_split_file(42, 7),
        layout.published_reread_file(42, 9, 3),
        layout.staged_chunk_file(5, 1200),
        layout.log_report_file(42),
        layout.rereads_file(42),
        layout.finished_file(42, 42),
        layout.copy_file("shop.orders"),
        layout.seen_copies_file(7),
    ]
    assert [name for name in names if f"    {name} " not in (layout.__doc__ or "")] == []


@pytest.mark.parametrize("epochs", [(1, 256), (42, 42)])
def test_a_file_of_finished_splits_names_its_epochs(epochs: tuple[int, int]) -> None:
    assert layout.epochs_of_finished_file(layout.finished_file(*epochs)) == epochs


def test_the_newest_epoch_is_committed_if_it_is_marked(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(str(tmp_path))
    assert checkpoint.committed_epoch() == 0
    for epoch in (1, 2):
        checkpoint.create_plan(replace(LOG_PLAN, plan=replace(LOG_PLAN.plan, epoch=epoch)))
        assert checkpoint.committed_epoch() == epoch - 1
        checkpoint.mark_committed(epoch)
        assert checkpoint.committed_epoch() == epoch
    assert checkpoint.store.list("committed") == ["committed/e0000000002"]


def test_what_a_streaming_query_has_committed_counts(tmp_path: Path) -> None:
    """Jobs ran in one before 0.1.0. Its batches are counted from 0."""
    checkpoint = Checkpoint.at(str(tmp_path))
    for epoch in (1, 2):
        checkpoint.create_plan(replace(LOG_PLAN, plan=replace(LOG_PLAN.plan, epoch=epoch)))
    for batch, epoch in enumerate((1, 2)):
        checkpoint.store.create(f"spark/offsets/{batch}", b'v1\n{}\n{"epoch": %d}' % epoch)
    checkpoint.store.create("spark/commits/0", b"v1\n{}")
    assert checkpoint.committed_epoch() == 1
    checkpoint.store.create("spark/commits/1", b"v1\n{}")
    assert checkpoint.committed_epoch() == 2


def test_only_what_no_restart_needs_is_forgotten(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(str(tmp_path))
    names = [
        layout.published_split_file(1, 7),
        layout.published_reread_file(1, 9, 3),
        layout.published_split_file(11, 7),
        layout.staged_chunk_file(5, 0),
        layout.staged_chunk_file(6, 0),
        layout.finished_file(1, 9),
        layout.rereads_file(3),
        layout.log_report_file(3),
        layout.staged_chunk_file(7, 0),  # a driver that was frozen must not remove what later epochs have written
        layout.finished_file(11, 11),
        layout.rereads_file(11),
    ]
    for name in names:
        checkpoint.store.create(name, b"x")
    checkpoint.forget_published(1)
    checkpoint.forget_staged({6}, before=7)
    checkpoint.forget_finished_splits(10)
    assert [name for name in names if checkpoint.store.read(name) is not None] == [names[2], names[4], *names[7:]]


def torn(content: bytes) -> list[bytes]:
    """The bytes that a power cut may leave of a file."""
    half = len(content) // 2
    return [b"", content[:1], content[:half], content[:-1], bytes(len(content)), content[:half] + bytes(half)]


@pytest.mark.pitfall(96)
def test_a_newest_plan_that_a_power_cut_has_torn_was_not_made(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(str(tmp_path))
    checkpoint.create_plan(SNAPSHOT_PLAN)
    content = codec.PLAN.encode(LOG_PLAN)
    for left in torn(content):
        (tmp_path / layout.plan_file(4)).write_bytes(left)
        with pytest.raises(CheckpointError, match="is damaged"):
            checkpoint.plan(4)
        assert checkpoint.heal_newest_plan() == 4
        assert checkpoint.plan_epochs() == [3]
    checkpoint.create_plan(LOG_PLAN)
    assert checkpoint.heal_newest_plan() is None
    assert checkpoint.plan(4) == LOG_PLAN


@pytest.mark.pitfall(96)
def test_a_torn_plan_stays_an_error_where_its_epoch_has_run(tmp_path: Path) -> None:
    """The storage has lost what it had called durable."""
    checkpoint = Checkpoint.at(str(tmp_path))
    checkpoint.create_plan(SNAPSHOT_PLAN)
    checkpoint.create_plan(LOG_PLAN)
    traces = [layout.published_split_file(4, 1), layout.log_report_file(4), layout.rereads_file(4)]
    traces += [layout.committed_file(4), layout.withheld_file(4, TableId("shop", "items"))]
    (tmp_path / layout.plan_file(4)).write_bytes(b"")
    for name in traces:
        checkpoint.store.create(name, b"x")
        assert checkpoint.heal_newest_plan() is None
        checkpoint.store.delete(name)
    assert checkpoint.heal_newest_plan() == 4
    (tmp_path / layout.plan_file(3)).write_bytes(
        codec.PLAN.encode(SNAPSHOT_PLAN).replace(b'"warnings":["w"]', b'"warnings":["v"]')
    )
    assert checkpoint.heal_newest_plan() is None  # changed, not torn
    with pytest.raises(CheckpointError, match="is damaged"):
        checkpoint.plan(3)


@pytest.mark.pitfall(96)
def test_a_created_file_survives_a_power_cut_with_all_folders_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable: set[Path] = set()
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        """Keeps the names that are in a folder when it is synced."""
        sync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        durable.update(path.iterdir() if path.is_dir() else ())

    monkeypatch.setattr(os, "fsync", fsync)
    store = LocalStore(str(tmp_path / "a" / "b"))
    assert store.create("plans/e1", b"x")
    needed = [
        tmp_path / "a",
        tmp_path / "a" / "b",
        tmp_path / "a" / "b" / "plans",
        tmp_path / "a" / "b" / "plans" / "e1",
    ]
    assert durable.issuperset(needed)
    durable.clear()
    assert not store.create("plans/e1", b"y")  # the creator may have been killed before it synced the folder
    assert needed[-1] in durable


KILLED_WHILE_WRITING = """
import os, signal, sys
from tidemark.state.checkpoint.store import LocalStore
os.link = lambda *_: os.kill(os.getpid(), signal.Signals[sys.argv[2]])
LocalStore(sys.argv[1]).create("published/e1-s1", b"rows")
"""


def test_what_a_killed_process_was_writing_is_removed_and_nothing_of_a_living_one(tmp_path: Path) -> None:
    def leftovers() -> list[Path]:
        return sorted((tmp_path / "published").glob(".*"))

    def age() -> None:
        for path in leftovers():
            os.utime(path, (1, 1))

    checkpoint = Checkpoint.at(str(tmp_path))
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, str(tmp_path)]
    assert subprocess.run([*command, "SIGKILL"], check=False).returncode == -signal.SIGKILL
    checkpoint.remove_leftovers()
    assert len(leftovers()) == 1, "it may be a living process of another machine"
    with subprocess.Popen([*command, "SIGSTOP"]) as frozen:
        os.waitpid(frozen.pid, os.WUNTRACED)
        age()
        checkpoint.remove_leftovers()
        (kept,) = leftovers()
        frozen.send_signal(signal.SIGCONT)
        assert frozen.wait() == 0
    assert not kept.exists()
    checkpoint.store.create("published/e1-s2", b"rows")
    assert checkpoint.store.list("published") == ["published/e1-s2"]


def test_each_driver_has_a_greater_number(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(str(tmp_path))
    with ThreadPoolExecutor(4) as drivers:
        taken = list(drivers.map(lambda _: checkpoint.take_owner(), range(40)))
    assert len(set(taken)) == 40
    assert checkpoint.take_owner() > max(taken)
    assert [path.name for path in (tmp_path / "owners").iterdir()] == [f"{max(taken) + 1:010d}"]


LEFT = (Left(TableId("shop", "orders"), 1, "A value does not fit."),)
LATER = (Left(TableId("shop", "customers"), 1, "A value does not fit."),)
JOINED = Joined(BinlogPosition("b.000001", 4), (), ())
ALTERED = Altered(TableSchema(TableId("shop", "orders"), 1, (), ()))


def drivers(folder: Path, count: int) -> list[Checkpoint]:
    """The checkpoint as several processes have it."""
    (folder / "checkpoint").mkdir()
    names = [folder / f"process-{number}" for number in range(count)]
    for name in names:
        name.symlink_to("checkpoint", target_is_directory=True)
    return [Checkpoint.at(str(name)) for name in names]


def test_what_a_replaced_driver_adds_to_the_job_does_not_count(tmp_path: Path) -> None:
    """It froze before it wrote its record, and writes it at one time or another."""
    frozen, second, third, fourth = drivers(tmp_path, 4)
    late = [
        (layout.record_file(layout.LEFT_FOLDER, 2, 1), codec.LEFT.encode(LEFT)),
        (layout.record_file(layout.JOINED_FOLDER, 1, 1), codec.JOINED.encode(JOINED)),
        (layout.record_file(layout.ALTERED_FOLDER, 1, 1), codec.ALTERED.encode(ALTERED)),
    ]
    before = frozen.create_job_state(state("one"))
    assert frozen.take_owner() == 1
    frozen.create_left(before, LEFT)
    for number, successor in enumerate((second, third, fourth), 2):
        assert successor.take_owner() == number
        for name, data in late:
            frozen.store.create(name, data)
        for checkpoint in (successor, frozen):
            assert (checkpoint.left_before(), checkpoint.altered()) == (list(LEFT), [])
            now = checkpoint.job_state()
            assert now is not None
            assert (now.left, now.joined) == (LEFT, ())
        for create in (
            lambda: frozen.create_left(before, LATER),
            lambda: frozen.create_joined(before, JOINED),
            lambda: frozen.create_altered(before, ALTERED),
        ):
            with pytest.raises(JobHeldError, match="Another driver wrote"):
                create()
    found = fourth.job_state()
    assert found is not None
    fourth.create_altered(fourth.create_joined(fourth.create_left(found, LATER), JOINED), ALTERED)
    for name, data in late:
        frozen.store.create(name, data)
    assert third.left_before() == [*LEFT, *LATER]
    third.take_owner()
    now = third.job_state()
    assert now is not None
    assert (now.left, now.joined, third.altered()) == ((*LEFT, *LATER), (JOINED,), [ALTERED])


def test_only_what_an_earlier_version_noted_of_altered_tables_is_compared_by_the_clock() -> None:
    earlier = (
        b'{"format":"tidemark","kind":"altered","version":1,"product":"0.1.0","crc32":3820274243}\n'
        b'{"schema":{"table":{"database":"shop","name":"orders"},"version":1,"columns":[],"key":[],"oid":null},'
        b'"projection":null,"at_us":1700000000000000}\n'
    )
    old = codec.ALTERED.decode(earlier, "altered/0000000001")
    at_us = 1_700_000_000_000_000
    assert old == replace(ALTERED, at_us=at_us)
    assert (old.is_since(9, at_us - 1), old.is_since(1, at_us + 1)) == (True, False)
    new = replace(old, after_epoch=5)
    assert [new.is_since(epoch, at_us + 1) for epoch in (4, 5)] == [True, True]
    assert not new.is_since(6, at_us - 1)


def test_a_driver_that_writes_a_record_as_another_one_takes_over_stops(tmp_path: Path) -> None:
    """Its record may not count, so it must plan nothing by it."""
    first, second = drivers(tmp_path, 2)
    before = first.create_job_state(state("one"))
    first.take_owner()

    class Taking(LocalStore):
        def create(self, name: str, data: pa.Buffer | bytes) -> bool:
            created = super().create(name, data)
            second.take_owner()
            return created

    with pytest.raises(JobHeldError):
        replace(first, store=Taking(str(tmp_path / "checkpoint"))).create_left(before, LEFT)
    assert second.left_before() == list(LEFT), "it was there at the take-over"


REPORT = LogReport(WalPosition(1), (), 0, 0, 0, None)


def test_a_report_of_an_earlier_version_has_no_times_of_transactions_or_another_one(tmp_path: Path) -> None:
    """The epoch was read before the update, and not committed. It is read again. Earlier versions noted no time, that of the
    last transaction, or the greatest one, which are not the same if they were committed in another order."""
    checkpoint = Checkpoint.at(str(tmp_path / "checkpoint"))
    end = BinlogPosition("binlog.000002", 900, f"{uuid.UUID(int=7)}:1-9")
    timed = replace(REPORT, end=replace(end, times=f"{uuid.UUID(int=7)}:9=1700000000000000"))
    for epoch, last_at in ((1, None), (2, 1_700_000_000), (3, 1_700_000_060)):
        checkpoint.create_log_report(epoch, replace(REPORT, end=replace(end, last_at=last_at)))
        checkpoint.create_log_report(epoch, timed)
    checkpoint.create_log_report(4, timed)
    for epoch, other in (
        (2, replace(timed, end=replace(timed.end, pos=901))),
        (2, replace(timed, transactions=2)),
        (4, replace(timed, end=replace(end, times=f"{uuid.UUID(int=7)}:9=1700000000000001"))),
        (4, replace(timed, end=end)),
    ):
        with pytest.raises(ReadsDifferError):
            checkpoint.create_log_report(epoch, other)


def test_a_replaced_driver_removes_nothing_of_an_epoch_and_takes_no_number_again(tmp_path: Path) -> None:
    frozen, second, third = drivers(tmp_path, 3)
    frozen.create_job_state(state("one"))
    assert frozen.take_owner() == 1
    assert frozen.take_owner(again=True) == 2
    for number, successor in enumerate((second, third), 3):
        assert successor.take_owner() == number
        successor.create_log_report(number, REPORT)
        successor.create_key_rereads(number, ())
        for act in (
            lambda number=number: frozen.forget_log_report(number),
            lambda number=number: frozen.forget_log_attempt(number),
            lambda: frozen.take_owner(again=True),
        ):
            with pytest.raises(JobHeldError, match=f"Another driver wrote owners/{number:010d}"):
                act()
        assert third.newest_owner() == number
        assert third.log_report(number) == REPORT
        assert third.key_rereads_before(number + 1, [number]) == ()
    assert third.take_owner(again=True) == 5
    third.forget_log_report(4)
    assert not third.has_log_report(4)
    assert frozen.take_owner() == 6, "a new run"


def test_a_driver_that_starts_a_job_takes_no_number_after_another_one(tmp_path: Path) -> None:
    frozen, second = drivers(tmp_path, 2)
    for takes_over in (False, True, False):  # the last time, the folder was emptied
        assert frozen.take_first_owner() is None
        before = frozen.create_job_state(state("one"))
        if takes_over:
            assert second.take_first_owner() == 1
            for act in (
                frozen.require_driver,
                lambda before=before: frozen.create_left(before, LEFT),
                lambda: frozen.take_owner(again=True),
            ):
                with pytest.raises(JobHeldError, match="Another driver wrote"):
                    act()
            assert (second.newest_owner(), second.left_before()) == (1, [])
        else:
            frozen.require_driver()
            assert [frozen.take_owner(again=True) for _ in range(3)] == [1, 2, 3]
        for part in (tmp_path / "checkpoint").iterdir():
            shutil.rmtree(part) if part.is_dir() else part.unlink()


WATCHED = WatchedTable(TableId("public", "orders"), 1)


@pytest.mark.parametrize("plans_at_once", [True, False])
def test_a_frozen_driver_that_removes_looks_leaves_those_of_its_successor(
    tmp_path: Path, *, plans_at_once: bool
) -> None:
    """It freezes before one of its steps. Another driver looks at the tables meanwhile, and plans at once or later."""

    class Freezing(LocalStore):
        steps = 0

        def step(self) -> None:
            self.steps += 1
            if self.steps == freezes_at:
                kept.append(take_over())

        def list(self, prefix: str) -> list[str]:
            self.step()
            return super().list(prefix)

        def read(self, name: str) -> pa.Buffer | None:
            self.step()
            return super().read(name)

        def delete(self, name: str) -> None:
            self.step()
            super().delete(name)

    def take_over() -> KeptPartitions:
        successor.take_owner()
        look = successor.keep_partitions(Partitions(3, (replace(WATCHED, oid=3),)))
        if plans_at_once:
            successor.create_plan(replace(LOG_PLAN, partitions=look))
        return look

    freezes_at, steps = 0, 1
    while freezes_at <= steps:
        folder = tmp_path / str(freezes_at)
        folder.mkdir()
        frozen, successor = drivers(folder, 2)
        frozen.take_owner()
        old = frozen.keep_partitions(Partitions(1, (replace(WATCHED, oid=1),)))
        used = frozen.keep_partitions(Partitions(2, (replace(WATCHED, oid=2),)))
        frozen.create_plan(replace(SNAPSHOT_PLAN, partitions=used))
        store, kept = Freezing(str(folder / "checkpoint")), list[KeptPartitions]()
        replace(frozen, store=store).forget_partitions()
        assert len(kept) == (0 < freezes_at <= store.steps)
        assert successor.has_partitions(used)
        assert all(successor.has_partitions(look) for look in kept), freezes_at
        assert freezes_at or not successor.has_partitions(old)
        freezes_at, steps = freezes_at + 1, max(steps, store.steps)


def error_of(checkpoint: Checkpoint) -> str:
    try:
        checkpoint.job_state()
    except CheckpointError as error:
        return error.message
    return ""


def test_a_driver_whose_predecessors_number_is_lost_has_a_greater_one(tmp_path: Path) -> None:
    """Else the sink's fence would refuse it, and its records would not count."""
    checkpoint = Checkpoint.at(str(tmp_path))
    before = checkpoint.create_job_state(state("one"))
    for number in (1, 2, 3):
        assert checkpoint.take_owner() == number
    (tmp_path / layout.owner_file(3)).unlink()
    assert checkpoint.take_owner() == 4
    checkpoint.create_left(before, LEFT)
    assert checkpoint.left_before() == list(LEFT)
    (tmp_path / layout.cut_file(4)).unlink()
    assert checkpoint.take_owner() == 5
    assert checkpoint.left_before() == list(LEFT)


def test_a_changed_byte_in_what_a_driver_found_at_its_take_over_is_noticed(tmp_path: Path) -> None:
    """With a smaller number a record would not count any more."""
    checkpoint = Checkpoint.at(str(tmp_path))
    now = checkpoint.create_job_state(state("one"))
    checkpoint.take_owner()
    checkpoint.create_left(now, LEFT)
    file = tmp_path / layout.cut_file(checkpoint.take_owner())
    assert b'"left":1' in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(b'"left":1', b'"left":0'))
    assert layout.cut_file(2) in error_of(checkpoint)


def test_many_entries_are_kept_in_one_file(tmp_path: Path) -> None:
    """A driver that was replaced adds and merges late, and files are lost."""
    first, second = drivers(tmp_path, 2)
    folder = tmp_path / "checkpoint" / "joined"
    now = first.create_job_state(state("one"))
    first.take_owner()
    for number in range(100):
        now = first.create_joined(now, replace(JOINED, at_us=number))
    assert first.job_state() == now
    assert len(list(folder.iterdir())) == 100 - layout.MERGED_JOINED + 1
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    second.take_owner()
    first.store.create(layout.record_file(layout.JOINED_FOLDER, 101, 1), codec.JOINED.encode(JOINED))  # late
    assert second.job_state() == now
    for number in range(100, 230):
        now = second.create_joined(now, replace(JOINED, at_us=number))
    for name, data in kept.items():  # late: its file is there again, and a longer one has it, too
        first.store.create(f"joined/{name}", data)
    assert second.job_state() == first.job_state() == now
    second.take_owner()
    for path in folder.iterdir():
        data = path.read_bytes()
        path.unlink()
        assert path.name in kept or "has lost its file `joined/" in error_of(second)
        assert error_of(second) or second.job_state() == now
        path.write_bytes(data)
    assert len(list(folder.iterdir())) < 150


def test_a_lost_record_is_noticed_though_it_is_the_newest(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(str(tmp_path))
    before = checkpoint.create_job_state(state("one"))
    checkpoint.take_owner()
    checkpoint.create_left(checkpoint.create_left(before, LEFT), LATER)
    checkpoint.take_owner()
    (tmp_path / layout.record_file(layout.LEFT_FOLDER, 2, 1)).unlink()
    with pytest.raises(CheckpointError, match="has lost its file `left/0000000002`"):
        checkpoint.job_state()


def test_a_signal_never_gets_the_number_of_one_that_was_lost(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(str(tmp_path))
    for number in (1, 2):
        assert checkpoint.create_signal(Signal(None, 1, "pause")) == number
        checkpoint.create_answer(number, Answer(True, "", 1))
    assert not checkpoint.has_open_signals()
    (tmp_path / signal_file(2)).unlink()
    assert checkpoint.create_signal(Signal(None, 1, "resume")) == 3
    assert checkpoint.has_open_signals()
    assert checkpoint.signals()[3][1] is None
