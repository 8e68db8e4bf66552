"""The gap filter's decision by encoded keys, as the log reader takes it."""

import numpy as np
import numpy.typing as npt

from tidemark.readers.log.gap_filter import EncodedKeys, GapFilter, Int64s, Mask
from tidemark.state.table import TableId


def keep(
    gap_filter: GapFilter,
    table: TableId,
    encoded_keys: EncodedKeys | None,
    versions: Int64s,
    xids: Int64s | None = None,
) -> Mask:
    """A mask of the changes that are emitted."""
    finished_splits = gap_filter.finished_splits.get(table)
    if finished_splits is None:
        kept: npt.NDArray[np.bool_] = np.ones(len(versions), np.bool_)
        return kept
    return finished_splits.keep(None if encoded_keys is None else finished_splits.owners(encoded_keys), versions, xids)
