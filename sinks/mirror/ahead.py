"""Makes the next item while the present one is in use: the client's work and that of the target's server overlap."""

import threading
from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


def ahead_if(several: bool, items: Iterator[T]) -> Generator[T, None, None]:
    """Returns `ahead(items)` if there are several: for one, a thread would cost more than it saves."""
    return ahead(items) if several else (item for item in items)


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """Yields the items. Meanwhile a thread makes the next item, and only that one.

    What `items` raises is raised where the item would be. The thread is at work until the next item is asked for, or until the
    iterator is closed: use `contextlib.closing`. Then an error of the thread is dropped, as nobody has asked for its item.
    The end of the process does not wait for it.
    """
    call = _Call(items)
    call.run()
    while (item := call.result()) is not None:
        call = _Call(items)
        thread = threading.Thread(target=call.run, name="chunk-ahead", daemon=True)
        thread.start()
        try:
            yield item
        finally:
            thread.join()


class _Call(Generic[T]):
    """One call of `next`. Its result is None at the end of the items, which are never None."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._item: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._item = next(self._items, None)
        except BaseException as error:  # noqa: BLE001 -- raised again by the thread that asked
            self._error = error

    def result(self) -> T | None:
        if self._error is not None:
            raise self._error
        return self._item
