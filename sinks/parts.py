"""Splits a partition's items into parts, and checks that a part is complete before its sink may commit it."""

import itertools
from collections.abc import Iterable, Iterator

from tidemark.sinks.sink import SinkBusyError
from tidemark.state.change_batch import ChangeBatch, PartEnd, PartItem, PublishedFile, ReplacedRange
from tidemark.state.errors import SinkError
from tidemark.state.reached import Reached
from tidemark.state.table import TableId

_REPORT = "The epoch was not written. This is a bug of Tidemark or a damaged checkpoint: please report it."


class Part:
    """One part. `content` or `batches` may be called once. When it ends without an error, the part is complete. Then `after` is
    what the target must have before it, and `has_left` tells that a table of it has left the job (PartEnd).

    `replaced`: the range of a copy that the part's rows replace, None for none. It is known once the first batch was read, or
    the part is complete. `replaces`: the sink can do that."""

    def __init__(self, epoch: int, name: str, items: Iterator[PartItem], *, replaces: bool = False) -> None:
        self.epoch, self.name = epoch, name
        self.replaced: ReplacedRange | None = None
        self._replaces = replaces
        self.row_count = 0
        self.complete = False
        self.after: Reached | None = None
        self.has_left = False
        self._items = items
        self._batch_count = 0
        self._last_seq: int | None = None

    def __str__(self) -> str:
        return f"part {self.name} of epoch {self.epoch}"

    def batches(self) -> Iterator[ChangeBatch]:
        """Yields the batches, for sinks that don't take files. Raises as `content` does."""
        for item in self.content():
            if isinstance(item, PublishedFile):
                raise SinkError(f"{self} is the file {item.name}, which this sink can't take.", _REPORT)
            yield item

    def content(self) -> Iterator[ChangeBatch | PublishedFile]:
        """Yields batches and files. Raises SinkBusyError if the input ends too early, SinkError if it is inconsistent."""
        for item in self._items:
            self._check_order(item)
            if isinstance(item, PartEnd):
                self._check_end(item)
                self.complete, self.after, self.has_left = True, item.after, item.has_left
                return
            self._batch_count += 1
            if isinstance(item, ReplacedRange):
                self._replace(item)
                continue
            self.row_count += item.row_count if isinstance(item, PublishedFile) else item.rows.num_rows
            yield item
        raise SinkBusyError(
            f"The input of {self} ended before its last row; nothing of it was written.",
            "The reader's error, earlier in the log, says why. Start the job again.",
        )

    def _replace(self, item: ReplacedRange) -> None:
        if not self._replaces or self._batch_count > 1:
            raise SinkError(f"{self} replaces a range of a copy, which this sink can't do here.", _REPORT)
        self.replaced = item

    def read_to_end(self) -> None:
        """Reads the remaining items without using them."""
        if not self.complete:
            for _ in self.content():
                pass

    def _check_order(self, item: PartItem) -> None:
        if (item.epoch, item.part) != (self.epoch, self.name):
            raise SinkError(f"{self} is followed by {item.part} of epoch {item.epoch} without an end.", _REPORT)
        if self._last_seq is not None and item.seq <= self._last_seq:
            raise SinkError(f"Batch {item.seq} of {self} comes after batch {self._last_seq}.", _REPORT)
        self._last_seq = item.seq

    def _check_end(self, end: PartEnd) -> None:
        if end.row_count != self.row_count or end.seq != self._batch_count:
            raise SinkError(
                f"{self} has {self.row_count} rows in {self._batch_count} batches, "
                f"its end says {end.row_count} rows in {end.seq} batches.",
                _REPORT,
            )


def parts_of(items: Iterable[PartItem], *, replaces: bool = False) -> Iterator[Part]:
    """Yields the parts. Each one must be read to its end before the next one is requested. `replaces`: the sink can replace
    ranges of a copy."""
    source = iter(items)
    for first in source:
        # No generator with `yield from`: closing that would close the whole input.
        part = Part(first.epoch, first.part, itertools.chain([first], source), replaces=replaces)
        yield part
        if not part.complete:
            raise RuntimeError(f"{part} was not read to its end")


def check_repeated_part(part: Part, recorded_row_count: int) -> None:
    """Raises SinkError if a part that the ledger has does not have the recorded number of rows. Rows of a table that has left
    the job are not asked for."""
    if part.row_count != recorded_row_count and not part.has_left:
        raise SinkError(
            f"{part} has {part.row_count} rows now, but had {recorded_row_count} when it was written.", _REPORT
        )


def check_repeated_table(part: Part, table: TableId, row_count: int, recorded: int) -> None:
    """Raises SinkError if a table of which the ledger has the part's changes does not have the recorded number of them."""
    if row_count != recorded:
        raise SinkError(
            f"{part} has {row_count} changes of {table} now, but had {recorded} when they were written.", _REPORT
        )
