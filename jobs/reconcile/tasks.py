"""How ranges of a table become tasks of Spark."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from tidemark.jobs.reconcile.folding_tasks import FoldedBucket, FoldingBuckets, HashingFiles, Work
    from tidemark.jobs.reconcile.range_looks import TableLook

Item = TypeVar("Item")
Result = TypeVar("Result")
RANGES_OF_A_TASK = 4


class RunsTasks(Protocol):
    def __call__(
        self,
        look: "TableLook",
        function: Callable[[Iterable[Sequence[Item]]], Iterable[Result]],
        tasks: Sequence[Sequence[Item]],
    ) -> list[Result]:
        """Returns what the function yields for the items of each task, for all of them or for the first ones. Spark runs the
        tasks. `look`: at the table. Raises TidemarkError."""


class RunsFolding(Protocol):
    def __call__(
        self,
        look: "TableLook",
        hashing: "HashingFiles",
        work: "Sequence[Work]",
        later: "Callable[[], Sequence[Work]]",
        buckets: int,
        folding: "FoldingBuckets",
    ) -> "list[FoldedBucket]":
        """Returns what `folding` finds in each bucket of what `hashing` yields for the work of each task. `later`: asked for
        more once all of `work` is done. Spark runs the tasks. Raises TidemarkError."""


def dealt(items: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """Returns the items of at most `count` tasks."""
    return [items[i::count] for i in range(min(count, len(items)))]
