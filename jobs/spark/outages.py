"""Outages that tasks on executors meet. An accumulator brings them to the driver when a task ends."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from pyspark import Accumulator, AccumulatorParam, SparkContext

from tidemark.conf.reconnect import Began, Ended, outages_told_to

Outage: TypeAlias = Began | Ended
Task = TypeVar("Task")
Result = TypeVar("Result")


class _Outages(AccumulatorParam[tuple[Outage, ...]]):
    def zero(self, value: tuple[Outage, ...]) -> tuple[Outage, ...]:
        return ()

    def addInPlace(self, value1: tuple[Outage, ...], value2: tuple[Outage, ...]) -> tuple[Outage, ...]:  # noqa: N802
        return (*value1, *value2)


@dataclass(frozen=True, slots=True)
class ToldByTasks:
    """Pickled with the tasks. Within `collected`, an executor's worker collects the outages that it sees."""

    found: Accumulator[tuple[Outage, ...]]

    def collected(self) -> AbstractContextManager[None]:
        return outages_told_to(lambda outage: self.found.add((outage,)))


@dataclass(frozen=True, slots=True)
class Collecting(Generic[Task, Result]):
    """The function of a Spark job, and the outages that its tasks see."""

    function: Callable[[Iterable[Task]], Iterable[Result]]
    told: ToldByTasks

    def __call__(self, tasks: Iterable[Task]) -> Iterator[Result]:
        with self.told.collected():
            yield from self.function(tasks)


class TaskOutages:
    """One per session. `told_by_tasks` goes with the tasks."""

    def __init__(self, context: SparkContext) -> None:
        self.told_by_tasks = ToldByTasks(context.accumulator((), _Outages()))
        self._told = 0

    def tell(self, tell: Callable[[Outage], None]) -> None:
        """Tells what came since the last call. Of tasks that met the same outage, one is told: the longest."""
        new = self.told_by_tasks.found.value[self._told :]
        self._told += len(new)
        for server in dict.fromkeys(outage.server for outage in new):
            began = [o for o in new if isinstance(o, Began) and o.server == server]
            ended = [o for o in new if isinstance(o, Ended) and o.server == server]
            for first in began[:1]:
                tell(first)
            if ended:
                tell(max(ended, key=lambda outage: outage.seconds))
