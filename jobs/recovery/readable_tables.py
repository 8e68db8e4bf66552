"""Finds the source for a job that must go on elsewhere, whatever became of single tables."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tidemark.conf.model import JobFile
from tidemark.jobs.sources import find_source
from tidemark.jobs.tables.parking import to_be_found
from tidemark.readers.source import FoundSource
from tidemark.state.errors import SourceNotUsableError
from tidemark.state.job_state import JobState
from tidemark.state.table import TableId


@contextmanager
def find_readable(job: JobFile, state: JobState) -> Iterator[FoundSource]:
    """Connects as `find_source`, and leaves out tables that the job file names and the source does not have, such as one that
    only a dead server had. The next start says what is wrong with them. Raises what `find_source` raises of all tables."""
    without = set[TableId]()
    with ExitStack() as stack:
        while True:
            try:
                found = stack.enter_context(find_source(to_be_found(job, state, without), state))
                break
            except SourceNotUsableError as error:
                if error.table is None or error.table in without:
                    raise
                without.add(error.table)
        yield found
