"""Turns errors of Spark and Delta into SinkErrors."""

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tidemark.state.errors import SinkError, from_text


@contextmanager
def spark_errors(location: object) -> Iterator[None]:
    """Raises SinkError for errors of Delta and Spark, with their first line."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        known = from_text(str(error))
        if known is not None:
            raise known from None
        text = str(error.java_exception if isinstance(error, Py4JJavaError) else error)
        first = next(iter(text.strip().splitlines()), type(error).__name__)
        raise SinkError(
            f"{location} could not be written or read: {first}",
            "Correct the cause, then start the job again: it continues where it was.",
        ) from error
