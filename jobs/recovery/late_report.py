"""Removes the report of an epoch of the log that a replaced driver has written late.

A driver may freeze before it writes the report of an epoch that it has read. The next driver finds no report, so tables may
leave, and it reads the epoch without them. Then the first one writes its report. The two reads differ.
"""

from tidemark.conf.model import JobFile
from tidemark.sinks.sink import JobIdentity, Sink
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import ReadsDifferError, TidemarkError
from tidemark.state.failpoints import failpoint


def removes_late_report(error: TidemarkError, job: JobFile, owner: JobIdentity, sink: Sink) -> bool:
    """Removes the report of the planned epoch if the sink has nothing of the epoch: the epoch is read again. `owner`: who has
    prepared the sink, so that no earlier driver writes any more. Returns False if the error must stop the job. Called with a
    proven lease."""
    checkpoint = Checkpoint.at(job.checkpoint)
    epoch = max(checkpoint.plan_epochs(), default=0)
    if not isinstance(error, ReadsDifferError) or epoch == checkpoint.committed_epoch():
        return False
    written = sink.written(owner)
    if written is None or written.last_epoch >= epoch:
        return False
    failpoint("late_report.lacks")
    checkpoint.forget_log_report(epoch)
    return True
