"""Places where tests stop, kill or break the running system, at an exact point in its work.

Without TIDEMARK_FAILPOINTS in the environment a failpoint does nothing. With it, the variable names a folder: a file
there that is named like the failpoint arms it. The first process to arrive takes the file away, so it fires once, in
whatever process, and does what the file says: `kill` (SIGKILL to itself), `kill PID`, `kill above TEXT` (its nearest
ancestor with TEXT in its command line, and itself; a process without one leaves the failpoint to others), or `raise`.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

_FOLDER = os.environ.get("TIDEMARK_FAILPOINTS")


class FailpointError(RuntimeError):
    """Raised by an armed failpoint; nothing catches it on purpose."""


def failpoint(name: str) -> None:
    """Fires `name` if it is armed. Called at phase boundaries; names are `<module>.<moment>`."""
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
            time.sleep(1)  # the killed process takes this one with it, or this one goes on: both are wanted
        case ["kill", "above", text]:
            above = _ancestor(text)
            if above is None:
                fired.rename(armed)
            else:
                os.kill(above, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
        case ["raise"]:
            raise FailpointError(name)
        case other:
            raise ValueError(f"failpoint {name}: {other!r} is none of: kill, kill PID, kill above TEXT, raise")


def _ancestor(text: str) -> int | None:
    pid = os.getppid()
    with contextlib.suppress(FileNotFoundError):  # it is just ending
        while pid > 1:
            if text.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None
