"""The ending of a command: its exit code, with the cause and the remedy that its last line on stderr names."""

import os
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from typer.exceptions import TyperException

from tidemark.conf.redaction import redact
from tidemark.state.errors import TidemarkError

UNEXPECTED = 1
USAGE_ERROR = 2
INTERRUPTED = 130

_UNEXPECTED_REMEDY = (
    "run it again: the state is safe. If the error comes back, report what it prints with TIDEMARK_DEBUG=1 set."
)


@dataclass(frozen=True, slots=True)
class Ending:
    """`cause` and `remedy` are texts without secrets."""

    exit_code: int
    cause: str
    remedy: str

    @property
    def last_line(self) -> str:
        return f"{self.cause} Remedy: {self.remedy}"


INTERRUPTION = Ending(INTERRUPTED, "interrupted; the state is safe.", "run the same command again to continue.")


def debugging() -> bool:
    """True if TIDEMARK_DEBUG is set: stack traces are shown, ours and Spark's."""
    return bool(os.environ.get("TIDEMARK_DEBUG"))


def ending_of(error: BaseException) -> Ending:
    """The ending that `error` causes. Raises it again if it is no error of a command, such as SystemExit."""
    match error:
        case TidemarkError():
            return Ending(error.exit_code, redact(error.message), redact(error.remedy))
        case TyperException():
            return Ending(USAGE_ERROR, redact(error.format_message()), "see tidemark --help.")
        case KeyboardInterrupt() | typer.Abort():
            return INTERRUPTION
        case Exception():
            return Ending(UNEXPECTED, redact(f"unexpected: {_described(error)}."), _UNEXPECTED_REMEDY)
        case _:
            raise error


def ending_without_values(error: BaseException) -> Ending:
    """Returns the ending as `ending_of` does, for what is kept or sent: without the texts of unexpected errors, which may
    contain values of rows."""
    ending = ending_of(error)
    if ending.exit_code == UNEXPECTED and not isinstance(error, TidemarkError):
        return replace(ending, cause=f"unexpected: {type(error).__name__}.")
    return ending


def _described(error: Exception) -> str:
    """Class of the error, where it was raised, and the first line of its text."""
    text = " ".join(str(error).partition("\n")[0].split())
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__} at {place}" + (f": {text.rstrip('.')}" if text else "")
