"""The gap filter's decision by ranks, as the log's reader takes it."""

import numpy as np
import numpy.typing as npt

from readers.gap_filter import GapFilter, Int64s, Mask, Ranks
from state.table import TableId


def keep(
    gap_filter: GapFilter, table: TableId, ranks: Ranks | None, versions: Int64s, xids: Int64s | None = None
) -> Mask:
    """Which changes are emitted."""
    routes = gap_filter.routes.get(table)
    if routes is None:
        kept: npt.NDArray[np.bool_] = np.ones(len(versions), np.bool_)
        return kept
    return routes.keep(None if ranks is None else routes.owners(ranks), versions, xids)
