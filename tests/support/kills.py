"""Runs of a job that are killed at armed failpoints until one ends by itself."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.jobs import running

MAX_RUNS = 30


@contextmanager
def armed(folder: Path, failpoints: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """The environment for runs; fails in the end if a failpoint was never reached."""
    place = folder / f"failpoints-{uuid.uuid4().hex}"
    place.mkdir()
    for name in failpoints:
        (place / name).write_text("kill")
    yield {"TIDEMARK_FAILPOINTS": str(place)}
    left = sorted(path.name for path in place.iterdir() if not path.name.startswith("."))
    assert not left, f"these failpoints were never reached: {left}"


def run_until_done(job: Path, environment: dict[str, str], *arguments: str) -> int:
    """Starts the job again and again until a run ends by itself with 0. Returns the number of runs."""
    for count in range(1, MAX_RUNS + 1):
        with running(job, *arguments, environment=environment) as process:
            if process.wait() == 0:
                return count
    raise AssertionError(f"{MAX_RUNS} runs did not finish: {process.error_text()}")
