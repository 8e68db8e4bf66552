"""`tidemark validate --connect`."""

from tidemark.conf.model import JobFile
from tidemark.jobs.commands.findings import print_sink_findings, print_source_findings, raise_problems
from tidemark.jobs.sources import find_source
from tidemark.readers.source import SharesLog
from tidemark.state.checkpoint.layout import Checkpoint


def validate(job: JobFile) -> None:
    """Prints every finding of source and sink. Raises the error class of the first refusal, with all of them. Raises
    CheckpointError if the checkpoint can't be read or written."""
    checkpoint = Checkpoint.at(job.checkpoint)
    checkpoint.require_writable()
    with find_source(job, checkpoint.job_state()) as found:
        print_source_findings(found)
        if isinstance(found, SharesLog):
            print(f"failover: {found.after_failover()}")
        problems = print_sink_findings(job, found)
    raise_problems(found, problems)
