"""A server from an unpacked package, run under a supervisor that ends it when this process ends."""

import fcntl
import json
import os
import random
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from devtools import server_commands
from devtools.server_commands import Launch, Option
from devtools.server_packages import ServerUnavailableError, Unpacked

SUPERVISOR = Path(__file__).with_name("server_supervisor.py")
STOP_TIMEOUT_SECONDS = 60
MAX_FOLDER_PATH_LENGTH = 80  # a socket's path has at most 107 bytes


_RANDOM = random.SystemRandom()
"""Hypothesis gives `random` the same state in each process."""


class ReservedPort:
    """A free port that no other process gets from here until it is closed, also while nobody listens there: a server that is
    started again on its port must not meet another one, nor its clients."""

    def __init__(self) -> None:
        folder = Path(tempfile.gettempdir()) / "tidemark-ports"
        folder.mkdir(exist_ok=True)
        while True:
            self.number = free_port()
            self._file = os.open(folder / str(self.number), os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._file)
            else:
                return

    def close(self) -> None:
        """May be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def free_port() -> int:
    """Returns a port on which nobody listens.

    It is below the ports that the kernel gives to outgoing connections, so it stays free while its server is down.
    """
    while True:
        port = _RANDOM.randrange(15000, 32000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class SupervisedProcess:
    """One server, its port, and its temporary folder: prepared, but not started."""

    def __init__(
        self, unpacked: Unpacked, options: Mapping[str, Option], fill: Callable[[Path], None] | None = None
    ) -> None:
        """`fill` makes the content of the data folder, instead of initdb."""
        self.unpacked, self.options = unpacked, options
        self.kind = unpacked.package.kind
        self.host = "127.0.0.1"
        self.reserved = ReservedPort()
        self.port = self.reserved.number
        self.folder = Path(tempfile.mkdtemp(prefix=f"tidemark-{self.kind}-"))
        self.data_folder: Path | None = self.folder / "data"
        self.lock = threading.Lock()
        if len(str(self.folder)) > MAX_FOLDER_PATH_LENGTH:
            self.folder.rmdir()
            self.reserved.close()
            raise ServerUnavailableError(f"{self.folder} is too long a path for a socket: set TMPDIR to a shorter one")
        self.supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR), str(self.folder), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # unbuffered: closing it must not write anything
            start_new_session=True,  # Ctrl-C is for this process, not for the supervisor
        )
        try:
            first = server_commands.prepare(unpacked, self.folder, options)
            if fill is not None:
                fill(self.folder / "data")
            elif first is not None:
                self._run(first)
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        self._launch(server_commands.launch(self.unpacked, self.folder, self.port, self.options))

    def exit_code(self) -> int | None:
        """Returns None while the server runs. Negative: the signal that ended it."""
        code: int | None = self._ask(do="status")["exit_code"]
        return code

    def stop(self) -> None:
        """Shuts the server down cleanly. The data stay."""
        number = server_commands.STOP_SIGNALS[self.kind]
        self._ask(do="signal", number=number, timeout_seconds=STOP_TIMEOUT_SECONDS)

    def kill(self) -> None:
        """Sends SIGKILL to the server and all its children. The data stay."""
        self._ask(do="kill")

    def close(self) -> None:
        """Ends the server at once, deletes its folder, and waits for both. May be called again."""
        with self.lock:
            assert self.supervisor.stdin is not None
            assert self.supervisor.stdout is not None
            self.supervisor.stdin.close()
            self.supervisor.wait()
            self.supervisor.stdout.close()
            shutil.rmtree(self.folder, ignore_errors=True)  # if the supervisor was killed before it could
            self.reserved.close()

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _run(self, launch: Launch) -> None:
        self._launch(launch)
        deadline = time.monotonic() + server_commands.INITIALISE_TIMEOUT_SECONDS
        while (code := self.exit_code()) is None and time.monotonic() < deadline:
            select.select([], [], [], 0.02)
        if code != 0:
            raise ServerUnavailableError(f"{' '.join(launch.argv)}\nended with {code}:\n{self.log()[-3000:]}")

    def _launch(self, launch: Launch) -> None:
        last = server_commands.LAST_SIGNALS[self.kind]
        facts = {"argv": launch.argv, "environment": launch.environment, "user": launch.user}
        self._ask(do="start", last_signal=last, **facts)

    def _ask(self, **command: Any) -> dict[str, Any]:
        with self.lock:
            assert self.supervisor.stdin is not None
            assert self.supervisor.stdout is not None
            if self.supervisor.stdin.closed:
                raise ServerUnavailableError(f"this {self.kind} is closed")
            try:
                self.supervisor.stdin.write(json.dumps(command).encode() + b"\n")
                self.supervisor.stdin.flush()
                line = self.supervisor.stdout.readline()
            except BrokenPipeError:
                line = b""
        if not line:
            raise ServerUnavailableError(f"the supervisor of {self.folder} was killed, and its server with it")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise ServerUnavailableError(f"{self.kind}: {reply['error']}")
        return reply
