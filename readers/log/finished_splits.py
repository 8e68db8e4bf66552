"""The finished splits of a job in the checkpoint: one file for each epoch, merged when they become many.

A merged file replaces the single files that it covers. After a crash those may still exist.
"""

from collections.abc import Iterable, Mapping, Sequence

from tidemark.readers.log.gap_filter import GapFilter, merge_segments, segment_of
from tidemark.state.checkpoint.layout import FINISHED_FOLDER, epochs_of_finished_file, finished_file
from tidemark.state.checkpoint.store import CheckpointStore
from tidemark.state.errors import CheckpointError
from tidemark.state.remedies import ONE_DRIVER
from tidemark.state.split import Report, Split
from tidemark.state.table import TableId

_MERGE_AT = 256


def write_segment(store: CheckpointStore, epoch: int, splits: Sequence[Split], reports: Iterable[Report]) -> None:
    """Makes a committed epoch's splits durable for the gap filter. Only the planner calls it, possibly twice per epoch."""
    store.create(finished_file(epoch, epoch), segment_of(splits, reports))
    single = [name for name in segment_names(store) if not _is_merged(name)]
    if len(single) >= _MERGE_AT:
        merged = merge_segments([_read(store, name) for name in single], FINISHED_FOLDER)
        first, last = epochs_of_finished_file(single[0])[0], epochs_of_finished_file(single[-1])[1]
        store.create(finished_file(first, last), merged)
    names = store.list(FINISHED_FOLDER)  # once: this driver may freeze here, and another one write more
    for name in set(names).difference(_live(names)):
        store.delete(name)


def segment_names(store: CheckpointStore) -> list[str]:
    """Returns the files in use: those that no merged file covers."""
    return _live(store.list(FINISHED_FOLDER))


def _live(names: Sequence[str]) -> list[str]:
    merged = [epochs_of_finished_file(name) for name in names if _is_merged(name)]
    return [name for name in names if not any(_covers(epochs, name) for epochs in merged)]


def _covers(merged: tuple[int, int], name: str) -> bool:
    """True if another file, one of these epochs, has all of the file's. Two drivers may have merged, one of them late."""
    first, last = epochs_of_finished_file(name)
    return merged != (first, last) and merged[0] <= first and last <= merged[1]


def load_gap_filter(
    store: CheckpointStore,
    tables: Iterable[TableId],
    unfinished: Mapping[TableId, int],
    first_splits: Mapping[TableId, int],
) -> GapFilter:
    """`unfinished`: those tables of which splits are left, and how many are finished. `first_splits`: the least ids of the
    splits of tables that came back to the job. Raises CheckpointError unless the segments hold `tables`, and the splits of each
    of the others cover its whole key range."""
    segments = [_read(store, name) for name in segment_names(store)]
    return GapFilter.from_segments(segments, tables, FINISHED_FOLDER, unfinished, first_splits)


def _is_merged(name: str) -> bool:
    first, last = epochs_of_finished_file(name)
    return first != last


def _read(store: CheckpointStore, name: str) -> bytes:
    data = store.read(name)
    if data is None:
        raise CheckpointError(f"The checkpoint file {name} was removed while it was read.", ONE_DRIVER)
    return bytes(data)
