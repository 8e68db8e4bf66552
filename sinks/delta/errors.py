"""Turns errors of Spark and Delta into SinkErrors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from tidemark.sinks.sink import SinkBusyError
from tidemark.state.errors import SinkError, from_text
from tidemark.state.table import TableId

_CONFLICT = re.compile(
    r"DELTA_(CONCURRENT_(APPEND|DELETE_READ|DELETE_DELETE|WRITE)|METADATA_CHANGED)"
    r"|(Concurrent(Append|DeleteRead|DeleteDelete|Write)|MetadataChanged)Exception"
)
"""Somebody else's commit, such as an OPTIMIZE, came in between: docs.delta.io/concurrency-control.html. Versions name them
in one of two ways. Not among them: another transaction of the same application, which is another driver."""

_OWN_RULES = re.compile(
    r"DELTA_(CANNOT_MODIFY_APPEND_ONLY|EXCEED_CHAR_VARCHAR_LIMIT|NOT_NULL_CONSTRAINT_VIOLATED|VIOLATE_CONSTRAINT_WITH_VALUES)"
)
"""The table has a rule that the source's rows break: a constraint, or that nothing but appends is allowed."""
_OF_ALL = re.compile(
    r"\b(?:DELTA_(?:CHECKSUM|CONCURRENT|CONFIGURE|FAILED|FILE|LOG|MAX|STATE|TRUNCATED|VERSION)_\w*|\w*(?:NOT_FOUND|NOT_EXIST|PERMISSION)\w*)"
    r"|HiveException|MetaException|TException"
)
"""Classes of errors that do not tell that the table itself is the reason: another driver, the session, files or a catalog that
are away, rights. Spark has a metastore's errors as errors of analysis, with the names of these."""
_OF_VALUE = re.compile(r"\[([A-Z][A-Z_.]+)\](?:(?!\[[A-Z]{2}).)*?SQLSTATE: 22\w{3}", re.DOTALL)
"""An expression of a constraint or of a generated column can't be computed. Its message has the value."""
_NEW_FOLDER = re.compile(r"Mkdirs failed to create (.*)")
_NAME_BYTES = 255
"""The longest name of a file or folder, in bytes, on local filesystems and HDFS."""
OTHER_PARTITIONS = (
    "Correct the row in the source. Or take the column out of sink.partition_by, and delete the Delta table: the job creates "
    "it again."
)
TRY_AGAIN = "Correct the cause, then start the job again: it continues where it was."
TAKE_BACK = (
    "Take back what somebody has changed in the Delta table, such as a constraint, a column or a property. Or delete the table "
    "and let the job create it."
)
_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_VALUE = re.compile(r'Value ".*" exceeds', re.DOTALL)


@contextmanager
def spark_errors(location: object, table: TableId | None = None) -> Iterator[None]:
    """Raises SinkError for errors of Delta and Spark, with their first line; SinkBusyError for a conflict with another
    writer's commit: nothing of the own one took effect. `table`: the source's table whose copy is written. If the reason is the
    copy, such as a rule that refuses rows, the error is about this table alone."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        known = from_text(str(error))
        if known is not None:
            raise known from None
        text = _VALUE.sub("A value exceeds", str(error.java_exception if isinstance(error, Py4JJavaError) else error))
        first = next(iter(text.strip().splitlines()), type(error).__name__)
        causes = f"{error}\n{getattr(error, '_stackTrace', None)}"
        is_of_value = _OF_VALUE.search(causes) is not None  # then the cause has the value
        if "FAILED_READ_FILE" in first or ("TASK_WRITE_FAILED" in first and not is_of_value):  # it does not say why
            first = f"{first}: {root_cause(error)}"
        if _CONFLICT.search(text):
            raise SinkBusyError(
                f"{location} was written by somebody else at the same time: {first}",
                "Run the job again: it continues. Let other writers of the table run less often.",
            ) from error
        if table is not None and _OWN_RULES.search(text):
            remedy = "Remove that rule from the Delta table, or delete the table and let the job create it."
            raise SinkError(f"{location} refuses rows of {table}: {first}", remedy, table) from error
        if table is not None and (why := _no_folder(str(error))) is not None:
            what = f"a value of a column of sink.partition_by {why}"
            raise SinkError(f"{table}: {what} in {location}.", OTHER_PARTITIONS, table) from error
        if table is not None and (found := _OF_VALUE.search(causes)) is not None:
            what = f"a constraint or a generated column can't be computed ({found[1]})"
            raise SinkError(f"{location} refuses rows of {table}: {what}", TAKE_BACK, table) from error
        if table is not None and _is_of_copy(error, causes):
            raise SinkError(f"{location} does not fit {table} any more: {first}", TAKE_BACK, table) from error
        raise SinkError(
            f"{location} could not be written or read: {first}",
            TRY_AGAIN,
        ) from error


def root_cause(error: BaseException) -> str:
    """Returns the first line of the innermost cause of an error of Spark."""
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        text = str(cause)
    else:
        causes = _CAUSE.findall(getattr(error, "_stackTrace", None) or str(error))
        text = causes[-1] if causes else str(error)
    return next(iter(text.strip().splitlines()), type(error).__name__)


def _is_of_copy(error: PySparkException | Py4JJavaError, causes: str) -> bool:
    """True if the copy is the reason: Spark can't resolve a statement's columns or types against it, or Delta refuses to write
    it for its features or properties. The statements of all tables differ by names and types only. `causes`: with the error's
    text."""
    return (isinstance(error, AnalysisException) or "DELTA_" in causes) and not _OF_ALL.search(causes)


def _no_folder(text: str) -> str | None:
    """Returns why a folder could not be made, if its name is the reason: it has the value of a partition's column. `text`: that
    of the error."""
    made = _NEW_FOLDER.search(text)
    if made is None:
        return None
    if "\0" in made[1]:
        return "has a NUL character, which the name of a folder can't have,"
    is_long = any(len(name.encode()) > _NAME_BYTES for name in made[1].split("/"))
    return "is too long for the name of a folder" if is_long else None
