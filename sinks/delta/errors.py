"""Turns errors of Spark and Delta into SinkErrors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

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
_NEW_FOLDER = re.compile(r"Mkdirs failed to create (.*)")
_NAME_BYTES = 255
"""The longest name of a file or folder, in bytes, on local filesystems and HDFS."""
OTHER_PARTITIONS = (
    "Correct the row in the source. Or take the column out of sink.partition_by, and delete the Delta table: the job creates "
    "it again."
)
_VALUE = re.compile(r'Value ".*" exceeds', re.DOTALL)


@contextmanager
def spark_errors(location: object, table: TableId | None = None) -> Iterator[None]:
    """Raises SinkError for errors of Delta and Spark, with their first line; SinkBusyError for a conflict with another
    writer's commit: nothing of the own one took effect. `table`: the source's table whose rows are written. If a rule of the
    copy refuses them, the error is about this table alone."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        known = from_text(str(error))
        if known is not None:
            raise known from None
        text = _VALUE.sub("A value exceeds", str(error.java_exception if isinstance(error, Py4JJavaError) else error))
        first = next(iter(text.strip().splitlines()), type(error).__name__)
        if _CONFLICT.search(text):
            raise SinkBusyError(
                f"{location} was written by somebody else at the same time: {first}",
                "Run the job again: it continues. Let other writers of the table run less often.",
            ) from error
        if table is not None and _OWN_RULES.search(text):
            remedy = "Remove that rule from the Delta table, or delete the table and let the job create it."
            raise SinkError(f"{location} refuses rows of {table}: {first}", remedy, table) from error
        if table is not None and _names_too_long_folder(str(error)):
            what = "a value of a column of sink.partition_by is too long for the name of a folder"
            raise SinkError(f"{table}: {what} in {location}.", OTHER_PARTITIONS, table) from error
        raise SinkError(
            f"{location} could not be written or read: {first}",
            "Correct the cause, then start the job again: it continues where it was.",
        ) from error


def _names_too_long_folder(text: str) -> bool:
    """True if the text of an error says that a folder could not be made whose name is too long: that of a partition has the
    column's value."""
    made = _NEW_FOLDER.search(text)
    return made is not None and any(len(name.encode()) > _NAME_BYTES for name in made[1].split("/"))
