import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from devtools.checkpoint_files import LOG_PLAN, SNAPSHOT_PLAN
from tidemark.state.checkpoint import codec, layout
from tidemark.state.checkpoint.layout import Checkpoint, signal_file
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import CheckpointError
from tidemark.state.job_state import JobState
from tidemark.state.key_rereads import KeyReread
from tidemark.state.partitions import Partitions, WatchedTable
from tidemark.state.position import BinlogPosition, WalPosition
from tidemark.state.signals import Answer, Signal
from tidemark.state.table import TableId


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
        layout.joined_file(1),
        layout.plan_file(42),
        layout.partitions_file("9f2c…"),
        layout.published_split_file(42, 7),
        layout.published_reread_file(42, 9, 3),
        layout.staged_chunk_file(5, 1200),
        layout.log_report_file(42),
        layout.rereads_file(42),
        layout.finished_file(42, 42),
        layout.copy_file("shop.orders"),
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
    traces.append(layout.committed_file(4))
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


def test_each_driver_has_a_greater_number(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(str(tmp_path))
    with ThreadPoolExecutor(4) as drivers:
        taken = list(drivers.map(lambda _: checkpoint.take_owner(), range(40)))
    assert len(set(taken)) == 40
    assert checkpoint.take_owner() > max(taken)
    assert [path.name for path in (tmp_path / "owners").iterdir()] == [f"{max(taken) + 1:010d}"]


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
