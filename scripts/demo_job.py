"""A run of `tidemark` as a process: shows its output while it runs, and kills it with all its processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

COMMAND = Path(sys.executable).with_name("tidemark")
KILL_TIMEOUT_SECONDS = 30
POLL_SECONDS = 0.05
SHOW_CURSOR = "\x1b[?25h"


class JobFailedError(RuntimeError):
    """A run did not end as expected. The text contains the last lines of its stderr."""


class JobProcess:
    """One run in a session of its own. All its processes are found by this session: driver, JVM, Python workers.

    On a terminal the run draws its own progress bars. Otherwise its JSON lines are shown in short form. `log` gets its stderr.
    """

    def __init__(self, arguments: Iterable[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        self._draws = sys.stdout.isatty()
        sys.stdout.flush()
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=None if self._draws else subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._show_lines, daemon=True)
        self._reader.start()

    def __enter__(self) -> "JobProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def raise_if_ended(self) -> None:
        if (code := self._exit_code()) is not None:
            raise self._failure(code)

    def ask_to_stop(self) -> None:
        """Sends SIGTERM. The run finishes its epoch and ends with 130."""
        os.kill(self._process.pid, signal.SIGTERM)

    def wait(self, timeout_seconds: float, *, expected: int = 0) -> None:
        """Waits for the end. Raises JobFailedError if the run ends with another code, or not in time."""
        deadline = time.monotonic() + timeout_seconds
        while (code := self._exit_code()) is None:
            if time.monotonic() > deadline:
                raise JobFailedError(f"the job did not end within {timeout_seconds} s\n{self._last_words()}")
            time.sleep(POLL_SECONDS)
        if code != expected:
            raise self._failure(code)

    def kill(self) -> int:
        """Sends SIGKILL to all processes of the run until none is left. Returns how many there were."""
        if self._process.returncode is not None:
            return 0
        was_running, killed = self._exit_code() is None, set[int]()
        deadline = time.monotonic() + KILL_TIMEOUT_SECONDS
        while pids := list(_session(self._process.pid)):
            if time.monotonic() > deadline:
                raise JobFailedError(f"processes {pids} are still alive after SIGKILL")
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(pids)
            time.sleep(0.005)
        if was_running and self._draws:
            print(SHOW_CURSOR)
        self._process.wait()
        self._reader.join()
        return len(killed)

    def _exit_code(self) -> int | None:
        """Returns the exit code, None while the run is alive.

        The ended process is not reaped before `kill`. Until then no other process can get its id, by which the other
        processes of the session are found.
        """
        found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _failure(self, code: int) -> JobFailedError:
        return JobFailedError(f"the job ended with {code}\n{self._last_words()}")

    def _last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-25:])

    def _show_lines(self) -> None:
        if self._process.stdout is None:
            return
        with self._process.stdout as lines:
            for line in lines:
                if shown := in_short(line.decode(errors="replace").rstrip()):
                    print(f"   {shown}", flush=True)


def in_short(line: str) -> str:
    """Formats a JSON event of `tidemark run` for people. A line that is not JSON is returned unchanged."""
    try:
        event = json.loads(line)
    except ValueError:
        return line
    match event:
        case {"event": "epoch", "committed_epoch": 0}:
            return ""
        case {"event": "epoch", "phase": "snapshot"}:
            return f"epoch {event['committed_epoch']}: {event['splits_done']} splits, {event['rows']:,} rows"
        case {"event": "epoch"}:
            lag = "" if event["lag_seconds"] is None else f", lag {event['lag_seconds']:.1f} s"
            return f"epoch {event['committed_epoch']}: {event['changes']:,} changes, at {event['position']}{lag}"
        case {"event": str(name)}:
            return f"{name} {_facts(event)}".rstrip()
        case _:
            return line


def _facts(event: Mapping[str, Any]) -> str:
    plain = (str, int, float)
    return " ".join(f"{name}={value}" for name, value in event.items()
                    if name not in {"at", "event"} and isinstance(value, plain) and value != "")  # fmt: skip


def _session(leader: int) -> Iterator[int]:
    """Yields the living processes of a session, without zombies."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it may end meanwhile
                state, _parent, _group, session = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:4]
                if int(session) == leader and state != b"Z":
                    yield int(entry.name)
