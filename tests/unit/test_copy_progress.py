"""How long a comparison waits for a job that runs and commits nothing."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemark.conf.quantities import parse_trigger
from tidemark.jobs.reconcile.copy_progress import CopyProgress


@pytest.mark.parametrize(
    ("trigger", "runs", "seconds"), [("once", True, 60), ("10s", True, 60), ("5m", True, 600), ("5m", False, 0)]
)
def test_a_running_job_has_time_for_two_of_its_intervals(
    trigger: str, runs: bool, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopyProgress, "runs", lambda progress: runs)
    job = SimpleNamespace(trigger=parse_trigger(trigger))
    assert CopyProgress(cast(Any, None), cast(Any, job))._seconds() == seconds
