"""`tidemark validate --connect`."""

from tidemark.conf.model import JobFile
from tidemark.jobs.commands.findings import print_sink_findings, print_source_findings, raise_problems
from tidemark.jobs.sources import find_source


def validate(job: JobFile) -> None:
    """Prints every finding of source and sink. Raises the error class of the first refusal, with all of them."""
    with find_source(job) as found:
        print_source_findings(found)
        problems = print_sink_findings(job, found)
    raise_problems(found, problems)
