"""Items that a thread makes while the one before is in use."""

import contextlib
import threading
from collections.abc import Iterator

import pytest

from tidemark.sinks.mirror.ahead import ahead, ahead_if

WAIT_SECONDS = 30


class Numbers:
    """An iterator of 1, 2, 3 that tells which ones it has made, and fails instead of making `bad`."""

    def __init__(self, bad: int | None = None) -> None:
        self.made: list[int] = []
        self.threads: list[threading.Thread] = []
        self.is_made = {number: threading.Event() for number in (1, 2, 3)}
        self._bad = bad

    def __iter__(self) -> Iterator[int]:
        for number, event in self.is_made.items():
            self.made.append(number)
            self.threads.append(threading.current_thread())
            event.set()
            if number == self._bad:
                raise ValueError(f"{number} is bad")
            yield number


def test_the_next_item_is_made_while_one_is_in_use_and_no_further_one() -> None:
    numbers = Numbers()
    items = ahead(iter(numbers))
    for number in (1, 2):
        assert next(items) == number
        assert numbers.is_made[number + 1].wait(WAIT_SECONDS)
        numbers.threads[-1].join(WAIT_SECONDS)  # it has made what it was to make
        assert numbers.made == list(range(1, number + 2))
    assert list(items) == [3]
    assert not any(thread.is_alive() for thread in numbers.threads[1:])


def test_an_error_is_raised_once_in_the_place_of_its_item() -> None:
    numbers = Numbers(bad=3)
    items = ahead(iter(numbers))
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(ValueError, match="3 is bad"):
        next(items)
    assert list(items) == []


def test_an_error_of_an_item_that_nobody_asks_for_is_dropped() -> None:
    numbers = Numbers(bad=2)
    with pytest.raises(ConnectionError), contextlib.closing(ahead(iter(numbers))) as items:  # noqa: PT012
        assert next(items) == 1
        raise ConnectionError
    assert numbers.made == [1, 2]
    assert not numbers.threads[-1].is_alive()


def test_no_thread_is_started_for_one_item() -> None:
    numbers = Numbers()
    assert list(ahead_if(False, iter(numbers))) == [1, 2, 3]
    assert set(numbers.threads) == {threading.current_thread()}
