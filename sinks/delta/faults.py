"""What Spark and Delta say when something goes wrong, as the sink's own error."""

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from state.errors import SinkError, from_text


@contextmanager
def spark_errors(place: object) -> Iterator[None]:
    """Raises SinkError for Delta's and Spark's errors, the first line of which says what it is."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        known = from_text(str(error))
        if known is not None:
            raise known from None
        text = str(error.java_exception if isinstance(error, Py4JJavaError) else error)
        first = next(iter(text.strip().splitlines()), type(error).__name__)
        raise SinkError(
            f"{place} could not be written or read: {first}",
            "Look after that table; once the cause is gone start the job again: it goes on where it was.",
        ) from error
