"""The errors that Tidemark raises: what happened, what to do about it, and the exit code of a run that ends with it.

Errors cross process boundaries: Spark pickles them, or only their text reaches the driver. So they pickle by their own
arguments, and their text alone is enough to find the class again (`from_text`).
"""

import re
from typing import ClassVar


class TidemarkError(Exception):
    """The root of all errors. `message` says what happened, `remedy` what the operator can do about it."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy)
        self.message = " ".join(message.split())  # one line, so that from_text can find it in a longer text
        self.remedy = " ".join(remedy.split())

    def __str__(self) -> str:
        return f"{self.message} Remedy: {self.remedy}"


class JobFileError(TidemarkError):
    """The job file or the command line is wrong."""

    exit_code = 2


class SourceNotUsableError(TidemarkError):
    """Settings, grants or tables of the source do not allow the job."""

    exit_code = 3


class UnsupportedTypeError(SourceNotUsableError):
    """A column's type can't be carried without loss."""


class SchemaChangedError(SourceNotUsableError):
    """A captured table no longer has the columns that the job knows."""


class PartitionsChangedError(SourceNotUsableError):
    """Rows of a partitioned table were added or removed with a partition, which no log contains."""


class UnknownLogEventError(SourceNotUsableError):
    """The log contains an event that Tidemark does not understand, so it must stop."""


class DamagedLogError(SourceNotUsableError):
    """Bytes of the log or of a result do not have the expected format."""


class SourceUnavailableError(TidemarkError):
    """The source could not be reached within the configured number of attempts. Not a SourceNotUsableError: it may pass."""

    exit_code = 7


class LogPositionLostError(TidemarkError):
    """The position from which the job must continue is no longer in the source's log, or is another server's."""

    exit_code = 4


class SinkError(TidemarkError):
    """The sink refused a write, or contains something that the job did not write."""

    exit_code = 5


class JobHeldError(TidemarkError):
    """Another driver runs the same job."""

    exit_code = 6


class CheckpointError(TidemarkError):
    """A file of the checkpoint is missing, damaged, or has a format version that this Tidemark can't read."""


class SplitChangedError(TidemarkError):
    """A split changed while it was read, and must be read again. Caught by the split reader."""


def _tree(root: type[TidemarkError]) -> dict[str, type[TidemarkError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def from_text(text: str) -> TidemarkError | None:
    """Returns the innermost TidemarkError that a text such as a Spark exception quotes, or None.

    Spark gives the driver a Python worker's error as the text of its traceback. The last line that names one of our
    classes is the cause.
    """
    known = _tree(TidemarkError)
    for name, message, remedy in reversed(re.findall(r"(\w+Error): (.*) Remedy: (.*)", text)):
        if name in known:
            return known[name](message, remedy)
    return None
