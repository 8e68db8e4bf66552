from pathlib import Path

import pytest

from tidemark.state.checkpoint import codec, layout
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError
from tidemark.state.job_state import JobState
from tidemark.state.key_rereads import KeyReread
from tidemark.state.partitions import Partitions, WatchedTable
from tidemark.state.position import BinlogPosition, WalPosition
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
    ]
    for name in names:
        checkpoint.store.create(name, b"x")
    checkpoint.forget_published(1)
    checkpoint.forget_staged({6})
    checkpoint.forget_finished_splits()
    assert [name for name in names if checkpoint.store.read(name) is not None] == [names[2], names[4], names[7]]
