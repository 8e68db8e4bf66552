"""Drivers that freeze at a failpoint, and go on when others have taken their job over."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.leases import wait_until
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.readers import lease
from tidemark.readers.lease import checkpoint_lock
from tidemark.state import failpoints

DEADLINE_SECONDS = 100.0


class Frozen:
    """`thaw` lets the driver go on, waits for its end, and returns its error."""

    def __init__(self, marker: Path, act: Callable[[], object]) -> None:
        self._marker = marker
        self._act = act
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._act()
        except BaseException as error:  # noqa: BLE001 -- returned by `thaw`
            self._error = error

    def freeze(self) -> None:
        """Begins, and waits until the failpoint is reached."""
        self._thread.start()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self._marker.exists():
            assert self._thread.is_alive(), f"it has ended before: {self._error!r}"
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def thaw(self) -> BaseException | None:
        self._marker.unlink(missing_ok=True)
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive()
        return self._error


@contextmanager
def frozen_at(folder: Path, point: str, act: Callable[[], object]) -> Iterator[Frozen]:
    """Runs `act`, a driver of its own, in a thread up to the failpoint. `folder`: that of the job file. Its other thread, which
    watches the lease, looks only when it is asked: a frozen process does not take its lease again."""
    armed = folder / "armed"
    armed.mkdir(exist_ok=True)
    marker = folder / f"frozen-at-{point}"
    (armed / point).write_text(f"freeze {marker}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "_FOLDER", str(armed))
        patch.setattr(lease, "PING_SECONDS", 3600.0)
        patch.setattr(lease, "PROOF_SECONDS", 3600.0)
        driver = Frozen(marker, act)
        driver.freeze()
        try:
            yield driver
        finally:
            driver.thaw()


def of_another_process(job: Path) -> str:
    """Returns the override with which a run in this process knows nothing of the numbers that this process has taken: it has
    another name for the checkpoint's folder."""
    name = job.parent / "checkpoint-of-another-process"
    if not name.exists():
        name.symlink_to("checkpoint", target_is_directory=True)
    return f"checkpoint={name}"


def end_lease(source: Database, job: Path) -> None:
    """Ends the connection that holds the job's lease, as a server does with one of a frozen process, if it has not done so.
    MySQL, MariaDB."""
    lock = checkpoint_lock(load_job_file(job).checkpoint)
    ((holder,),) = source.query("SELECT IS_USED_LOCK(%s)", (lock,))
    if holder is None:
        return
    source.execute(f"KILL {holder}")
    wait_until(lambda: source.query("SELECT IS_USED_LOCK(%s)", (lock,)) != [(holder,)])
