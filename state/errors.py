"""Every error that Tidemark raises on purpose: what happened, what to do, and the exit code it ends a run with.

Errors cross process borders (Spark pickles them, or only their text reaches the driver), so they pickle by their own
arguments and their text alone is enough to find the class again (`from_text`).
"""

import re
from typing import ClassVar


class TidemarkError(Exception):
    """Root of the tree. `message` says what happened, `remedy` what the operator can do about it."""

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
    """Rows of a partitioned table came or went with a partition, which is in no log."""


class UnknownLogEventError(SourceNotUsableError):
    """The log holds something that Tidemark does not know how to carry, so it must not go on."""


class DamagedLogError(SourceNotUsableError):
    """Bytes of the log or of a result do not have the form their format prescribes."""


class SourceUnavailableError(SourceNotUsableError):
    """The source could not be reached within the configured number of attempts."""


class LogPositionLostError(TidemarkError):
    """The position the job must go on from is no longer in the source's log, or is another server's."""

    exit_code = 4


class SinkError(TidemarkError):
    """The sink refused a write, or holds something that the job did not put there."""

    exit_code = 5


class JobHeldError(TidemarkError):
    """Another driver runs the same job."""

    exit_code = 6


class CheckpointError(TidemarkError):
    """The checkpoint is missing a part, is damaged, or was written by a version that this one does not know."""


class SplitChangedError(TidemarkError):
    """A split's read can't be completed as it stands and must be read anew (caught by the split reader)."""


def _tree(root: type[TidemarkError]) -> dict[str, type[TidemarkError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def from_text(text: str) -> TidemarkError | None:
    """The innermost TidemarkError that a text such as a Spark exception quotes, or None.

    Spark hands a Python worker's failure to the driver as the text of its traceback; the last line of a traceback
    that names one of our classes is the cause.
    """
    known = _tree(TidemarkError)
    for name, message, remedy in reversed(re.findall(r"(\w+Error): (.*) Remedy: (.*)", text)):
        if name in known:
            return known[name](message, remedy)
    return None
