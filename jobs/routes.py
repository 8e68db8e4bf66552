"""The gap filter's segments in the checkpoint: one file an epoch, merged when they become many.

`routes/e<epoch>` holds the splits that one epoch finished, `routes/m<first>-<last>` those of several. A merged file stands
for the single ones it covers, which may still be there after a crash.
"""

from collections.abc import Iterable, Sequence

from readers.gap_filter import GapFilter, merge_segments
from readers.gap_filter import write_segment as segment_of
from state.errors import CheckpointError
from state.split import Report, Split
from state.store import CheckpointStore
from state.table import TableId

_FOLDER = "routes"
_MERGE_AT = 256


def write_segment(store: CheckpointStore, epoch: int, splits: Sequence[Split], reports: Iterable[Report]) -> None:
    """Makes a committed epoch's splits durable for the gap filter. Only the planner calls it, also twice for an epoch."""
    store.create(f"{_FOLDER}/e{epoch:010d}", segment_of(splits, reports))
    single = [name for name in segment_names(store) if name.startswith(f"{_FOLDER}/e")]
    if len(single) >= _MERGE_AT:
        merged = merge_segments([_read(store, name) for name in single], _FOLDER)
        first, last = single[0].removeprefix(f"{_FOLDER}/e"), single[-1].removeprefix(f"{_FOLDER}/e")
        store.create(f"{_FOLDER}/m{first}-{last}", merged)
    live = set(segment_names(store))
    for name in store.list(_FOLDER):
        if name not in live:
            store.delete(name)


def segment_names(store: CheckpointStore) -> list[str]:
    """The files that count: merged ones, and single ones that no merged one covers."""
    names = store.list(_FOLDER)
    covered: list[tuple[int, int]] = []
    for name in names:
        if name.startswith(f"{_FOLDER}/m"):
            first, _, last = name.removeprefix(f"{_FOLDER}/m").partition("-")
            covered.append((int(first), int(last)))
    return [
        name
        for name in names
        if name.startswith(f"{_FOLDER}/m")
        or not any(first <= int(name.removeprefix(f"{_FOLDER}/e")) <= last for first, last in covered)
    ]


def load_gap_filter(store: CheckpointStore, tables: Iterable[TableId]) -> GapFilter:
    """Raises CheckpointError unless the segments hold `tables`, each with its whole key."""
    names = segment_names(store)
    return GapFilter.from_segments([_read(store, name) for name in names], tables, _FOLDER)


def forget_routes(store: CheckpointStore) -> None:
    """With the points, once the log has passed all highs."""
    for folder in (_FOLDER, "points"):
        for name in store.list(folder):
            store.delete(name)


def _read(store: CheckpointStore, name: str) -> bytes:
    data = store.read(name)
    if data is None:
        raise CheckpointError(
            f"The checkpoint file {name} vanished.", "Only one driver may run a job: stop the others."
        )
    return bytes(data)
