"""Failpoints: points of the code at which tests stop or kill the running system.

A failpoint does nothing unless the environment variable TIDEMARK_FAILPOINTS names a folder. A file in this folder arms the
failpoint of the same name. The first process to reach the failpoint removes the file, so it fires once. It does what the
file says: `kill` (SIGKILL to itself), `kill PID`, `kill above TEXT` (its nearest ancestor with TEXT in its command line,
and itself; a process without such an ancestor leaves the failpoint armed), `stop` (SIGSTOP to itself), `freeze FILE` (the
thread creates that file, and waits until somebody removes it), `raise`, or `raise N` (the Nth time).
"""

import contextlib
import os
import signal
import time
from pathlib import Path

_FOLDER = os.environ.get("TIDEMARK_FAILPOINTS")


class FailpointError(BaseException):
    """Raised by an armed failpoint. No code catches it, and none tries again: the process counts as dead."""


def failpoint(name: str) -> None:
    """Fires `name` if it is armed. Names are `<module>.<point in its work>`."""
    if _FOLDER is None:
        return
    armed = Path(_FOLDER, name)
    fired = armed.with_name(f".{name}.{os.getpid()}")
    try:
        armed.rename(fired)
    except FileNotFoundError:
        return
    match fired.read_text().split():
        case ["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["kill", pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
            time.sleep(1)  # either the killed process ends this one too, or this one continues: tests need both
        case ["kill", "above", text]:
            above = _ancestor(text)
            if above is None:
                fired.rename(armed)
            else:
                os.kill(above, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
        case ["stop"]:
            os.kill(os.getpid(), signal.SIGSTOP)
        case ["freeze", file]:
            Path(file).touch()
            while Path(file).exists():
                time.sleep(0.02)
        case ["raise"]:
            raise FailpointError(name)
        case ["raise", count]:
            if int(count) == 1:
                raise FailpointError(name)
            armed.write_text(f"raise {int(count) - 1}")
        case other:
            known = "kill, kill PID, kill above TEXT, stop, freeze FILE, raise, raise N"
            raise ValueError(f"failpoint {name}: {other!r} is none of: {known}")


def _ancestor(text: str) -> int | None:
    pid = os.getppid()
    with contextlib.suppress(FileNotFoundError):  # it is ending
        while pid > 1:
            if text.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None
