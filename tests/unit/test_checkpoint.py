from pathlib import Path

import pytest

from jobs.checkpoint import Checkpoint
from state.errors import CheckpointError
from state.job_state import JobState
from state.position import BinlogPosition


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
