"""Supervises one database server for a test run, so that the server never outlives the run.

It is run by path in a separate process, with the standard library only: `server_supervisor.py FOLDER PARENT_PID`. It reads one
JSON command per line from stdin and answers each with one JSON line on stdout. When stdin or the parent's process ends, it
kills everything that it started and deletes FOLDER. It watches both: a forked child of the parent may keep the pipe open.

Commands:

- `{"do": "start", "argv": [...], "environment": {...}, "user": [uid, gid] | null, "last_signal": n}` -> `{"pid": n}`.
  `last_signal` ends the server at once, but lets it remove what it has outside FOLDER.
- `{"do": "signal", "number": n, "timeout_seconds": s}` -> `{"exit_code": n}`. A server that does not end in time is killed.
- `{"do": "kill"}` -> `{"exit_code": n}`
- `{"do": "status"}` -> `{"exit_code": n | null}`

A failed command is answered with `{"error": text}`.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LAST_TIMEOUT_SECONDS = 5
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    if LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def die_with_supervisor() -> None:
    """Makes the kernel kill the server when the supervisor dies.

    Runs in the server's process between fork and exec, after the change of user, which would undo it.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def descendants(root_pid: int) -> Iterator[int]:
    """Yields all living descendants of `root_pid`. They share no process group: each of PostgreSQL's has its own session."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it may end meanwhile
                parents[int(entry.name)] = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
    for pid in parents:
        ancestor = parents.get(pid)
        while ancestor not in (None, 0, root_pid):
            ancestor = parents.get(ancestor)
        if ancestor == root_pid:
            yield pid


class Supervisor:
    """One server process in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.last_signal: int = signal.SIGKILL

    def handle(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["do"]:
            case "start":
                return {"pid": self.start(command)}
            case "signal":
                return {"exit_code": self.end(command["number"], command["timeout_seconds"])}
            case "kill":
                return {"exit_code": self.kill()}
            case "status":
                return {"exit_code": None if self.process is None else self.process.poll()}
            case unknown:
                return {"error": f"unknown command {unknown!r}"}

    def start(self, command: dict[str, Any]) -> int:
        if self.process is not None and self.process.poll() is None:
            raise RuntimeError("the server is running already")
        user = command["user"]
        identity: dict[str, Any] = {} if user is None else {"user": user[0], "group": user[1], "extra_groups": []}
        self.last_signal = command["last_signal"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **command["environment"]},
                start_new_session=True,
                preexec_fn=die_with_supervisor,
                **identity,
            )
        return self.process.pid

    def end(self, number: int, timeout_seconds: float) -> int | None:
        """Sends the signal, then SIGKILL if the server does not end in time."""
        if self.process is not None:
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_seconds)
        return self.kill()

    def kill(self) -> int | None:
        """Sends SIGKILL to the server and all its descendants, orphans included, until none is left."""
        while pids := list(descendants(os.getpid())):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process is not None:
                self.process.wait()
            with contextlib.suppress(ChildProcessError):  # orphans become children of this process, the subreaper
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.005)
        return None if self.process is None else self.process.wait()

    def clean_up(self) -> None:
        self.end(self.last_signal, LAST_TIMEOUT_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)


def serve(supervisor: Supervisor, parent_pid: int, answer: Callable[[dict[str, Any]], None]) -> None:
    """Answers commands until stdin or the parent's process ends."""
    parent = os.pidfd_open(parent_pid)
    if os.getppid() != parent_pid:  # the parent ended before it could be watched
        return
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    poll.register(parent, select.POLLIN)
    pending = b""
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if parent in ready:
            return
        received = os.read(0, 65536)
        if not received:
            return
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            try:
                reply = supervisor.handle(json.loads(line))
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                reply = {"error": str(error)}
            answer(reply)


def main() -> None:
    folder, parent_pid = Path(sys.argv[1]), int(sys.argv[2])

    def leave(*_: object) -> None:
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, leave)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    supervisor = Supervisor(folder)
    try:
        serve(supervisor, parent_pid, lambda reply: print(json.dumps(reply), flush=True))
    except BrokenPipeError:  # the parent ended before it got the answer
        pass
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # cleaning up must not be interrupted
        supervisor.clean_up()
        os._exit(0)  # nothing may follow: not even the flush of a stdout that nobody reads


if __name__ == "__main__":
    main()
