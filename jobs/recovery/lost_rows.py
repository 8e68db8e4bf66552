"""Notices that the checkpoint has lost the published rows of a split that the target already has.

A split is published before it is written. If its file is gone when the epoch runs again, the split would be read again, and the
target would skip it: it has the part. But the report would be of the second reading. Changes between the two would never be
written, because the second reading contains them. So the table's rows are read again, all of them.
"""

from tidemark.jobs.recovered_state import splits_of_job
from tidemark.readers.snapshot.publish import is_published, published_name
from tidemark.sinks.fencing import published_lost
from tidemark.sinks.sink import Written
from tidemark.state.change_batch import split_part
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.job_state import JobState
from tidemark.state.plan import SnapshotWork


def require_published(checkpoint: Checkpoint, state: JobState, written: Written) -> None:
    """Raises PublishedLostError unless each split that the target has of the planned epoch is published. `written`: as found
    after this driver has prepared the sink, so that no earlier one writes any more. Delta's sink does the same itself."""
    planned = max(checkpoint.plan_epochs(), default=0)
    parts = written.parts(planned)
    if not parts or planned == checkpoint.committed_epoch():
        return
    work = checkpoint.plan(planned).plan.work
    splits = splits_of_job(work.tasks, state)[0] if isinstance(work, SnapshotWork) else []
    for split in splits:
        if split_part(split.id) in parts and not is_published(checkpoint.store, planned, split):
            raise published_lost(published_name(planned, split), split.table)
