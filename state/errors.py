"""The errors that Tidemark raises: what happened, what to do about it, and the exit code of a run that ends with it.

Errors cross process boundaries: Spark pickles them, or only their text reaches the driver. So they pickle by their own
arguments, and their text alone is enough to find the class again (`from_text`).
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from tidemark.state.table import TableId


class TidemarkError(Exception):
    """The root of all errors. `message` says what happened, `remedy` what the operator can do about it. `table`: the one table
    that the error is about, if the others can go on without it."""

    exit_code: ClassVar[int] = 1
    is_cured_by_reading: ClassVar[bool] = False
    """True if the table can be followed again once its rows are read again (docs/adr/0027)."""

    def __init__(self, message: str, remedy: str, table: TableId | None = None) -> None:
        super().__init__(message, remedy, *(() if table is None else (table,)))
        self.message = " ".join(message.split())  # one line, so that from_text can find it in a longer text
        self.remedy = " ".join(remedy.split())
        self.table = table

    def __str__(self) -> str:
        text = f"{self.message} Remedy: {self.remedy}"
        return text if self.table is None else f"{text} Table: {json.dumps([self.table.database, self.table.name])}"


@contextmanager
def concerning(table: TableId) -> Iterator[None]:
    """Errors inside about columns and values that can't be read are errors of this table, unless they name another one."""
    try:
        yield
    except (
        SchemaChangedError,
        UnsupportedTypeError,
        UnreadableTableError,
        UnknownLogEventError,
        TableLockedError,
    ) as error:
        if error.table is None:
            error.table = table
            error.args = (error.message, error.remedy, table)
        raise


class JobFileError(TidemarkError):
    """The job file or the command line is wrong."""

    exit_code = 2


class SourceNotUsableError(TidemarkError):
    """Settings, grants or tables of the source do not allow the job."""

    exit_code = 3


class UnsupportedTypeError(SourceNotUsableError):
    """A column's type can't be carried without loss."""


class UnreadableTableError(SourceNotUsableError):
    """The source refuses to read rows of a table: because of its files, or of a privilege on it."""


class UnreadableRowsError(UnreadableTableError):
    """The source can't read some rows of a table, or can't compute a condition for them."""


class TableGoneError(SourceNotUsableError):
    """A table was dropped or altered while the source's tables were looked at. The next look finds the others, and it as it is
    then."""


class NoRoomError(SourceNotUsableError):
    """Rows of the source don't fit into the folder for temporary files."""


class SchemaChangedError(SourceNotUsableError):
    """A captured table no longer has the columns that the job knows."""

    is_cured_by_reading = True


class TableDroppedError(SchemaChangedError):
    """A captured table was dropped; there may be another one of that name since."""


class TruncatedError(SourceNotUsableError):
    """A captured table was truncated, and `sink.on_schema_change` does not want its copy to be."""


class PartitionsChangedError(SourceNotUsableError):
    """Rows of a partitioned table were added or removed with a partition, which no log contains."""


class RowsAttachedError(PartitionsChangedError):
    """A partition brought rows. The table has all that its copy must have."""

    is_cured_by_reading = True


class NothingSelectedError(SourceNotUsableError):
    """`source.tables` and `source.exclude_tables` leave no table."""


class UnknownLogEventError(SourceNotUsableError):
    """The log contains an event that Tidemark does not understand, so it must stop."""


class IncompleteRowsError(UnknownLogEventError):
    """The log has a change of a table without whole rows: a session has logged it so. The source has the rows."""

    is_cured_by_reading = True


class BadValueError(SourceNotUsableError):
    """The source has a value that no copy can hold, and `sink.on_bad_value` does not say what to write instead."""


class DamagedLogError(SourceNotUsableError):
    """Bytes of the log or of a result do not have the expected format."""


class SourceUnavailableError(TidemarkError):
    """The source could not be reached within the configured number of attempts. Not a SourceNotUsableError: it may pass."""

    exit_code = 7


class TableLockedError(TidemarkError):
    """Another session kept a table locked for so long that its rows were not read. The other tables do not wait any longer. Not
    a SourceNotUsableError: it may pass. Not a SourceUnavailableError: the others can be read."""

    exit_code = 7
    is_cured_by_reading = True


class LogPositionLostError(TidemarkError):
    """The position from which the job must continue is no longer in the source's log, or is another server's."""

    exit_code = 4


class SinkError(TidemarkError):
    """The sink refused a write, or contains something that the job did not write."""

    exit_code = 5


class TargetSetBackError(SinkError):
    """The target lacks what the checkpoint says that it had."""


class CopySetBackError(SinkError):
    """A table's copy lacks what the job has written to it. The other copies have it."""

    is_cured_by_reading = True


class LostCopyError(SinkError):
    """A table's copy is not as the job has left it, such as in a target that was restored from before the table joined. Once a
    person has the table read again, it is."""


class RefusedRowsError(SinkError):
    """The target can't hold rows of a table. Nothing of their part was written."""


class RefusedValueError(RefusedRowsError):
    """The same because of a value for which `sink.on_bad_value` says park or stop."""


class SinkUnavailableError(TidemarkError):
    """The target could not be reached, or accepted no writes, within the configured number of attempts. Not a SinkError: it may
    pass."""

    exit_code = 7


class JobHeldError(TidemarkError):
    """Another driver runs the same job."""

    exit_code = 6


class TablesParkedError(TidemarkError):
    """The run is done, but tables are parked: their copies lack changes. Raised at the end of a run."""

    exit_code = 9


class PausedError(TidemarkError):
    """A signal has paused the job, or the reading of its splits, and this run ends by itself: it has not copied everything."""

    exit_code = 10


class DifferencesError(TidemarkError):
    """`tidemark reconcile` found differences between source and copy, or could not prove that there are none."""

    exit_code = 8


class CheckpointError(TidemarkError):
    """A file of the checkpoint is missing, damaged, or has a format version that this Tidemark can't read."""


class PublishedLostError(CheckpointError):
    """The checkpoint has lost rows of a split that the target has. Read again, the split would have a later high than the rows
    that the target has: changes in between would be taken for contained."""

    is_cured_by_reading = True


class WithheldLostError(CheckpointError):
    """The checkpoint has lost changes of a table that waited for its rows (docs/adr/0062). The table's rows are read again."""

    is_cured_by_reading = True


class ReadsDifferError(CheckpointError):
    """Two reads of the planned epoch's log range gave different results."""


class SplitChangedError(Exception):
    """A split changed while it was read, and must be read again. Caught by the split reader, so nobody has to do anything."""


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
    for name, message, rest in reversed(re.findall(r"(\w+Error): (.*) Remedy: (.*)", text)):
        if name in known:
            remedy, _, table = rest.partition(" Table: ")
            of_table = [TableId(*json.JSONDecoder().raw_decode(table)[0])] if table else []
            return known[name](message, remedy, *of_table)
    return None
